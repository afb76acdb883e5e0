//! The tests of `dlock`, all through the real binary.
//!
//! One crate, one folder for each area, one file for each topic. A test's name is the claim it proves; the id in its doc comment is
//! the row of the project's table of cases.

// A test states what it expects by unwrapping it.
#![allow(clippy::unwrap_used)]

mod acquire;
mod admin;
mod cli;
mod layout;
mod packaging;
mod run;
mod stores;
mod support;
