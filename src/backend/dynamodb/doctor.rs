//! `dlock doctor`: checks the table, or creates it, what the store makes of conditions, and what locks in it cost.

use std::slice::from_ref;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::location::{Location, Recipe};
use super::store::contender;
use super::table::{Answer as Reply, Table};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question};
use crate::backend::ledger::dated::Dated;
use crate::backend::ledger::dated::doctor::{Conditions, free_after_crash, give_up, reserve, try_out};
use crate::backend::ledger::polling::{CLOCK_LAG, PAUSE};
use crate::backend::net::aws::{HOURS, Place, remedies};
use crate::backend::net::http::examination::host_clock;
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::duration::show;
use crate::lock::DEFAULT_TTL;

const REMEDIES: Remedies =
    remedies("table", "run dlock doctor --init, or check the name of the table, region= and endpoint=");
const CONDITIONS: Conditions = Conditions {
    honoured: "ConditionExpression is honoured",
    current: "a write that expects the current version fails",
    stale: "a write that expects an old version succeeds",
    anew: "a write that expects no item succeeds although there is one",
    another: "use a store that evaluates ConditionExpression and writes in one step, as AWS does",
};
/// How long a new table may take until it is active, and how often that is looked up.
const CREATED_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(500);
/// AWS's prices of a million request units in us-east-1, in US dollars (<https://aws.amazon.com/dynamodb/pricing/on-demand/>,
/// 2026): of writing 1 KB, ...
const WRITES: f64 = 0.625;
/// ... and of reading 4 KB consistently.
const READS: f64 = 0.125;

impl Table {
    /// Checks the table, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used, or the store fails during the checks.
    pub(super) async fn examine_table(&self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = &self.location;
        let Place { route, name, region, prefix, .. } = &location.place;
        let (addresses, security) = (from_ref(&route.address), &route.security);
        let servers = Servers { addresses, security, remedies: &REMEDIES, fewer: "" };
        let log_in = async |mut server: Server<'_>| {
            let http = server.open_http(route, "/").await?;
            let table = async {
                let mut table = Table::with(http, location);
                if diagnosis.creates() {
                    create(&mut table, location, diagnosis).await?;
                }
                table.open().await?;
                Ok(table)
            };
            server.log_in("table", table).await
        };
        let Some((_, mut table)) = servers.log_in(diagnosis, log_in).await?.pop() else { return Ok(()) };
        let found = format!("{name} in {region}, with the key {}", table.attribute().await?);
        diagnosis.found(Finding::ok("table", found));
        diagnosis.found(Finding::ok("credentials", format!("from {}", table.client.source())));
        if !expiry(&mut table, location, diagnosis).await {
            return Ok(());
        }
        answers(location.recipe, diagnosis);
        cost(location.recipe, diagnosis);
        let key = |number| format!("{prefix}dlock-doctor-{number}%probe");
        let Some(number) = reserve(&mut table, key, diagnosis).await? else { return Ok(()) };
        let tried = table.try_locks(&key(number), number, diagnosis).await;
        give_up(&mut table, &key(number)).await;
        tried
    }

    /// Tries conditional writes with a scratch value, and then the scratch lock with this number.
    async fn try_locks(&mut self, key: &str, number: u64, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        if !CONDITIONS.check(self, key, diagnosis).await?
            || !CONDITIONS.race(|| self.twin(), key, diagnosis).await?
        {
            return Ok(());
        }
        diagnosis.begin("clock");
        let refused = "requests are refused when the difference exceeds 5m";
        diagnosis.found(host_clock(self.read(key).await?.time, "store", refused, ""));
        let location = self.location.clone();
        try_out(self, key, number, || contender(&location), diagnosis).await
    }
}

/// Creates the table if there is none, and waits until it can be used.
async fn create(table: &mut Table, location: &Location, diagnosis: &Diagnosis) -> Result<(), StoreError> {
    let body = json!({
        "TableName": location.place.name,
        "BillingMode": "PAY_PER_REQUEST",
        "KeySchema": [{ "AttributeName": "key", "KeyType": "HASH" }],
        "AttributeDefinitions": [{ "AttributeName": "key", "AttributeType": "S" }],
    });
    let is_missing = match table.describe().await? {
        None => true,
        Some(state) if state["TableStatus"] == "CREATING" => false,
        Some(_) => return Ok(()),
    };
    if is_missing {
        match table.ask("CreateTable", &body).await? {
            Reply::Done(..) => {}
            // Another doctor was faster.
            Reply::Refused(error, ..) if error == "ResourceInUseException" => {}
            refused => return Err(table.failure("CreateTable", refused).await),
        }
    }
    for _ in 0..CREATED_WITHIN.as_millis() / LOOK.as_millis() {
        diagnosis.begin("table");
        let state = table.describe().await?;
        if state.is_some_and(|state| state["TableStatus"] == "ACTIVE") {
            return Ok(());
        }
        sleep(LOOK).await;
    }
    Err(StoreError::unanswered(format!("the table is not active after {}", show(CREATED_WITHIN))))
}

/// Reports whether the table deletes items. Returns whether it may hold locks.
async fn expiry(table: &mut Table, location: &Location, diagnosis: &Diagnosis) -> bool {
    diagnosis.begin("expiry");
    let described = table.call("DescribeTimeToLive", &json!({ "TableName": location.place.name })).await;
    let attribute = described.map(|value| {
        let ttl = &value["TimeToLiveDescription"];
        let is_on = matches!(ttl["TimeToLiveStatus"].as_str(), Some("ENABLED" | "ENABLING"));
        is_on.then(|| ttl["AttributeName"].as_str().unwrap_or("unknown").to_owned())
    });
    let consequence = "an item in which this attribute is a number is deleted, with a held lock, its fencing tokens and its history";
    let finding = match attribute {
        Ok(None) => Finding::ok("expiry", "the table has no TTL attribute: its items stay"),
        Ok(Some(attribute)) => {
            diagnosis.found(Finding::problem(
                "expiry",
                format!("the table deletes items by their TTL attribute {attribute}"),
                consequence,
                "use a table without a TTL attribute (aws dynamodb update-time-to-live disables it)",
            ));
            return false;
        }
        Err(error) => Finding::warning(
            "expiry",
            format!("unknown: {error}"),
            consequence,
            "grant dynamodb:DescribeTimeToLive, see dlock doctor --policy",
        ),
    };
    diagnosis.found(finding);
    true
}

fn answers(recipe: Recipe, diagnosis: &Diagnosis) {
    let loss = "only if the item is deleted by hand, or the table is restored to an earlier time: DynamoDB acknowledges a write \
                when several data centres have it";
    diagnosis.answer(Question::Loss, Answer::new("no", loss));
    let found = "all reads are consistent, and a table without replicas in other regions, or with strongly consistent ones, \
                 replies alike everywhere; if the URL names one region of a global table, only that one";
    diagnosis.answer(Question::OneServer, Answer::new("yes", found));
    let foreign = match recipe {
        Recipe::Dlock => "",
        Recipe::LockClient => {
            "; that of a crashed program of AWS's lock client when a waiter has seen it unchanged for its lease duration, so that \
             --no-wait does not get it"
        }
    };
    let clock = format!(
        "the store's clock, as its replies show it in whole seconds (Date); writes are dated by the last reply and the time since, \
         with {} for whole seconds and for servers that differ: {}{foreign}",
        show(CLOCK_LAG),
        free_after_crash()
    );
    diagnosis.answer(Question::LeaseClock, Answer::new("server", clock));
}

/// Reports the request units of a holder and of a waiter, and what AWS charges for them.
fn cost(recipe: Recipe, diagnosis: &Diagnosis) {
    let items = match recipe {
        Recipe::Dlock => "item",
        Recipe::LockClient => "two items",
    };
    let renewals = 3.0 * 3600.0 / DEFAULT_TTL.as_secs_f64();
    let reads = 3600.0 / (PAUSE.as_secs_f64() * 1.5);
    let price = |an_hour: f64, of_a_million: f64| an_hour * HOURS * of_a_million / 1_000_000.0;
    diagnosis.found(Finding::ok(
        "cost",
        format!(
            "with --ttl {} a holder takes {renewals:.0} write request units an hour for each KB of the lock's {items}, and the first \
             waiter {reads:.0} read request units for each 4 KB, those behind it fewer: ${:.2} and ${:.2} for a month of \
             holding or waiting, at AWS's on-demand prices; 20 runs in the history take some 5 KB",
            show(DEFAULT_TTL),
            price(renewals, WRITES),
            price(reads, READS)
        ),
    ));
}
