//! What is shipped beside the binary: README, man pages, completions.

pub mod generated;
#[cfg(feature = "redis")]
pub mod migrations;
#[cfg(feature = "redis")]
pub mod readme;
