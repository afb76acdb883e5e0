//! The command line, the configuration, and what dlock reads and writes.

pub mod bad_input;
pub mod bad_modes;
pub mod bad_names;
pub mod bad_urls;
pub mod configuration;
pub mod input_files;
pub mod metrics;
pub mod names;
pub mod quoted_secrets;
pub mod reports;
pub mod secrets;
pub mod standard_output;
mod suggestions;
pub mod terminal_width;
