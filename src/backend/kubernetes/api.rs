//! The requests to an API server, and what its replies say.

use std::time::Duration;

use hyper::http::header;
use serde::Deserialize;
use serde_json::Value;

use super::lease::Lease;
use super::location::Location;
use crate::backend::ledger::dated::check_count;
use crate::backend::ledger::polling::Shown;
use crate::backend::net::http::{Client, Lines, Method, Reply, Request, request, shown};
use crate::backend::{Outlook, StoreError};
use crate::clock::Moment;

/// The name under which the server notes what dlock has written (`metadata.managedFields`).
const MANAGER: &str = "fieldManager=dlock";
/// How many Leases are listed at a time: a reply has at most 4 MiB, and a Lease may have 256 KiB of annotations.
const PAGE: usize = 8;
/// The status of a state that the server has forgotten.
pub(super) const GONE: u16 = 410;
/// The status of a request whose credentials are not accepted.
pub(super) const UNAUTHORIZED: u16 = 401;

/// A client of an API server.
pub(super) struct Api {
    location: Location,
    http: Option<Client>,
    /// What the server's clock has shown last.
    pub clock: Option<Shown>,
}

/// The end of a request that did not succeed (`metav1.Status`).
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    kind: String,
    message: String,
    reason: String,
    pub code: u16,
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    kind: String,
    name: String,
}

impl Api {
    /// Returns a client; does not connect.
    pub fn new(location: &Location) -> Api {
        Api { location: location.clone(), http: None, clock: None }
    }

    /// Returns a client with this connection.
    pub fn with(http: Client, location: &Location) -> Api {
        Api { http: Some(http), ..Api::new(location) }
    }

    /// Opens the connection, if there is none.
    ///
    /// # Errors
    /// The configuration cannot be used, or the server cannot be reached.
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        let mut http = self.client().await?;
        http.connect().await?;
        self.http = Some(http);
        Ok(())
    }

    /// Reads a Lease; `None` if there is none. Also returns the server's time, and when the request was sent.
    ///
    /// # Errors
    /// The server cannot be reached, refuses, or does not reply as Kubernetes does.
    pub async fn read(&mut self, name: &str) -> Result<(Option<Lease>, Duration, Moment), StoreError> {
        let path = self.location.path(Some(name))?;
        let reply = self.ask(Method::GET, &path, String::new()).await?;
        let lease = match reply.status.as_u16() {
            200 => Some(self.lease(&reply).await?),
            404 if Status::of(&reply).is_some_and(|status| status.lacks_lease(name)) => None,
            _ => return Err(self.failure(&reply).await),
        };
        self.location.cluster()?.route.recognize();
        Ok((lease, reply.server_time()?, reply.sent))
    }

    /// Writes a Lease: a new one, or one whose version is still that in the text. Returns it as it is stored; `None` if another
    /// client was faster.
    ///
    /// # Errors
    /// The server cannot be reached or does not reply, so that it may be written; or it refuses.
    pub async fn write(
        &mut self,
        name: &str,
        is_new: bool,
        lease: String,
    ) -> Result<Option<Lease>, StoreError> {
        let (method, of) = if is_new { (Method::POST, None) } else { (Method::PUT, Some(name)) };
        let path = format!("{}?{MANAGER}", self.location.path(of)?);
        let reply = self.ask(method, &path, lease).await?;
        match reply.status.as_u16() {
            200 | 201 => Ok(Some(self.lease(&reply).await?)),
            409 => Ok(None),
            // It was deleted.
            404 if Status::of(&reply).is_some_and(|status| !is_new && status.lacks_lease(name)) => Ok(None),
            _ => Err(self.failure(&reply).await),
        }
    }

    /// Visits all Leases with an annotation of dlock, with the server's time.
    ///
    /// # Errors
    /// As of [`read`](Api::read), or there are too many.
    pub async fn list(&mut self, mut visit: impl FnMut(&Lease, Duration)) -> Result<(), StoreError> {
        let path = self.location.path(None)?;
        let (mut count, mut token) = (0, String::new());
        loop {
            let next = format!("{path}?limit={PAGE}&continue={}", encoded(&token));
            let reply = self.ask(Method::GET, &next, String::new()).await?;
            let mut list: Value = serde_json::from_slice(&reply.body).unwrap_or_default();
            let items = list.get_mut("items").map(Value::take);
            let next = list["metadata"]["continue"].as_str().filter(|next| !next.is_empty());
            match (reply.status.as_u16(), items, next) {
                (200, Some(Value::Array(items)), _) => {
                    let time = self.clock.map(|clock| clock.time()).unwrap_or_default();
                    let leases = items.into_iter().filter_map(Lease::of);
                    for lease in leases.filter(|lease| lease.annotation().is_some()) {
                        count += 1;
                        visit(&lease, time);
                    }
                    check_count(count)?;
                }
                // The server has forgotten the state that the list began in: the rest is as it is now.
                (GONE, _, Some(_)) => {}
                (200, ..) => return Err(unexpected()),
                _ => return Err(self.failure(&reply).await),
            }
            match next {
                Some(next) if next == token => return Err(unexpected()),
                Some(next) => next.clone_into(&mut token),
                None => return Ok(()),
            }
        }
    }

    /// Begins to watch a Lease for changes after this version.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn watch(
        mut self,
        name: &str,
        version: &str,
        seconds: u64,
    ) -> Result<Result<Lines, Reply>, StoreError> {
        let path = self.location.path(None)?;
        let path = format!(
            "{path}?watch=1&allowWatchBookmarks=true&fieldSelector=metadata.name%3D{name}&resourceVersion={}&timeoutSeconds={seconds}",
            encoded(version)
        );
        let request = self.request(Method::GET, &path, String::new()).await?;
        self.client().await?.lines(request).await
    }

    /// Sends a request, and returns the reply, of whatever status. One whose credentials were refused, and which so was not
    /// carried out, is repeated once with new ones.
    async fn ask(&mut self, method: Method, path: &str, body: String) -> Result<Reply, StoreError> {
        let reply = self.ask_once(method.clone(), path, body.clone()).await?;
        if reply.status.as_u16() != UNAUTHORIZED {
            return Ok(reply);
        }
        self.location.cluster()?.forget();
        self.http = None;
        self.ask_once(method, path, body).await
    }

    async fn ask_once(&mut self, method: Method, path: &str, body: String) -> Result<Reply, StoreError> {
        let request = self.request(method, path, body).await?;
        let mut http = self.client().await?;
        let reply = http.send(request).await?;
        self.http = Some(http);
        // Whatever stands before the server replies with other statuses, too.
        if let Some(date) = reply.date().filter(|_| reply.status.is_success()) {
            self.clock = Some(Shown { date, sent: reply.sent, received: reply.received });
        }
        Ok(reply)
    }

    async fn client(&mut self) -> Result<Client, StoreError> {
        match self.http.take() {
            Some(http) => Ok(http),
            None => self.location.cluster()?.client().await,
        }
    }

    async fn request(&self, method: Method, path: &str, body: String) -> Result<Request, StoreError> {
        let kind = "application/json";
        let agent = concat!("dlock/", env!("CARGO_PKG_VERSION"));
        let headers = [("accept", kind), ("content-type", kind), ("user-agent", agent)];
        let mut request = request(method, path, &headers, body)?;
        if let Some(authorization) = self.location.cluster()?.authorization().await? {
            request.headers_mut().insert(header::AUTHORIZATION, authorization);
        }
        Ok(request)
    }

    /// Returns the Lease in a reply.
    async fn lease(&self, reply: &Reply) -> Result<Lease, StoreError> {
        let lease = serde_json::from_slice(&reply.body).ok().and_then(Lease::of);
        match lease {
            Some(lease) => Ok(lease),
            None => Err(self.other_server().await),
        }
    }

    /// Returns the error of a server that does not reply as Kubernetes does.
    async fn other_server(&self) -> StoreError {
        match self.location.cluster() {
            Ok(cluster) => cluster.route.mismatch(unexpected()).await,
            Err(error) => error,
        }
    }

    /// Returns the error that a reply without success means.
    pub async fn failure(&self, reply: &Reply) -> StoreError {
        match Status::of(reply) {
            Some(status) => status.failure(reply, &self.location),
            None if reply.status.as_u16() == 404 => self.other_server().await,
            None => reply.failure(),
        }
    }
}

impl Status {
    /// Reads a reply; `None` if it is of no API server.
    fn of(reply: &Reply) -> Option<Status> {
        Status::parse(serde_json::from_slice(&reply.body).ok()?)
    }

    /// Reads an object; `None` if it is another one.
    pub fn parse(object: Value) -> Option<Status> {
        serde_json::from_value(object).ok().filter(|status: &Status| status.kind == "Status")
    }

    /// Returns whether there is no such Lease.
    fn lacks_lease(&self, name: &str) -> bool {
        self.reason == "NotFound" && self.details.name == name && self.details.kind != "namespaces"
    }

    fn failure(&self, reply: &Reply, location: &Location) -> StoreError {
        let said = shown(&self.message);
        match (reply.status.as_u16(), self.reason.as_str()) {
            (401, _) => StoreError::Denied(format!(
                "the server does not accept the credentials{}: {said}",
                location.cluster().map(|cluster| format!(" ({})", cluster.source)).unwrap_or_default()
            )),
            (403, _) => StoreError::Denied(format!(
                "{said} (dlock doctor --policy prints the rights that dlock needs)"
            )),
            (404, _) if self.details.kind == "namespaces" => StoreError::Config(format!(
                "there is no namespace {}: create it, or check the URL and its context=",
                location.namespace
            )),
            (404, _) => StoreError::Config("the server has no Leases (coordination.k8s.io/v1)".into()),
            (410, _) => StoreError::resharding(said),
            (422, _) => StoreError::Config(format!("the server refuses the Lease: {said}")),
            _ => reply.failure_saying(said),
        }
    }

    /// Returns the error of a watch that ends with it.
    pub fn end_of_watch(&self) -> StoreError {
        let (reason, outlook) = (shown(&self.message), Outlook::Transient);
        StoreError::Unavailable { reason, maybe_applied: false, outlook }
    }
}

/// The error for a reply that Kubernetes does not send.
fn unexpected() -> StoreError {
    StoreError::Config("the server does not reply as Kubernetes does: check the server of the context".into())
}

fn encoded(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}
