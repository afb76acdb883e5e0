//! One connection to the server: requests are answered in their order.

use std::time::Duration;

use super::location::Location;
use super::reply::{Failure, Item, Line};
use crate::backend::StoreError;
use crate::backend::net::{BoundedStream, FramedStream, Protocol, open};
use crate::clock::Moment;
use crate::secret;

/// The longest line that is accepted.
const LONGEST_LINE: usize = 4 << 10;
/// The longest value of a lock; a longer one is that of another program, and is skipped.
const LONGEST_VALUE: usize = 1 << 20;
/// The longest value that a server accepts (`memcached -I`, 1 GiB).
const LONGEST_ITEM: usize = 1 << 30;
/// The limit of all figures of a server.
const ALL_FIGURES: usize = 256 << 10;
/// Stands after each line and each value.
const END: &[u8] = b"\r\n";
/// The item by which a client checks that the server compares CAS values, and reads its clock: the time until its
/// expiry, which is known, is in the reply.
const CLOCK: &str = "dlock#clock";
/// When it expires, in seconds since 1970 by the server's clock: the latest time that a server accepts.
const CLOCK_ENDS: u64 = i32::MAX as u64;
/// Smaller times are times from now (`REALTIME_MAXDELTA` in `memcached.c` is half of this).
pub(super) const EARLIEST: Duration = Duration::from_secs(2 * 30 * 24 * 3600);

/// An open connection to a server that compares CAS values.
pub(super) struct Connection {
    stream: FramedStream,
    /// The server's clock, and when it was asked for.
    clock: (Duration, Moment),
}

impl Connection {
    /// Connects, authenticates, and checks the server.
    ///
    /// # Errors
    /// It cannot be reached, refuses the client, or cannot keep locks.
    pub async fn open(location: &Location) -> Result<Connection, StoreError> {
        // The files are read before the network is used.
        location.security.credentials.password()?;
        let stream = open(&location.server, &location.security).await?;
        let begin = Connection::over(stream, location);
        Protocol::Memcached.first_exchange(&location.server, &location.security, begin).await
    }

    /// Authenticates over an open stream, and checks the server.
    ///
    /// # Errors
    /// It refuses the client, or cannot keep locks.
    pub async fn over(stream: BoundedStream, location: &Location) -> Result<Connection, StoreError> {
        let stream = FramedStream::new(stream);
        let mut connection = Connection { stream, clock: (Duration::ZERO, Moment::now()) };
        connection.authenticate(location).await?;
        // Without CAS all values are 0, and a request with 0 is carried out unconditionally.
        let set = |flag: &str| format!("ms {CLOCK} 0 T{CLOCK_ENDS} {flag}\r\n\r\n");
        let probe = set("c") + &set(&format!("C{}", u64::MAX));
        let lines = connection.timed(&probe, 2).await?;
        location.security.recognize(&location.server);
        match lines.as_slice() {
            [Line::Done(Item { cas: 1.., .. }), Line::Changed] => Ok(connection),
            [Line::Done(_), _] => Err(StoreError::Config(
                "the server does not compare CAS values (memcached -C, or a proxy): locks need them".into(),
            )),
            _ => Err(unexpected()),
        }
    }

    /// Returns the time that the server's clock has shown last.
    pub fn clock(&self) -> Duration {
        self.clock.0
    }

    /// Returns the time that the server's clock shows, as far as it is known, or will show within the time of a request.
    pub fn now(&self) -> Duration {
        let (clock, asked) = self.clock;
        clock + (Moment::now() - asked)
    }

    /// Sends requests in one write, and asks the server for the time after them. Returns the replies.
    ///
    /// # Errors
    /// As of [`exchange`](Connection::exchange), or a request failed, or the server does not know the time.
    pub async fn timed(&mut self, requests: &str, count: usize) -> Result<Vec<Line>, StoreError> {
        let asked = Moment::now();
        let mut lines = self.request(&format!("{requests}mg {CLOCK} t\r\n"), count + 1).await?;
        if let Some(failed) = lines.pop_if(|line| line.is_error()) {
            return Err(failed.into_error());
        }
        let Some(Line::Done(Item { remaining, .. })) = lines.pop() else {
            return Err(StoreError::unanswered("the server has forgotten an item that was in use"));
        };
        self.clock = (Duration::from_secs(CLOCK_ENDS.saturating_sub(remaining)), asked);
        match self.clock.0 < EARLIEST {
            true => Err(StoreError::Config(
                "the server's clock is not set: start it again when that of its host is set".into(),
            )),
            false => Ok(lines),
        }
    }

    /// A server without authentication would store the password as an item: it is sent only to one that demands it.
    async fn authenticate(&mut self, location: &Location) -> Result<(), StoreError> {
        let credentials = &location.security.credentials;
        let Some(password) = credentials.password()? else { return Ok(()) };
        self.stream.send(b"mn\r\n").await?;
        let line = self.line().await?;
        location.security.recognize(&location.server);
        match line {
            Line::Nothing => return Ok(()),
            Line::Error(Failure::OfClient, _) => {}
            line => return Err(line.into_error()),
        }
        let login = format!("{} {password}", credentials.username().unwrap_or_default());
        self.stream.send(format!("set auth 0 0 {}\r\n{login}\r\n", login.len()).as_bytes()).await?;
        match self.line().await? {
            Line::Stored => Ok(()),
            Line::Error(Failure::OfClient, _) => {
                Err(StoreError::Denied("wrong username or password: check the URL and password_file=".into()))
            }
            line => Err(line.into_error()),
        }
    }

    /// Sends requests in one write, and returns the replies. An error is the last one.
    ///
    /// # Errors
    /// The connection is broken. It is unusable then, after a reply that is an error, and after the future was dropped.
    pub async fn exchange(&mut self, requests: &str, count: usize) -> Result<Vec<Line>, StoreError> {
        self.expect_silence().await?;
        self.request(requests, count).await
    }

    async fn request(&mut self, requests: &str, count: usize) -> Result<Vec<Line>, StoreError> {
        self.stream.send(requests.as_bytes()).await?;
        let mut replies = Vec::with_capacity(count);
        while replies.len() < count && !replies.last().is_some_and(Line::is_error) {
            replies.push(match self.line().await? {
                Line::Item(item, length) => {
                    Line::Item(Item { value: self.value(length).await?, ..item }, length)
                }
                line => line,
            });
        }
        Ok(replies)
    }

    /// Returns figures of the server.
    ///
    /// # Errors
    /// As of [`exchange`](Connection::exchange).
    pub async fn figures(&mut self, request: &str) -> Result<Vec<(String, String)>, StoreError> {
        self.stream.expect_silence().await?;
        self.stream.send(format!("{request}\r\n").as_bytes()).await?;
        let (mut figures, mut left) = (Vec::new(), ALL_FIGURES);
        loop {
            match self.line().await? {
                Line::Figure(name, figure) => {
                    let size = size_of::<(String, String)>() + name.len() + figure.len();
                    left = left.checked_sub(size).ok_or_else(unexpected)?;
                    figures.push((name, figure));
                }
                Line::End => return Ok(figures),
                line => return Err(line.into_error()),
            }
        }
    }

    /// Resolves when the server has closed the connection, or sends something that was not requested. May be dropped.
    pub async fn ended(&mut self) {
        self.stream.ended().await;
    }

    /// Fails if something has come that was not requested: it would be taken for the reply to the next request.
    pub async fn expect_silence(&mut self) -> Result<(), StoreError> {
        self.stream.expect_silence().await
    }

    async fn line(&mut self) -> Result<Line, StoreError> {
        let line = self.stream.until(b'\n', LONGEST_LINE).await?.ok_or_else(unexpected)?;
        let line = line.strip_suffix(END).and_then(|line| std::str::from_utf8(line).ok());
        line.and_then(Line::parse).ok_or_else(unexpected)
    }

    /// Returns a value of this length; an empty one if it is too long.
    async fn value(&mut self, length: usize) -> Result<Vec<u8>, StoreError> {
        if length > LONGEST_ITEM {
            return Err(unexpected());
        }
        let value = match length > LONGEST_VALUE {
            true => self.stream.skip(length).await.map(|()| Vec::new())?,
            false => self.stream.exact(length).await?,
        };
        if self.stream.exact(END.len()).await? == END { Ok(value) } else { Err(unexpected()) }
    }
}

impl Line {
    /// Returns whether the request has failed, so that there may be no replies to those after it.
    pub fn is_error(&self) -> bool {
        matches!(self, Line::Error(..))
    }

    /// Returns what it means that a request was answered by this line.
    pub fn into_error(self) -> StoreError {
        let Line::Error(failure, text) = self else { return unexpected() };
        // The server's text, which is not trusted, without our secrets; it is escaped when it is printed.
        let text: String = secret::scrubbed(&text).chars().take(200).collect();
        // Some failures differ by their texts only (`proto_text.c`, `proto_parser.c`).
        match failure {
            Failure::OfClient if text == "unauthenticated" => {
                StoreError::Denied("the server requires a username and password: see password_file=".into())
            }
            Failure::Unknown if !text.is_empty() => {
                StoreError::unanswered(format!("the server failed: {text}"))
            }
            Failure::Unknown | Failure::OfClient => {
                let text = if text.is_empty() { text } else { format!(" ({text})") };
                StoreError::Config(format!(
                    "the server does not know the meta commands that dlock needs{text}: use memcached 1.6.18 or later"
                ))
            }
            Failure::OfServer if text.starts_with("object too large") => StoreError::Config(format!(
                "the server accepts no item as long as the record of the lock ({text}): raise memcached -I"
            )),
            Failure::OfServer if text.starts_with("out of memory") => {
                StoreError::unanswered(format!("the server is full ({text}): see dlock doctor"))
            }
            Failure::OfServer => StoreError::unanswered(format!("the server failed: {text}")),
        }
    }
}

/// The error for a reply that Memcached does not send.
pub(super) fn unexpected() -> StoreError {
    StoreError::Config("the server does not speak the Memcached protocol".into())
}
