//! Large trees of processes.

use crate::lost_trees::{after_a_theft, behind_a_silent_store};

const TWO_THOUSAND: [&str; 2] = ["many", "2000"];

/// S23
#[test]
fn two_thousand_processes_die_in_time_behind_a_silent_store() {
    behind_a_silent_store(&TWO_THOUSAND);
}

/// S23
#[test]
fn two_thousand_processes_die_in_time_after_a_theft() {
    after_a_theft(&TWO_THOUSAND);
}
