//! What the stores of AWS share, and those that are compatible with them: credentials, signatures, and the XML of replies.
//!
//! Used by the stores of AWS. What always holds: a secret is registered before it is used, and no request is sent to a host
//! that the environment, the configuration files of AWS or the URL do not name.

mod client;
mod credentials;
mod keys;
mod place;
pub mod policy;
mod profile;
mod provider;
mod service;
mod signature;
mod xml;

pub use self::client::Signed;
pub use self::place::Place;
pub use self::profile::{Profile, Settings};
pub use self::service::{
    ENDPOINT, PROFILE, SHORTEST_LEASE, Service, expired, lacks_right, partition, skewed, throttled,
};
pub use self::signature::encoded;
pub use self::xml::{element, elements};
use super::Protocol;
use super::reachability::Remedies;

/// Returns what to do about each fault of a server. `check` is the check of the bucket or the table, and `unusable` the remedy if
/// that cannot be used.
pub const fn remedies(check: &'static str, unusable: &'static str) -> Remedies {
    Remedies {
        protocol: Protocol::Http,
        port: "check the region or endpoint=, and that no firewall is in between",
        // Its address is never one.
        socket: "",
        tls: "renew the server's certificate if it has expired, name its authority by ca_file=, or the name in the certificate by \
              server_name=; for a server without TLS use endpoint=http://",
        client_certificate: "name a certificate by cert_file= and its key by key_file=",
        plain_text: "use endpoint=https://",
        login: "use credentials with the rights that dlock doctor --policy prints",
        unusable: (check, unusable),
        unavailable: (check, "see the state of the service, or the log of the server"),
    }
}

/// The hours of a month, for AWS's prices: 730.
pub const HOURS: f64 = 730.0;
