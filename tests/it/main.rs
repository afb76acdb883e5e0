//! The tests of `dlock`, all through the real binary.
//!
//! One crate, one file per topic. A test's name is the claim it proves; the id in its doc comment is
//! the row of the project's table of cases.

// A test states what it expects by unwrapping it.
#![allow(clippy::unwrap_used)]

mod bad_input;
mod bad_modes;
mod bad_names;
mod bad_urls;
mod break_lock;
#[cfg(feature = "redis")]
mod cluster;
mod configuration;
mod conformance;
mod doctor;
#[cfg(feature = "redis")]
mod escape_attempts;
mod exit_codes;
mod failed_start;
mod faults;
#[cfg(feature = "redis")]
mod fencing_recipes;
mod foreign_clients;
#[cfg(feature = "redis")]
mod foreign_types;
#[cfg(feature = "redis")]
mod foreign_values;
mod generated;
mod guard;
mod host_conditions;
mod hostile_environment;
#[cfg(feature = "redis")]
mod hostile_server;
#[cfg(feature = "redis")]
mod input_files;
mod lock_files;
#[cfg(feature = "redis")]
mod lost_trees;
mod metrics;
#[cfg(feature = "redis")]
mod migrations;
mod min_hold_hosts;
#[cfg(feature = "redis")]
mod minimal_rights;
mod names;
mod namespaces;
mod nested;
mod network_file_systems;
#[cfg(feature = "redis")]
mod old_protocol;
mod orphans;
mod other_accounts;
mod queue;
mod quiet;
#[cfg(feature = "redis")]
mod quoted_secrets;
mod race_windows;
mod random_faults;
#[cfg(feature = "redis")]
mod readme;
#[cfg(feature = "redis")]
mod recipes;
#[cfg(feature = "redis")]
mod redlock;
mod refusal;
mod reports;
mod resource_limits;
mod rigs;
mod scale;
#[cfg(feature = "redis")]
mod secrets;
#[cfg(feature = "redis")]
mod sentinel;
#[cfg(feature = "redis")]
mod server_variants;
mod sidecar_files;
mod signals;
mod status;
mod support;
mod terminal;
#[cfg(feature = "redis")]
mod tls;
mod tokens;
mod transparency;
mod tree;
