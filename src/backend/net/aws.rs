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
pub use self::service::{Service, partition, skew};
pub use self::signature::encoded;
pub use self::xml::{element, elements};

/// The hours of a month, for AWS's prices: 730.
pub const HOURS: f64 = 730.0;
