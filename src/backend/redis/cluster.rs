//! The nodes of a Redis Cluster.

use super::location::{Address, Location};
use super::stream;
use crate::backend::StoreError;

/// The nodes that are known.
pub(super) struct Nodes {
    known: Vec<Address>,
}

impl Nodes {
    /// Names them; contacts nobody.
    pub(super) fn new(known: Vec<Address>) -> Nodes {
        Nodes { known }
    }

    /// The first of them that can be reached.
    ///
    /// # Errors
    /// None of them can.
    pub(super) async fn first(&mut self, location: &Location) -> Result<Address, StoreError> {
        let mut last = StoreError::unreachable("no node");
        for node in &self.known {
            match stream::open(location, node).await {
                Ok(_) => return Ok(node.clone()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
