//! One connection to a server: the handshake and the first request in one round trip, bounded replies, and pushes.
//!
//! The wire format is that of the redis crate. The connections are dlock's own, because those of the crate complete the
//! handshake before they send a request.
//!
//! Used by the stores of this folder. What always holds: a connection is used again only after every reply to it has been
//! read in full, so that a reply never belongs to an earlier request.

mod exchange;
mod handshake;
mod notifications;
mod reply;

use combine::parser::combinator::AnySendSyncPartialState;
use combine::stream::{PointerOffset, decoder::Decoder};
use redis::{Cmd, ServerError, Value};

pub(super) use self::exchange::{Cancel, ReplyLimit};
use self::handshake::Handshake;
use self::notifications::Switch;
pub(super) use self::notifications::{PushEvent, RequestOptions, subscribe, tracking};
pub(super) use self::reply::{CommandReply, value_of};
use super::errors::DependentRole;
use super::location::Location;
use super::redirect::Asking;
use crate::backend::StoreError;
use crate::backend::net::{self, Address, BoundedStream, Security};

/// The maximum size of a reply, including the pushes before it. Most replies to dlock have some hundred bytes, the longest
/// one is a list of 20 outcomes of 8 KiB; a parser may use up to some twenty times the size of hostile input.
const MAX_REPLY_SIZE: usize = 176 * 1024;

/// The same for the list of the nodes of a cluster, each of which may have many ranges of slots.
const MAX_LONG_REPLY_SIZE: usize = 512 * 1024;

pub(super) struct Connection {
    stream: BoundedStream,
    decoder: Decoder<AnySendSyncPartialState, PointerOffset<[u8]>>,
    handshake: Option<Handshake>,
    /// The server sends pushes, as far as has been tried: RESP3.
    pub(super) pushes: bool,
    tracking: Switch,
    channel: Switch,
    /// Every reply so far was read in full, and the server has kept to the protocol.
    pub(super) usable: bool,
    /// A request may have been executed as the wrong user or in the wrong database: the handshake failed. It can be
    /// undone over this connection only.
    pub(super) misrouted: bool,
    /// The server, if nothing is known of its kind, which is found out if it does not reply in this protocol.
    stranger: Option<(Address, Security)>,
    /// Nothing has been received from the server yet.
    no_reply_yet: bool,
    /// The server speaks RESP2 only: the request has to be sent again, over another connection.
    pub(super) resp2_required: bool,
    /// What the server is if it does not hold locks by itself, as far as its last reply reveals it.
    pub(super) role: Option<DependentRole>,
    /// The last request was denied because this user has no right to its key.
    pub(super) lacks_key: bool,
    /// The server is a node of a cluster, and its redirections are followed.
    follows_redirects: bool,
    /// The server has not denied EVALSHA to this user: scripts can be requested by digest.
    pub(super) accepts_evalsha: bool,
    /// The digests of the scripts that were sent by their texts because the server did not have one of them.
    pub(super) sent_as_text: Vec<&'static str>,
    /// Whether each request is preceded by `ASKING`, which makes a node serve a slot that is being migrated to it.
    pub(super) asking: Asking,
    /// The maximum size of a reply in bytes.
    max_reply_size: usize,
    /// The key of the lock, of which changes are reported.
    lock: String,
    /// How long to wait for the reply to the next request; no limit if not set.
    pub(super) reply_limit: Option<ReplyLimit>,
    /// The push that was received while waiting for a reply.
    last_push: Option<PushEvent>,
    /// The number of replies still to come that have not been read.
    pending_replies: usize,
}

impl Connection {
    /// Connects, with TLS if the URL says so; sends nothing yet. `old_protocol` is for servers that have rejected
    /// RESP3.
    pub(super) async fn open(
        location: &Location,
        address: &Address,
        old_protocol: bool,
    ) -> Result<Connection, StoreError> {
        let mut handshake = Handshake::of(location, location.security.credentials.password()?);
        handshake.hello &= !old_protocol;
        handshake.verify_kind = Some(address.clone());
        let connection = Connection::open_with(location, address, handshake).await?;
        Ok(Connection { follows_redirects: location.is_cluster(), ..connection })
    }

    /// Connects to a sentinel, which has credentials of its own or none; sends nothing yet.
    pub(super) async fn open_to_sentinel(
        location: &Location,
        address: &Address,
    ) -> Result<Connection, StoreError> {
        let credentials = &location.sentinel_credentials;
        let (username, password) = (credentials.username().map(str::to_owned), credentials.password()?);
        let handshake = Handshake { username, password, database: 0, hello: false, verify_kind: None };
        Connection::open_with(location, address, handshake).await
    }

    /// Connects to a server that is not known to be of another kind.
    async fn open_with(
        location: &Location,
        address: &Address,
        handshake: Handshake,
    ) -> Result<Connection, StoreError> {
        let security = &location.security;
        if let Some(error) = security.other_kind(address) {
            return Err(error);
        }
        let connection = Connection::over(net::open(address, security).await?, handshake);
        let stranger = security.is_unknown(address).then(|| (address.clone(), security.clone()));
        Ok(Connection { stranger, ..connection })
    }

    /// Returns a connection over an open stream to a server of any kind; sends nothing yet.
    pub(super) fn begin(
        location: &Location,
        address: &Address,
        password: Option<String>,
        stream: BoundedStream,
    ) -> Connection {
        let connection = Connection::over(stream, Handshake::of(location, password));
        let stranger = Some((address.clone(), location.security.clone()));
        Connection { stranger, follows_redirects: location.is_cluster(), ..connection }
    }

    /// Returns a connection over an open stream, with this handshake.
    fn over(stream: BoundedStream, handshake: Handshake) -> Connection {
        Connection {
            stream,
            decoder: Decoder::new(),
            pushes: handshake.hello,
            handshake: Some(handshake),
            tracking: Switch::NotTried,
            channel: Switch::NotTried,
            usable: true,
            misrouted: false,
            stranger: None,
            no_reply_yet: true,
            resp2_required: false,
            role: None,
            lacks_key: false,
            follows_redirects: false,
            accepts_evalsha: true,
            sent_as_text: Vec::new(),
            asking: Asking::No,
            max_reply_size: MAX_REPLY_SIZE,
            lock: String::new(),
            reply_limit: None,
            last_push: None,
            pending_replies: 0,
        }
    }

    /// Whether the server has rejected the client certificate, or the lack of one or of TLS.
    pub(super) fn is_tls_refused(&self) -> bool {
        self.stream.refusal().is_some()
    }

    /// Whether the server reports changes of the lock by other clients.
    pub(super) fn is_tracking(&self) -> bool {
        self.tracking == Switch::On
    }

    /// Whether a channel can be subscribed to, as far as has been tried.
    pub(super) fn can_listen(&self) -> bool {
        self.pushes && self.channel != Switch::Refused
    }

    /// Sends one request about a lock and waits for its reply. The handshake, if it is still due, and the options are
    /// sent in the same write; the replies to the handshake decide whether the reply to the request is valid.
    pub(super) async fn request(
        &mut self,
        lock: &str,
        command: &Cmd,
        options: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        lock.clone_into(&mut self.lock);
        let first = self.due(options);
        let with_handshake = self.handshake.is_some();
        let (replies, reply) = self.exchange_greeted(&first, command, options.trailing).await?;
        self.note_options(&first, &replies);
        // The reply reflects every change that was pushed before it. Redis 6.0 reports even changes by this
        // connection's own request: NOLOOP does not cover scripts there.
        self.last_push = self.last_push.filter(|event| *event != PushEvent::Touched);
        self.interpret(reply, with_handshake)
    }

    /// Sends several requests in one round trip; each has its own reply. The first one is sent alone if the handshake or
    /// options are due.
    pub(super) async fn request_all(
        &mut self,
        lock: &str,
        commands: &[Cmd],
        options: RequestOptions<'_>,
    ) -> Result<Vec<CommandReply>, StoreError> {
        let (mut outcomes, mut rest) = (Vec::new(), commands);
        if let Some((first, others)) = commands.split_first()
            && (others.is_empty() || self.handshake.is_some() || !self.due(options).is_empty())
        {
            outcomes.push(self.request(lock, first, options).await?);
            rest = others;
        }
        if let Some((last, middle)) = rest.split_last() {
            lock.clone_into(&mut self.lock);
            // The replies reflect every change that was pushed before the requests.
            self.last_push = self.last_push.filter(|event| *event != PushEvent::Touched);
            let (each, middle): (usize, Vec<Cmd>) = match self.asking {
                Asking::Yes => {
                    (2, middle.iter().flat_map(|command| [redis::cmd("ASKING"), command.clone()]).collect())
                }
                Asking::No => (1, middle.to_vec()),
            };
            let (replies, reply) = self.exchange(&middle, last, None).await?;
            for value in replies.into_iter().skip(each - 1).step_by(each).chain([reply]) {
                outcomes.push(self.interpret(value, false)?);
            }
        }
        Ok(outcomes)
    }

    /// Waits until [`Connection::changed`] would return. Cancellation safe.
    pub(super) async fn wait_for_push(&mut self) {
        let last_push = self.changed().await;
        self.last_push = self.last_push.max(last_push);
    }

    /// Waits for a push that concerns the lock; `None` when the connection has ended. Anything but a push violates the
    /// protocol and ends the connection too. Cancellation safe.
    pub(super) async fn changed(&mut self) -> Option<PushEvent> {
        loop {
            if let Some(event) = self.last_push.take() {
                return Some(event);
            }
            self.stream.refill(self.max_reply_size);
            match self.value().await {
                Ok(Value::Push { kind, data }) => self.last_push = self.push_event(&kind, &data),
                Ok(_) if self.pending_replies > 0 => self.pending_replies -= 1,
                Ok(_) | Err(_) => {
                    self.usable = false;
                    return None;
                }
            }
        }
    }
}

fn has_name(command: &Cmd, name: &[u8]) -> bool {
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
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    use super::*;
    use crate::backend::redis::location::tests::location;
    use crate::backend::redis::reply::{self, LockReply};
    use crate::backend::redis::result;
    use crate::random::Xorshift;

    /// Plausible replies of a server, to be corrupted.
    const PLAUSIBLE: &[&[u8]] = &[
        b"%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n+OK\r\n$64\r\n{\"outcome\":\"granted\",\"fencing\":\"1769824800123456\",\"lease\":30000}\r\n",
        b"-ERR unknown command 'HELLO'\r\n-ERR unknown\r\n*5\r\n:0\r\n:-1\r\n+string\r\n$-1\r\n$-1\r\n$18\r\n{\"outcome\":\"gone\"}\r\n",
        b"+OK\r\n+OK\r\n>2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n*1\r\n:1\r\n",
        b"+OK\r\n+OK\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n*1\r\n:1\r\n>3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$6\r\ncalled\r\n",
        b"-NOAUTH HELLO must be called\r\n-NOAUTH\r\n-NOAUTH Authentication required.\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    ];

    fn reply_to(bytes: &[u8], channel: Option<&str>) -> Result<CommandReply, StoreError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("runtime");
        runtime.block_on(async {
            let (ours, mut theirs) = tokio::net::UnixStream::pair().expect("two sockets");
            theirs.write_all(bytes).await.expect("the socket takes it all");
            theirs.shutdown().await.expect("the socket closes");
            let handshake =
                Handshake { username: None, password: None, database: 0, hello: true, verify_kind: None };
            let mut connection = Connection::over(BoundedStream::unix(ours), handshake);
            let options = RequestOptions { tracking: true, channel, trailing: None };
            let reply = connection.request("a", &redis::cmd("EVAL"), options).await;
            // Returns at the end of the stream at the latest.
            while connection.usable {
                connection.changed().await;
            }
            reply
        })
    }

    #[test]
    fn any_reply_is_interpreted_or_rejected() {
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
            if let Ok(CommandReply::Value(value)) = reply_to(&bytes, channel)
                && let Ok(reply) = reply::read::<LockReply>(&value)
            {
                let _ = result::attempt(reply.outcome, None, &location("redis://h").expect("good"));
            }
        }
    }

    /// Has a client and a server, of the other end of its connection, talk until both are done.
    fn talk(
        handshake: Handshake,
        client: impl AsyncFnOnce(Connection),
        server: impl AsyncFnOnce(UnixStream),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async {
            let (ours, theirs) = UnixStream::pair().expect("two sockets");
            let connection = Connection::over(BoundedStream::unix(ours), handshake);
            let both = async { tokio::join!(client(connection), server(theirs)) };
            timeout(Duration::from_secs(30), both).await.expect("one waits for the other in vain");
        });
    }

    /// Receives requests until this is the last word of one. Returns all words.
    async fn received(stream: &mut UnixStream, last: &str) -> Vec<String> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(format!("\r\n{last}\r\n").as_bytes()) {
            assert_ne!(stream.read_buf(&mut bytes).await.expect("more"), 0, "{last}");
        }
        let text = String::from_utf8(bytes).expect("a text");
        text.split_terminator("\r\n")
            .filter(|line| !line.starts_with(['*', '$']))
            .map(str::to_owned)
            .collect()
    }

    async fn send(stream: &mut UnixStream, lines: &[&str]) {
        for line in lines {
            stream.write_all(format!("{line}\r\n").as_bytes()).await.expect("the socket takes it");
        }
    }

    /// The server replies only when it has received every request of a flight.
    #[test]
    fn requests_share_a_round_trip_once_the_handshake_is_done() {
        let handshake =
            Handshake { username: None, password: None, database: 0, hello: false, verify_kind: None };
        let client = async |mut connection: Connection| {
            let commands = ["A", "B", "C"].map(redis::cmd);
            for _ in 0..2 {
                let replies = connection.request_all("", &commands, RequestOptions::default()).await;
                assert_eq!(replies.expect("replies").len(), 3);
            }
        };
        let server = async |mut stream: UnixStream| {
            for flight in [&["A"][..], &["B", "C"], &["A", "B", "C"]] {
                assert_eq!(received(&mut stream, flight[flight.len() - 1]).await, flight);
                send(&mut stream, &vec!["+OK"; flight.len()]).await;
            }
        };
        talk(handshake, client, server);
    }

    #[test]
    fn a_claim_that_is_sent_again_after_a_refused_hello_is_still_undone_in_time() {
        let password = Some("s3cret".to_owned());
        let handshake = Handshake { username: None, password, database: 0, hello: true, verify_kind: None };
        let cancel = Cancel::default();
        let end = cancel.clone();
        let client = async |mut connection: Connection| {
            let (limit, on_timeout) = (Duration::from_secs(3600), redis::cmd("RELEASE"));
            connection.reply_limit = Some(ReplyLimit { limit, cancel, on_timeout });
            let reply = connection.request("", &redis::cmd("CLAIM"), RequestOptions::default()).await;
            assert!(matches!(reply, Err(StoreError::Unavailable { maybe_applied: false, .. })), "{reply:?}");
        };
        let server = async |mut stream: UnixStream| {
            let first = received(&mut stream, "CLAIM").await;
            assert_eq!(first, ["HELLO", "3", "AUTH", "default", "s3cret", "CLAIM"]);
            let no_hello = "-ERR unknown command 'HELLO'";
            send(&mut stream, &[no_hello, "-NOAUTH Authentication required."]).await;
            assert_eq!(received(&mut stream, "CLAIM").await, ["AUTH", "s3cret", "CLAIM"]);
            end.notify_waiters();
            assert_eq!(received(&mut stream, "RELEASE").await, ["RELEASE"]);
        };
        talk(handshake, client, server);
    }
}
