//! Asking sentinels, all at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::choice::{Choice, Opinion, agreed, latest};
use crate::backend::StoreError;
use crate::backend::redis::answers::{nonsense, text};
use crate::backend::redis::connection::{Connection, server_error};
use crate::backend::redis::errors::{describe, refusal};
use crate::backend::redis::location::{Address, Location};
use crate::backend::url::Host;

/// So long are the others awaited once one has answered: who is slow gets a hearing, and who hangs costs no more.
const OTHERS_WITHIN: Duration = Duration::from_millis(250);

/// What a sentinel answers.
pub(in crate::backend::redis) enum SentinelReply {
    /// It knows the service; and what it answers to the questions that come after that for the master's address.
    Knows(Opinion, Vec<Value>),
    /// It does not, but these.
    KnowsOthers(Vec<String>),
}

/// Asks all of them: whom more than half of them name as soon as they have; otherwise, when all have answered or the
/// rest takes too long, whom the latest fail-over has made the master.
///
/// # Errors
/// None of them can be asked, or none knows the service.
pub(super) async fn ask_all(
    location: Location,
    sentinels: Vec<Host>,
    service: String,
) -> Result<Choice, StoreError> {
    let listed = sentinels.len();
    let mut asked = JoinSet::new();
    for sentinel in sentinels {
        let (location, service) = (location.clone(), service.clone());
        asked.spawn(async move {
            let answer = ask(&location, &sentinel, &service, &[]).await;
            (sentinel, answer)
        });
    }
    let (mut opinions, mut others, mut failures) = (Vec::new(), None::<BTreeSet<String>>, Vec::new());
    let mut until = None;
    loop {
        let next = match until {
            None => asked.join_next().await,
            Some(until) => timeout_at(until, asked.join_next()).await.unwrap_or(None),
        };
        match next {
            None => break,
            Some(Err(_)) => continue,
            Some(Ok((sentinel, Err(error)))) => failures.push((sentinel, error)),
            Some(Ok((_, Ok(answer)))) => {
                match answer {
                    SentinelReply::Knows(opinion, _) => opinions.push(opinion),
                    SentinelReply::KnowsOthers(names) => others.get_or_insert_default().extend(names),
                }
                until.get_or_insert_with(|| Instant::now() + OTHERS_WITHIN);
            }
        }
        if let Some(choice) = agreed(&opinions, listed) {
            return Ok(choice);
        }
    }
    latest(&opinions).ok_or_else(|| match others {
        Some(others) => unknown(&service, others),
        None => none_can_be_asked(failures),
    })
}

fn unknown(service: &str, others: BTreeSet<String>) -> StoreError {
    let others: Vec<String> = others.into_iter().collect();
    let known = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    StoreError::Config(format!("the sentinels know no service '{service}' (known: {known})"))
}

/// A refusal counts for more than a failure: trying again does not help then.
fn none_can_be_asked(failures: Vec<(Host, StoreError)>) -> StoreError {
    let tell = |failures: &[(Host, StoreError)]| -> String {
        failures.iter().map(|(host, error)| format!("{host}: {error}")).collect::<Vec<_>>().join("; ")
    };
    let of_kind = |is_one: fn(&StoreError) -> bool| -> Vec<(Host, StoreError)> {
        failures.iter().filter(|(_, error)| is_one(error)).cloned().collect()
    };
    let config = of_kind(|error| matches!(error, StoreError::Config(_)));
    let denied = of_kind(|error| matches!(error, StoreError::Denied(_)));
    match (config.as_slice(), denied.as_slice()) {
        ([], []) => {
            StoreError::unreachable(format!("none of the sentinels can be asked ({})", tell(&failures)))
        }
        ([], denied) => StoreError::Denied(format!("sentinel {}", tell(denied))),
        (config, _) => StoreError::Config(format!("sentinel {}", tell(config))),
    }
}

/// Asks one of them for the master, for what it knows of it, and for `more` about the service, in one flight.
///
/// # Errors
/// It cannot be asked, or refuses.
pub(in crate::backend::redis) async fn ask(
    location: &Location,
    sentinel: &Host,
    service: &str,
    more: &[&str],
) -> Result<SentinelReply, StoreError> {
    let address = Address::Tcp(sentinel.clone());
    let mut connection = Connection::open_to_sentinel(location, &address).await?;
    let questions = ["get-master-addr-by-name", "master"];
    let questions: Vec<Cmd> = questions.iter().chain(more).map(|question| about(question, service)).collect();
    let answers = connection.greet_and_ask_all(&questions).await?;
    let [master, details, ..] = answers.as_slice() else { return Err(nonsense()) };
    if let Some(error) = server_error(master) {
        return Err(match error.details().unwrap_or_default().starts_with("unknown command") {
            true => StoreError::Config(format!("no sentinel listens there ({})", describe(error))),
            false => refusal(error, true),
        });
    }
    let Value::Array(master) = master else {
        let (_, known) = connection.exchange(&[], &redis::cmd("SENTINEL").arg("masters").clone()).await?;
        return Ok(SentinelReply::KnowsOthers(names(&known)));
    };
    let port = text(master.get(1)).and_then(|port| port.parse::<u16>().ok());
    let (Some(name), Some(port)) = (text(master.first()).filter(|name| !name.is_empty()), port) else {
        return Err(nonsense());
    };
    let epoch = field(details, "config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let master = Address::Tcp(Host { name: name.to_owned(), port: Some(port) });
    Ok(SentinelReply::Knows(Opinion { master, epoch }, answers[1..].to_vec()))
}

fn about(question: &str, service: &str) -> Cmd {
    let mut command = redis::cmd("SENTINEL");
    command.arg(question).arg(service);
    command
}

/// What is in a list.
pub(in crate::backend::redis) fn items(list: &Value) -> &[Value] {
    match list {
        Value::Array(items) => items,
        _ => &[],
    }
}

/// The value of one field of a description: names and values, one after the other.
pub(in crate::backend::redis) fn field<'a>(description: &'a Value, name: &str) -> Option<&'a str> {
    let mut pairs = items(description).chunks_exact(2);
    pairs.find(|pair| text(pair.first()) == Some(name)).and_then(|pair| text(pair.get(1)))
}

fn names(masters: &Value) -> Vec<String> {
    items(masters).iter().filter_map(|master| field(master, "name").map(str::to_owned)).collect()
}
