//! `dlock doctor` on Memcached.

use crate::support::doctor::{assert_answered, assert_found, assert_refused, doctor, findings};
use crate::support::fake::Fake;
use crate::support::memcached::Memcached;
use crate::support::running::Exit;

#[test]
fn a_healthy_server_has_only_the_warning_that_it_forgets() {
    let memcached = Memcached::start();
    let output = doctor(&memcached.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    for (level, check, found) in [
        ("ok", "protocol", "meta commands with CAS"),
        ("warning", "efficiency", "Memcached may forget a lock at any time"),
        ("ok", "version", "memcached 1.6."),
        ("ok", "memory", "no item has been evicted"),
        ("ok", "latency", "of 100 requests"),
        ("ok", "lock", "taken, renewed and given back in"),
        ("ok", "race", "20 races of 8 connections for a free lock had one winner each"),
    ] {
        assert_found(&output, level, check, found);
    }
    let findings = findings(&output);
    assert_eq!(findings.iter().filter(|finding| finding["level"] == "warning").count(), 1, "{findings:?}");
    assert_answered(&output);
    assert_eq!(memcached.keys(), ["dlock#probe"], "left behind");
}

#[test]
fn a_server_without_cas_and_a_dead_one_are_problems() {
    let memcached = Memcached::start_with(&["-C"]);
    let output = doctor(&memcached.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "protocol", "does not compare CAS values");
    let output = doctor("memcached://127.0.0.1:1");
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "problem", "reachability", "connection refused");
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

#[test]
fn a_refused_password_is_a_problem() {
    let server =
        Fake::in_turns(["CLIENT_ERROR unauthenticated\r\n", "CLIENT_ERROR authentication failure\r\n"]);
    let output = doctor(&format!("memcached://me:other-secret@127.0.0.1:{}", server.port()));
    assert_eq!(output.exit, Exit::Code(1), "{output:?}");
    assert_found(&output, "problem", "authentication", "wrong username or password");
    assert_refused(&output, "authentication", 77, "check the username and password");
}
