//! A client of one of AWS's services, whose requests are signed.

use std::time::Duration;

use super::credentials::Credentials;
use super::place::Place;
use super::signature::{Scope, sign};
use crate::backend::StoreError;
use crate::backend::net::http::{Client, Reply, Request};

/// A client of the service of a place.
pub struct Signed {
    place: Place,
    service: &'static str,
    http: Client,
    credentials: Credentials,
}

impl Signed {
    /// Returns a client with this connection, of a service as AWS abbreviates it.
    pub fn with(http: Client, place: &Place, service: &'static str) -> Signed {
        let credentials = &place.route.security.credentials;
        let credentials = Credentials::new(credentials, &place.settings, &place.region);
        Signed { place: place.clone(), service, http, credentials }
    }

    /// Returns a client with the same credentials and a connection of its own.
    pub fn twin(&self) -> Signed {
        let (place, credentials) = (self.place.clone(), self.credentials.clone());
        Signed { http: place.route.client(), place, service: self.service, credentials }
    }

    /// Returns where the credentials come from.
    pub fn source(&self) -> &'static str {
        self.credentials.source()
    }

    /// Opens the connection, if there is none, and finds the credentials.
    ///
    /// # Errors
    /// The service cannot be reached, or there are no credentials.
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        self.credentials.keys().await?;
        self.http.connect().await
    }

    /// Refreshes credentials that end soon or within a lease of this length. May be dropped.
    pub async fn refresh(&mut self, lease: Duration) {
        self.credentials.refresh(lease).await;
    }

    /// Signs a request and sends it, and returns the reply, of whatever status. One that was refused because of its key, which
    /// `is_of_key` tells, and so not carried out, is repeated once with a key that is read again.
    ///
    /// # Errors
    /// The service cannot be reached or does not reply, or there are no credentials.
    pub async fn send(
        &mut self,
        request: Request,
        is_of_key: impl Fn(&Reply) -> bool,
    ) -> Result<Reply, StoreError> {
        let reply = self.send_once(request.clone()).await?;
        if !is_of_key(&reply) {
            return Ok(reply);
        }
        self.credentials.forget();
        self.send_once(request).await
    }

    async fn send_once(&mut self, mut request: Request) -> Result<Reply, StoreError> {
        let keys = self.credentials.keys().await?;
        let scope = Scope { region: &self.place.region, service: self.service };
        sign(&mut request, &self.place.host, &keys, scope)?;
        self.http.send(request).await
    }
}
