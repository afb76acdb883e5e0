//! A master that sentinels name: which one is believed, and what becomes of a lock when there is another.
//!
//! What sentinels do is not up to a test, and takes seconds. So most of these stand on sentinels that say what the test
//! wants, in front of real servers; those of `failing_over` have real ones.

mod choosing;
mod doctor;
mod failing_over;
mod following;
mod proving;
mod replicas;
mod stage;
