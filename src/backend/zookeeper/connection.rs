//! One connection to one server: requests are answered in their order, and events arrive between the replies.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until};

use super::errors::Code;
use super::heartbeats::{Answered, Heartbeats, PINGS};
use super::message::{AUTH, Access, EVENT, FAILED_PART, PING, Reader, Request};
use crate::backend::net::{BoundedStream, FramedStream};
use crate::backend::{Change, StoreError};
use crate::clock::Moment;

/// The longest message that is accepted, as in ZooKeeper's own client (`jute.maxbuffer`).
const LONGEST_MESSAGE: usize = 1 << 20;
/// The most that is read for some requests that were sent together.
const LONGEST_EXCHANGE: usize = 4 << 20;

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

    /// Returns the content of a reply about a node; `None` if the node does not exist.
    ///
    /// # Errors
    /// The request failed.
    pub(super) fn found(&self, path: &str) -> Result<Option<Reader<'_>>, StoreError> {
        match self.code {
            Code::OK => Ok(Some(self.reader())),
            Code::NO_NODE => Ok(None),
            code => Err(code.error(path)),
        }
    }

    /// Returns whether the request was a write, and was carried out: a majority of the servers has it.
    fn is_commit_of(&self, request: &Request) -> bool {
        self.code == Code::OK
            && match request {
                Request::Create { .. } | Request::Delete { .. } | Request::Set { .. } => true,
                // A step that has failed begins with an error.
                Request::Multi(_) => matches!(self.reader().part(), Ok(Some(kind)) if kind != FAILED_PART),
                _ => false,
            }
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
    stream: FramedStream,
    access: Access,
    last_number: i32,
    /// The requests whose replies are not awaited, in order.
    unawaited: VecDeque<(i32, Report)>,
    has_event: bool,
    /// No request was given up halfway.
    is_usable: bool,
    last_sent: Instant,
    /// When the ping was sent that has not been answered.
    pinged_at: Option<Moment>,
    /// What was answered since the session was begun here, or continued; `None` before that.
    pub(super) heartbeats: Option<Heartbeats>,
}

impl Connection {
    pub(super) fn new(stream: BoundedStream, access: Access) -> Connection {
        Connection {
            stream: FramedStream::new(stream),
            access,
            last_number: 0,
            unawaited: VecDeque::new(),
            has_event: false,
            is_usable: true,
            last_sent: Instant::now(),
            pinged_at: None,
            heartbeats: None,
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
        self.send(message).await?;
        let reply = self.message().await?;
        self.is_usable = true;
        Ok(reply)
    }

    /// Sends requests in one write, and returns the replies; and, if one of them was a write that was committed, the sending
    /// of the last request that the leader knew of then. Events that arrive before the first reply are dropped: the replies
    /// show what they are about.
    ///
    /// # Errors
    /// The connection is broken. It is unusable then, and after the future was dropped.
    pub(super) async fn exchange(
        &mut self,
        requests: &[Request],
    ) -> Result<(Vec<Reply>, Option<Moment>), StoreError> {
        self.is_usable = false;
        let sent = Moment::now();
        let mut bytes = Vec::new();
        let numbers: Vec<i32> = requests.iter().map(|request| self.write(request, &mut bytes)).collect();
        self.send(&bytes).await?;
        let mut replies = Vec::with_capacity(numbers.len());
        let mut size = 0;
        while let Some(number) = numbers.get(replies.len()) {
            let message = self.message().await?;
            size += message.len();
            if size > LONGEST_EXCHANGE {
                return Err(StoreError::unanswered(
                    "the replies to one batch of requests are longer than 4 MiB",
                ));
            }
            let (answered, reply) = read(&message)?;
            if answered != *number {
                self.handle(answered, &reply)?;
                continue;
            }
            self.has_event &= !replies.is_empty();
            replies.push(reply);
        }
        let answered = Answered { sent, at: Moment::now() };
        let is_committed = requests.iter().zip(&replies).any(|(request, reply)| reply.is_commit_of(request));
        let known = self.heartbeats.as_mut().filter(|_| is_committed).map(|all| all.known(answered));
        self.answered(answered);
        self.is_usable = true;
        Ok((replies, known))
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
            let handled = tokio::select! {
                message = self.message() => message.and_then(|message| {
                    let (answered, reply) = read(&message)?;
                    self.handle(answered, &reply)
                }),
                () = sleep_until(ping_at) => self.ping().await,
            };
            if handled.is_err() {
                self.is_usable = false;
                return Change::Disconnected;
            }
        }
    }

    async fn ping(&mut self) -> Result<(), StoreError> {
        if self.pinged_at.replace(Moment::now()).is_some() {
            return Err(StoreError::unanswered("no reply to a ping"));
        }
        self.begin(&[(Request::Ping, Report::Never)]).await
    }

    fn answered(&mut self, request: Answered) {
        if let Some(heartbeats) = &mut self.heartbeats {
            heartbeats.answered(request);
        }
    }

    /// Handles what is not the reply that is awaited.
    fn handle(&mut self, number: i32, reply: &Reply) -> Result<(), StoreError> {
        match number {
            EVENT => self.has_event = true,
            AUTH if reply.code != Code::OK => return Err(reply.code.error("/")),
            AUTH => {}
            PING => {
                let sent = self.pinged_at.take().ok_or_else(unrequested)?;
                self.answered(Answered { sent, at: Moment::now() });
            }
            _ => {
                let report = self.unawaited.iter().position(|(unawaited, _)| *unawaited == number);
                let Some((_, report)) = report.and_then(|position| self.unawaited.remove(position)) else {
                    return Err(unrequested());
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
        self.stream.send(bytes).await
    }

    /// Returns the next message, without its length. If the future is dropped, nothing is lost.
    async fn message(&mut self) -> Result<Vec<u8>, StoreError> {
        // A server that sends without a pause must not keep deadlines and signals from being handled.
        tokio::task::consume_budget().await;
        let length = |header: [u8; 4]| match u32::from_be_bytes(header) as usize {
            length @ ..=LONGEST_MESSAGE => Ok(length),
            _ => Err(too_long(header)),
        };
        self.stream.frame(length).await.map(|(_, message)| message)
    }
}

fn unrequested() -> StoreError {
    StoreError::unanswered("the server sent a reply without a request")
}

/// Returns the number and the reply in a message.
fn read(message: &[u8]) -> Result<(i32, Reply), StoreError> {
    let mut reader = Reader(message);
    let (number, zxid, code) = (reader.int()?, reader.long()?, Code(reader.int()?));
    Ok((number, Reply { zxid, code, body: reader.0.to_vec() }))
}

/// Returns the error for a message that is too long, or does not begin with a length.
fn too_long(header: [u8; 4]) -> StoreError {
    match header.iter().all(u8::is_ascii_graphic) {
        true => StoreError::Config("the server does not speak the ZooKeeper protocol".into()),
        false => StoreError::unanswered(format!(
            "a reply is longer than {} MiB: does one lock have too many waiters?",
            LONGEST_MESSAGE >> 20
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    /// Otherwise its reply would be taken for the one to the next ping, which was sent later.
    #[tokio::test]
    async fn a_second_ping_is_not_sent_before_the_reply_to_the_first() {
        let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
        let mut connection = Connection::new(BoundedStream::unix(ours), Access::Everyone);
        let session = Duration::from_millis(50) * PINGS;
        let event = [&20i32.to_be_bytes()[..], &EVENT.to_be_bytes(), &[0; 16]].concat();
        let server = async {
            let mut ping = [0; 12];
            theirs.read_exact(&mut ping).await.expect("a ping");
            theirs.write_all(&event).await.expect("an open connection");
            theirs
        };
        let (change, mut theirs) = tokio::join!(connection.changed(session), server);
        assert_eq!(change, Change::OurTurn);
        assert_eq!(connection.changed(session).await, Change::Disconnected);
        drop(connection);
        let mut rest = Vec::new();
        theirs.read_to_end(&mut rest).await.expect("the end");
        assert_eq!(rest, [0; 0], "another ping");
    }
}
