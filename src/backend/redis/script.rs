//! The script, which is one atomic step for each operation, and what it stores.
//!
//! | key | what it is |
//! |---|---|
//! | lock | the owner's token while one holds it alone; `dlock:s:NUMBER` or `dlock:cSLOTS:NUMBER` while it is shared |
//! | holder | hash: `format`; `value` that the lock must have for the rest to count; `mode` (x, s, c); `slots`; and `m:TOKEN` for each member, with its slot |
//! | counter | the last fencing token |
//! | queue | sorted set: the tokens of those who wait, by their numbers |
//! | waiters | hash: `format`; the number of slots last asked for; and for each token: mode, slots, whether it hears us, when its place ends, until when it may claim, who it is |
//! | member of a TOKEN | what one member says of itself; its time to live is the member's lease |
//!
//! A member's lease is a key of its own because `PEXPIRE` is all that a server out of memory allows. Where several hold
//! the lock, its own end is moved seldom and further than asked: each change of the key is word to all who watch it. Who
//! is called, and the two behind, hear of it on channels of their own; nobody else does.
//!
//! Every granted or renewed lock is read last: with client tracking on, that is what makes the server tell us when
//! somebody else touches it. Reading arms, so what need not be armed runs on connections without tracking.
//!
//! It is one script for all operations, so that a server that has run one of them knows it: the first question brings
//! the text, all later ones its digest.

use redis::Cmd;

use super::keys::Keys;

/// What is run.
const TEXT: &str = include_str!("lock.lua");

/// Its digest: the name by which a server that has seen it knows it.
const DIGEST: &str = "8f3ca88a5637ce34460fa0e4aebb97b18d33eda5";

/// What is to be done to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Acquire,
    Renew,
    Release,
}

/// How the script is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// Whole: whoever sees it for the first time understands.
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
}

impl Question<'_> {
    /// As it is sent.
    pub(super) fn command(&self, by: By) -> Cmd {
        let Keys { lock, holder, fencing, queue, waiters, members, channels } = self.keys;
        let operation = match self.operation {
            Operation::Acquire => "acquire",
            Operation::Renew => "renew",
            Operation::Release => "release",
        };
        let own = [operation, members, channels].map(str::to_owned);
        let given: Vec<&String> = own.iter().chain(&self.arguments).collect();
        let (name, script) = match by {
            By::Text => ("EVAL", TEXT),
            By::Digest => ("EVALSHA", DIGEST),
        };
        let mut command = redis::cmd(name);
        command.arg(script).arg(5).arg(lock).arg(holder).arg(fencing).arg(queue).arg(waiters);
        command.arg(self.token).arg(serde_json::json!(given).to_string());
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_text() {
        assert_eq!(DIGEST, sha1_smol::Sha1::from(TEXT).digest().to_string());
    }

    /// More words, or a longer one, are not taken from a stranger (Redis, `networking.c`).
    #[test]
    fn a_question_is_short_enough_for_a_server_that_wants_a_password() {
        let keys = Keys::new("dlock:", &crate::lock::LockName::new("a").expect("good name"));
        let question = Question {
            operation: Operation::Acquire,
            keys: &keys,
            token: "t",
            arguments: vec!["x".into(); 100],
        };
        for by in [By::Text, By::Digest] {
            let command = question.command(by);
            assert!(command.args_iter().count() <= 10);
        }
        assert!(TEXT.len() <= 16 * 1024, "{}", TEXT.len());
    }
}
