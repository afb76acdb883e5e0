//! What every networked store shares: addresses, TCP and Unix sockets, framed reads, HTTP, TLS, client certificates, passwords,
//! and the URL options for them. Of the protocols of the stores it knows only how to tell them apart.
//!
//! Used by every networked store, and by nothing else. What always holds: each wait has an end, and no secret is sent before
//! the checks that its URL asks for.

mod address;
#[cfg(feature = "aws")]
pub mod aws;
mod credentials;
mod failure;
mod framed;
mod happy_eyeballs;
#[cfg(feature = "http")]
pub mod http;
mod keep_alive;
mod mismatch;
#[cfg(feature = "http")]
mod program;
mod protocol;
pub mod reachability;
mod security;
mod stream;
mod tls;
#[cfg(any(feature = "etcd", feature = "http"))]
mod wire;

pub use self::address::{Address, distinct, list};
pub use self::credentials::Credentials;
pub use self::failure::{CLOSED, broken, closed, io_cause, unrequested};
pub use self::framed::FramedStream;
pub use self::happy_eyeballs::{HEAD_START, first_server};
pub use self::keep_alive::outlast;
#[cfg(feature = "http")]
pub use self::program::output_of;
pub use self::protocol::Protocol;
pub use self::security::{COMMON, Security};
pub use self::stream::{BoundedStream, Socket, connect, open, secure, upgrade};
pub use self::tls::{Pem, Session, TlsSettings, Words};
#[cfg(any(feature = "etcd", feature = "http"))]
pub use self::wire::{END, GREETING, Wire};
