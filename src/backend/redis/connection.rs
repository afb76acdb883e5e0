//! One connection: the greeting and the first question in one flight, answers within bounds, pushes noticed.
//!
//! The wire format is the redis crate's. The flights are our own, because its connections greet first and ask after.

use combine::parser::combinator::AnySendSyncPartialState;
use combine::stream::{PointerOffset, decoder::Decoder};
use redis::{Cmd, PushKind, ServerError, Value, parse_redis_value_async};
use tokio::io::AsyncWriteExt;

use super::errors::{describe, refusal, shortened};
use super::location::Location;
use super::stream::{self, Bounded, Stream};
use crate::backend::{StoreError, io_text};

/// A connection to one server.
pub(super) struct Connection {
    stream: Bounded<Box<dyn Stream>>,
    decoder: Decoder<AnySendSyncPartialState, PointerOffset<[u8]>>,
    greeting: Option<Greeting>,
    /// Every question so far has been answered in full, and the server has kept to the protocol.
    usable: bool,
    /// A question was carried out after a greeting that failed.
    spoiled: bool,
    /// Word of a change came while an answer was awaited.
    touched: bool,
}

/// What has to be said first; goes with the first question.
struct Greeting {
    username: Option<String>,
    password: Option<String>,
    database: u32,
    hello: bool,
}

impl Connection {
    /// Connects, with TLS if so located; says nothing yet.
    pub(super) async fn open(location: &Location) -> Result<Connection, StoreError> {
        let password = location.password()?;
        let stream = stream::open(location).await?;
        let username = location.username().map(str::to_owned);
        let greeting =
            Greeting { username, password, database: location.database(), hello: location.resp3() };
        Ok(Connection::over(stream, greeting))
    }

    fn over(stream: Bounded<Box<dyn Stream>>, greeting: Greeting) -> Connection {
        Connection {
            stream,
            decoder: Decoder::new(),
            greeting: Some(greeting),
            usable: true,
            spoiled: false,
            touched: false,
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        self.usable
    }

    /// Whether a question may have been carried out by the wrong user or in the wrong database. It can be undone over
    /// this connection and no other.
    pub(super) fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// Asks one question and waits for its answer. The greeting, where it is due, travels in the same write; its
    /// answers decide what an answer to the question is worth.
    pub(super) async fn ask(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        let greeting = self.greeting.take();
        let greeted = greeting.is_some();
        let answer = match greeting {
            None => self.exchange(&[], command).await?,
            Some(greeting) => self.greet_and_ask(greeting, command).await?,
        };
        match answer {
            Value::ServerError(error) => Err(refusal(&error, greeted)),
            answer => Ok(answer),
        }
    }

    async fn greet_and_ask(&mut self, greeting: Greeting, command: &Cmd) -> Result<Value, StoreError> {
        let mut first = Vec::new();
        if greeting.hello {
            first.push(hello(&greeting));
        } else if let Some(auth) = auth(&greeting) {
            first.push(auth);
        }
        if greeting.database != 0 {
            first.push(select(greeting.database));
        }
        if greeting.hello {
            first.push(tracking());
        }
        let (replies, answer) = self.exchange_all(&first, command).await?;
        let hello_refused = greeting.hello.then(|| server_error(&replies[0])).flatten();
        if let Some(error) = hello_refused {
            return match error.code() {
                "NOAUTH" | "WRONGPASS" | "NOPERM" | "DENIED" | "LOADING" | "BUSY" | "MASTERDOWN" => {
                    self.spoil(refusal(error, true))
                }
                // A server or proxy that knows only RESP2 knows no HELLO (before Redis 6), or not version 3; in which
                // words it says so is its own affair.
                _ if greeting.password.is_none() => {
                    self.check(&greeting, &first[1..], &replies[1..]).map(|()| answer)
                }
                // The password went with the HELLO. If the question was carried out all the same, asking again
                // changes nothing.
                _ => {
                    let plain = Greeting { hello: false, ..greeting };
                    Box::pin(self.greet_and_ask(plain, command)).await
                }
            };
        }
        self.check(&greeting, &first, &replies).map(|()| answer)
    }

    /// Whether the answers to the greeting allow the answer to the question to stand.
    fn check(&mut self, greeting: &Greeting, first: &[Cmd], replies: &[Value]) -> Result<(), StoreError> {
        for (asked, reply) in first.iter().zip(replies) {
            match server_error(reply) {
                None => {}
                // Without tracking nothing is pushed; the renewals notice a loss all the same, only later.
                Some(_) if begins_with(asked, b"CLIENT") => {}
                Some(error) if begins_with(asked, b"SELECT") && !error.code().starts_with("NO") => {
                    let text = format!("database {}: {}", greeting.database, describe(error));
                    return self.spoil(StoreError::Config(text));
                }
                Some(error) => return self.spoil(refusal(error, true)),
            }
        }
        Ok(())
    }

    /// The greeting failed, so the question ran without the rights or the database it was meant for: whatever it did
    /// has to be undone.
    fn spoil<T>(&mut self, error: StoreError) -> Result<T, StoreError> {
        self.usable = false;
        self.spoiled = true;
        Err(error)
    }

    async fn exchange(&mut self, first: &[Cmd], command: &Cmd) -> Result<Value, StoreError> {
        self.exchange_all(first, command).await.map(|(_, answer)| answer)
    }

    /// One write, then as many answers as commands.
    async fn exchange_all(
        &mut self,
        first: &[Cmd],
        command: &Cmd,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        self.usable = false;
        let mut flight = Vec::new();
        for command in first.iter().chain([command]) {
            flight.extend(command.get_packed_command());
        }
        let write = async {
            self.stream.stream.write_all(&flight).await?;
            self.stream.stream.flush().await
        };
        write.await.map_err(|error| StoreError::unanswered(format!("cannot send: {}", io_text(&error))))?;
        let mut replies = Vec::with_capacity(first.len());
        for _ in first {
            replies.push(self.reply().await?);
        }
        let answer = self.reply().await?;
        self.usable = true;
        Ok((replies, answer))
    }

    /// The next answer; pushes that come before it are noticed.
    async fn reply(&mut self) -> Result<Value, StoreError> {
        self.stream.refill();
        loop {
            match self.value().await? {
                Value::Push { kind, .. } => self.touched |= kind == PushKind::Invalidate,
                value => return Ok(value),
            }
        }
    }

    async fn value(&mut self) -> Result<Value, StoreError> {
        parse_redis_value_async(&mut self.decoder, &mut self.stream).await.map_err(|error| {
            StoreError::unanswered(match error.kind() {
                redis::ErrorKind::Parse => "the server does not speak the Redis protocol".to_owned(),
                _ if error.is_connection_dropped() => "the server closed the connection".to_owned(),
                _ => format!("cannot read: {}", shortened(&error.to_string())),
            })
        })
    }

    /// Waits until the server says that the key has changed, or until the connection ends. Anything else that comes
    /// unasked breaks the protocol and ends the connection too. Dropping the future loses nothing.
    pub(super) async fn changed(&mut self) {
        while !std::mem::take(&mut self.touched) {
            self.stream.refill();
            match self.value().await {
                Ok(Value::Push { kind: PushKind::Invalidate, .. }) => return,
                Ok(Value::Push { .. }) => {}
                Ok(_) | Err(_) => {
                    self.usable = false;
                    return;
                }
            }
        }
    }
}

fn hello(greeting: &Greeting) -> Cmd {
    let mut command = redis::cmd("HELLO");
    command.arg(3);
    if let Some(password) = &greeting.password {
        command.arg("AUTH").arg(greeting.username.as_deref().unwrap_or("default")).arg(password);
    }
    command
}

fn auth(greeting: &Greeting) -> Option<Cmd> {
    let password = greeting.password.as_deref()?;
    let mut command = redis::cmd("AUTH");
    if let Some(username) = &greeting.username {
        command.arg(username);
    }
    command.arg(password);
    Some(command)
}

fn select(database: u32) -> Cmd {
    let mut command = redis::cmd("SELECT");
    command.arg(database);
    command
}

/// Word of every key read here that somebody else touches, but not of our own changes.
fn tracking() -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON").arg("NOLOOP");
    command
}

fn begins_with(command: &Cmd, name: &[u8]) -> bool {
    matches!(command.args_iter().next(), Some(redis::Arg::Simple(first)) if first == name)
}

fn server_error(value: &Value) -> Option<&ServerError> {
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
        b"-NOAUTH HELLO must be called\r\n-NOAUTH\r\n-NOAUTH Authentication required.\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    ];

    fn answer_to(bytes: &[u8]) -> Result<Value, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::io::duplex(1 << 20);
            theirs.write_all(bytes).await.expect("the pipe takes it all");
            theirs.shutdown().await.expect("the pipe closes");
            let greeting = Greeting { username: None, password: None, database: 0, hello: true };
            let mut connection = Connection::over(Bounded::new(Box::new(ours)), greeting);
            let answer = connection.ask(&redis::cmd("EVAL")).await;
            // Returns at the latest at the end, which it must notice.
            while connection.is_usable() {
                connection.changed().await;
            }
            answer
        })
    }

    #[test]
    fn plausible_answers_are_understood() {
        assert!(matches!(answer_to(PLAUSIBLE[0]), Ok(Value::Array(values)) if values.len() == 3));
        assert!(matches!(answer_to(PLAUSIBLE[1]), Ok(Value::Array(values)) if values.len() == 5));
        assert!(matches!(answer_to(PLAUSIBLE[2]), Ok(Value::Array(values)) if values.len() == 1));
        assert!(matches!(answer_to(PLAUSIBLE[3]), Err(StoreError::Denied(_))));
        assert!(matches!(answer_to(PLAUSIBLE[4]), Err(StoreError::Unavailable { maybe_applied: true, .. })));
        assert!(matches!(answer_to(b""), Err(StoreError::Unavailable { maybe_applied: true, .. })));
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
            if let Ok(Value::Array(values)) = answer_to(&bytes) {
                let _ = super::super::read_attempt(&values);
            }
        }
    }
}
