//! The route from a location to the server to use.

use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::connection::Connection;
use super::location::{Location, Topology};
use super::nodes::ClusterNodes;
use super::sentinel::Sentinels;
use crate::backend::StoreError;
use crate::backend::net::Address;

pub(super) enum Route {
    /// Always this server.
    Fixed(Address),
    /// The master that the sentinels name.
    Sentinel(Sentinels),
    /// The node that has the lock's slot.
    Cluster(ClusterNodes),
}

impl Route {
    /// Returns the route that the URL describes.
    pub(super) fn new(location: &Location) -> Route {
        match &location.topology {
            Topology::Server(address) => Route::Fixed(address.clone()),
            Topology::Sentinel { sentinels, service } => {
                Route::Sentinel(Sentinels::new(sentinels.clone(), service.clone()))
            }
            // The nodes of a Redlock are used one by one, each as a single server.
            Topology::Cluster(nodes) | Topology::Redlock(nodes) => {
                Route::Cluster(ClusterNodes::new(nodes.clone()))
            }
        }
    }

    /// Returns the server to use now; in a cluster the node that was used last.
    ///
    /// # Errors
    /// It cannot be determined.
    pub(super) async fn find(&mut self, location: &Location) -> Result<Address, StoreError> {
        match self {
            Route::Fixed(address) => Ok(address.clone()),
            Route::Sentinel(sentinels) => sentinels.find(location).await,
            Route::Cluster(nodes) => Ok(nodes.current().clone()),
        }
    }

    /// Connects to the server to use now; sends nothing yet. `old_protocol` is for servers that have rejected RESP3.
    ///
    /// # Errors
    /// It cannot be determined or reached.
    pub(super) async fn open(
        &mut self,
        location: &Location,
        old_protocol: bool,
    ) -> Result<Connection, StoreError> {
        if let Route::Cluster(nodes) = self {
            return nodes.open(location, old_protocol).await;
        }
        let address = self.find(location).await?;
        Connection::open(location, &address, old_protocol).await.map_err(|error| self.name_server(error))
    }

    /// Starts verifying in the background that the server is still the one to use, if that may have changed.
    pub(super) fn verify_server(&mut self, location: &Location) {
        if let Route::Sentinel(sentinels) = self {
            sentinels.verify_master(location);
        }
    }

    /// Waits for the outcome of a request, unless the server turns out to have been replaced meanwhile: then for `grace`
    /// at most.
    ///
    /// # Errors
    /// Those of the request, with the name of the server added; or the server was replaced.
    pub(super) async fn unless_replaced<T>(
        &mut self,
        request: impl Future<Output = Result<T, StoreError>>,
        grace: Duration,
    ) -> Result<T, StoreError> {
        let mut request = pin!(request);
        let outcome = tokio::select! {
            biased;
            outcome = &mut request => outcome,
            () = self.wait_until_replaced() => {
                timeout(grace, request).await.unwrap_or_else(|_| Err(replaced()))
            }
        };
        outcome.map_err(|error| self.name_server(error))
    }

    /// Resolves when the server is known to have been replaced.
    pub(super) async fn wait_until_replaced(&mut self) {
        match self {
            Route::Sentinel(sentinels) => sentinels.wait_until_replaced().await,
            Route::Fixed(_) | Route::Cluster(_) => pending().await,
        }
    }

    /// Whether to disconnect after this outcome, so that the next request determines anew which server to use: it has
    /// been replaced already, or soon will be.
    pub(super) fn must_reconnect<T>(&self, outcome: &Result<T, StoreError>) -> bool {
        matches!((self, outcome), (Route::Sentinel(_), Err(StoreError::Unavailable { .. })))
    }

    pub(super) fn is_replaced(&mut self) -> bool {
        match self {
            Route::Sentinel(sentinels) => sentinels.is_replaced(),
            Route::Fixed(_) | Route::Cluster(_) => false,
        }
    }

    /// Waits for a bounded time until it is known whether a grant of the server is valid.
    pub(super) async fn confirm_server(&mut self, location: &Location) -> bool {
        match self {
            Route::Sentinel(sentinels) => sentinels.confirm_master(location).await,
            Route::Fixed(_) | Route::Cluster(_) => true,
        }
    }

    /// The server that was used last, if it may change.
    pub(super) fn server(&self) -> Option<&Address> {
        match self {
            Route::Sentinel(sentinels) => sentinels.master(),
            Route::Fixed(_) | Route::Cluster(_) => None,
        }
    }

    /// The same error with the server added, if the URL does not name it.
    fn name_server(&self, error: StoreError) -> StoreError {
        match self.server() {
            Some(server) => error.map_text(|text| format!("master {server}: {text}")),
            None => error,
        }
    }
}

pub(super) fn replaced() -> StoreError {
    StoreError::resharding("the sentinels have named another master since")
}
