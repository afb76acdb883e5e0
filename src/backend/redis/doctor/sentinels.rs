//! The checks of the sentinels of a service, and the master that they name.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;
use redis::Value;
use tokio::time::timeout;

use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding, no_lock, remedy_of};
use crate::backend::net::Address;
use crate::backend::redis::connection::server_error;
use crate::backend::redis::errors::describe;
use crate::backend::redis::location::Location;
use crate::backend::redis::sentinel::Sentinels;
use crate::backend::redis::sentinel::choice::{Opinion, agreed, latest};
use crate::backend::redis::sentinel::query::{SentinelReply, none_knows, query, read};
use crate::backend::url::Host;
use crate::duration::show;
use crate::exit::FailureKind;

/// How long a sentinel may take to reply, or to be recognized as a server of another kind. A sentinel that hangs is reported and
/// does not delay the others.
const REPLY_WITHIN: Duration = Duration::from_secs(2);
const REMEDY: &str = "check that the name and port are right, that it runs and listens there (bind), and its password \
                      (sentinel_password_file)";
/// With fewer sentinels than this, the failure of one prevents a fail-over.
const FEWEST: usize = 3;

/// The merged replies of all sentinels.
#[derive(Default)]
struct SentinelReport {
    opinions: Vec<Opinion>,
    /// What those monitor that do not know the service.
    others: Option<BTreeSet<String>>,
    failures: Vec<(Host, StoreError)>,
    /// The largest number of sentinels that any of them knows.
    known: usize,
    quorum: Option<String>,
    /// Why a fail-over cannot be authorized.
    no_quorum: Option<String>,
    /// The number of replicas, and how many of them are up.
    replicas: Option<(usize, usize)>,
}

/// Checks the sentinels. Returns the master, or `None` if no sentinel knows it.
///
/// # Errors
/// Their password file cannot be used.
pub(super) async fn examine(
    location: &Location,
    sentinels: &Sentinels,
    diagnosis: &Diagnosis,
) -> Result<Option<Address>, StoreError> {
    location.sentinel_credentials.password()?;
    diagnosis.begin("sentinels");
    let ask = async |sentinel: &Host| {
        let reply = query(location, sentinel, &sentinels.service, &["replicas", "ckquorum"]);
        let hangs = |_| Err(StoreError::unreachable(format!("no answer within {}", show(REPLY_WITHIN))));
        (sentinel.clone(), timeout(REPLY_WITHIN, reply).await.unwrap_or_else(hangs))
    };
    let replies = join_all(sentinels.hosts.iter().map(ask)).await;
    let mut report = SentinelReport::default();
    for (sentinel, reply) in replies {
        diagnosis.found(match reply {
            Ok(SentinelReply::Knows(opinion, details)) => {
                let found = Finding::ok("sentinels", format!("{sentinel} names {}", opinion.master));
                report.add(opinion, &details);
                found
            }
            Ok(SentinelReply::KnowsOthers(known)) => {
                let names = known.join(", ");
                let found =
                    format!("{sentinel} does not know service '{}' (known: {names})", sentinels.service);
                report.others.get_or_insert_default().extend(known);
                Finding::warning(
                    "sentinels",
                    found,
                    format!("if no sentinel knows it, {}", no_lock(FailureKind::Config)),
                    "use the name of the service in sentinel monitor, or remove this sentinel from the URL",
                )
            }
            Err(error) => {
                let (found, remedy) = match &error {
                    StoreError::OtherServer { found, .. } => (found.clone(), remedy_of(&error)),
                    error => (error.to_string(), REMEDY),
                };
                let consequence = "if more of them fail, a fail-over is neither performed nor noticed";
                let finding =
                    Finding::warning("sentinels", format!("{sentinel}: {found}"), consequence, remedy);
                report.failures.push((sentinel, error));
                finding
            }
        });
    }
    Ok(report.findings(sentinels, diagnosis))
}

impl SentinelReport {
    /// Adds one sentinel's reply about the service, its replicas, and whether a fail-over could be authorized.
    fn add(&mut self, opinion: Opinion, details: &[Value]) {
        self.opinions.push(opinion);
        let [master, replicas, quorum] = details else { return };
        let mut master: HashMap<String, String> = read(master);
        let others = master.get("num-other-sentinels").and_then(|count| count.parse::<usize>().ok());
        self.known = self.known.max(others.map_or(0, |others| others + 1));
        self.quorum = master.remove("quorum").or(self.quorum.take());
        self.no_quorum = server_error(quorum).map(describe).or(self.no_quorum.take());
        let is_up = |replica: &&HashMap<String, String>| {
            let mut flags = replica.get("flags").into_iter().flat_map(|flags| flags.split(','));
            !flags.any(|flag| flag.ends_with("_down") || flag == "disconnected")
        };
        let replicas: Vec<HashMap<String, String>> = read(replicas);
        let seen = (replicas.len(), replicas.iter().filter(is_up).count());
        self.replicas = self.replicas.max(Some(seen));
    }

    /// Reports the findings about all sentinels together. Returns the master.
    fn findings(self, sentinels: &Sentinels, diagnosis: &Diagnosis) -> Option<Address> {
        let listed = sentinels.hosts.len();
        let Some(latest) = latest(&self.opinions) else {
            let found = format!("no sentinel knows the master of '{}'", sentinels.service);
            let kind = none_knows(&sentinels.service, self.others, self.failures).failure_kind();
            diagnosis.found(Finding::problem("agreement", found, no_lock(kind), "see the findings above"));
            return None;
        };
        let agreed = agreed(&self.opinions, listed);
        let master = agreed.unwrap_or(latest).master.clone();
        let naming = self.opinions.iter().filter(|opinion| opinion.master == master).count();
        let found = format!("{naming} of {listed} sentinels name {master}");
        diagnosis.found(match (agreed, naming == self.opinions.len()) {
            (Some(_), true) => Finding::ok("agreement", found),
            (Some(_), false) => Finding::warning(
                "agreement",
                found,
                "the others are behind, or were cut off: their master is ignored",
                "wait for the fail-over to finish, and check again; see the log of the sentinels that name another master",
            ),
            (None, _) => Finding::problem(
                "agreement",
                format!("{found}, which is not a majority"),
                "dlock follows the sentinel that reports the latest fail-over, which may be wrong",
                "check that all sentinels run and can be reached from this host",
            ),
        });
        diagnosis.found(self.quorum(listed));
        diagnosis.found(self.replicas());
        Some(master)
    }

    fn quorum(&self, listed: usize) -> Finding {
        let quorum = self.quorum.as_deref().unwrap_or("unknown");
        let found =
            format!("{} sentinels, of which {quorum} have to agree that the master is down", self.known);
        if let Some(why) = &self.no_quorum {
            return Finding::problem(
                "quorum",
                why.clone(),
                "when the master fails, no other server takes over: locks can be neither acquired nor renewed",
                "start the sentinels that are missing",
            );
        }
        if self.known < FEWEST {
            return Finding::warning(
                "quorum",
                found,
                "when one of them is down, or cut off together with the master, no other server takes over",
                format!("run at least {FEWEST} sentinels, on different hosts"),
            );
        }
        if listed < self.known.min(FEWEST) {
            return Finding::warning(
                "quorum",
                format!("{found}; the URL names {listed}"),
                "when those are down or wrong, dlock cannot query the others",
                format!("name at least {FEWEST} of them"),
            );
        }
        Finding::ok("quorum", found)
    }

    fn replicas(&self) -> Finding {
        let (known, up) = self.replicas.unwrap_or_default();
        match up {
            0 => Finding::warning(
                "replicas",
                format!("{known} are known, and none of them is up"),
                "when the master fails, there is no server to take over",
                "start a replica",
            ),
            _ if up < known => Finding::warning(
                "replicas",
                format!("{up} of {known} are up"),
                "fewer servers have a copy of the locks and can take over",
                "start the others; SENTINEL RESET removes replicas that are gone for good",
            ),
            _ => Finding::ok("replicas", format!("{up} of {known} are up")),
        }
    }
}
