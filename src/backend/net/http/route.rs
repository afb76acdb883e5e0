//! The way to a server that is asked by HTTP.

use super::{Client, Proxy};
use crate::backend::StoreError;
use crate::backend::net::{Address, BoundedStream, Protocol, Security, open};
use crate::backend::url::{Environment, UrlError};

/// A server, and how it is reached.
#[derive(Clone)]
pub struct Route {
    /// The server.
    pub address: Address,
    /// How it is connected to.
    pub security: Security,
    /// What stands between this host and the server, if there is something.
    pub proxy: Option<Proxy>,
}

impl Route {
    /// Returns the route to a server, through the proxy that the environment names for it, if it names one.
    ///
    /// # Errors
    /// The environment does not name an HTTP proxy.
    pub fn of(address: Address, security: Security, environment: Environment<'_>) -> Result<Route, UrlError> {
        let proxy = Proxy::of(&address, security.tls.is_some(), environment)?;
        Ok(Route { address, security, proxy })
    }

    /// Returns a client of the server; does not connect.
    pub fn client(&self) -> Client {
        Client { route: self.clone(), connection: None }
    }

    /// Notes that the server has replied as a server of its store does, see [`Security::recognize`].
    pub fn recognize(&self) {
        self.security.recognize(&self.address);
    }

    /// Returns the error for a server that has not replied so: this one, unless it turns out to be of another kind.
    pub async fn mismatch(&self, error: StoreError) -> StoreError {
        match self.proxy {
            None => Protocol::Http.mismatch(&self.address).await.unwrap_or(error),
            // It is not known that the server can be probed without the proxy.
            Some(_) => error,
        }
    }

    /// Returns the error of a server that has not replied in time, with the proxy that it was asked through.
    pub fn explained(&self, late: StoreError) -> StoreError {
        match &self.proxy {
            Some(proxy) => late.map_text(|text| format!("{text} through {proxy}")),
            None => late,
        }
    }

    /// Returns any other error with the proxy that was used.
    pub(super) fn named(&self, error: StoreError) -> StoreError {
        match &self.proxy {
            Some(proxy) => error.map_text(|text| format!("through {proxy}: {text}")),
            None => error,
        }
    }

    /// Returns the proxy if it reads the requests: with TLS, it sees only that there is a connection.
    pub(super) fn forwarder(&self) -> Option<&Proxy> {
        self.proxy.as_ref().filter(|_| self.security.tls.is_none())
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// The server or the proxy cannot be reached, or refuses; or the server does not prove its identity.
    pub(super) async fn open(&self) -> Result<BoundedStream, StoreError> {
        match &self.proxy {
            None => open(&self.address, &self.security).await,
            Some(proxy) => proxy.open(&self.address, &self.security).await,
        }
    }
}
