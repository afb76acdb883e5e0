//! `dlock doctor` on Memcached.

use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use serde_json::Value;

fn doctor(url: &str) -> (Output, Value) {
    let output =
        Place::new().bare().args(["doctor", "-b", url, "--json", "--connect-timeout", "2s"]).output();
    let report = serde_json::from_str(&output.stdout).expect("JSON");
    (output, report)
}

#[track_caller]
fn assert_found(report: &Value, level: &str, check: &str, found: &str) {
    let is_meant = |finding: &&Value| {
        finding["level"] == level
            && finding["check"] == check
            && finding["found"].as_str().is_some_and(|text| text.contains(found))
    };
    let findings = report["findings"].as_array().expect("findings");
    assert!(findings.iter().any(|finding| is_meant(&finding)), "{level} {check} {found}: {report}");
}

#[test]
fn a_healthy_server_has_only_the_warning_that_it_forgets() {
    let memcached = Memcached::start();
    let (output, report) = doctor(&memcached.url());
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
        assert_found(&report, level, check, found);
    }
    let findings = report["findings"].as_array().expect("findings");
    assert_eq!(findings.iter().filter(|finding| finding["level"] == "warning").count(), 1, "{report}");
    let answers = report["answers"].to_string();
    for answer in ["atomic_grant", "loss", "one_server", "lease_clock"] {
        assert!(answers.contains(answer), "{answers}");
    }
    assert_eq!(memcached.keys(), ["dlock#probe"], "left behind");
}

#[test]
fn a_server_without_cas_and_a_dead_one_are_problems() {
    let memcached = Memcached::start_with(&["-C"]);
    let (output, report) = doctor(&memcached.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&report, "problem", "protocol", "does not compare CAS values");
    let (output, report) = doctor("memcached://127.0.0.1:1");
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&report, "problem", "reachability", "connection refused");
}

#[test]
fn evicted_items_are_a_warning() {
    let memcached = Memcached::start_with(&["-m", "2"]);
    let value = "x".repeat(400_000);
    for number in 0..40 {
        let set = format!("set filler{number} 0 0 {}\r\n{value}", value.len());
        assert_eq!(memcached.command(&set), "STORED");
    }
    let (output, report) = doctor(&memcached.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    assert_found(&report, "warning", "memory", "items evicted since the server was started: ");
}
