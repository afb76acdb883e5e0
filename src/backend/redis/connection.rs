//! One connection: the greeting and the first question in one flight, answers within bounds, pushes noticed.
//!
//! The wire format is the redis crate's. The flights are our own, because its connections greet first and ask after.

mod answer;
mod exchange;
mod handshake;
mod opening;
mod options;
mod push;

use combine::parser::combinator::AnySendSyncPartialState;
use combine::stream::{PointerOffset, decoder::Decoder};
use redis::{Cmd, ServerError, Value};

pub(super) use self::answer::CommandReply;
pub(super) use self::exchange::{Cancel, Patience};
use self::handshake::Greeting;
use self::options::Switch;
pub(super) use self::options::{RequestOptions, subscribe, tracking};
pub(super) use self::push::PushEvent;
use super::stream::{Bounded, Stream};
use crate::backend::StoreError;

/// A connection to one server.
pub(super) struct Connection {
    stream: Bounded<Box<dyn Stream>>,
    decoder: Decoder<AnySendSyncPartialState, PointerOffset<[u8]>>,
    greeting: Option<Greeting>,
    /// Whether the server pushes: RESP3.
    pushes: bool,
    tracking: Switch,
    channel: Switch,
    /// Every question so far has been answered in full, and the server has kept to the protocol.
    usable: bool,
    /// A question was carried out after a greeting that failed.
    misrouted: bool,
    /// The server has said nothing yet.
    silent: bool,
    /// The server speaks RESP2 only, and what was asked of it makes no sense there.
    outdated: bool,
    /// It is a node of a cluster, and sends us to another one where it has to.
    sends_elsewhere: bool,
    /// The server has not refused EVALSHA itself.
    takes_digests: bool,
    /// Each question follows the word that lets a node answer for a slot which is on its way to it.
    asks: bool,
    /// So many bytes are read for one answer.
    longest: usize,
    /// The key that matters.
    lock: String,
    /// How long the answers to the next question are waited for; for ever if that is not said.
    patience: Option<Patience>,
    /// What was pushed while an answer was awaited.
    heard: Option<PushEvent>,
    /// So many answers will come that nobody has awaited yet.
    pending_replies: usize,
}

/// Whether questions are for a slot that is on its way to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// It may be, and even so the node is to answer.
    Yes,
    /// It is not, or the node is to say which one has it.
    No,
}

impl Connection {
    /// Limits the wait for the answer to the next question.
    pub(super) fn set_patience(&mut self, patience: Patience) {
        self.patience = Some(patience);
    }

    pub(super) fn is_usable(&self) -> bool {
        self.usable
    }

    /// Whether a question may have been carried out by the wrong user or in the wrong database. It can be undone over
    /// this connection and no other.
    pub(super) fn is_misrouted(&self) -> bool {
        self.misrouted
    }

    /// Whether the question has to be asked again over a connection that keeps to RESP2.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated
    }

    /// The limit on the wait for the answer to the next question.
    pub(super) fn patience(&self) -> Option<Patience> {
        self.patience.clone()
    }

    /// Whether a script has to be sent as text, because the server refuses digests.
    pub(super) fn is_text_due(&self) -> bool {
        !self.takes_digests
    }

    /// From now on questions are for a slot that is on its way to this node, or not.
    pub(super) fn set_asking(&mut self, asking: Asking) {
        self.asks = asking == Asking::Yes;
    }

    pub(super) fn asking(&self) -> Asking {
        if self.asks { Asking::Yes } else { Asking::No }
    }

    /// Whether the server tells when somebody touches the lock.
    pub(super) fn is_tracking(&self) -> bool {
        self.tracking == Switch::On
    }

    /// Whether a channel can be heard, as far as that was tried.
    pub(super) fn can_listen(&self) -> bool {
        self.pushes && self.channel != Switch::Refused
    }

    /// Asks one question about a lock and waits for its answer. The greeting, where it is due, and the wishes travel in
    /// the same write; the answers to the greeting decide what an answer to the question is worth.
    pub(super) async fn ask(
        &mut self,
        lock: &str,
        command: &Cmd,
        wishes: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        lock.clone_into(&mut self.lock);
        let first = self.due(wishes);
        let greeting = self.greeting.take();
        let greeted = greeting.is_some();
        let answer = match greeting {
            None => {
                let (replies, answer) = self.exchange_and_more(&first, command, wishes.behind).await?;
                self.note_wishes(&first, &replies);
                answer
            }
            Some(greeting) => self.greet_and_ask(greeting, first, command, wishes.behind).await?,
        };
        // What was told before the answer, the answer knows. Redis 6.0 tells even of what our own question has touched: there
        // NOLOOP is not for scripts.
        self.heard = self.heard.filter(|word| *word != PushEvent::Touched);
        self.understood(answer, greeted)
    }

    /// Asks several questions in one flight, or in two on a new connection; each has an answer of its own.
    pub(super) async fn ask_all(
        &mut self,
        lock: &str,
        commands: &[Cmd],
        wishes: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let Some((first, others)) = commands.split_first() else { return Ok(Vec::new()) };
        let mut answers = vec![self.ask(lock, first, wishes).await?];
        if let Some((last, middle)) = others.split_last() {
            let each = if self.asks { 2 } else { 1 };
            let middle: Vec<Cmd> = match self.asks {
                true => middle.iter().flat_map(|command| [redis::cmd("ASKING"), command.clone()]).collect(),
                false => middle.to_vec(),
            };
            let (replies, answer) = self.exchange(&middle, last).await?;
            for value in replies.into_iter().skip(each - 1).step_by(each).chain([answer]) {
                answers.push(self.understood(value, false)?);
            }
        }
        Ok(answers)
    }

    /// Whether the server pushes, as far as that was tried.
    pub(super) fn pushes(&self) -> bool {
        self.pushes
    }

    /// Greets, and asks one question. Its answer is given as it is, even if it is an error.
    ///
    /// # Errors
    /// The greeting was refused, or the connection is broken.
    pub(super) async fn greet(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        match self.greeting.take() {
            Some(greeting) => self.greet_and_ask(greeting, Vec::new(), command, None).await,
            None => self.exchange(&[], command).await.map(|(_, answer)| answer),
        }
    }

    /// Waits until [`Connection::changed`] would return. Dropping the future loses nothing.
    pub(super) async fn has_heard(&mut self) {
        let heard = self.changed().await;
        self.heard = self.heard.max(heard);
    }

    /// Waits until the server says something that matters; `None` when the connection has ended. Anything else than a
    /// push that comes unasked breaks the protocol and ends the connection too. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) -> Option<PushEvent> {
        loop {
            if let Some(word) = self.heard.take() {
                return Some(word);
            }
            self.stream.refill(self.longest);
            match self.value().await {
                Ok(Value::Push { kind, data }) => self.heard = self.word(&kind, &data),
                Ok(_) if self.pending_replies > 0 => self.pending_replies -= 1,
                Ok(_) | Err(_) => {
                    self.usable = false;
                    return None;
                }
            }
        }
    }
}

fn begins_with(command: &Cmd, name: &[u8]) -> bool {
    matches!(command.args_iter().next(), Some(redis::Arg::Simple(first)) if first == name)
}

pub(super) fn server_error(value: &Value) -> Option<&ServerError> {
    match value {
        Value::ServerError(error) => Some(error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::random::Xorshift;

    /// What an answering server might say, to be damaged.
    const PLAUSIBLE: &[&[u8]] = &[
        b"%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n+OK\r\n*3\r\n:1\r\n$16\r\n1769824800123456\r\n:30000\r\n",
        b"-ERR unknown command 'HELLO'\r\n-ERR unknown\r\n*5\r\n:0\r\n:-1\r\n+string\r\n$-1\r\n$-1\r\n",
        b"+OK\r\n+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"+OK\r\n+OK\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n*1\r\n:1\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$6\r\ncalled\r\n",
        b"-NOAUTH HELLO must be called\r\n-NOAUTH\r\n-NOAUTH Authentication required.\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    ];

    fn answer_to(bytes: &[u8], channel: Option<&str>) -> Result<CommandReply, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(1 << 20);
            theirs.write_all(bytes).await.expect("the pipe takes it all");
            theirs.shutdown().await.expect("the pipe closes");
            let greeting =
                Greeting { username: None, password: None, database: 0, hello: true, of_kind: None };
            let mut connection = Connection::over(Bounded::new(Box::new(ours)), greeting);
            let wishes = RequestOptions { tracking: true, channel, behind: None };
            let answer = connection.ask("a", &redis::cmd("EVAL"), wishes).await;
            // Returns at the latest at the end, which it must notice.
            while connection.is_usable() {
                connection.changed().await;
            }
            answer
        })
    }

    #[test]
    fn plausible_answers_are_understood() {
        let all = |bytes| answer_to(bytes, None);
        assert!(
            matches!(all(PLAUSIBLE[0]), Ok(CommandReply::Value(Value::Array(values))) if values.len() == 3)
        );
        assert!(
            matches!(all(PLAUSIBLE[1]), Ok(CommandReply::Value(Value::Array(values))) if values.len() == 5)
        );
        assert!(
            matches!(all(PLAUSIBLE[2]), Ok(CommandReply::Value(Value::Array(values))) if values.len() == 1)
        );
        assert!(
            matches!(answer_to(PLAUSIBLE[3], Some("c")), Ok(CommandReply::Value(Value::Array(values))) if values.len() == 1)
        );
        assert!(matches!(all(PLAUSIBLE[4]), Err(StoreError::Denied(_))));
        assert!(matches!(all(PLAUSIBLE[5]), Err(StoreError::Unavailable { maybe_applied: true, .. })));
        assert!(matches!(all(b""), Err(StoreError::Unavailable { maybe_applied: true, .. })));
    }

    #[test]
    fn any_answer_is_understood_or_refused() {
        let mut random = Xorshift::new();
        for _ in 0..20_000 {
            let mut bytes = PLAUSIBLE[random.below(PLAUSIBLE.len())].to_vec();
            for _ in 0..random.below(6) {
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes[at] = random.below(256) as u8,
                    1 => bytes.truncate(at.max(1)),
                    2 => bytes.insert(at, b"0123456789$*>%~-+\r\n"[random.below(19)]),
                    _ => drop(bytes.remove(at.min(bytes.len() - 1))),
                }
                if bytes.is_empty() {
                    bytes.push(b'*');
                }
            }
            let channel = (random.below(2) == 0).then_some("c");
            if let Ok(CommandReply::Value(Value::Array(values))) = answer_to(&bytes, channel) {
                let _ = super::super::answers::attempt(&values, Default::default());
            }
        }
    }
}
