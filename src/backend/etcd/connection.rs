//! One HTTP/2 connection to a member, for gRPC requests. It is never reopened in silence: a request that fails with it is
//! not repeated.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::http::uri::PathAndQuery;
use hyper::http::{Request, Response, Uri};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Status, Streaming};
use tonic_prost::ProstCodec;

use super::errors::is_disconnected;
use super::location::Location;
use super::messages::Call;
use crate::backend::StoreError;
use crate::backend::net::{self, Address, BoundedStream, END, GREETING, Protocol, Wire};

/// The type of the first frame in HTTP/2.
const SETTINGS: u8 = 4;

pub(super) struct Connection {
    /// For requests.
    pub(super) channel: Channel,
    greeting: oneshot::Receiver<Vec<u8>>,
    end: oneshot::Receiver<BoundedStream>,
    /// Its address, if this is the first connection to it.
    stranger: Option<Address>,
}

impl Connection {
    /// Connects to a member, with TLS if the URL says so; sends no request yet.
    pub(super) async fn open(location: &Location, address: &Address) -> Result<Connection, StoreError> {
        let stream = net::open(address, &location.security).await?;
        let stranger = location.security.is_stranger(address).then(|| address.clone());
        Ok(Connection { stranger, ..Connection::over(stream, address).await? })
    }

    /// Returns a connection over an open stream.
    pub(super) async fn over(stream: BoundedStream, address: &Address) -> Result<Connection, StoreError> {
        // HTTP/2 limits what a server may send, and the codec the length of a message.
        let (wire, greeting, end) = Wire::over(stream);
        let broken = |error: hyper::Error| StoreError::unreachable(error.to_string());
        let (requests, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(wire)).await.map_err(broken)?;
        tokio::spawn(connection);
        let origin = Uri::try_from(format!("http://{address}"))
            .map_err(|error| StoreError::Config(format!("{address}: {error}")))?;
        Ok(Connection { channel: Channel { requests, origin, token: None }, greeting, end, stranger: None })
    }

    /// Waits until the server has shown that it speaks HTTP/2, as a process that is stopped does not.
    pub(super) async fn greeted(&mut self) -> Result<(), StoreError> {
        match (&mut self.greeting).await {
            Ok(greeting) if is_http2(&greeting) => {
                self.stranger = None;
                Ok(())
            }
            Ok(_) => Err(self.named(not_etcd()).await),
            Err(_) => Err(self.why_ended().await),
        }
    }

    /// Returns the error of a request that failed.
    pub(super) async fn failure(
        &mut self,
        status: &Status,
        meaning: impl Fn(&Status) -> StoreError,
    ) -> StoreError {
        if is_disconnected(status)
            && let error @ (StoreError::Config(_) | StoreError::Denied(_) | StoreError::OtherServer { .. }) =
                self.why_ended().await
        {
            return error;
        }
        meaning(status)
    }

    /// Returns why the connection has ended without a reply.
    async fn why_ended(&mut self) -> StoreError {
        let closed = StoreError::unreachable(net::CLOSED);
        let end = timeout(END, async {
            let mut stream = (&mut self.end).await.ok()?;
            // A request may have failed before that was read.
            let mut read = [0; GREETING];
            let greeting = match self.greeting.try_recv() {
                Ok(greeting) => greeting,
                Err(_) => match stream.read_exact(&mut read).await {
                    Ok(_) => read.to_vec(),
                    Err(_) => return stream.why_ended().await,
                },
            };
            if is_http2(&greeting) {
                // It is not of another kind.
                self.stranger = None;
                return None;
            }
            Some(not_etcd())
        });
        match end.await.ok().flatten() {
            Some(denied @ StoreError::Denied(_)) => denied,
            error => self.named(error.unwrap_or(closed)).await,
        }
    }

    /// Returns the error of a connection that has ended, or the one that names the server if it is of another kind.
    async fn named(&mut self, error: StoreError) -> StoreError {
        let Some(address) = self.stranger.take() else { return error };
        Protocol::Etcd.mismatch(&address).await.unwrap_or(error)
    }
}

/// Returns whether the first bytes from a server begin a frame of settings (RFC 9113, section 3.4).
fn is_http2(greeting: &[u8]) -> bool {
    greeting.get(3) == Some(&SETTINGS)
}

fn not_etcd() -> StoreError {
    StoreError::Config(
        "the server does not speak HTTP/2: it is not etcd with the v3 API, or this is not its client port"
            .into(),
    )
}

/// Sends requests over a connection, which ends with the last of its channels.
#[derive(Clone)]
pub(super) struct Channel {
    requests: SendRequest<Body>,
    origin: Uri,
    /// Proves that the client has authenticated.
    pub(super) token: Option<MetadataValue<Ascii>>,
}

impl Channel {
    /// Returns whether the connection has failed.
    pub(super) fn is_closed(&self) -> bool {
        self.requests.is_closed()
    }

    /// Sends one request and waits for its reply.
    pub(super) async fn call<C: Call>(&self, call: C) -> Result<C::Reply, Status> {
        let (mut grpc, request) = self.request(call);
        grpc.unary(request, PathAndQuery::from_static(C::PATH), ProstCodec::default())
            .await
            .map(tonic::Response::into_inner)
    }

    /// Sends these requests and returns the stream of replies.
    pub(super) async fn stream<C: Call>(
        &self,
        calls: impl Stream<Item = C> + Send + 'static,
    ) -> Result<Streaming<C::Reply>, Status> {
        let (mut grpc, request) = self.request(calls);
        grpc.streaming(request, PathAndQuery::from_static(C::PATH), ProstCodec::default())
            .await
            .map(tonic::Response::into_inner)
    }

    fn request<T>(&self, message: T) -> (Grpc<Requests>, tonic::Request<T>) {
        let mut request = tonic::Request::new(message);
        let metadata = request.metadata_mut();
        // A member without a leader is to say so at once, and to end watches, instead of waiting for one.
        metadata.insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            metadata.insert("token", token.clone());
        }
        (Grpc::with_origin(Requests(self.requests.clone()), self.origin.clone()), request)
    }
}

struct Requests(SendRequest<Body>);

impl GrpcService<Body> for Requests {
    type ResponseBody = Incoming;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
