//! Tests that load the whole machine: thousands of processes or of members.
//!
//! They disturb tests that run at the same time, and are disturbed by them. So `tests/run.sh` leaves out
//! everything below `scale::`, and `tests/scale.sh` runs it afterwards, one test at a time. A test belongs
//! here if it keeps every CPU busy for seconds; all of them together take some three minutes.

mod members;
mod trees;
