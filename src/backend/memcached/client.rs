//! One connection to the server: requests are answered in their order.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use super::location::Location;
use super::reply::{Failure, Item, Line, Word};
use crate::backend::net::{BoundedStream, Protocol, open};
use crate::backend::{StoreError, io_text};
use crate::secret;

/// The longest line that is accepted.
const LONGEST_LINE: usize = 4 << 10;
/// The longest value of a holder; a longer one is that of another program, and is skipped.
const LONGEST_VALUE: usize = 1 << 20;
/// The longest value that a server accepts (`memcached -I`, 1 GiB).
const LONGEST_ITEM: usize = 1 << 30;
/// The limit of all figures of a server.
const ALL_FIGURES: usize = 256 << 10;
/// How much is read at once.
const CHUNK: usize = 8 << 10;
/// The item with which the server proves that it compares CAS values. It expires soon.
const PROBE: &str = "dlock#probe";

/// An open connection to a server that compares CAS values.
pub(super) struct Connection {
    stream: BufReader<BoundedStream>,
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
        let mut connection = Connection { stream: BufReader::with_capacity(CHUNK, stream) };
        connection.authenticate(location).await?;
        // Without CAS all values are 0, and a request with 0 is carried out unconditionally.
        let probe = format!("ms {PROBE} 1 T60 c\r\n1\r\nms {PROBE} 1 T60 C{}\r\n2\r\n", u64::MAX);
        let lines = connection.request(probe.as_bytes(), 2).await?;
        location.security.recognize(&location.server);
        match lines.as_slice() {
            [Line::Done(Some(1..)), Line::Changed] => Ok(connection),
            [Line::Done(_), _] => Err(StoreError::Config(
                "the server does not compare CAS values (memcached -C, or a proxy): locks need them".into(),
            )),
            _ => Err(unexpected()),
        }
    }

    /// A server without authentication would store the password as an item: it is sent only to one that demands it.
    async fn authenticate(&mut self, location: &Location) -> Result<(), StoreError> {
        let credentials = &location.security.credentials;
        let Some(password) = credentials.password()? else { return Ok(()) };
        self.send(b"mn\r\n").await?;
        let line = self.line().await?;
        location.security.recognize(&location.server);
        match line {
            Line::Word(Word::Nothing) => return Ok(()),
            Line::Error(Failure::OfClient, _) => {}
            line => return Err(line.into_error()),
        }
        let login = format!("{} {password}", credentials.username().unwrap_or_default());
        self.send(format!("set auth 0 0 {}\r\n{login}\r\n", login.len()).as_bytes()).await?;
        match self.line().await? {
            Line::Word(Word::Stored) => Ok(()),
            Line::Error(Failure::OfClient, _) => {
                Err(StoreError::Denied("wrong username or password: check the URL and password_file=".into()))
            }
            line => Err(line.into_error()),
        }
    }

    /// Sends requests in one write, and returns the replies.
    ///
    /// # Errors
    /// The connection is broken, or a request failed. It is unusable then, and after the future was dropped.
    pub async fn exchange(&mut self, requests: &[u8], count: usize) -> Result<Vec<Line>, StoreError> {
        self.expect_silence().await?;
        self.request(requests, count).await
    }

    async fn request(&mut self, requests: &[u8], count: usize) -> Result<Vec<Line>, StoreError> {
        self.send(requests).await?;
        let mut replies = Vec::with_capacity(count);
        for _ in 0..count {
            replies.push(match self.line().await? {
                Line::Item(item, length) => {
                    Line::Item(Item { value: self.value(length).await?, ..item }, length)
                }
                line @ Line::Error(..) => return Err(line.into_error()),
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
        self.expect_silence().await?;
        self.send(format!("{request}\r\n").as_bytes()).await?;
        let (mut figures, mut left) = (Vec::new(), ALL_FIGURES);
        loop {
            match self.line().await? {
                Line::Figure(name, figure) => {
                    let size = size_of::<(String, String)>() + name.len() + figure.len();
                    left = left.checked_sub(size).ok_or_else(unexpected)?;
                    figures.push((name, figure));
                }
                Line::Word(Word::End) => return Ok(figures),
                line => return Err(line.into_error()),
            }
        }
    }

    /// Resolves when the server has closed the connection, or sends something that was not requested. May be dropped.
    pub async fn ended(&mut self) {
        self.stream.get_mut().refill(CHUNK);
        let _ = self.stream.fill_buf().await;
    }

    /// Fails if something has come that was not requested: it would be taken for the reply to the next request.
    async fn expect_silence(&mut self) -> Result<(), StoreError> {
        self.stream.get_mut().refill(CHUNK);
        let arrived = tokio::select! {
            biased;
            arrived = self.stream.fill_buf() => arrived.map(|bytes| !bytes.is_empty()),
            () = std::future::ready(()) => return Ok(()),
        };
        Err(match arrived {
            Ok(true) => StoreError::unanswered("the server sent more than was requested".to_owned()),
            Ok(false) => self.broken(&io::ErrorKind::UnexpectedEof.into()).await,
            Err(error) => self.broken(&error).await,
        })
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        match self.stream.get_mut().send(bytes).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.broken(&error).await),
        }
    }

    async fn line(&mut self) -> Result<Line, StoreError> {
        let mut line = Vec::new();
        self.stream.get_mut().refill(CHUNK);
        let read = (&mut self.stream).take(LONGEST_LINE as u64).read_until(b'\n', &mut line).await;
        match read {
            Err(error) => Err(self.broken(&error).await),
            Ok(_) => match line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok()) {
                Some(line) => Line::parse(line).ok_or_else(unexpected),
                None if line.ends_with(b"\n") || line.len() == LONGEST_LINE => Err(unexpected()),
                None => Err(self.broken(&io::ErrorKind::UnexpectedEof.into()).await),
            },
        }
    }

    /// Returns a value of this length; an empty one if it is too long.
    async fn value(&mut self, length: usize) -> Result<Vec<u8>, StoreError> {
        const END: &[u8] = b"\r\n";
        if length > LONGEST_ITEM {
            return Err(unexpected());
        }
        let (mut value, mut end) = (Vec::new(), Vec::new());
        let mut left = length + END.len();
        while left > 0 {
            self.stream.get_mut().refill(CHUNK);
            let read = match self.stream.fill_buf().await {
                Ok([]) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => {
                    let bytes = &bytes[..bytes.len().min(left)];
                    let (inner, rest) = bytes.split_at(bytes.len().min(left.saturating_sub(END.len())));
                    if length <= LONGEST_VALUE {
                        value.extend_from_slice(inner);
                    }
                    end.extend_from_slice(rest);
                    Ok(bytes.len())
                }
                Err(error) => Err(error),
            };
            match read {
                Ok(read) => {
                    self.stream.consume(read);
                    left -= read;
                }
                Err(error) => return Err(self.broken(&error).await),
            }
        }
        if end == END { Ok(value) } else { Err(unexpected()) }
    }

    async fn broken(&mut self, error: &io::Error) -> StoreError {
        if let Some(why) = self.stream.get_mut().why_ended().await {
            return why;
        }
        StoreError::unanswered(match error.kind() {
            io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
            _ => io_text(error),
        })
    }
}

impl Line {
    /// Returns what it means that a request was answered by this line.
    fn into_error(self) -> StoreError {
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
                "the server accepts no item as long as the record of a holder ({text}): raise memcached -I"
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
