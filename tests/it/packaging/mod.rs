//! What is shipped beside the binary: README, man pages, completions.

pub mod documents;
pub mod generated;
mod json_keys;
