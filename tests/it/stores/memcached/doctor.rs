//! `dlock doctor` on Memcached.

use crate::support::doctor::{assert_found, doctor};
use crate::support::memcached::Memcached;
use crate::support::running::Exit;

#[test]
fn a_server_without_cas_is_a_problem() {
    let memcached = Memcached::start_with(&["-C"]);
    let output = doctor(&memcached.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "protocol", "does not compare CAS values");
}

#[test]
fn evicted_items_are_a_warning() {
    let memcached = Memcached::start_with(&["-m", "2"]);
    let value = "x".repeat(400_000);
    for number in 0..40 {
        let set = format!("set filler{number} 0 0 {}\r\n{value}", value.len());
        assert_eq!(memcached.command(&set), "STORED");
    }
    let output = doctor(&memcached.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    assert_found(&output, "warning", "memory", "items evicted since the server was started: ");
}
