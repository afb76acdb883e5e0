//! A proxy in front of a member that forges replies to keep-alives and withholds events of watches.

use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream, client, server};
use hyper::body::Bytes;
use hyper::{Request, Response, Uri};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

/// A gRPC message, not compressed and of two bytes: field 3 of `LeaseKeepAliveResponse`, a TTL of 60 s.
const EXTENDED: &[u8] = &[0, 0, 0, 0, 2, 3 << 3, 60];

/// What the proxy changes.
#[derive(Debug, Default)]
struct Changes {
    forges: AtomicBool,
    withholds: AtomicBool,
    hides: AtomicBool,
    replies: Mutex<Vec<String>>,
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

    /// The methods of the replies since keep-alives are forged, in order.
    pub fn replies(&self) -> Vec<String> {
        self.changes.replies().clone()
    }
}

impl Changes {
    fn replies(&self) -> MutexGuard<'_, Vec<String>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what the client gets of a reply.
    fn apply(&self, path: &str, piece: Bytes) -> Option<Bytes> {
        let method = path.rsplit('/').next().unwrap_or_default();
        self.replies().push(method.to_owned());
        match method {
            "LeaseKeepAlive" if self.forges.load(Ordering::SeqCst) => Some(Bytes::from_static(EXTENDED)),
            "Watch" if self.withholds.load(Ordering::SeqCst) => None,
            _ => Some(piece),
        }
    }
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
