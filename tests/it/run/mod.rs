//! The command and its supervision: signals, trees, loss, limits, hosts.

pub mod budget;
pub mod escape_attempts;
pub mod exit_codes;
pub mod failed_start;
pub mod faults;
pub mod fuzzed_replies;
pub mod guard;
pub mod host_conditions;
pub mod hostile_environment;
pub mod lost_trees;
pub mod namespaces;
pub mod nested;
pub mod once_per;
pub mod orphans;
pub mod other_accounts;
pub mod quiet;
pub mod race_windows;
pub mod random_faults;
pub mod resource_limits;
pub mod scale;
pub mod signals;
pub mod stop_once;
pub mod stop_signals;
pub mod terminal;
pub mod transparency;
pub mod tree;
