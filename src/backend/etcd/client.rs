//! A client of the cluster: one connection to one member at a time, and the session of an authenticated user.

use std::time::Duration;

use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Status};

use super::connection::{Channel, Connection};
use super::errors;
use super::location::Location;
use super::messages::{AuthenticateRequest, Call};
use crate::backend::StoreError;
use crate::backend::net::first_server;
use crate::{random, secret};

/// How long a member may take to complete the handshake before the next one is tried as well.
const NEXT_MEMBER: Duration = Duration::from_millis(250);

pub(super) struct Client {
    pub(super) location: Location,
    connection: Option<Connection>,
    /// The member to use next, by its place in the URL.
    member: usize,
    /// Proves that the client has authenticated. Every member knows it.
    token: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// Returns a client; does not connect.
    pub(super) fn new(location: Location) -> Client {
        let member = random::number() as usize % location.endpoints.len();
        Client { location, connection: None, member, token: None }
    }

    /// Connects to a member, unless there is a connection. A member that does not respond does not delay the others.
    ///
    /// # Errors
    /// No member can be reached, or the user is rejected.
    pub(super) async fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.as_ref().is_some_and(|connection| !connection.channel.is_closed()) {
            return Ok(());
        }
        let location = &self.location;
        let several = location.endpoints.len() > 1;
        let open = async |member: usize| {
            let mut connection = Connection::open(location, &location.endpoints[member]).await?;
            // A single member is asked at once.
            if several {
                connection.greeted().await?;
            }
            Ok(connection)
        };
        let opened = first_server(&mut self.member, location.endpoints.len(), NEXT_MEMBER, open).await?;
        self.begin(opened).await
    }

    /// Uses an open connection. Authenticates the user, if there is one.
    ///
    /// # Errors
    /// The user is rejected.
    pub(super) async fn begin(&mut self, mut connection: Connection) -> Result<(), StoreError> {
        connection.channel.token = self.token.clone();
        if self.token.is_none() && self.location.security.credentials.username().is_some() {
            self.authenticate(&mut connection).await?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    async fn authenticate(&mut self, connection: &mut Connection) -> Result<(), StoreError> {
        // The request is rejected with a token that has expired.
        (self.token, connection.channel.token) = (None, None);
        let credentials = &self.location.security.credentials;
        let name = credentials.username().unwrap_or_default().to_owned();
        let request = AuthenticateRequest { name, password: credentials.password()?.unwrap_or_default() };
        match connection.channel.call(request).await {
            Ok(reply) => {
                secret::keep(&reply.token);
                self.token = reply.token.parse().ok();
            }
            // Authentication is not enabled.
            Err(status) if status.code() == Code::FailedPrecondition => {}
            Err(status) => return Err(connection.failure(&status, errors::refused_login).await),
        }
        connection.channel.token = self.token.clone();
        Ok(())
    }

    /// Sends one request.
    ///
    /// # Errors
    /// It failed.
    pub(super) async fn call<C: Call + Clone>(&mut self, call: C) -> Result<C::Reply, StoreError> {
        self.with(async |channel| channel.call(call.clone()).await).await
    }

    /// Connects if need be, and carries out some requests; again, if the session has expired. A future that is dropped, and a member that is not
    /// available, lead to another connection, to the next member.
    ///
    /// # Errors
    /// A request failed.
    pub(super) async fn with<T>(
        &mut self,
        work: impl AsyncFn(&Channel) -> Result<T, Status>,
    ) -> Result<T, StoreError> {
        self.connect().await?;
        let mut connection =
            self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))?;
        let member = self.member;
        self.member = (member + 1) % self.location.endpoints.len();
        let mut result = work(&connection.channel).await;
        if self.token.is_some() && result.as_ref().err().is_some_and(errors::is_token_expired) {
            self.authenticate(&mut connection).await?;
            result = work(&connection.channel).await;
        }
        match result {
            Err(status) if errors::is_disconnected(&status) || status.code() == Code::Unavailable => {
                Err(connection.failure(&status, errors::meaning).await)
            }
            result => {
                (self.connection, self.member) = (Some(connection), member);
                result.map_err(|status| errors::meaning(&status))
            }
        }
    }

    /// Returns the connection for requests that go on while others are made; `None` if it has failed.
    pub(super) fn channel(&self) -> Option<Channel> {
        self.connection.as_ref().map(|connection| connection.channel.clone())
    }
}
