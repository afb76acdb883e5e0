//! Stores that cannot be reached, or do not answer any more: found within the time that a step may take.

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

/// The one problem, and what was found.
#[track_caller]
fn problem(dlock: Dlock, check: &str) -> String {
    let found = Findings::of(dlock.args(["--connect-timeout", "500ms"]));
    assert_eq!(found.at("problem"), [check], "{found:?}");
    assert_eq!(found.recommended_ttl_ms(), None);
    found.only(check, "problem").to_owned()
}

fn at(port: u16) -> Dlock {
    doctor(&Place::new(), &format!("redis://127.0.0.1:{port}/0"))
}

/// F01
#[test]
fn a_port_that_refuses_is_a_problem() {
    assert_eq!(problem(at(free_port()), "reachability"), "cannot connect: connection refused");
}

/// F01
#[test]
fn a_name_without_an_address_is_a_problem() {
    let found = problem(doctor(&Place::new(), "redis://nowhere.invalid/0"), "reachability");
    assert!(found.contains("nowhere.invalid"), "{found}");
}

/// F01
#[test]
fn a_black_hole_is_a_problem_in_bounded_time() {
    let prepare = "ip link set lo up && ip addr add 10.9.9.9/32 dev lo && \
        nft 'add table inet f; add chain inet f i { type filter hook input priority 0; }; \
        add rule inet f i ip daddr 10.9.9.9 drop' || exit 99";
    let run = doctor(&Place::new(), "redis://10.9.9.9/0").after_shell(prepare);
    assert_eq!(problem(run.wrapped_by(["unshare", "-n"]), "reachability"), "no answer within 500ms");
}

/// F01
#[test]
fn a_server_that_hangs_is_a_problem_in_bounded_time() {
    let redis = Redis::start();
    redis.stop();
    assert_eq!(problem(at(redis.port()), "authentication"), "no answer within 500ms");
    assert_eq!(problem(at(Fake::silent().port()), "authentication"), "no answer within 500ms");
    redis.resume();
}

/// What was found before stays found.
#[test]
fn a_server_that_hangs_halfway_keeps_what_was_found() {
    let redis = Redis::start();
    let behind = std::sync::Mutex::new(redis.connect());
    // All but the information is answered.
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
    let found = Findings::of(at(server.port()).args(["--connect-timeout", "500ms"]));
    assert_eq!(found.only("information", "problem"), "no answer within 500ms");
    found.only("latency", "ok");
    assert_eq!(found.recommended_ttl_ms(), Some(30_000));
}

/// The signal does what it does to any program.
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
fn a_server_that_does_not_prove_who_it_is_is_a_problem() {
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
    // The other way round: no TLS to a server that speaks nothing else, and TLS to one that does not.
    let plain = format!("redis://127.0.0.1:{}/0", redis.port());
    problem(doctor(&place, &plain), "protocol");
    let redis = Redis::start();
    let url = format!("rediss://127.0.0.1:{}/0?insecure=true", redis.port());
    problem(doctor(&place, &url), "tls");
}

/// 78 as everywhere: nobody was contacted.
#[test]
fn a_configuration_that_cannot_be_used_is_no_finding() {
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
