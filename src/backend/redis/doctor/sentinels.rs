//! Whether the sentinels of a service can be relied on, and which master they name.

use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding};
use crate::backend::redis::connection::server_error;
use crate::backend::redis::errors::describe;
use crate::backend::redis::location::{Address, Location};
use crate::backend::redis::sentinel::Sentinels;
use crate::backend::redis::sentinel::asking::{SentinelReply, ask, field, items};
use crate::backend::redis::sentinel::choice::{Opinion, agreed, latest};
use crate::duration::show;

/// Each of them has so long to answer: one that hangs is told, and holds nothing up.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Fewer than these cannot replace a master once one of them is gone.
const FEWEST: usize = 3;

/// What all of them together say.
#[derive(Default)]
struct Heard {
    opinions: Vec<Opinion>,
    /// How many there are, as those know that know most.
    known: usize,
    quorum: Option<String>,
    /// Why no fail-over can be decided on.
    no_quorum: Option<String>,
    /// Replicas, and how many of them are up.
    replicas: Option<(usize, usize)>,
}

/// Examines them. Returns the master, unless nobody knows it.
///
/// # Errors
/// Their password file cannot be used.
pub(super) async fn examine(
    location: &Location,
    sentinels: &Sentinels,
    examination: &Diagnosis,
) -> Result<Option<Address>, StoreError> {
    location.sentinel_credentials()?;
    examination.begin("sentinels");
    let mut asked = JoinSet::new();
    for sentinel in sentinels.hosts().iter().cloned() {
        let (location, service) = (location.clone(), sentinels.service().to_owned());
        asked.spawn(async move {
            let answer = ask(&location, &sentinel, &service, &["replicas", "ckquorum"]);
            let hangs = |_| {
                Err(StoreError::unreachable(format!("it does not answer within {}", show(ANSWERS_WITHIN))))
            };
            let answer = timeout(ANSWERS_WITHIN, answer).await.unwrap_or_else(hangs);
            (sentinel, answer)
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = asked.join_next().await {
        answers.extend(answer.ok());
    }
    let hosts = sentinels.hosts();
    answers.sort_by_key(|(sentinel, _)| hosts.iter().position(|host| host == sentinel));
    let mut heard = Heard::default();
    for (sentinel, answer) in answers {
        examination.found(match answer {
            Ok(SentinelReply::Knows(opinion, details)) => {
                let found = Finding::ok("sentinels", format!("{sentinel} names {}", opinion.master));
                heard.note(opinion, &details);
                found
            }
            Ok(SentinelReply::KnowsOthers(known)) => Finding::warning(
                "sentinels",
                format!("{sentinel} knows no service '{}' (known: {})", sentinels.service(), known.join(", ")),
                "where only such ones answer, no lock can be taken: dlock run ends with 78",
                "name the service as the sentinels do (sentinel monitor), or leave this one out",
            ),
            Err(error) => Finding::warning(
                "sentinels",
                format!("{sentinel}: {error}"),
                "when more of them fail, a fail-over is neither done nor noticed",
                "see that the name and port are right, that it runs and listens there (bind), and what password it wants \
                 (sentinel_password_file)",
            ),
        });
    }
    Ok(heard.tell(sentinels, examination))
}

impl Heard {
    /// What one says of the service, its replicas, and whether the sentinels could decide on a fail-over.
    fn note(&mut self, opinion: Opinion, details: &[Value]) {
        self.opinions.push(opinion);
        let [master, replicas, quorum] = details else { return };
        let others = field(master, "num-other-sentinels").and_then(|count| count.parse::<usize>().ok());
        self.known = self.known.max(others.map_or(0, |others| others + 1));
        self.quorum = field(master, "quorum").map(str::to_owned).or(self.quorum.take());
        self.no_quorum = server_error(quorum).map(describe).or(self.no_quorum.take());
        let is_up = |replica: &&Value| {
            let flags = field(replica, "flags").unwrap_or_default();
            !flags.split(',').any(|flag| flag.ends_with("_down") || flag == "disconnected")
        };
        let replicas = items(replicas);
        let seen = (replicas.len(), replicas.iter().filter(is_up).count());
        self.replicas = self.replicas.max(Some(seen));
    }

    fn tell(&self, sentinels: &Sentinels, examination: &Diagnosis) -> Option<Address> {
        let listed = sentinels.hosts().len();
        let Some(latest) = latest(&self.opinions) else {
            examination.found(Finding::problem(
                "agreement",
                format!("no sentinel knows the master of '{}'", sentinels.service()),
                "no lock can be taken: dlock run ends with 69, or with 78 where they know no such service",
                "see above",
            ));
            return None;
        };
        let agreed = agreed(&self.opinions, listed);
        let master = agreed.as_ref().unwrap_or(&latest).master.clone();
        let naming = self.opinions.iter().filter(|opinion| opinion.master == master).count();
        let found = format!("{naming} of {listed} sentinels name {master}");
        examination.found(match (agreed, naming == self.opinions.len()) {
            (Some(_), true) => Finding::ok("agreement", found),
            (Some(_), false) => Finding::warning(
                "agreement",
                found,
                "the others are behind, or were cut off: what they name is not believed",
                "wait for the end of a fail-over, and examine again; see the log of those that name another",
            ),
            (None, _) => Finding::problem(
                "agreement",
                format!("{found}, which is not more than half of them"),
                "dlock follows the one that knows of the latest fail-over, which may be wrong",
                "see that all the sentinels run and can be reached from here",
            ),
        });
        examination.found(self.quorum(listed));
        examination.found(self.replicas());
        Some(master)
    }

    fn quorum(&self, listed: usize) -> Finding {
        let quorum = self.quorum.as_deref().unwrap_or("unknown");
        let found = format!("{} sentinels, of which {quorum} have to find the master down", self.known);
        if let Some(why) = &self.no_quorum {
            return Finding::problem(
                "quorum",
                why.clone(),
                "when the master fails, no other server takes over: locks can neither be taken nor kept",
                "start the sentinels that are missing",
            );
        }
        if self.known < FEWEST {
            return Finding::warning(
                "quorum",
                found,
                "when one of them is gone, or cut off together with the master, no other server takes over",
                format!("run at least {FEWEST} sentinels, on different hosts"),
            );
        }
        if listed < self.known.min(FEWEST) {
            return Finding::warning(
                "quorum",
                format!("{found}; the URL names {listed}"),
                "when those are gone or wrong, dlock cannot ask the others",
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
                "fewer servers can take over, and have a copy of the locks",
                "start the others; SENTINEL RESET makes the sentinels forget those that are gone for good",
            ),
            _ => Finding::ok("replicas", format!("{up} of {known} are up")),
        }
    }
}
