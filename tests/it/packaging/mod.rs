//! What is shipped beside the binary: README, man pages, completions.

#[cfg(feature = "redis")]
pub mod documents;
pub mod generated;
