//! A proxy in front of a member that forges replies to keep-alives, withholds events of watches, and ends all traffic at
//! a chosen moment.

use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream, client, server};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use prost::Message;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// What precedes each gRPC message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// What every reply of etcd begins with.
#[derive(Clone, PartialEq, Message)]
struct Beginning {
    #[prost(message, optional, tag = 1)]
    header: Option<Header>,
}

/// The reply to a keep-alive.
#[derive(Clone, PartialEq, Message)]
struct KeptAlive {
    #[prost(message, optional, tag = 1)]
    header: Option<Header>,
    #[prost(int64, tag = 3)]
    ttl: i64,
}

/// The reply to a transaction that reads ranges of keys.
#[derive(Clone, PartialEq, Message)]
struct Ranges {
    #[prost(message, optional, tag = 1)]
    header: Option<Header>,
    #[prost(bool, tag = 2)]
    succeeded: bool,
    #[prost(message, repeated, tag = 3)]
    ranges: Vec<One>,
}

#[derive(Clone, PartialEq, Message)]
struct One {
    #[prost(message, optional, tag = 1)]
    range: Option<Range>,
}

#[derive(Clone, PartialEq, Message)]
struct Range {
    #[prost(message, repeated, tag = 2)]
    keys: Vec<Key>,
}

/// A key as a member shows it.
#[derive(Clone, PartialEq, Message)]
pub struct Key {
    #[prost(bytes = "vec", tag = 1)]
    pub key: Vec<u8>,
    #[prost(int64, tag = 2)]
    pub create_revision: i64,
    #[prost(int64, tag = 3)]
    pub mod_revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(uint64, tag = 4)]
    raft_term: u64,
}

/// A reply of the member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub method: String,
    /// The term of the leader, as the member knows it.
    pub term: u64,
}

/// What the proxy changes.
#[derive(Debug, Default)]
struct Changes {
    forges: AtomicBool,
    withholds: AtomicBool,
    hides: AtomicBool,
    /// How many keep-alives still get another term.
    other_terms: AtomicUsize,
    /// The entries of every lock.
    entries: Mutex<Option<Vec<Key>>>,
    cuts: AtomicBool,
    is_cut: AtomicBool,
    keep_alives: AtomicUsize,
    replies: Mutex<Vec<Reply>>,
}

/// A proxy on a free port of 127.0.0.1. Its connections end when this is dropped.
#[derive(Debug)]
pub struct Forger {
    port: u16,
    changes: Arc<Changes>,
    _running: oneshot::Sender<()>,
}

impl Forger {
    /// Starts one in front of a port of this host; initially it changes nothing.
    pub fn to(target: u16) -> Self {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        listener.set_nonblocking(true).expect("a socket that does not block");
        let port = listener.local_addr().expect("an address").port();
        let changes = Arc::new(Changes::default());
        let (running, end) = oneshot::channel();
        let theirs = Arc::clone(&changes);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.spawn(accept(listener, target, theirs));
            let _ = runtime.block_on(end);
        });
        Self { port, changes, _running: running }
    }

    /// The port for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on every keep-alive is reported to have extended its lease, whatever the member has replied.
    pub fn forge_keep_alives(&self) {
        self.changes.forges.store(true, Ordering::SeqCst);
        self.changes.replies().clear();
    }

    /// From now on watches report nothing.
    pub fn withhold_events(&self) {
        self.changes.withholds.store(true, Ordering::SeqCst);
    }

    /// From now on every request is for a service that the member does not have.
    pub fn hide_services(&self) {
        self.changes.hides.store(true, Ordering::SeqCst);
    }

    /// The next keep-alives, this many, are reported to be of another term than they are.
    pub fn forge_terms(&self, count: usize) {
        self.changes.other_terms.store(count, Ordering::SeqCst);
        self.changes.replies().clear();
    }

    /// From now on, every lock has these entries.
    pub fn forge_entries(&self, entries: Vec<Key>) {
        *self.changes.entries.lock().unwrap_or_else(PoisonError::into_inner) = Some(entries);
    }

    /// After the next heartbeat, a keep-alive and a read, nothing gets through in either direction, as if the network had
    /// failed.
    pub fn cut_after_heartbeat(&self) {
        self.changes.replies().clear();
        self.changes.cuts.store(true, Ordering::SeqCst);
    }

    /// How many keep-alives clients have sent.
    pub fn keep_alives(&self) -> usize {
        self.changes.keep_alives.load(Ordering::SeqCst)
    }

    /// The replies since something is forged or cut, in order.
    pub fn replies(&self) -> Vec<Reply> {
        self.changes.replies().clone()
    }

    /// Their methods.
    pub fn methods(&self) -> Vec<String> {
        self.replies().into_iter().map(|reply| reply.method).collect()
    }
}

impl Changes {
    fn replies(&self) -> MutexGuard<'_, Vec<Reply>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the client gets of a reply.
    fn apply(&self, path: &str, piece: Bytes) -> Option<Bytes> {
        if self.is_cut.load(Ordering::SeqCst) {
            return None;
        }
        let method = path.rsplit('/').next().unwrap_or_default().to_owned();
        let beginning = Beginning::decode(&piece[PREFIX.min(piece.len())..]).unwrap_or_default();
        let term = beginning.header.unwrap_or_default().raft_term;
        let mut replies = self.replies();
        let is_read = method == "Txn" && replies.last().is_some_and(|last| last.method == "LeaseKeepAlive");
        self.is_cut.store(is_read && self.cuts.load(Ordering::SeqCst), Ordering::SeqCst);
        replies.push(Reply { method: method.clone(), term });
        let (forges, withholds) = (&self.forges, &self.withholds);
        match method.as_str() {
            "LeaseKeepAlive" => {
                let ttl = if forges.load(Ordering::SeqCst) { 60 } else { 0 };
                let counted = self
                    .other_terms
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| count.checked_sub(1));
                let header = counted.is_ok().then_some(Header { raft_term: term + 1 });
                Some(amended(piece, &KeptAlive { header, ttl }))
            }
            "Txn" => Some(match &*self.entries.lock().unwrap_or_else(PoisonError::into_inner) {
                Some(entries) if is_listing(&piece) => of_entries(entries, term),
                _ => piece,
            }),
            "Watch" if withholds.load(Ordering::SeqCst) => None,
            _ => Some(piece),
        }
    }
}

/// Whether it is the reply to the request for the entries of a lock.
fn is_listing(piece: &Bytes) -> bool {
    let reply = Ranges::decode(&piece[PREFIX.min(piece.len())..]).unwrap_or_default();
    reply.ranges.len() == 3 && reply.ranges.iter().all(|one| one.range.is_some())
}

/// The reply to the request for the entries of a lock.
fn of_entries(entries: &[Key], raft_term: u64) -> Bytes {
    let one = |keys: &[Key]| One { range: Some(Range { keys: keys.to_vec() }) };
    let ranges = vec![one(&[]), one(&[]), one(entries)];
    framed(Ranges { header: Some(Header { raft_term }), succeeded: true, ranges }.encode_to_vec())
}

/// Overrides fields of a message: of those that occur twice, the last one counts.
fn amended(piece: Bytes, fields: &KeptAlive) -> Bytes {
    framed([&piece[PREFIX..], &fields.encode_to_vec()].concat())
}

fn framed(message: Vec<u8>) -> Bytes {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[0], &length[..], &message].concat().into()
}

async fn accept(listener: std::net::TcpListener, target: u16, changes: Arc<Changes>) {
    let listener = TcpListener::from_std(listener).expect("a listener");
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(serve(client, target, Arc::clone(&changes)));
    }
}

async fn serve(client: TcpStream, target: u16, changes: Arc<Changes>) -> Option<()> {
    let member = TcpStream::connect(("127.0.0.1", target)).await.ok()?;
    let (requests, connection) = client::handshake(member).await.ok()?;
    tokio::spawn(connection);
    let mut calls = server::handshake(client).await.ok()?;
    while let Some(Ok((call, reply))) = calls.accept().await {
        tokio::spawn(forward(call, reply, requests.clone(), Arc::clone(&changes)));
    }
    Some(())
}

async fn forward(
    call: Request<RecvStream>,
    mut reply: SendResponse<Bytes>,
    requests: client::SendRequest<Bytes>,
    changes: Arc<Changes>,
) -> Result<(), h2::Error> {
    let (mut head, body) = call.into_parts();
    let path = head.uri.path().to_owned();
    if changes.is_cut.load(Ordering::SeqCst) {
        return std::future::pending().await;
    }
    if path.ends_with("/LeaseKeepAlive") {
        changes.keep_alives.fetch_add(1, Ordering::SeqCst);
    }
    if changes.hides.load(Ordering::SeqCst) {
        head.uri = Uri::from_static("http://127.0.0.1/other.Service/Method");
    }
    let (response, to_member) = requests.ready().await?.send_request(Request::from_parts(head, ()), false)?;
    let up = carry(body, to_member, Some);
    let down = async {
        let (head, body) = response.await?.into_parts();
        let is_complete = body.is_end_stream();
        let to_client = reply.send_response(Response::from_parts(head, ()), is_complete)?;
        if !is_complete {
            carry(body, to_client, |piece| changes.apply(&path, piece)).await;
        }
        Ok(())
    };
    tokio::join!(up, down).1
}

/// Carries a body in one direction, with what `change` leaves of each piece.
async fn carry(mut from: RecvStream, mut to: SendStream<Bytes>, change: impl Fn(Bytes) -> Option<Bytes>) {
    while let Some(piece) = from.data().await {
        let Ok(piece) = piece else { return to.send_reset(Reason::CANCEL) };
        let _ = from.flow_control().release_capacity(piece.len());
        if let Some(piece) = change(piece) {
            let _ = to.send_data(piece, false);
        }
    }
    let _ = match from.trailers().await {
        Ok(Some(trailers)) => to.send_trailers(trailers),
        _ => to.send_data(Bytes::new(), true),
    };
}
