//! One connection to one server: requests are answered in their order, and events arrive between the replies.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep_until};

use super::errors::Code;
use super::heartbeats::{Heartbeats, PINGS};
use super::message::{AUTH, Access, EVENT, PING, Reader, Request};
use crate::backend::net::BoundedStream;
use crate::backend::{Change, StoreError, io_text};
use crate::clock::Moment;

/// The longest message that is accepted, as in ZooKeeper's own client (`jute.maxbuffer`).
const LONGEST_MESSAGE: usize = 1 << 20;
/// How much is read at once.
const CHUNK: usize = 16 << 10;

/// A reply to a request.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    /// The last transaction that the server has seen.
    pub(super) zxid: i64,
    pub(super) code: Code,
    pub(super) body: Vec<u8>,
}

impl Reply {
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader(&self.body)
    }
}

/// What a watch that was just begun reports at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// Nothing: the reply to the request does not matter.
    Never,
    /// That the node is gone.
    Removal,
    /// That, and data that was written after this transaction.
    ChangeAfter(u64),
}

pub(super) struct Connection {
    pub(super) stream: BoundedStream,
    access: Access,
    received: Vec<u8>,
    last_number: i32,
    /// The requests whose replies are not awaited, in order.
    unawaited: VecDeque<(i32, Report)>,
    has_event: bool,
    /// No request was given up halfway.
    is_usable: bool,
    last_sent: Instant,
    is_pinged: bool,
    pinged_at: Moment,
    /// When the last requests were sent that have been answered.
    pub(super) heartbeats: Heartbeats,
}

impl Connection {
    pub(super) fn new(stream: BoundedStream, access: Access) -> Connection {
        Connection {
            stream,
            access,
            received: Vec::new(),
            last_number: 0,
            unawaited: VecDeque::new(),
            has_event: false,
            is_usable: true,
            last_sent: Instant::now(),
            is_pinged: false,
            pinged_at: Moment::now(),
            heartbeats: Heartbeats::default(),
        }
    }

    pub(super) fn is_usable(&self) -> bool {
        self.is_usable
    }

    /// Sends a message that has no header, and returns the reply to it.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn exchange_raw(&mut self, message: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.is_usable = false;
        self.heartbeats = Heartbeats::since(Moment::now());
        self.send(message).await?;
        let reply = self.message().await?;
        self.is_usable = true;
        Ok(reply)
    }

    /// Sends requests in one write, and returns the replies. Events that arrive before the first of them are dropped: the
    /// replies show what they are about.
    ///
    /// # Errors
    /// The connection is broken. It is unusable then, and after the future was dropped.
    pub(super) async fn exchange(&mut self, requests: &[Request]) -> Result<Vec<Reply>, StoreError> {
        self.is_usable = false;
        let sent = Moment::now();
        let mut bytes = Vec::new();
        let numbers: Vec<i32> = requests.iter().map(|request| self.write(request, &mut bytes)).collect();
        self.send(&bytes).await?;
        let mut replies = Vec::with_capacity(numbers.len());
        while let Some(number) = numbers.get(replies.len()) {
            let message = self.message().await?;
            let (answered, reply) = read(&message)?;
            if answered != *number {
                self.handle(answered, &reply)?;
                continue;
            }
            self.has_event &= !replies.is_empty();
            replies.push(reply);
        }
        self.heartbeats.answered(sent);
        self.is_usable = true;
        Ok(replies)
    }

    /// Sends requests whose replies are handled while later ones are awaited.
    ///
    /// # Errors
    /// The connection is broken.
    pub(super) async fn begin(&mut self, requests: &[(Request, Report)]) -> Result<(), StoreError> {
        self.is_usable = false;
        let mut bytes = Vec::new();
        for (request, report) in requests {
            let number = self.write(request, &mut bytes);
            if number > 0 {
                self.unawaited.push_back((number, *report));
            }
        }
        self.send(&bytes).await?;
        self.is_usable = true;
        Ok(())
    }

    /// Sends the end of the session, as far as that is possible without waiting.
    pub(super) fn close_session(mut self) {
        let mut bytes = Vec::new();
        self.write(&Request::CloseSession, &mut bytes);
        let _ = self.send(&bytes).now_or_never();
    }

    /// Waits for an event. Keeps the session alive meanwhile.
    pub(super) async fn changed(&mut self, session: Duration) -> Change {
        loop {
            if std::mem::take(&mut self.has_event) {
                return Change::OurTurn;
            }
            let ping_at = self.last_sent + session / PINGS;
            let outcome = tokio::select! {
                message = self.message() => message.and_then(|message| {
                    let (answered, reply) = read(&message)?;
                    self.handle(answered, &reply)
                }),
                () = sleep_until(ping_at) => self.ping().await,
            };
            if outcome.is_err() {
                self.is_usable = false;
                return Change::Disconnected;
            }
        }
    }

    async fn ping(&mut self) -> Result<(), StoreError> {
        if std::mem::replace(&mut self.is_pinged, true) {
            return Err(StoreError::unanswered("no reply to a ping"));
        }
        self.pinged_at = Moment::now();
        self.begin(&[(Request::Ping, Report::Never)]).await
    }

    /// Handles what is not the reply that is awaited.
    fn handle(&mut self, number: i32, reply: &Reply) -> Result<(), StoreError> {
        match number {
            EVENT => self.has_event = true,
            AUTH if reply.code != Code::OK => return Err(reply.code.error("/")),
            AUTH => {}
            PING => self.heartbeats.answered(self.pinged_at),
            _ => {
                let report = self.unawaited.iter().position(|(unawaited, _)| *unawaited == number);
                let Some((_, report)) = report.and_then(|position| self.unawaited.remove(position)) else {
                    return Err(StoreError::unanswered("the server sent a reply without a request"));
                };
                self.has_event |= match report {
                    Report::Never => false,
                    Report::Removal => reply.code != Code::OK,
                    Report::ChangeAfter(zxid) => {
                        reply.code != Code::OK || {
                            let mut reader = reply.reader();
                            reader.bytes()?;
                            reader.stat()?.mzxid as u64 > zxid
                        }
                    }
                };
            }
        }
        Ok(())
    }

    fn write(&mut self, request: &Request, bytes: &mut Vec<u8>) -> i32 {
        let number = match request {
            Request::Ping => PING,
            Request::Authenticate { .. } => AUTH,
            _ => {
                self.last_number = self.last_number.wrapping_add(1).max(1);
                self.last_number
            }
        };
        request.write(number, self.access, bytes);
        number
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.last_sent = Instant::now();
        match self.stream.send(bytes).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.broken("cannot send", &error).await),
        }
    }

    /// Returns the next message, without its length. If the future is dropped, nothing is lost.
    async fn message(&mut self) -> Result<Vec<u8>, StoreError> {
        loop {
            if let Some(length) = self.received.first_chunk::<4>() {
                let length = u32::from_be_bytes(*length) as usize;
                if length > LONGEST_MESSAGE {
                    return Err(too_long(&self.received));
                }
                if self.received.len() >= 4 + length {
                    let rest = self.received.split_off(4 + length);
                    let mut message = std::mem::replace(&mut self.received, rest);
                    self.is_pinged = false;
                    return Ok(message.split_off(4));
                }
            }
            self.stream.refill(CHUNK);
            self.received.reserve(CHUNK);
            match self.stream.read_buf(&mut self.received).await {
                Ok(0) => return Err(self.broken("", &io::ErrorKind::UnexpectedEof.into()).await),
                Ok(_) => {}
                Err(error) => return Err(self.broken("cannot read", &error).await),
            }
        }
    }

    async fn broken(&mut self, what: &str, error: &io::Error) -> StoreError {
        if let Some(why) = self.stream.why_ended().await {
            return why;
        }
        StoreError::unanswered(match error.kind() {
            io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
            _ => format!("{what}: {}", io_text(error)),
        })
    }
}

/// Returns the number and the reply in a message.
fn read(message: &[u8]) -> Result<(i32, Reply), StoreError> {
    let mut reader = Reader(message);
    let (number, zxid, code) = (reader.int()?, reader.long()?, Code(reader.int()?));
    Ok((number, Reply { zxid, code, body: reader.0.to_vec() }))
}

/// Returns the error for a message that is too long, or does not begin with a length.
fn too_long(received: &[u8]) -> StoreError {
    match received.iter().take(4).all(|byte| byte.is_ascii_graphic()) {
        true => StoreError::Config("the server does not speak the ZooKeeper protocol".into()),
        false => StoreError::unanswered(format!(
            "a reply is longer than {} MiB: does one lock have too many waiters?",
            LONGEST_MESSAGE >> 20
        )),
    }
}
