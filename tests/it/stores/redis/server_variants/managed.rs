//! Hosted servers and proxies with missing commands: `run` works without a message, `doctor` reports the limitation.

use crate::admin::doctor::{Findings, doctor};
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::{Connection, Redis, await_renewal};
use crate::support::resp::{Value, old_reply};
use crate::support::running::Exit;
use std::process::Stdio;
use std::sync::Mutex;

/// A server without these commands, like hosted ones.
fn without(commands: &[&str]) -> Redis {
    let renamed: Vec<&str> = commands.iter().flat_map(|command| ["--rename-command", *command, ""]).collect();
    let redis = Redis::start_with_args(&renamed);
    for command in commands {
        assert!(
            matches!(redis.command(&[command]), Value::Error(text) if text.contains("unknown command")),
            "{command}"
        );
    }
    redis
}

/// A lock is held, refused, waited for, renewed, shared and freed, without any additional
/// message.
#[track_caller]
fn a_lock_lives(place: &Place, url: &str, left: impl Fn() -> i64) {
    let run = || -> Dlock { place.run().no_backend().env("DLOCK_BACKEND", url) };
    let mut holder = run().args(["--ttl", "6s"]).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    holder.await_ready();
    let refused = run().command(["true"]).output();
    assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
    assert!(refused.stderr.contains("(pid "), "{}", refused.stderr);
    await_renewal(&left);
    let mut waiter = run().args(["--wait", "forever"]).sh("echo ran").spawn();
    drop(holder.take_stdin());
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "ran\n", ""));
    for mode in [["--shared", "-n"], ["--slots", "2"]] {
        assert_eq!(run().args(mode).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
    assert_eq!(left(), -2, "free");
    let status = place.bare().arg("status").env("DLOCK_BACKEND", url).args(["-q", "x"]).output();
    assert_eq!((status.exit, status.stderr.as_str()), (Exit::Code(0), ""), "{status:?}");
}

/// What each variant lacks, and the report of doctor: check, level, and the limitation.
fn is_done_without(commands: &[&str], told: &[(&str, &str, &str)]) {
    let (redis, place) = (without(commands), Place::new());
    a_lock_lives(&place, &redis.url(), || redis.command(&["PTTL", "dlock:x"]).int());
    let found = Findings::of(doctor(&place, &redis.url()));
    assert_eq!(found.at("problem"), [""; 0], "{commands:?}: {found:?}");
    found.only("lock", "ok");
    for (check, words, weaker) in told {
        let is_told = |finding: &&&serde_json::Value| {
            finding["found"].as_str().unwrap().contains(words)
                && finding["consequence"].as_str().is_some_and(|consequence| consequence.contains(weaker))
        };
        assert!(
            found.check(check).iter().any(|finding| is_told(&finding)),
            "{commands:?}, {words}: {found:?}"
        );
    }
}

#[test]
fn a_server_without_client_tracking_works_with_a_warning() {
    let weaker = "the removal of a lock is noticed only at the next renewal";
    is_done_without(&["CLIENT"], &[("rights", "the server does not know CLIENT TRACKING", weaker)]);
}

#[test]
fn a_server_without_info_works_with_a_warning() {
    is_done_without(
        &["INFO"],
        &[("rights", "the server does not know INFO", "whether the server evicts keys")],
    );
}

#[test]
fn a_server_without_channels_works_with_a_warning() {
    let weaker = "waiters are not notified of their turn, and poll instead";
    is_done_without(&["SUBSCRIBE"], &[("rights", "the server does not know SUBSCRIBE", weaker)]);
    is_done_without(&["PUBLISH"], &[("rights", "the server does not know PUBLISH", weaker)]);
    is_done_without(&["SUBSCRIBE", "PUBLISH"], &[("rights", "PUBLISH, SUBSCRIBE", weaker)]);
}

#[test]
fn a_server_without_evalsha_or_config_works_with_fewer_findings() {
    is_done_without(
        &["EVALSHA"],
        &[("rights", "the server does not know EVALSHA", "the text of a script, up to 30 KB")],
    );
    is_done_without(&["CONFIG"], &[]);
}

#[test]
fn a_server_without_list_history_and_dump_works_with_a_warning() {
    let lists = ["ZSCAN", "ZREMRANGEBYSCORE", "LPUSH", "LTRIM", "LRANGE", "DUMP", "STRLEN", "MEMORY"];
    is_done_without(
        &lists,
        &[
            ("rights", "ZSCAN", "dlock status lists no locks"),
            ("rights", "LPUSH", "no history of a lock is kept"),
            ("rights", "DUMP", "dlock break cannot remove another program's lock"),
        ],
    );
}

#[test]
fn a_server_with_only_the_required_commands_suffices() {
    let all =
        ["HELLO", "CLIENT", "INFO", "SUBSCRIBE", "PUBLISH", "CONFIG", "EVALSHA", "ZSCAN", "LPUSH", "DUMP"];
    is_done_without(&all, &[("notifications", "speaks only RESP2", "poll instead")]);
}

/// A proxy for RESP2 in front of a server: its reaction to a client that sends an unknown command.
fn proxy(redis: &Redis, refusal: Option<&'static str>) -> Fake {
    const KNOWN: &[&str] = &["EVAL", "EVALSHA", "PING", "AUTH", "SELECT"];
    let behind = Mutex::new(Connection::to(redis.port()).unwrap());
    Fake::scripted(move |words| {
        if !KNOWN.contains(&words[0].to_uppercase().as_str()) {
            return refusal.map(|refusal| format!("-ERR {refusal}\r\n").into_bytes());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Some(old_reply(&behind.lock().unwrap().command(&words)))
    })
}

#[test]
fn a_proxy_that_refuses_unknown_commands_suffices() {
    let (redis, place) = (Redis::start(), Place::new());
    let proxy = proxy(&redis, Some("unsupported command"));
    let url = format!("redis://127.0.0.1:{}/0", proxy.port());
    a_lock_lives(&place, &url, || redis.command(&["PTTL", "dlock:x"]).int());
}

/// An automatic fallback would weaken every lock whose first connection broke.
#[test]
fn a_proxy_that_closes_on_unknown_commands_needs_an_option() {
    let (redis, place) = (Redis::start(), Place::new());
    let proxy = proxy(&redis, None);
    let url = format!("redis://127.0.0.1:{}/0", proxy.port());
    let output = place.run().backend(&url).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(69), "{}", output.stderr);
    let words =
        "closed the connection without a reply (for a proxy that does not support HELLO: protocol=resp2)";
    assert!(output.stderr.contains(words), "{}", output.stderr);
    let found = Findings::of(doctor(&place, &url));
    assert!(found.only("protocol", "problem").contains("protocol=resp2"), "{found:?}");
    a_lock_lives(&place, &format!("{url}?protocol=resp2"), || redis.command(&["PTTL", "dlock:x"]).int());
}

/// Required commands: a failure is not retried.
#[test]
fn a_server_without_a_required_command_is_reported_before_the_command_starts() {
    for (missing, words) in [
        (&["EVAL", "EVALSHA"][..], "the server runs no scripts, which dlock cannot do without"),
        (&["PEXPIRE"], "the server lacks a command that dlock cannot do without, which dlock doctor names"),
    ] {
        let (redis, place) = (without(missing), Place::new());
        let run = place.run().backend(redis.url()).args(["--retry", "1h"]);
        let output = run.command(["touch", "t"]).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
        assert!(output.stderr.contains(words), "{}", output.stderr);
        assert!(!place.path("t").exists());
        assert_eq!(redis.command(&["EXISTS", "dlock:x"]), Value::Int(0));
        let found = Findings::of(doctor(&place, &redis.url()));
        assert_eq!(found.at("problem"), ["rights"], "{found:?}");
        let named = format!("the server does not know {}", missing[0]);
        let is_named = |finding: &&serde_json::Value| finding["found"].as_str().unwrap().contains(&named);
        assert!(found.check("rights").iter().any(is_named), "{found:?}");
    }
}
