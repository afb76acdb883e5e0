//! `dlock doctor`: checks the bucket, what the store makes of conditions, and what locks in it cost.

use std::slice::from_ref;
use std::time::Duration;

use super::bucket::Bucket;
use super::store::contender;
use crate::backend::StoreError;
use crate::backend::diagnosis::{Answer, Diagnosis, Finding, Question};
use crate::backend::ledger::dated::doctor::{Conditions, free_after_crash, give_up, reserve, try_out};
use crate::backend::ledger::polling::{CLOCK_LAG, PAUSE};
use crate::backend::net::aws::{HOURS, Place, element, elements, remedies};
use crate::backend::net::http::examination::host_clock;
use crate::backend::net::reachability::{Remedies, Server, Servers};
use crate::duration::show;
use crate::lock::DEFAULT_TTL;

const REMEDIES: Remedies =
    remedies("bucket", "check the name of the bucket, region=, endpoint= and path_style=");
const CONDITIONS: Conditions = Conditions {
    honoured: "If-Match and If-None-Match are honoured",
    current: "a write with the current If-Match fails",
    stale: "a write with a stale If-Match succeeds",
    anew: "a write with If-None-Match: * succeeds although the object exists",
    another: "use a store that documents atomic conditional writes (If-Match and If-None-Match for PutObject), as AWS does",
};
/// AWS's prices of 1,000 requests in us-east-1, in US dollars (<https://aws.amazon.com/s3/pricing/>, 2026): of writing, ...
const WRITES: f64 = 0.005;
/// ... and of reading.
const READS: f64 = 0.0004;

impl Bucket {
    /// Checks the bucket, and reports the findings to `diagnosis`.
    ///
    /// # Errors
    /// A configured file cannot be used, or the store fails during the checks.
    pub(super) async fn examine_bucket(&self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let location = &self.location;
        let Place { route, name, region, prefix, .. } = &location.place;
        let (addresses, security) = (from_ref(&route.address), &route.security);
        let servers = Servers { addresses, security, remedies: &REMEDIES, fewer: "" };
        let log_in = async |mut server: Server<'_>| {
            let http = server.open_http(route, "/").await?;
            let bucket = async {
                let mut bucket = Bucket::with(http, location);
                bucket.listing("max-keys=1").await?;
                route.recognize();
                Ok(bucket)
            };
            server.log_in("bucket", bucket).await
        };
        let Some((_, mut bucket)) = servers.log_in(diagnosis, log_in).await?.pop() else { return Ok(()) };
        diagnosis.found(Finding::ok("bucket", format!("{name} in {region}")));
        diagnosis.found(Finding::ok("credentials", format!("from {}", bucket.client.source())));
        properties(&mut bucket, diagnosis).await;
        answers(diagnosis);
        cost(diagnosis);
        let key = |number| format!("{prefix}dlock-doctor-{number}.probe");
        let Some(number) = reserve(&mut bucket, key, diagnosis).await? else { return Ok(()) };
        let tried = bucket.try_locks(&key(number), number, diagnosis).await;
        give_up(&mut bucket, &key(number)).await;
        tried
    }

    /// Tries conditional writes with a scratch value, and then the scratch lock with this number.
    async fn try_locks(&mut self, key: &str, number: u64, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        if !CONDITIONS.check(self, key, diagnosis).await?
            || !CONDITIONS.race(|| self.twin(), key, diagnosis).await?
        {
            return Ok(());
        }
        clock(self, key, diagnosis).await?;
        let location = self.location.clone();
        try_out(self, key, number, || contender(&location), diagnosis).await
    }
}

/// Reports what of the bucket's configuration makes locks expensive. A server that lacks such a configuration, or a user who may
/// not read it, is no fault of the locks.
async fn properties(bucket: &mut Bucket, diagnosis: &Diagnosis) {
    diagnosis.begin("versioning");
    let versioning = bucket.query("versioning", "s3:GetBucketVersioning").await;
    let is_versioned = versioning.map(|xml| element(&xml, "Status").as_deref() == Some("Enabled"));
    let lifecycle = bucket.query("lifecycle", "s3:GetLifecycleConfiguration").await.unwrap_or_default();
    let expire = elements(&lifecycle, "Rule").any(|rule| {
        rule.contains("<NoncurrentVersionExpiration>") && rule.contains("<Status>Enabled</Status>")
    });
    diagnosis.found(match is_versioned {
        Ok(true) if !expire => Finding::warning(
            "versioning",
            "the bucket keeps all versions of its objects",
            format!(
                "a lock that is held for a day with --ttl {} leaves {:.0} versions, each of which is paid for",
                show(DEFAULT_TTL),
                3.0 * 86_400.0 / DEFAULT_TTL.as_secs_f64()
            ),
            "add a lifecycle rule that expires noncurrent versions after a day, or use another bucket",
        ),
        Ok(true) => Finding::ok("versioning", "noncurrent versions expire"),
        Ok(false) => Finding::ok("versioning", "the bucket keeps no versions"),
        Err(error) => Finding::warning(
            "versioning",
            format!("unknown: {error}"),
            "each renewal may leave a version that is paid for",
            "grant s3:GetBucketVersioning, see dlock doctor --policy",
        ),
    });
    let locks = bucket.query("object-lock", "s3:GetBucketObjectLockConfiguration").await.unwrap_or_default();
    if locks.contains("<DefaultRetention>") {
        diagnosis.found(Finding::warning(
            "retention",
            "the bucket retains each version by default (Object Lock)",
            "the versions that renewals leave cannot be removed for that time, and are paid for",
            "use a bucket without a default retention",
        ));
    }
}

/// Reports whether the clocks that count agree: those of the store, in a reply right after a write, and that of this host.
async fn clock(bucket: &mut Bucket, key: &str, diagnosis: &Diagnosis) -> Result<(), StoreError> {
    diagnosis.begin("clock");
    let reply = bucket.get(key, None).await?;
    let (date, modified) = (reply.server_time()?, reply.time("last-modified").unwrap_or_default());
    let difference = date.abs_diff(modified);
    diagnosis.found(if difference > CLOCK_LAG {
        let shown = show(Duration::from_secs(difference.as_secs()));
        Finding::problem(
            "clock",
            format!("the store's clocks differ: an object was written {shown} from its Date"),
            "a lease may end before its holder has been stopped, or long after",
            "synchronize the clocks of the store's servers (NTP), and name one without a cache in between",
        )
    } else {
        let refused = "requests are refused when the difference exceeds 15m";
        host_clock(date, "store", refused, ", and the store writes by the clock that it shows")
    });
    Ok(())
}

fn answers(diagnosis: &Diagnosis) {
    let loss = "if the object is deleted or an older version is restored, or if a server that copies the bucket elsewhere \
                asynchronously takes over; S3 itself acknowledges a write when several data centres have it";
    diagnosis.answer(Question::Loss, Answer::new("yes", loss));
    let found = "S3 is strongly consistent: all of its servers reply alike; name one bucket, no access point of several regions";
    diagnosis.answer(Question::OneServer, Answer::new("yes", found));
    let clock =
        format!("the store's clock, as its replies show it in whole seconds (Date); {}", free_after_crash());
    diagnosis.answer(Question::LeaseClock, Answer::new("server", clock));
}

/// Reports the requests of a holder and of a waiter, and what AWS charges for them.
fn cost(diagnosis: &Diagnosis) {
    let renewals = 3.0 * 3600.0 / DEFAULT_TTL.as_secs_f64();
    let reads = 3600.0 / (PAUSE.as_secs_f64() * 1.5);
    let holder = renewals * HOURS * (WRITES + READS) / 1000.0;
    let waiter = reads * HOURS * READS / 1000.0;
    diagnosis.found(Finding::ok(
        "cost",
        format!(
            "with --ttl {} a holder sends {:.0} requests an hour and the first waiter {reads:.0}, those behind it fewer: \
             ${holder:.2} and ${waiter:.2} for a month of holding or waiting, at AWS's prices",
            show(DEFAULT_TTL),
            renewals * 2.0
        ),
    ));
}
