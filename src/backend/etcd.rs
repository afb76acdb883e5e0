//! etcd v3: the recipe of `etcdctl lock` and `client/v3/concurrency`, carried out by the client, so that dlock and those
//! clients exclude each other under the same prefix. Each contender has a key with a lease; the one that was created first
//! holds the lock.
//!
//! A reply to a keep-alive does not prove that the key is still there (etcd-io/etcd#14758): a heartbeat is the keep-alive
//! and a linearizable read after it, and the own key is watched as well.

mod client;
mod connection;
mod doctor;
mod errors;
mod keys;
mod lease;
mod listing;
mod location;
mod messages;
mod policy;
mod store;
mod watch;

pub use self::location::Location;
