//! Stores that are unreachable or hung: detected within the time limit of a step.

use super::{Findings, doctor};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::{Options, Redis};
use crate::support::running::Exit;
use crate::support::server::free_port;
use crate::support::tls::{Certificates, Flaw};
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::time::Duration;

/// The only problem, and the findings.
#[track_caller]
fn problem(dlock: Dlock, check: &str) -> String {
    let found = Findings::of(dlock);
    assert_eq!(found.at("problem"), [check], "{found:?}");
    assert_eq!(found.recommended_ttl_ms(), None);
    found.only(check, "problem").to_owned()
}

/// The same, of a store from which no answer is to be awaited.
#[track_caller]
fn problem_in_time(dlock: Dlock, check: &str) -> String {
    problem(dlock.args(["--connect-timeout", "500ms"]), check)
}

fn at(port: u16) -> Dlock {
    doctor(&Place::new(), &format!("redis://127.0.0.1:{port}/0"))
}

/// F01
#[test]
fn a_closed_port_is_a_problem() {
    assert_eq!(problem(at(free_port()), "reachability"), "connection refused");
}

/// F01
#[test]
fn a_name_without_an_address_is_a_problem() {
    let found = problem(doctor(&Place::new(), "redis://nowhere.invalid/0"), "reachability");
    assert!(found.contains("nowhere.invalid"), "{found}");
}

/// F01
#[test]
fn a_server_that_drops_packets_is_a_problem_in_bounded_time() {
    let prepare = "ip link set lo up && ip addr add 10.9.9.9/32 dev lo && \
        nft 'add table inet f; add chain inet f i { type filter hook input priority 0; }; \
        add rule inet f i ip daddr 10.9.9.9 drop' || exit 99";
    let run = doctor(&Place::new(), "redis://10.9.9.9/0").after_shell(prepare);
    assert_eq!(problem_in_time(run.wrapped_by(["unshare", "-n"]), "reachability"), "no answer within 500ms");
}

/// F01
#[test]
fn a_hung_server_is_a_problem_in_bounded_time() {
    let redis = Redis::start();
    redis.stop();
    assert_eq!(problem_in_time(at(redis.port()), "authentication"), "no answer within 500ms");
    assert_eq!(problem_in_time(at(Fake::silent().port()), "authentication"), "no answer within 500ms");
    redis.resume();
}

/// Earlier findings are kept.
#[test]
fn earlier_findings_are_kept_when_the_server_hangs() {
    let redis = Redis::start();
    let behind = std::sync::Mutex::new(redis.connect());
    // Every request but INFO gets a reply.
    let server = Fake::scripted(move |words| {
        if words[0] == "INFO" {
            std::thread::sleep(SOON);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[0] {
            "HELLO" => Some(b"-ERR unknown command\r\n".to_vec()),
            _ => {
                behind.lock().unwrap().command(&words);
                Some(b"+PONG\r\n".to_vec())
            }
        }
    });
    let found = Findings::of(at(server.port()).args(["--connect-timeout", "3s"]));
    assert_eq!(found.only("information", "problem"), "no answer within 3s");
    found.only("latency", "ok");
    assert_eq!(found.recommended_ttl_ms(), Some(30_000));
}

/// The signal has its default effect.
#[test]
fn ctrl_c_ends_it_at_once() {
    let silent = Fake::silent();
    let mut run = at(silent.port()).args(["--connect-timeout", "5m"]).spawn();
    until(SOON, "a connection", || silent.connections() == 1);
    run.signal(Signal::SIGINT);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGINT));
}

/// F30
#[test]
fn an_unverified_certificate_is_a_problem() {
    let place = Place::new();
    for (flaw, words) in [(Flaw::Expired, "expired"), (Flaw::WrongHost, "not valid for name")] {
        let redis = Redis::start_with(Options { tls: Some(flaw), ..Options::default() });
        let found = problem(doctor(&place, &redis.url()), "tls");
        assert!(found.starts_with("TLS: ") && found.contains(words), "{found}");
    }
    let redis = Redis::start_with(Options { tls: Some(Flaw::None), ..Options::default() });
    let other = Certificates::make(&place.locks(), Flaw::None);
    let url = format!("rediss://127.0.0.1:{}/0?ca_file={}", redis.port(), other.ca.display());
    assert!(problem(doctor(&place, &url), "tls").contains("certificate"));
    // The reverse: no TLS to a server that requires it, and TLS to one without it.
    let plain = format!("redis://127.0.0.1:{}/0", redis.port());
    assert_eq!(problem(doctor(&place, &plain), "tls"), "the server uses TLS: use rediss://");
    let redis = Redis::start();
    let url = format!("rediss://127.0.0.1:{}/0?insecure=true", redis.port());
    assert_eq!(problem(doctor(&place, &url), "tls"), "the server does not use TLS: use redis://");
}

/// 78 as everywhere: no server was contacted.
#[test]
fn an_invalid_configuration_is_an_error_and_not_a_finding() {
    let place = Place::new();
    let silent = Fake::silent();
    let url = format!("redis://127.0.0.1:{}/0?password_file=/nonexistent", silent.port());
    let output = doctor(&place, &url).output();
    let expected = format!(
        "dlock: redis://127.0.0.1:{}/0: password file /nonexistent: no such file or directory\n",
        silent.port()
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", expected.as_str()));
    assert_eq!(silent.connections(), 0);
    let output = doctor(&place, "redis://").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
    let output = doctor(&place, &place.url()).args(["--connect-timeout", "0"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""));
    assert!(output.elapsed < Duration::from_secs(30));
}
