//! HTTP proxies: the variables of the environment that curl reads (`curl(1)`, "ENVIRONMENT"; `CURLOPT_NOPROXY(3)`).
//!
//! What always holds: a proxy can read requests only if the store itself is asked without TLS.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Method;
use hyper::client::conn::http1;
use hyper::http::{HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{as_header, as_uri, is_page};
use crate::backend::StoreError;
use crate::backend::net::{
    Address, BoundedStream, Security, Session, Socket, broken, closed, connect, io_cause, upgrade,
};
use crate::backend::url::{Environment, Url, UrlError};
use crate::secret;

/// The port of a proxy without one, as in curl.
const DEFAULT_PORT: u16 = 1080;
/// The variables that name a proxy for TLS, the first that is set counts, ...
const FOR_TLS: &[&str] = &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
/// ... and without TLS: `HTTP_PROXY` may be the header `Proxy` of a request to a CGI program.
const WITHOUT_TLS: &[&str] = &["http_proxy", "all_proxy", "ALL_PROXY"];
/// What is wrong with another proxy. Its value may have a password.
const FORM: &str = "not http://[USER:PASSWORD@]HOST[:PORT], with special characters percent-encoded: SOCKS and TLS to a proxy \
                    are not supported, and NO_PROXY lists the hosts that need none";
/// Those that list the hosts without a proxy.
const EXCEPT: &[&str] = &["no_proxy", "NO_PROXY"];

/// A proxy for the requests to one server.
#[derive(Clone)]
pub struct Proxy {
    address: Address,
    /// The environment variable that names it, or the setting.
    variable: &'static str,
    /// What it requires to log in, if a user or a password is given.
    pub(super) authorization: Option<HeaderValue>,
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the proxy {} ({})", self.address, self.variable)
    }
}

impl Proxy {
    /// Returns the proxy that the environment names for a server; `None` for a Unix socket. `is_secure` if the server is
    /// connected to with TLS. The password becomes a known `secret`.
    ///
    /// # Errors
    /// It does not name an HTTP proxy.
    pub fn of(
        server: &Address,
        is_secure: bool,
        environment: Environment<'_>,
    ) -> Result<Option<Proxy>, UrlError> {
        let Address::Tcp(host) = server else { return Ok(None) };
        let first = |variables: &[&'static str]| {
            let set = |variable: &&'static str| Some((*variable, environment(variable)?));
            variables.iter().filter_map(set).find(|(_, value)| !value.is_empty())
        };
        let named = first(if is_secure { FOR_TLS } else { WITHOUT_TLS });
        let is_excepted = first(EXCEPT).is_some_and(|(_, list)| is_listed(&list, &host.name));
        let Some((variable, value)) = named.filter(|_| !is_excepted) else { return Ok(None) };
        Proxy::parse(variable, value).map(Some)
    }

    /// Returns the proxy with this URL, whose scheme may be omitted; `variable` is what names it.
    ///
    /// # Errors
    /// It is not the URL of an HTTP proxy.
    pub fn parse(variable: &'static str, value: String) -> Result<Proxy, UrlError> {
        let wrong = || UrlError::new(format!("{variable}: {FORM}"));
        let url = if value.contains("://") { value } else { format!("http://{value}") };
        let url = Url::parse(&url).map_err(|_| wrong())?;
        let ("http", [proxy]) = (url.scheme.as_str(), url.hosts.as_slice()) else { return Err(wrong()) };
        let address = Address::of(proxy, DEFAULT_PORT);
        let login = (url.username.is_some() || url.password.is_some()).then(|| {
            let (user, password) = (url.username.unwrap_or_default(), url.password.unwrap_or_default());
            let login = STANDARD.encode(format!("{user}:{password}"));
            [password, login.clone()].iter().for_each(|secret| secret::keep(secret));
            let mut login = HeaderValue::try_from(format!("Basic {login}")).expect("base64 is ASCII");
            login.set_sensitive(true);
            login
        });
        Ok(Proxy { address, variable, authorization: login })
    }

    /// Connects to the server, through a tunnel (CONNECT) and with TLS if there are settings for it; otherwise to the proxy,
    /// which forwards requests that name their server.
    ///
    /// # Errors
    /// The proxy cannot be reached, or refuses; or the server does not prove its identity.
    pub async fn open(&self, server: &Address, security: &Security) -> Result<BoundedStream, StoreError> {
        // The files are read before the network is used.
        let session = Session::of(security.tls.as_ref(), server)?;
        let Socket::Tcp(tcp) = connect(&self.address).await? else { unreachable!("a proxy has a port") };
        match session {
            None => Ok(BoundedStream::tcp(tcp)),
            Some(session) => upgrade(self.tunnel(tcp, server).await?, session, security).await,
        }
    }

    /// Makes a connection to the proxy one to the server.
    async fn tunnel(&self, tcp: TcpStream, server: &Address) -> Result<TcpStream, StoreError> {
        let failed = |error: hyper::Error| match error.is_parse() {
            true => StoreError::Config("it does not speak HTTP/1.1".into()),
            false => io_cause(&error).map_or_else(closed, broken),
        };
        let (mut requests, connection) = http1::handshake(TokioIo::new(tcp)).await.map_err(failed)?;
        tokio::spawn(connection.with_upgrades());
        let mut request = hyper::Request::new(String::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = as_uri(&server.to_string())?;
        request.headers_mut().insert(header::HOST, as_header(server)?);
        self.log_in(&mut request);
        let response = requests.send_request(request).await.map_err(failed)?;
        if !response.status().is_success() || is_page(response.headers()) {
            return Err(self.refusal(response.status(), server));
        }
        let tunnel = hyper::upgrade::on(response).await.map_err(failed)?;
        let tunnel = tunnel.downcast::<TokioIo<TcpStream>>().expect("the stream that was passed in");
        match tunnel.read_buf.is_empty() {
            true => Ok(tunnel.io.into_inner()),
            // With TLS, the client speaks first.
            false => Err(StoreError::Config("it does not open a tunnel".into())),
        }
    }

    /// Adds the login to a request that the proxy reads.
    pub(super) fn log_in<T>(&self, request: &mut hyper::Request<T>) {
        if let Some(login) = &self.authorization {
            request.headers_mut().insert(header::PROXY_AUTHORIZATION, login.clone());
        }
    }

    /// Returns the error for a reply of the proxy itself, in place of one of the server.
    pub(super) fn refusal(&self, status: StatusCode, server: &Address) -> StoreError {
        let Proxy { address, variable, .. } = self;
        match status.as_u16() {
            407 if self.authorization.is_some() => {
                StoreError::Denied(format!("it rejects the user or the password in {variable} ({status})"))
            }
            407 => StoreError::Denied(format!(
                "it requires a login ({status}): set {variable} to http://USER:PASSWORD@{address}"
            )),
            401 | 403 => StoreError::Denied(format!(
                "it does not admit {server} ({status}): have it admitted, or list the host in NO_PROXY"
            )),
            429 | 500.. => StoreError::unanswered(format!("it cannot reach {server} ({status})")),
            _ => StoreError::Config(format!(
                "it replies in place of {server} ({status}): check {variable}, or list the host in NO_PROXY"
            )),
        }
    }
}

/// Returns whether a list of hosts without a proxy has this one.
fn is_listed(list: &str, host: &str) -> bool {
    let mut entries = list.split([',', ' ', '\t']).filter(|entry| !entry.is_empty());
    list == "*"
        || match host.parse() {
            Ok(address) => entries.any(|entry| is_in(address, entry)),
            Err(_) => entries.any(|entry| is_below(host, entry)),
        }
}

/// Returns whether an address is this one, or in this network (CIDR).
fn is_in(address: IpAddr, network: &str) -> bool {
    let (network, bits) = network.split_once('/').unwrap_or((network, ""));
    let (address, network, width) = match (address, network.parse()) {
        (IpAddr::V4(one), Ok(IpAddr::V4(other))) => (one.to_bits().into(), other.to_bits().into(), 32),
        (IpAddr::V6(one), Ok(IpAddr::V6(other))) => (one.to_bits(), other.to_bits(), 128),
        _ => return false,
    };
    let differing: u128 = address ^ network;
    let bits = bits.parse().ok().filter(|bits| *bits > 0).unwrap_or(width);
    bits <= width && differing >> (width - bits) == 0
}

/// Returns whether a name is this one, or in this domain.
fn is_below(host: &str, domain: &str) -> bool {
    let lower = |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let (host, domain) = (lower(host), lower(domain));
    let domain = domain.strip_prefix('.').unwrap_or(&domain);
    host.strip_suffix(domain)
        .is_some_and(|rest| rest.is_empty() || (rest.ends_with('.') && !domain.is_empty()))
}

#[cfg(test)]
mod tests;
