//! Queries sentinels, all of them concurrently.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value, from_redis_value_ref};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::choice::{Opinion, agreed, latest};
use crate::backend::net::Address;
use crate::backend::redis::connection::{Connection, server_error};
use crate::backend::redis::errors::{describe, is_unknown_command, refusal};
use crate::backend::redis::location::Location;
use crate::backend::redis::reply::nonsense;
use crate::backend::url::Host;
use crate::backend::{Outlook, StoreError};

/// How long to wait for the other sentinels after the first reply: slow ones are still considered, and hanging ones
/// cost no more.
const STRAGGLER_LIMIT: Duration = Duration::from_millis(250);

pub enum SentinelReply {
    /// It monitors the service. The values are its replies to the requests after that for the master's address.
    Knows(Opinion, Vec<Value>),
    /// It does not monitor the service, but these.
    KnowsOthers(Vec<String>),
}

/// What is known of the master, and whether more than half of the listed sentinels name it.
pub(super) type Agreed = Result<(Opinion, bool), StoreError>;

/// Queries all sentinels. Returns the master that more than half of them name as soon as they do; otherwise, when all
/// have replied or the rest takes too long, the master of the latest fail-over. Also returns whether more than half name it.
///
/// # Errors
/// None of them can be queried, or none monitors the service.
pub(super) async fn query_all(location: Location, sentinels: Vec<Host>, service: String) -> Agreed {
    let listed = sentinels.len();
    let mut queries = JoinSet::new();
    for sentinel in sentinels {
        let (location, service) = (location.clone(), service.clone());
        queries.spawn(async move {
            let reply = query(&location, &sentinel, &service, &[]).await;
            (sentinel, reply)
        });
    }
    let (mut opinions, mut others, mut failures) = (Vec::new(), None::<BTreeSet<String>>, Vec::new());
    let mut deadline = None;
    loop {
        let next = match deadline {
            None => queries.join_next().await,
            Some(deadline) => timeout_at(deadline, queries.join_next()).await.unwrap_or(None),
        };
        match next {
            None => break,
            Some(Err(_)) => continue,
            Some(Ok((sentinel, Err(error)))) => failures.push((sentinel, error)),
            Some(Ok((_, Ok(reply)))) => {
                match reply {
                    SentinelReply::Knows(opinion, _) => opinions.push(opinion),
                    SentinelReply::KnowsOthers(names) => others.get_or_insert_default().extend(names),
                }
                deadline.get_or_insert_with(|| Instant::now() + STRAGGLER_LIMIT);
            }
        }
        if let Some(opinion) = agreed(&opinions, listed) {
            return Ok((opinion.clone(), true));
        }
    }
    match latest(&opinions) {
        Some(opinion) => Ok((opinion.clone(), false)),
        None => Err(none_knows(&service, others, failures)),
    }
}

/// Returns the error for sentinels of which none monitors the service: those that replied monitor `others`.
pub fn none_knows(
    service: &str,
    others: Option<BTreeSet<String>>,
    failures: Vec<(Host, StoreError)>,
) -> StoreError {
    let Some(others) = others else { return none_reachable(failures) };
    let others: Vec<String> = others.into_iter().collect();
    let known = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
    StoreError::Config(format!("the sentinels do not know the service '{service}' (known: {known})"))
}

/// An error that a retry does not fix takes precedence over a failure.
fn none_reachable(failures: Vec<(Host, StoreError)>) -> StoreError {
    let format_all = |failures: &[(Host, StoreError)]| -> String {
        failures.iter().map(|(host, error)| format!("{host}: {error}")).collect::<Vec<_>>().join("; ")
    };
    let matching = |matches: fn(&StoreError) -> bool| -> Vec<(Host, StoreError)> {
        failures.iter().filter(|(_, error)| matches(error)).cloned().collect()
    };
    let config = matching(|error| matches!(error, StoreError::Config(_) | StoreError::OtherServer { .. }));
    let denied = matching(|error| matches!(error, StoreError::Denied(_)));
    match (config.as_slice(), denied.as_slice()) {
        ([], []) => {
            let reason = format!("none of the sentinels can be asked ({})", format_all(&failures));
            let is_permanent = failures.iter().all(|(_, error)| error.outlook() == Outlook::Permanent);
            let outlook = if is_permanent { Outlook::Permanent } else { Outlook::Unknown };
            StoreError::Unavailable { reason, maybe_applied: false, outlook }
        }
        ([], denied) => StoreError::Denied(format!(
            "sentinel {}; sentinels have a password of their own, sentinel_password_file=",
            format_all(denied)
        )),
        (config, _) => StoreError::Config(format!("sentinel {}", format_all(config))),
    }
}

/// Queries one sentinel for the master, for its details, and for `more` about the service, in one round trip.
///
/// # Errors
/// It cannot be queried, or rejects the query.
pub async fn query(
    location: &Location,
    sentinel: &Host,
    service: &str,
    more: &[&str],
) -> Result<SentinelReply, StoreError> {
    let address = Address::Tcp(sentinel.clone());
    let mut connection = Connection::open_to_sentinel(location, &address).await?;
    let requests = ["get-master-addr-by-name", "master"];
    let requests: Vec<Cmd> =
        requests.iter().chain(more).map(|subcommand| command_about(subcommand, service)).collect();
    let replies = connection.request_all_raw(&requests).await?;
    let [master, details, ..] = replies.as_slice() else { return Err(nonsense()) };
    if let Some(error) = server_error(master) {
        return Err(match is_unknown_command(error) {
            true => StoreError::Config(format!("no sentinel listens there ({})", describe(error))),
            false => refusal(error, true),
        });
    }
    let (name, port) = match from_redis_value_ref::<Option<(String, u16)>>(master) {
        Ok(Some((name, port))) if !name.is_empty() => (name, port),
        Ok(None) => {
            let known = connection.request_raw(&redis::cmd("SENTINEL").arg("masters").clone()).await?;
            return Ok(SentinelReply::KnowsOthers(names(&known)));
        }
        _ => return Err(nonsense()),
    };
    let details: HashMap<String, String> = read(details);
    let epoch = details.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
    let master = Address::Tcp(Host { name, port: Some(port) });
    Ok(SentinelReply::Knows(Opinion { master, epoch }, replies[1..].to_vec()))
}

fn command_about(subcommand: &str, service: &str) -> Cmd {
    redis::cmd("SENTINEL").arg(subcommand).arg(service).clone()
}

/// Reads a part of a reply; nothing if it is something else. A description of a server is a list of alternating names
/// and values.
pub fn read<T: FromRedisValue + Default>(value: &Value) -> T {
    from_redis_value_ref(value).unwrap_or_default()
}

fn names(masters: &Value) -> Vec<String> {
    read::<Vec<HashMap<String, String>>>(masters)
        .iter()
        .filter_map(|master| master.get("name").cloned())
        .collect()
}
