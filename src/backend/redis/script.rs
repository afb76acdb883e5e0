//! The Lua scripts, each of which runs as one atomic step, and the keys that they use.
//!
//! | key | what it is |
//! |---|---|
//! | lock | the owner's token while it is held exclusively; `dlock:s:NUMBER` or `dlock:cSLOTS:NUMBER` while it is shared; `dlock:frozen` while it is free and frozen |
//! | holder | hash: `format` (1 if `mode` is x, else 2); `value`, which the lock must have for the other fields to be valid; `mode` (x, s, c); `slots`; `high`, the number of slots that have been used at some time; `m:TOKEN` for each member, with its slot; `n:SLOT`, the number of additional members in a slot; and `r:TOKEN` for each member whose hold is revoked, with by whom and why |
//! | member-ends | sorted set of a shared lock: its members by the end of their lease in ms |
//! | free-slots | sorted set of a lock with slots: the free slots below `high` |
//! | counter | the last fencing token |
//! | queue | sorted set: the tokens of the waiters, by their numbers |
//! | waiters | hash: `format` (1, or 2 while the lock is frozen); and for each token: mode, slots, how it is notified, when its queue entry expires, until when it may claim, its identity |
//! | waiter-slots | sorted set: the tokens of the waiters for a slot, by the time in ms at which their queue entries expire |
//! | member of a TOKEN | the record of one member; its time to live is the member's lease |
//! | succeeded | list: the last outcomes of runs that have succeeded, the latest first, each after the time in ms |
//! | history | list: the same for other holds of the lock |
//! | success | the last success of a run with `--once-per`, as JSON |
//! | frozen | the [freeze](crate::lock::Freeze), as JSON; it expires when the freeze ends |
//! | missed | list: the same for runs that did not get it, which may be many more |
//! | `dlock#since` | on a node of a Redlock: since when it has kept all data, in ms, after a minus if it received requests before that as well; a random text that no other node has; the run id of the server, without which the marker is not checked |
//! | `dlock#locks` | sorted set: the locks of this database, each with a time until which it is in use, so that listing them needs no scan of all keys. In a Redis Cluster there is one for each slot |
//! | `dlock#recorded` | sorted set: the locks of this database whose outcomes are stored, by the time in ms of the latest one |
//!
//! A claim, a renewal and a release read a fixed number of entries, however many members and waiters there are: the
//! sets show which members have expired, how many there are, and which slots are free. The fields `m:TOKEN` and the
//! keys of the members override the sets, which are rebuilt if they are missing.
//!
//! Only `frozen` decides whether a lock is frozen. The value `dlock:frozen` keeps other programs out, and the format of the
//! waiters each dlock that does not know of freezes; both last as long as the freeze. If a foreign program holds the lock
//! when it is frozen, the next request that finds it free sets that value.
//!
//! A member's lease is the expiry of a separate key because a server out of memory accepts `PEXPIRE`, but no write that
//! needs memory. While a lock has several holders, its own expiry is moved seldom and further than requested: each
//! change of the key notifies all clients that track it. The called waiters, and the two after them, are notified on a
//! channel each; no other waiter is.
//!
//! Every granted or renewed lock is read last: with client tracking on, that read makes the server notify the client
//! when another client changes the key. Operations that do not need this run on connections without tracking.
//!
//! What a lock means is decided by these scripts, and by [`decide`](crate::backend::ledger::decide) and
//! [`administer`](crate::backend::ledger::administer) for other stores. Their functions have the same names where they do
//! the same, and `tests/models/lockstep` drives both through the same requests: every difference stands in its table.
//!
//! A server runs a script from its beginning and makes each of its functions anew, which costs it more than a grant. So
//! there is a script for each group of operations, of the files in `script/` that these need, and one that inspects many
//! locks. A script is requested by its digest; a server that does not have it cached is sent the text.

pub(super) mod source;

use std::time::Duration;

use redis::Cmd;
use serde::Serialize;

use super::keys::Keys;
use super::redirect::Asking;
use crate::random;

/// A script as it is sent: without comments and indentation.
pub(super) struct Script {
    text: &'static str,
    /// Its SHA-1 digest, by which a server has it cached.
    digest: &'static str,
}

macro_rules! script {
    ($source:expr, $digest:literal) => {{
        const BYTES: [u8; compact::<0>($source).1] = compact($source).0;
        match str::from_utf8(&BYTES) {
            Ok(text) => Script { text, digest: $digest },
            Err(_) => panic!("a script is text"),
        }
    }};
}

static CLAIM: Script = script!(source::CLAIM, "a936cb36d7a4655931d3a20b2b90741f561d1be1");
static HOLD: Script = script!(source::HOLD, "7f47481a7930c70b5d57d5c29a73cab8bef85382");
static ADMINISTER: Script = script!(source::ADMINISTER, "bdbb73698c31a2e7d408737fd3d085ef6a287050");
pub(super) static LOOK: Script = script!(source::LOOK, "c1e506b329dd8a662549bb09727c9ecc393df72f");

/// The first `N` bytes of a source without comments and indentation, and its whole length without them.
const fn compact<const N: usize>(source: &str) -> ([u8; N], usize) {
    let bytes = source.as_bytes();
    let mut kept = [0; N];
    let (mut length, mut at) = (0, 0);
    while at < bytes.len() {
        while at < bytes.len() && (bytes[at] == b' ' || bytes[at] == b'\n') {
            at += 1;
        }
        let comment = at + 1 < bytes.len() && bytes[at] == b'-' && bytes[at + 1] == b'-';
        while at < bytes.len() {
            if !comment {
                if length < N {
                    kept[length] = bytes[at];
                }
                length += 1;
            }
            at += 1;
            if bytes[at - 1] == b'\n' {
                break;
            }
        }
    }
    (kept, length)
}

impl Script {
    /// Returns the command without its keys and arguments.
    pub(super) fn command(&self, by: By) -> Cmd {
        let (name, script) = match by {
            By::Text => ("EVAL", self.text),
            By::Digest => ("EVALSHA", self.digest),
        };
        let mut command = redis::cmd(name);
        command.arg(script);
        command
    }
}

/// An operation on a lock, with its arguments. Times are in ms.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub(super) enum Operation<'a> {
    Acquire(Acquire<'a>),
    Renew {
        lease: u64,
    },
    Release {
        /// For how long the lock is kept without its owner.
        rest: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        record: Option<String>,
        /// The list that the record is stored in.
        history: String,
        /// The attempt whose claim is released, if this client has made it: a later one keeps the hold.
        #[serde(skip_serializing_if = "Option::is_none")]
        attempt: Option<u64>,
        /// The record is stored only if the hold is still there.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_repeated: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        success: Option<ScriptSuccess>,
    },
    Revoke {
        fencing: String,
        /// Without it the hold is removed, and its owner is not notified.
        #[serde(skip_serializing_if = "Option::is_none")]
        revocation: Option<String>,
    },
    Delete {
        digest: &'a str,
    },
    Record {
        record: String,
        history: String,
    },
    /// Every later fencing token is larger than `floor`.
    Raise {
        floor: String,
        counter_life: u64,
    },
    /// Keeps every run from starting that does not run inside a hold.
    Freeze {
        id: &'a str,
        /// The [freeze](crate::lock::Freeze) without its times, as JSON.
        freeze: String,
        /// Without it the freeze has no end.
        #[serde(skip_serializing_if = "Option::is_none")]
        lasts: Option<u64>,
    },
    /// Ends the freeze with this id.
    Thaw {
        id: &'a str,
    },
    /// Only tries the rights.
    TryRights {
        tries_rights: bool,
    },
    Fence {
        fencing: String,
        counter_life: u64,
        /// A majority of the nodes has given the token already.
        is_established: bool,
        /// An id for the node if it has none yet.
        node: String,
    },
}

impl Operation<'_> {
    fn script(&self) -> &'static Script {
        match self {
            Operation::Acquire(_) | Operation::TryRights { .. } | Operation::Fence { .. } => &CLAIM,
            Operation::Renew { .. } | Operation::Release { .. } | Operation::Record { .. } => &HOLD,
            Operation::Revoke { .. }
            | Operation::Delete { .. }
            | Operation::Raise { .. }
            | Operation::Freeze { .. }
            | Operation::Thaw { .. } => &ADMINISTER,
        }
    }
}

/// A success to be stored.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ScriptSuccess {
    /// Host, process and user, as JSON.
    pub(super) by: String,
    /// How long the lock was held, by the clock of the client.
    pub(super) held: u64,
}

/// A claim.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Acquire<'a> {
    /// How long the lock is kept from now on: the lease, or the minimum hold time if that is longer.
    pub(super) lease: u64,
    /// The lease, on which the holder relies.
    pub(super) ttl: u64,
    /// Each attempt to claim the lock has a larger number.
    pub(super) attempt: u64,
    /// The identity of the client, as JSON.
    pub(super) identity: String,
    /// How long the fencing counter outlives the grant; 0 means forever.
    pub(super) counter_life: u64,
    /// `x`, `s` or `c`.
    pub(super) mode: &'static str,
    pub(super) slots: u32,
    /// Whether to enter the queue.
    pub(super) waits: bool,
    /// How the client is notified: `0` not at all, `1` by this server, `2` perhaps by another one.
    pub(super) delivery: &'static str,
    /// How long the queue entry lives unless it is refreshed.
    pub(super) entry_ttl: u64,
    /// The tokens of the holds that it may be nested in, and whether it must be.
    pub(super) outer: Vec<&'a str>,
    pub(super) must_nest: bool,
    /// `--once-per`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) once_per: Option<u64>,
    /// `--supersede`
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) supersedes: bool,
    /// Whether to report the eviction policy.
    pub(super) eviction: bool,
    /// Whether to try first what a lock needs, for a user whose rights are not known.
    pub(super) tries_rights: bool,
    #[serde(flatten)]
    pub(super) as_node: AsNode,
}

/// What a claim has besides for a node of a Redlock; the default is for a server that is not one.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct AsNode {
    /// The number in the queue that the nodes have agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    /// The fencing token of a hold that a majority of nodes has renewed, and this one has lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<String>,
    /// An id for the node if it has none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

impl AsNode {
    pub(super) fn new(ticket: Option<u64>, restored: Option<u64>) -> AsNode {
        let text = |number: Option<u64>| number.map(|number| number.to_string());
        AsNode { ticket: text(ticket), restored: text(restored), node: Some(random::id()) }
    }
}

/// How a script is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By its text, for a server that does not have it cached.
    Text,
    /// By its digest.
    Digest,
}

/// One run of a script for a client, as it is sent.
#[derive(Serialize)]
pub(super) struct ScriptRequest<'a> {
    pub(super) token: &'a str,
    #[serde(flatten)]
    pub(super) operation: Operation<'a>,
    #[serde(flatten)]
    pub(super) keys: &'a Keys,
}

impl<'a> ScriptRequest<'a> {
    pub(super) fn new(operation: Operation<'a>, keys: &'a Keys, token: &'a str) -> ScriptRequest<'a> {
        ScriptRequest { token, operation, keys }
    }

    /// Returns the digest of the script.
    pub(super) fn digest(&self) -> &'static str {
        self.operation.script().digest
    }

    /// Returns the command to send. `Asking::Yes` is for a node that the lock's slot is being migrated to.
    pub(super) fn command(&self, by: By, asking: Asking) -> Cmd {
        let mut command = self.operation.script().command(by);
        command.arg(1).arg(&self.keys.lock).arg(json(self));
        if asking == Asking::Yes {
            command.arg("asking");
        }
        command
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("texts, numbers and lists of them are JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_the_texts() {
        let scripts = [&CLAIM, &HOLD, &ADMINISTER, &LOOK];
        let digests = scripts.map(|script| sha1_smol::Sha1::from(script.text).digest().to_string());
        assert_eq!(scripts.map(|script| script.digest), digests);
    }

    /// Each operation is one that its script has.
    #[test]
    fn operations_are_sent_with_their_scripts() {
        let [text, digest] = ["", "x"].map(str::to_owned);
        let operations = [
            Operation::Renew { lease: 0 },
            Operation::Release {
                rest: 0,
                record: None,
                history: text.clone(),
                attempt: None,
                is_repeated: false,
                success: None,
            },
            Operation::Record { record: text.clone(), history: text.clone() },
            Operation::Fence {
                fencing: text.clone(),
                counter_life: 0,
                is_established: false,
                node: text.clone(),
            },
            Operation::Revoke { fencing: text.clone(), revocation: None },
            Operation::Delete { digest: &digest },
            Operation::Raise { floor: text.clone(), counter_life: 0 },
            Operation::Freeze { id: "x", freeze: text, lasts: None },
            Operation::Thaw { id: "x" },
        ];
        for operation in operations {
            let request = json(&operation);
            let (_, name) = request.split_once("\"operation\":\"").expect("a name");
            let name = name.split('"').next().expect("a name");
            let (_, table) = operation.script().text.split_once("local operations = {").expect("a table");
            let (table, _) = table.split_once('}').expect("its end");
            assert!(
                table.split([',', '\n']).any(|entry| entry.trim().starts_with(&format!("{name} = "))),
                "{name}"
            );
        }
    }

    #[test]
    fn only_comments_and_indentation_are_removed() {
        let lines = |text: &'static str| text.lines().map(str::trim_start);
        let kept: Vec<&str> =
            lines(source::HOLD).filter(|line| !line.is_empty() && !line.starts_with("--")).collect();
        assert_eq!(lines(HOLD.text).collect::<Vec<_>>(), kept);
    }

    #[test]
    fn the_time_to_claim_is_the_same_in_the_script_and_in_the_client() {
        assert!(CLAIM.text.contains(&format!("= {}, ", crate::backend::CLAIM_WITHIN.as_millis())));
    }
}
