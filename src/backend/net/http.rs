//! HTTP/1.1 over one connection of our own, with our TLS and time limits. A request is never repeated, and a redirect never
//! followed: whoever sent it decides. Through a proxy if one is given. The stores that are asked by HTTP call it.
//!
//! What always holds: a failure says whether the server may have carried the request out.

mod endpoint;
pub mod examination;
mod lines;
mod proxy;
mod route;

use std::pin::Pin;
use std::time::Duration;

use futures_util::future::poll_fn;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use jiff::fmt::rfc2822;
use tokio::sync::oneshot;
use tokio::time::timeout;

pub use self::endpoint::Endpoint;
pub use self::lines::Lines;
pub use self::proxy::Proxy;
pub use self::route::Route;
use super::failure::{broken, closed, io_cause};
use super::{Address, BoundedStream, END, Protocol, Wire};
use crate::backend::{Outlook, StoreError};
use crate::clock::Moment;
use crate::secret::scrubbed;

/// A request: method, path with query, headers, body.
pub type Request = hyper::http::Request<String>;
pub use hyper::http::Method;

/// The longest body of a reply.
const LONGEST_BODY: usize = 4 << 20;
/// The longest part of it that is shown.
const SHOWN: usize = 200;

/// A client of one server. It connects when a request is sent.
pub struct Client {
    route: Route,
    connection: Option<Connection>,
}

struct Connection {
    requests: SendRequest<String>,
    end: oneshot::Receiver<BoundedStream>,
}

/// A reply. Its meaning depends on the request.
#[derive(Debug)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    headers: HeaderMap,
    /// The body, decoded from its transfer coding.
    pub body: Vec<u8>,
    /// When the request was sent, ...
    pub sent: Moment,
    /// ... and when the reply was complete.
    pub received: Moment,
}

impl Client {
    /// Returns a client of the server at the other end of an open stream, which was opened on this route.
    ///
    /// # Errors
    /// The stream is broken.
    pub async fn over(stream: BoundedStream, route: &Route) -> Result<Client, StoreError> {
        let connection = Some(Connection::over(stream).await?);
        Ok(Client { route: route.clone(), connection })
    }

    /// Opens the connection, if there is none.
    ///
    /// # Errors
    /// The server cannot be reached, or does not prove its identity.
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        let connection = self.usable().await.map_err(|error| self.route.named(error))?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Sends a request, and returns the reply, of whatever status. If the future is dropped, the connection is discarded.
    ///
    /// # Errors
    /// The server cannot be reached; it does not reply properly, so that it is unknown whether it has carried out the
    /// request; or it does not speak HTTP.
    pub async fn send(&mut self, request: Request) -> Result<Reply, StoreError> {
        if self.route.proxy.is_some() {
            // It is not known that the server can be probed without the proxy.
            return self.exchange(request).await.map_err(|error| self.route.named(error));
        }
        let Route { address, security, .. } = self.route.clone();
        Protocol::Http.first_exchange(&address, &security, self.exchange(request)).await
    }

    async fn exchange(&mut self, request: Request) -> Result<Reply, StoreError> {
        let (response, connection, sent) = self.response(request).await?;
        let (reply, connection) = connection.rest(response, sent).await?;
        let is_refused = reply.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED || is_page(&reply.headers);
        if let Some(proxy) = self.route.forwarder().filter(|_| is_refused) {
            return Err(proxy.refusal(reply.status, &self.route.address));
        }
        self.connection = Some(connection);
        Ok(reply)
    }

    /// Sends a request, and returns the head of the reply, with the connection that it comes from and when it was sent.
    async fn response(
        &mut self,
        mut request: Request,
    ) -> Result<(Response<Incoming>, Connection, Moment), StoreError> {
        let address = &self.route.address;
        // A request that is signed names the host itself.
        if !request.headers().contains_key(header::HOST) {
            request.headers_mut().insert(header::HOST, as_header(address)?);
        }
        if let Some(proxy) = self.route.forwarder() {
            *request.uri_mut() = as_uri(&format!("http://{address}{}", request.uri()))?;
            proxy.log_in(&mut request);
        }
        let is_kept = self.connection.is_some();
        let mut connection = self.usable().await?;
        let mut sent = Moment::now();
        let mut result = connection.requests.try_send_request(request).await;
        if let Err(unsent) = &mut result
            && let Some(request) = unsent.take_message().filter(|_| is_kept)
        {
            // The server has closed the idle connection, and nothing was sent over it.
            connection = Connection::over(self.route.open().await?).await?;
            sent = Moment::now();
            result = connection.requests.try_send_request(request).await;
        }
        match result {
            Ok(response) => Ok((response, connection, sent)),
            Err(error) => Err(connection.failure(&error.into_error()).await),
        }
    }

    /// Takes the connection if it can be used, or opens one.
    async fn usable(&mut self) -> Result<Connection, StoreError> {
        if let Some(mut connection) = self.connection.take()
            && connection.requests.ready().await.is_ok()
        {
            return Ok(connection);
        }
        Connection::over(self.route.open().await?).await
    }
}

/// Returns the name of a server in the header `Host`.
fn as_header(server: &Address) -> Result<HeaderValue, StoreError> {
    let name = match server {
        Address::Tcp(host) => host.to_string(),
        Address::Socket(_) => "localhost".to_owned(),
    };
    HeaderValue::try_from(name).map_err(|error| StoreError::Config(error.to_string()))
}

fn as_uri(text: &str) -> Result<Uri, StoreError> {
    text.parse().map_err(|error| StoreError::Config(format!("{text}: {error}")))
}

/// Returns a request.
///
/// # Errors
/// The path or a header cannot be part of one. The value of a header, which may be a secret, is not repeated.
pub fn request(
    method: Method,
    path: &str,
    headers: &[(&'static str, &str)],
    body: impl Into<String>,
) -> Result<Request, StoreError> {
    let mut request = Request::new(body.into());
    *request.method_mut() = method;
    *request.uri_mut() = as_uri(path)?;
    for (name, value) in headers {
        let wrong = |error| StoreError::Config(format!("{name}: {error}"));
        let value = HeaderValue::try_from(*value).map_err(wrong)?;
        request.headers_mut().insert(HeaderName::from_static(name), value);
    }
    Ok(request)
}

impl Connection {
    async fn over(stream: BoundedStream) -> Result<Connection, StoreError> {
        let (wire, _, end) = Wire::over(stream);
        let begun = http1::handshake(TokioIo::new(wire)).await;
        let (requests, connection) = begun.map_err(|error| StoreError::unreachable(error.to_string()))?;
        tokio::spawn(connection);
        Ok(Connection { requests, end })
    }

    /// Reads the rest of a reply.
    async fn rest(
        self,
        response: Response<Incoming>,
        sent: Moment,
    ) -> Result<(Reply, Connection), StoreError> {
        let (head, body) = response.into_parts();
        let body = match whole(body).await {
            Ok(Some(body)) => body,
            Ok(None) => {
                let text = format!("the server sends a reply of more than {} MiB", LONGEST_BODY >> 20);
                return Err(StoreError::Config(text));
            }
            Err(error) => return Err(self.failure(&error).await),
        };
        let (status, headers, received) = (head.status, head.headers, Moment::now());
        Ok((Reply { status, headers, body, sent, received }, self))
    }

    /// Returns the error of a request that failed over it.
    async fn failure(self, error: &hyper::Error) -> StoreError {
        let Connection { requests, end } = self;
        if error.is_parse() {
            return StoreError::Config("the server does not speak HTTP/1.1".into());
        }
        drop(requests);
        let refusal = timeout(END, async { end.await.ok()?.why_ended().await }).await.ok().flatten();
        refusal.unwrap_or_else(|| io_cause(error).map_or_else(closed, broken))
    }
}

/// Returns the whole body; `None` if it is too long.
async fn whole(mut body: Incoming) -> Result<Option<Vec<u8>>, hyper::Error> {
    let mut whole = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let Ok(data) = frame?.into_data() else { continue };
        if whole.len() + data.len() > LONGEST_BODY {
            return Ok(None);
        }
        whole.extend_from_slice(&data);
    }
    Ok(Some(whole))
}

impl Reply {
    /// Returns a header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Returns the time of the server's clock in whole seconds since 1970 (`Date`).
    pub fn date(&self) -> Option<Duration> {
        self.time("date")
    }

    /// Returns the time of a header such as `Last-Modified`, likewise.
    pub fn time(&self, name: &str) -> Option<Duration> {
        seconds(self.header(name)?)
    }

    /// Returns the [`date`](Reply::date) of a server by whose clock leases count.
    ///
    /// # Errors
    /// The reply has none.
    pub fn server_time(&self) -> Result<Duration, StoreError> {
        self.date().ok_or_else(|| StoreError::Config("the server's replies have no Date".into()))
    }

    /// Returns how long the server asks its clients to wait (`Retry-After`).
    pub fn retry_after(&self) -> Option<Duration> {
        let value = self.header("retry-after")?;
        match value.parse() {
            Ok(seconds) => Some(Duration::from_secs(seconds)),
            Err(_) => Some(seconds(value)?.saturating_sub(self.date()?)),
        }
    }

    /// Returns the error that a reply without success means for every server. Its text is the server's, scrubbed of secrets.
    pub fn failure(&self) -> StoreError {
        self.failure_saying(self.explanation())
    }

    /// Returns the same with this explanation, which is the server's.
    pub fn failure_saying(&self, explanation: String) -> StoreError {
        let status = self.status;
        let text = match explanation {
            text if text.is_empty() => format!("the server replies {status}"),
            text => format!("the server replies {status}: {text}"),
        };
        match status.as_u16() {
            401 | 403 | 407 => StoreError::Denied(text),
            429 | 503 => {
                let wait = self.retry_after().map(|wait| format!("; it asks to wait {}s", wait.as_secs()));
                let reason = text + &wait.unwrap_or_default();
                StoreError::Unavailable { reason, maybe_applied: true, outlook: Outlook::Transient }
            }
            300..=399 => StoreError::Config(format!(
                "the server redirects to {}: name the server itself",
                shown(self.header("location").unwrap_or("nowhere"))
            )),
            408 | 500.. => StoreError::unanswered(text),
            _ => StoreError::Config(text),
        }
    }

    /// Returns what the server says in the body, in one line.
    fn explanation(&self) -> String {
        if is_page(&self.headers) {
            return "a web page: another server or a proxy has answered".to_owned();
        }
        let text = String::from_utf8_lossy(&self.body[..self.body.len().min(4 * SHOWN)]);
        shown(&text)
    }
}

/// Returns a text of a server as a message shows it: in one line, not too long, and without secrets.
pub fn shown(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    scrubbed(&words).chars().take(SHOWN).collect()
}

/// Returns whether a reply is a web page, which no server of a store sends.
fn is_page(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"))
}

/// Returns a time in HTTP (RFC 9110, section 5.6.7) as the time since 1970.
fn seconds(text: &str) -> Option<Duration> {
    let time = rfc2822::parse(text).ok()?.timestamp().as_second();
    time.try_into().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;
