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
mod breaking;
#[cfg(feature = "redis")]
mod cluster;
mod configuration;
mod conformance;
mod doctor;
mod exit_codes;
mod failed_start;
mod faults;
#[cfg(feature = "redis")]
mod fencing_recipes;
#[cfg(feature = "redis")]
mod field;
mod foreign_clients;
#[cfg(feature = "redis")]
mod foreign_types;
#[cfg(feature = "redis")]
mod foreign_values;
mod generated;
mod guard;
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
mod odd_parents;
#[cfg(feature = "redis")]
mod old_protocol;
mod orphans;
#[cfg(feature = "redis")]
mod quoted_secrets;
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
mod sidecar_files;
mod signals;
mod silence;
mod status;
mod strangers;
mod support;
mod surroundings;
mod terminal;
#[cfg(feature = "redis")]
mod tls;
mod tokens;
mod transparency;
mod tree;
mod waiting;
mod windows;
