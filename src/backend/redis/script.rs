//! The scripts, each run of which is one atomic step, and what they store.
//!
//! | key | what it is |
//! |---|---|
//! | lock | the owner's token while one holds it alone; `dlock:s:NUMBER` or `dlock:cSLOTS:NUMBER` while it is shared |
//! | holder | hash: `format` (1 if `mode` is x, else 2); `value` that the lock must have for the rest to count; `mode` (x, s, c); `slots`; `high`, the number of slots that have been used at some time; `m:TOKEN` for each member, with its slot; `n:SLOT`, how many more members are in a slot; and `r:TOKEN` for each that is told to give up, with who said so and why |
//! | member-ends | sorted set of a shared lock: its members by the time in ms at which their leases end |
//! | free-slots | sorted set of a lock with slots: the slots below `high` that nobody has |
//! | counter | the last fencing token |
//! | queue | sorted set: the tokens of those who wait, by their numbers |
//! | waiters | hash: `format`; and for each token: mode, slots, how it is notified, when its place ends, until when it may claim, who it is |
//! | waiter-slots | sorted set: the tokens of those who wait for a slot, by the time in ms at which their places end |
//! | member of a TOKEN | what one member says of itself; its time to live is the member's lease |
//! | history | list: the last outcomes of those who held the lock, the latest first, each behind the time in ms |
//! | missed | list: the same of those who did not get it, who may be many more |
//! | `dlock#since` | on a node of a Redlock: since when it remembers, in ms, behind a minus if it was asked before that as well; a random text that no other node has; the run of the server, without which the marker is believed as it is |
//! | `dlock#locks` | sorted set: the locks of this database, each with a time until which it is in use; so nobody has to look through all keys. In a Redis Cluster one for each slot |
//!
//! A claim, a renewal and a leave read a fixed number of entries, however many members and waiters there are: the sets
//! tell who has expired, how many there are, and which slot is free. What `m:TOKEN` and the members' keys say overrides the
//! sets, which are written anew if they are missing.
//!
//! A member's lease is a key of its own because `PEXPIRE` is all that a server out of memory allows. Where several hold
//! the lock, its own end is moved seldom and further than asked: each change of the key is word to all who watch it. Who
//! is called, and the two behind, hear of it on channels of their own; nobody else does.
//!
//! Every granted or renewed lock is read last: with client tracking on, that is what makes the server tell us when
//! somebody else touches it. Reading arms, so what need not be armed runs on connections without tracking.
//!
//! It is one script for all that is done to a lock, so that a server that has run one of them knows it. It is asked for by
//! its digest; a server that does not know it is sent the text. Looking at many locks is another script.

use redis::Cmd;
use serde_json::json;

use super::connection::Asking;
use super::keys::Keys;

/// A script as it travels: without comments and indentation.
pub(super) struct Script {
    text: &'static str,
    /// The name by which a server that has seen it knows it.
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

/// What is done to a lock.
static LOCK: Script = script!("lock.lua", "98c8b82bca44c47ef873e80b122945797f6d3abd");

/// What is run to look at locks.
pub(super) static LOOK: Script = script!("look.lua", "38749c67661beaf7d6753b65988cc8202c985984");

/// The first bytes of what is left of a source without comments and indentation, and how many there are in all.
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
    /// The beginning of a question.
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

/// What is to be done to a lock.
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

/// How the script is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// By its text, for a server that does not know the digest.
    Text,
    /// By its digest.
    Digest,
}

/// One question: an operation, for whom, with what else it needs.
pub(super) struct Question<'a> {
    pub(super) operation: Operation,
    pub(super) keys: &'a Keys,
    pub(super) token: &'a str,
    pub(super) arguments: Vec<String>,
    /// In which list an outcome is kept.
    pub(super) history: &'a str,
}

impl Question<'_> {
    /// As it is sent; to a node that the lock's slot may be on its way to, or to any server.
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
    fn the_digests_are_those_of_the_texts() {
        for script in [&LOCK, &LOOK] {
            assert_eq!(script.digest, sha1_smol::Sha1::from(script.text).digest().to_string());
        }
    }

    #[test]
    fn nothing_but_comments_and_indentation_is_left_out() {
        let source = include_str!("lock.lua");
        let lines = |text: &'static str| text.lines().map(str::trim_start);
        let kept: Vec<&str> =
            lines(source).filter(|line| !line.is_empty() && !line.starts_with("--")).collect();
        assert_eq!(lines(LOCK.text).collect::<Vec<_>>(), kept);
    }

    #[test]
    fn who_is_called_has_as_long_as_everybody_thinks() {
        assert!(LOCK.text.contains(&format!("= {}, ", crate::backend::CLAIM_WITHIN.as_millis())));
    }

    /// A client that has not authenticated yet may send 10 arguments of 16 KB each (Redis, `networking.c`). The text of the
    /// script follows only after the answer to the greeting.
    #[test]
    fn a_question_is_short_enough_for_a_server_that_wants_a_password() {
        let keys = Keys::new(
            "dlock:",
            Index::OfDatabase,
            Recipe::Plain,
            &crate::lock::LockName::new("a").expect("good name"),
        );
        let question = Question {
            operation: Operation::Acquire,
            keys: &keys,
            token: "t",
            arguments: vec!["x".into(); 100],
            history: &keys.history,
        };
        assert!(question.command(By::Digest, Asking::Yes).args_iter().count() <= 10);
    }
}
