//! The Redis family.

pub mod cluster;
pub mod fencing_recipes;
pub mod foreign_types;
pub mod foreign_values;
pub mod frozen;
pub mod hostile_server;
pub mod minimal_rights;
pub mod old_protocol;
pub mod recipes;
pub mod redlock;
pub mod sentinel;
pub mod server_variants;
pub mod tls;
