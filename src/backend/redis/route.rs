//! Which server to ask.

use std::future::{Future, pending};

use super::cluster::ClusterNodes;
use super::connection::Connection;
use super::location::{Address, Location, Topology};
use super::sentinel::Sentinels;
use crate::backend::StoreError;

/// The way from a location to the server that has a lock.
pub(super) enum Route {
    /// It is always this one.
    Fixed(Address),
    /// It is the master, which the sentinels know.
    Sentinel(Sentinels),
    /// It is the node that has the lock's slot.
    Cluster(ClusterNodes),
}

impl Route {
    /// The way as far as the URL tells it.
    pub(super) fn new(location: &Location) -> Route {
        match location.topology() {
            Topology::Server(address) => Route::Fixed(address.clone()),
            Topology::Sentinel { sentinels, service } => {
                Route::Sentinel(Sentinels::new(sentinels.clone(), service.clone()))
            }
            // A Redlock is asked node by node, each of which is a server of its own.
            Topology::Cluster(nodes) | Topology::Redlock(nodes) => {
                Route::Cluster(ClusterNodes::new(nodes.clone()))
            }
        }
    }

    /// The server to ask now.
    ///
    /// # Errors
    /// It cannot be found out.
    pub(super) async fn find(&mut self, location: &Location) -> Result<Address, StoreError> {
        match self {
            Route::Fixed(address) => Ok(address.clone()),
            Route::Sentinel(sentinels) => sentinels.find(location).await,
            Route::Cluster(nodes) => nodes.open(location, false).await.map(|_| nodes.current().clone()),
        }
    }

    /// How many nodes of a cluster are known.
    pub(super) fn known_nodes(&self) -> usize {
        match self {
            Route::Cluster(nodes) => nodes.count(),
            Route::Fixed(_) | Route::Sentinel(_) => 0,
        }
    }

    /// A connection to the server to ask now, over which nothing has been said yet. `old_protocol` is for servers that
    /// have refused RESP3.
    ///
    /// # Errors
    /// It cannot be found out or reached.
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

    /// Begins to find out whether the server is still the one to ask, if that may have changed.
    pub(super) fn doubt(&mut self, location: &Location) {
        if let Route::Sentinel(sentinels) = self {
            sentinels.doubt(location);
        }
    }

    /// Has a question answered, unless it is found out meanwhile that another server is the one to ask.
    ///
    /// # Errors
    /// Those of the question, which then name the server; or there is another server.
    pub(super) async fn beside<T>(
        &mut self,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = tokio::select! {
            biased;
            answer = question => answer,
            () = self.leads_elsewhere() => Err(replaced()),
        };
        answer.map_err(|error| self.name_server(error))
    }

    /// Resolves when another server is known to be the one to ask.
    pub(super) async fn leads_elsewhere(&mut self) {
        match self {
            Route::Sentinel(sentinels) => sentinels.another_named().await,
            Route::Fixed(_) | Route::Cluster(_) => pending().await,
        }
    }

    /// Whether a server that answers so is to be left, so that whoever asks next finds out anew which one to ask: there is
    /// another one already, or soon will be.
    pub(super) fn leaves<T>(&self, answer: &Result<T, StoreError>) -> bool {
        matches!((self, answer), (Route::Sentinel(_), Err(StoreError::Unavailable { .. })))
    }

    /// Whether another server is known to be the one to ask.
    pub(super) fn has_moved(&mut self) -> bool {
        match self {
            Route::Sentinel(sentinels) => sentinels.name_another(),
            Route::Fixed(_) | Route::Cluster(_) => false,
        }
    }

    /// Waits, not for long, until it is known whether what the server has granted counts.
    pub(super) async fn is_confirmed(&mut self, location: &Location) -> bool {
        match self {
            Route::Sentinel(sentinels) => sentinels.still_name_it(location).await,
            Route::Fixed(_) | Route::Cluster(_) => true,
        }
    }

    /// The server that was asked last, where it may change.
    pub(super) fn server(&self) -> Option<&Address> {
        match self {
            Route::Sentinel(sentinels) => sentinels.master(),
            Route::Fixed(_) | Route::Cluster(_) => None,
        }
    }

    /// Whether another server may take over from one that has failed.
    pub(super) fn fails_over(&self) -> bool {
        matches!(self, Route::Sentinel(_) | Route::Cluster(_))
    }

    /// The same error with the server that it is about, where the URL does not tell.
    fn name_server(&self, error: StoreError) -> StoreError {
        let Some(server) = self.server() else { return error };
        let named = |text: String| format!("master {server}: {text}");
        match error {
            StoreError::Unavailable { reason, maybe_applied, transient } => {
                StoreError::Unavailable { reason: named(reason), maybe_applied, transient }
            }
            StoreError::Denied(text) => StoreError::Denied(named(text)),
            StoreError::Config(text) => StoreError::Config(named(text)),
        }
    }
}

/// What was asked of one server is to be asked of another.
pub(super) fn replaced() -> StoreError {
    StoreError::resharding("the sentinels name another one by now")
}
