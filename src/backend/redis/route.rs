//! Which server to ask.

use super::cluster::Nodes;
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
    Cluster(Nodes),
}

impl Route {
    /// The way as far as the URL tells it.
    pub(super) fn new(location: &Location) -> Route {
        match location.topology() {
            Topology::Server(address) => Route::Fixed(address.clone()),
            Topology::Sentinel { sentinels, service } => {
                Route::Sentinel(Sentinels::new(sentinels.clone(), service.clone()))
            }
            Topology::Cluster(nodes) => Route::Cluster(Nodes::new(nodes.clone())),
        }
    }

    /// The server to ask now.
    ///
    /// # Errors
    /// It cannot be found out.
    pub(super) async fn find(&mut self, location: &Location) -> Result<Address, StoreError> {
        match self {
            Route::Fixed(address) => Ok(address.clone()),
            Route::Sentinel(sentinels) => sentinels.master(location).await,
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
        Connection::open(location, &address, old_protocol).await
    }
}
