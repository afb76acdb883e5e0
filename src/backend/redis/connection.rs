//! One connection: the greeting and the first question in one flight, answers within bounds, pushes noticed.
//!
//! The wire format is the redis crate's. The flights are our own, because its connections greet first and ask after.

mod greeting;

use std::sync::Arc;
use std::time::Duration;

use combine::parser::combinator::AnySendSyncPartialState;
use combine::stream::{PointerOffset, decoder::Decoder};
use redis::{Cmd, PushKind, ServerError, Value, parse_redis_value_async};
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio::time::timeout;

use self::greeting::Greeting;
use super::cluster::Redirect;
use super::errors::{describe, is_between, is_no_script, refusal, shortened};
use super::location::{Address, Location};
use super::stream::{self, Bounded, LARGEST_ANSWER, LONGEST_ANSWER, Stream};
use crate::backend::{StoreError, io_text};

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
    spoiled: bool,
    /// The server has said nothing yet.
    silent: bool,
    /// The server speaks RESP2 only, and what was asked of it makes no sense there.
    outdated: bool,
    /// It is a node of a cluster, and sends us to another one where it has to.
    sends_elsewhere: bool,
    /// Each question follows the word that lets a node answer for a slot which is on its way to it.
    asks: bool,
    /// So many bytes are read for one answer.
    longest: usize,
    /// The key that matters.
    lock: String,
    /// How long the answers to the next question are waited for; for ever if that is not said.
    patience: Option<Patience>,
    /// What was pushed while an answer was awaited.
    heard: Option<Word>,
    /// So many answers will come that nobody has awaited yet.
    owed: usize,
}

/// Something that a server does for us once it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Switch {
    NotTried,
    On,
    Refused,
}

/// Whether questions are for a slot that is on its way to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// It may be, and even so the node is to answer.
    Yes,
    /// It is not, or the node is to say which one has it.
    No,
}

/// How long it may take to hand over what is said last.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Makes one who waits for an answer wait no longer.
pub(super) type HurryUp = Arc<Notify>;

/// How long to wait for an answer. What is said behind the question when that is over is carried out after it, however
/// late: no other connection could promise that.
pub(super) struct Patience {
    pub(super) limit: Duration,
    pub(super) hurry_up: HurryUp,
    pub(super) last_words: Cmd,
}

/// What came of a question.
#[derive(Debug)]
pub(super) enum Answer {
    /// This.
    Value(Value),
    /// The server does not know the script by its digest, or this user may not name it so.
    NoScript,
    /// Another node of the cluster is to be asked.
    Elsewhere(Redirect),
    /// The slot is on its way from one node to another: not all of the keys are here. Tells what the server says.
    Between(String),
}

/// What goes along with a question, if it was not asked for before.
#[derive(Clone, Copy, Default)]
pub(super) struct Wishes<'a> {
    /// Word of whoever touches what this question reads.
    pub(super) tracking: bool,
    /// Word on this channel.
    pub(super) channel: Option<&'a str>,
    /// This behind it, whose answer is awaited [later](Connection::answer_behind), if at all.
    pub(super) behind: Option<&'a Cmd>,
}

/// What a server says unasked; what comes later counts for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Word {
    /// Those far before us have been called.
    Look,
    /// Those before us have been called.
    Next,
    /// The lock's key was touched.
    Touched,
    /// It is our turn.
    Called,
}

impl Connection {
    /// Connects, with TLS if so located; says nothing yet. `old_protocol` is for servers that have refused RESP3.
    pub(super) async fn open(
        location: &Location,
        address: &Address,
        old_protocol: bool,
    ) -> Result<Connection, StoreError> {
        let password = location.password()?;
        let stream = stream::open(location, address).await?;
        Ok(Connection::begin(location, password, stream, old_protocol))
    }

    /// Connects to a sentinel, to which we are somebody else than to its master, or nobody; says nothing yet.
    pub(super) async fn open_to_sentinel(
        location: &Location,
        address: &Address,
    ) -> Result<Connection, StoreError> {
        let (username, password) = location.sentinel_credentials()?;
        let stream = stream::open(location, address).await?;
        Ok(Connection::over(stream, Greeting { username, password, database: 0, hello: false }))
    }

    /// Over a stream that has been opened; says nothing yet.
    pub(super) fn begin(
        location: &Location,
        password: Option<String>,
        stream: Bounded<Box<dyn Stream>>,
        old_protocol: bool,
    ) -> Connection {
        let username = location.username().map(str::to_owned);
        let hello = location.resp3() && !old_protocol;
        let greeting = Greeting { username, password, database: location.database(), hello };
        let sends_elsewhere = location.is_cluster();
        Connection { sends_elsewhere, ..Connection::over(stream, greeting) }
    }

    fn over(stream: Bounded<Box<dyn Stream>>, greeting: Greeting) -> Connection {
        Connection {
            stream,
            decoder: Decoder::new(),
            pushes: greeting.hello,
            greeting: Some(greeting),
            tracking: Switch::NotTried,
            channel: Switch::NotTried,
            usable: true,
            spoiled: false,
            silent: true,
            outdated: false,
            sends_elsewhere: false,
            asks: false,
            longest: LARGEST_ANSWER,
            lock: String::new(),
            patience: None,
            heard: None,
            owed: 0,
        }
    }

    /// Limits the wait for the answer to the next question.
    pub(super) fn set_patience(&mut self, patience: Patience) {
        self.patience = Some(patience);
    }

    pub(super) fn is_usable(&self) -> bool {
        self.usable
    }

    /// Whether a question may have been carried out by the wrong user or in the wrong database. It can be undone over
    /// this connection and no other.
    pub(super) fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// Whether the question has to be asked again over a connection that keeps to RESP2.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated
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
        wishes: Wishes<'_>,
    ) -> Result<Answer, StoreError> {
        lock.clone_into(&mut self.lock);
        let mut first = Vec::new();
        if self.pushes && wishes.tracking && self.tracking == Switch::NotTried {
            first.push(tracking());
        }
        if let Some(channel) = wishes.channel.filter(|_| self.pushes && self.channel == Switch::NotTried) {
            first.push(subscribe(channel));
        }
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
        self.heard = self.heard.filter(|word| *word != Word::Touched);
        self.understood(answer, greeted)
    }

    /// Asks several questions in one flight, or in two on a new connection; each has an answer of its own.
    pub(super) async fn ask_all(
        &mut self,
        lock: &str,
        commands: &[Cmd],
        wishes: Wishes<'_>,
    ) -> Result<Vec<Answer>, StoreError> {
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

    fn note_wishes(&mut self, wishes: &[Cmd], replies: &[Value]) {
        for (wish, reply) in wishes.iter().zip(replies) {
            let state = if server_error(reply).is_some() { Switch::Refused } else { Switch::On };
            match begins_with(wish, b"CLIENT") {
                true => self.tracking = state,
                false => self.channel = state,
            }
        }
    }

    fn understood(&self, answer: Value, greeted: bool) -> Result<Answer, StoreError> {
        let Value::ServerError(error) = answer else { return Ok(Answer::Value(answer)) };
        if is_no_script(&error) {
            return Ok(Answer::NoScript);
        }
        if self.sends_elsewhere && is_between(&error) {
            return Ok(Answer::Between(describe(&error)));
        }
        match Redirect::read(&error).filter(|_| self.sends_elsewhere) {
            Some(redirect) => Ok(Answer::Elsewhere(redirect)),
            None => Err(refusal(&error, greeted)),
        }
    }

    /// One write, then as many answers as commands, each as it is. The greeting is over.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn exchange(
        &mut self,
        first: &[Cmd],
        command: &Cmd,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        self.exchange_and_more(first, command, None).await
    }

    /// The same, with one more command behind whose answer is not awaited.
    async fn exchange_and_more(
        &mut self,
        first: &[Cmd],
        command: &Cmd,
        behind: Option<&Cmd>,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        self.usable = false;
        let mut flight = Vec::new();
        for command in first {
            flight.extend(command.get_packed_command());
        }
        if self.asks {
            flight.extend(redis::cmd("ASKING").get_packed_command());
        }
        for command in [command].into_iter().chain(behind) {
            flight.extend(command.get_packed_command());
        }
        let write = async {
            self.stream.stream.write_all(&flight).await?;
            self.stream.stream.flush().await
        };
        if let Err(error) = write.await {
            // It may have said why before it closed the connection.
            let _ = self.value().await;
            let why = StoreError::unanswered(format!("cannot send: {}", io_text(&error)));
            return Err(self.stream.refusal().unwrap_or(why));
        }
        let answers = match self.patience.take() {
            None => self.replies(first).await?,
            Some(patience) => self.replies_in_time(first, patience).await?,
        };
        self.owed += usize::from(behind.is_some());
        self.usable = true;
        Ok(answers)
    }

    async fn replies(&mut self, first: &[Cmd]) -> Result<(Vec<Value>, Value), StoreError> {
        self.owed_answer().await?;
        let mut replies = Vec::with_capacity(first.len());
        for command in first {
            replies.push(self.reply(begins_with(command, b"SUBSCRIBE")).await?);
        }
        let allowed = if self.asks { Some(self.reply(false).await?) } else { None };
        let answer = self.reply(false).await?;
        // Without that right the node only says again that another one has the slot.
        let refused = allowed.filter(|allowed| server_error(allowed).is_some());
        Ok((replies, refused.unwrap_or(answer)))
    }

    /// The answer to one question of which a long one is expected.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn exchange_long(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.longest = LONGEST_ANSWER;
        let answer = self.exchange(&[], command).await;
        self.longest = LARGEST_ANSWER;
        answer.map(|(_, answer)| answer)
    }

    /// The last of the answers that nobody has awaited yet.
    async fn owed_answer(&mut self) -> Result<Option<Value>, StoreError> {
        let mut last = None;
        while self.owed > 0 {
            last = Some(self.reply(false).await?);
            self.owed -= 1;
        }
        Ok(last)
    }

    /// The answer to what went behind the last question; asked anew if that was not carried out with it.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn answer_behind(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.usable = false;
        let answer = match self.owed_answer().await? {
            Some(answer) => answer,
            None => self.exchange(&[], command).await?.1,
        };
        self.usable = true;
        Ok(answer)
    }

    /// What the question asked for is taken back when this fails, as far as that can be done.
    async fn replies_in_time(
        &mut self,
        first: &[Cmd],
        patience: Patience,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        let Patience { limit, hurry_up, last_words } = patience;
        tokio::select! {
            biased;
            answers = self.replies(first) => return answers,
            () = tokio::time::sleep(limit) => {}
            () = hurry_up.notified() => {}
        }
        let last_words = last_words.get_packed_command();
        let said = async {
            self.stream.stream.write_all(&last_words).await?;
            self.stream.stream.flush().await
        };
        match timeout(LAST_WORDS, said).await {
            Ok(Ok(())) => Err(StoreError::unreachable(format!("no answer within {} ms", limit.as_millis()))),
            _ => Err(StoreError::unanswered(format!("no answer within {} ms", limit.as_millis()))),
        }
    }

    /// The next answer; pushes that come before it are noticed. In RESP3 the answer to SUBSCRIBE is a push itself.
    async fn reply(&mut self, to_subscribe: bool) -> Result<Value, StoreError> {
        self.stream.refill(self.longest);
        loop {
            match self.value().await? {
                Value::Push { kind: PushKind::Subscribe, .. } if to_subscribe => return Ok(Value::Okay),
                Value::Push { kind, data } => self.heard = self.heard.max(self.word(&kind, &data)),
                value => return Ok(value),
            }
        }
    }

    async fn value(&mut self) -> Result<Value, StoreError> {
        let value = parse_redis_value_async(&mut self.decoder, &mut self.stream).await;
        self.silent &= value.is_err();
        value.map_err(|error| {
            let why = match error.kind() {
                redis::ErrorKind::Parse => "the server does not speak the Redis protocol".to_owned(),
                // Some proxies do that to whoever says what they do not know. Others die, so this is no reason to do without
                // what RESP3 is for.
                _ if error.is_connection_dropped() && self.silent && self.pushes => {
                    "the server closed the connection without a word (for a proxy that knows no HELLO: protocol=resp2)"
                        .to_owned()
                }
                _ if error.is_connection_dropped() => "the server closed the connection".to_owned(),
                _ => format!("cannot read: {}", shortened(&error.to_string())),
            };
            self.stream.refusal().unwrap_or_else(|| StoreError::unanswered(why))
        })
    }

    /// What a push means for us, if anything. `invalidate` names the keys that were touched, or none when all were; the
    /// other keys that were read matter to nobody here.
    fn word(&self, kind: &PushKind, data: &[Value]) -> Option<Word> {
        match (kind, data) {
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                let ours = |key: &Value| matches!(key, Value::BulkString(key) if key == self.lock.as_bytes());
                keys.iter().any(ours).then_some(Word::Touched)
            }
            (PushKind::Invalidate, _) => Some(Word::Touched),
            (PushKind::Message, [_, Value::BulkString(word)]) => match word.as_slice() {
                b"called" => Some(Word::Called),
                b"next" => Some(Word::Next),
                b"look" => Some(Word::Look),
                _ => None,
            },
            _ => None,
        }
    }

    /// Waits until [`Connection::changed`] would return. Dropping the future loses nothing.
    pub(super) async fn has_heard(&mut self) {
        let heard = self.changed().await;
        self.heard = self.heard.max(heard);
    }

    /// Waits until the server says something that matters; `None` when the connection has ended. Anything else than a
    /// push that comes unasked breaks the protocol and ends the connection too. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) -> Option<Word> {
        loop {
            if let Some(word) = self.heard.take() {
                return Some(word);
            }
            self.stream.refill(self.longest);
            match self.value().await {
                Ok(Value::Push { kind, data }) => self.heard = self.word(&kind, &data),
                Ok(_) if self.owed > 0 => self.owed -= 1,
                Ok(_) | Err(_) => {
                    self.usable = false;
                    return None;
                }
            }
        }
    }
}

/// Word of every key read here that somebody else touches, but not of our own changes.
pub(super) fn tracking() -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON").arg("NOLOOP");
    command
}

pub(super) fn subscribe(channel: &str) -> Cmd {
    let mut command = redis::cmd("SUBSCRIBE");
    command.arg(channel);
    command
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

    fn answer_to(bytes: &[u8], channel: Option<&str>) -> Result<Answer, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(1 << 20);
            theirs.write_all(bytes).await.expect("the pipe takes it all");
            theirs.shutdown().await.expect("the pipe closes");
            let greeting = Greeting { username: None, password: None, database: 0, hello: true };
            let mut connection = Connection::over(Bounded::new(Box::new(ours)), greeting);
            let wishes = Wishes { tracking: true, channel, behind: None };
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
        assert!(matches!(all(PLAUSIBLE[0]), Ok(Answer::Value(Value::Array(values))) if values.len() == 3));
        assert!(matches!(all(PLAUSIBLE[1]), Ok(Answer::Value(Value::Array(values))) if values.len() == 5));
        assert!(matches!(all(PLAUSIBLE[2]), Ok(Answer::Value(Value::Array(values))) if values.len() == 1));
        assert!(
            matches!(answer_to(PLAUSIBLE[3], Some("c")), Ok(Answer::Value(Value::Array(values))) if values.len() == 1)
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
            if let Ok(Answer::Value(Value::Array(values))) = answer_to(&bytes, channel) {
                let _ = super::super::answers::attempt(&values, Default::default());
            }
        }
    }
}
