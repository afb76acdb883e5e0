//! The Lua scripts, each of which runs as one atomic step, and the keys that they use.
//!
//! | key | what it is |
//! |---|---|
//! | lock | the owner's token while it is held exclusively; `dlock:s:NUMBER` or `dlock:cSLOTS:NUMBER` while it is shared |
//! | holder | hash: `format` (1 if `mode` is x, else 2); `value`, which the lock must have for the other fields to be valid; `mode` (x, s, c); `slots`; `high`, the number of slots that have been used at some time; `m:TOKEN` for each member, with its slot; `n:SLOT`, the number of additional members in a slot; and `r:TOKEN` for each member whose hold is revoked, with by whom and why |
//! | member-ends | sorted set of a shared lock: its members by the end of their lease in ms |
//! | free-slots | sorted set of a lock with slots: the free slots below `high` |
//! | counter | the last fencing token |
//! | queue | sorted set: the tokens of the waiters, by their numbers |
//! | waiters | hash: `format`; and for each token: mode, slots, how it is notified, when its queue entry expires, until when it may claim, its identity |
//! | waiter-slots | sorted set: the tokens of the waiters for a slot, by the time in ms at which their queue entries expire |
//! | member of a TOKEN | the record of one member; its time to live is the member's lease |
//! | history | list: the last outcomes of runs that held the lock, the latest first, each after the time in ms |
//! | missed | list: the same for runs that did not get it, which may be many more |
//! | `dlock#since` | on a node of a Redlock: since when it has kept all data, in ms, after a minus if it received requests before that as well; a random text that no other node has; the run id of the server, without which the marker is not checked |
//! | `dlock#locks` | sorted set: the locks of this database, each with a time until which it is in use, so that listing them needs no scan of all keys. In a Redis Cluster there is one for each slot |
//!
//! A claim, a renewal and a release read a fixed number of entries, however many members and waiters there are: the
//! sets show which members have expired, how many there are, and which slots are free. The fields `m:TOKEN` and the
//! keys of the members override the sets, which are rebuilt if they are missing.
//!
//! A member's lease is the expiry of a separate key because a server out of memory accepts `PEXPIRE`, but no write that
//! needs memory. While a lock has several holders, its own expiry is moved seldom and further than requested: each
//! change of the key notifies all clients that track it. The called waiters, and the two after them, are notified on a
//! channel each; no other waiter is.
//!
//! Every granted or renewed lock is read last: with client tracking on, that read makes the server notify the client
//! when another client changes the key. Operations that do not need this run on connections without tracking.
//!
//! One script contains all operations on a lock, so that a server that has run one of them has it cached. It is
//! requested by its digest; a server that does not have it is sent the text. Inspecting many locks is another script.

use redis::Cmd;
use serde_json::json;

use super::keys::Keys;
use super::redirect::Asking;

/// A script as it is sent: without comments and indentation.
pub(super) struct Script {
    text: &'static str,
    /// Its SHA-1 digest, by which a server has it cached.
    digest: &'static str,
}

macro_rules! script {
    ($file:literal, $digest:literal) => {{
        const SOURCE: &str = include_str!($file);
        const BYTES: [u8; compact::<0>(SOURCE).1] = compact(SOURCE).0;
        match str::from_utf8(&BYTES) {
            Ok(text) => Script { text, digest: $digest },
            Err(_) => panic!("a script is text"),
        }
    }};
}

/// All operations on a lock.
static LOCK: Script = script!("lock.lua", "3cff6600d50f39ffe84816bc924b83e6de1144e5");

/// Inspects locks.
pub(super) static LOOK: Script = script!("look.lua", "fb8bc946ab538864e5d5a0548c38af5ff492f320");

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

/// An operation on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Acquire,
    Renew,
    Release,
    Revoke,
    Delete,
    Record,
    Fence,
}

/// How a script is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By its text, for a server that does not have it cached.
    Text,
    /// By its digest.
    Digest,
}

/// One run of the script: an operation, the token of its client, and its arguments.
pub(super) struct ScriptRequest<'a> {
    pub(super) operation: Operation,
    pub(super) keys: &'a Keys,
    pub(super) token: &'a str,
    pub(super) arguments: Vec<String>,
    /// The list that an outcome is stored in.
    pub(super) history: &'a str,
}

impl<'a> ScriptRequest<'a> {
    /// Returns a request whose outcome is stored in the history of runs that held the lock.
    pub(super) fn new(
        operation: Operation,
        keys: &'a Keys,
        token: &'a str,
        arguments: Vec<String>,
    ) -> ScriptRequest<'a> {
        ScriptRequest { operation, keys, token, arguments, history: &keys.history }
    }

    /// Returns the command to send. `Asking::Yes` is for a node that the lock's slot is being migrated to.
    pub(super) fn command(&self, by: By, asking: Asking) -> Cmd {
        let Keys { lock, tail, index, others, .. } = self.keys;
        let operation = match self.operation {
            Operation::Acquire => "acquire",
            Operation::Renew => "renew",
            Operation::Release => "release",
            Operation::Revoke => "revoke",
            Operation::Delete => "delete",
            Operation::Record => "record",
            Operation::Fence => "fence",
        };
        let mut given = vec![json!(operation), json!(tail), json!(index), json!(self.history), json!(others)];
        given.extend(self.arguments.iter().map(|argument| json!(argument)));
        let mut command = LOCK.command(by);
        command.arg(1).arg(lock).arg(self.token).arg(json!(given).to_string());
        if asking == Asking::Yes {
            command.arg("asking");
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::keys::Index;
    use crate::backend::redis::recipe::Recipe;

    #[test]
    fn digests_match_the_texts() {
        for script in [&LOCK, &LOOK] {
            assert_eq!(script.digest, sha1_smol::Sha1::from(script.text).digest().to_string());
        }
    }

    #[test]
    fn only_comments_and_indentation_are_removed() {
        let source = include_str!("lock.lua");
        let lines = |text: &'static str| text.lines().map(str::trim_start);
        let kept: Vec<&str> =
            lines(source).filter(|line| !line.is_empty() && !line.starts_with("--")).collect();
        assert_eq!(lines(LOCK.text).collect::<Vec<_>>(), kept);
    }

    #[test]
    fn the_time_to_claim_is_the_same_in_the_script_and_in_the_client() {
        assert!(LOCK.text.contains(&format!("= {}, ", crate::backend::CLAIM_WITHIN.as_millis())));
    }

    /// A client that has not authenticated yet may send 10 arguments of 16 KB each (Redis, `networking.c`). The text of
    /// the script is sent only after the reply to the handshake.
    #[test]
    fn a_request_is_short_enough_for_a_server_that_requires_a_password() {
        let keys = Keys::new(
            "dlock:",
            Index::OfDatabase,
            Recipe::Plain,
            &crate::lock::LockName::new("a").expect("good name"),
        );
        let request = ScriptRequest::new(Operation::Acquire, &keys, "t", vec!["x".into(); 100]);
        assert!(request.command(By::Digest, Asking::Yes).args_iter().count() <= 10);
    }
}
