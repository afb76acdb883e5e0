//! A server that uses the protocol with false content.

use super::{assert_withstands_all, case, idle};
use crate::support::SOON;
use crate::support::fake::Fake;
use crate::support::peak::{ALLOWANCE, peaks};
use crate::support::place::Place;
use crate::support::resp::bulk;
use crate::support::running::Exit;
use crate::support::wait::at_a_time;
use std::time::Duration;

/// Replies to the greeting as a server does, and to requests as given.
fn answering(question: impl Fn(usize) -> Option<Vec<u8>> + Send + Sync + 'static) -> Fake {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    Fake::scripted(move |words| match words[0].as_str() {
        "HELLO" => Some(b"%1\r\n$5\r\nproto\r\n:3\r\n".to_vec()),
        "EVAL" | "EVALSHA" => question(asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst)),
        _ => Some(b"+OK\r\n".to_vec()),
    })
}

/// F47
#[test]
fn a_meaningless_reply_is_69() {
    let answers = [
        "+OK\r\n",
        ":1\r\n",
        "_\r\n",
        "*0\r\n",
        "*1\r\n:7\r\n",
        "*1\r\n_\r\n",
        "*1\r\n:1\r\n",
        "*3\r\n:1\r\n_\r\n_\r\n",
        "*3\r\n:1\r\n$1\r\n7\r\n:1000\r\n",
        "*4\r\n:1\r\n$1\r\n7\r\n:-1\r\n:-1\r\n",
        "*4\r\n:1\r\n$1\r\n7\r\n:0\r\n:-1\r\n",
        "+{}\r\n",
        "$2\r\n{}\r\n",
        "$2\r\n[]\r\n",
        "$4\r\nnull\r\n",
        "$18\r\n{\"outcome\":\"gone\"}\r\n",
        "$21\r\n{\"outcome\":\"granted\"}\r\n",
        "$46\r\n{\"outcome\":\"granted\",\"fencing\":7,\"lease\":1000}\r\n",
        "$46\r\n{\"outcome\":\"granted\",\"fencing\":\"7\",\"lease\":-1}\r\n",
        "$45\r\n{\"outcome\":\"granted\",\"fencing\":\"7\",\"lease\":0}\r\n",
        "$18\r\n{\"outcome\":\"busy\"}\r\n",
        "%1\r\n:1\r\n:1\r\n",
        "*1\r\n*1\r\n:1\r\n",
        "-WEIRD state\r\n",
        "$-1\r\n",
    ];
    assert_withstands_all(
        answers
            .map(|answer| case(format!("{answer:?}"), answering(move |_| Some(answer.as_bytes().to_vec())))),
    );
}

fn granted(fencing: &str, lease: &str) -> Vec<u8> {
    bulk(&format!(r#"{{"outcome":"granted","fencing":"{fencing}","lease":{lease}}}"#))
}

/// F02, F16: a grant whose lease is too short to stop anything in time is discarded. Whether the command might run for
/// a moment must not depend on how quick this host is.
#[test]
fn a_grant_with_a_lease_too_short_to_stop_the_command_is_discarded() {
    let leases = ["1", "2", "10", "100", "200"];
    assert_withstands_all(leases.map(|lease| {
        case(format!("{lease} ms"), answering(move |_| Some(granted("1769824800123456", lease))))
    }));
}

/// The lease that counts is the shorter one, and a fencing token that is none is not passed on.
#[test]
fn a_grant_with_an_exaggerated_lease_is_not_trusted() {
    for fencing in ["", "x", "-1", "1.5", "99999999999999999999", "9007199254740992", "0"] {
        let server = answering(move |asked| {
            Some(if asked == 0 {
                granted(fencing, "9999999999999")
            } else {
                bulk(r#"{"outcome":"released"}"#)
            })
        });
        let place = Place::new();
        let run = place.run().backend(format!("redis://127.0.0.1:{}", server.port()));
        let run = run.sh("echo ${DLOCK_FENCING_TOKEN-unset}").output();
        let is_refused = matches!(run.exit, Exit::Code(69 | 78)) && run.stdout.is_empty();
        assert!(is_refused || run.outcome() == (Exit::Code(0), "unset\n", ""), "{fencing:?}: {run:?}");
    }
}

/// It would be taken for that to the next request, the whole script, at which the server closes the connection.
#[test]
fn a_surplus_reply_is_not_that_of_the_next_request() {
    let place = Place::new();
    for protocol in ["resp2", "resp3"] {
        let surplus =
            [&b"-NOSCRIPT No matching script\r\n"[..], &granted("1769824800123456", "30000")].concat();
        let server = answering(move |asked| (asked == 0).then(|| surplus.clone()));
        let url = format!("redis://127.0.0.1:{}/0?protocol={protocol}", server.port());
        let output = place.run().backend(url).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{protocol}: {output:?}");
    }
}

/// F47: a server that turns hostile while the command runs is one that does not renew.
#[test]
fn a_server_that_turns_hostile_costs_only_the_lock() {
    let idle = idle();
    let cases = [
        ("garbage", "garbage\r\n".to_owned()),
        ("a large announcement", "$1000000000\r\n".to_owned()),
        ("a long answer", "$1000000000\r\n".to_owned() + &"a".repeat(1 << 20)),
        ("a deep answer", "*1\r\n".repeat(1 << 18)),
        ("an error", "-ERR \u{1b}[2Jno\r\n".to_owned()),
        ("another answer", "*1\r\n:7\r\n".to_owned()),
        ("another outcome", "$22\r\n{\"outcome\":\"released\"}\r\n".to_owned()),
        ("deep JSON", format!("$50000\r\n{}\r\n", "[".repeat(50_000))),
    ];
    // Several at a time: each lasts for most of a lease.
    at_a_time(3, cases, |(what, answer)| assert_costs_only_the_lock(what, answer, idle));
}

fn assert_costs_only_the_lock(what: &str, answer: String, idle: u64) {
    let server = answering(move |asked| match asked {
        0 => Some(granted("1769824800123456", "4000")),
        _ => Some(answer.clone().into_bytes()),
    });
    let place = Place::new();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut run = place.run().backend(url).args(["--ttl", "4s"]).sh("echo ready; exec sleep 1000").spawn();
    run.await_ready();
    let mut peak = 0;
    let until = std::time::Instant::now() + SOON;
    while run.poll().is_none() && std::time::Instant::now() < until {
        peak = peak.max(peaks(run.pid()));
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = run.wait();
    assert_eq!(
        (output.exit, output.stdout.as_str()),
        (Exit::Code(76), "ready\n"),
        "{what}: {}",
        output.stderr
    );
    assert!(output.stderr.contains("the lock could not be renewed in time"), "{what}: {}", output.stderr);
    let has_controls = |line: &str| line.chars().any(char::is_control);
    assert!(!output.stderr.lines().any(has_controls), "{what}: {:?}", output.stderr);
    assert!(output.stderr.lines().count() <= 2, "{what}: {:?}", output.stderr);
    run.marker().await_end();
    assert!(peak < idle + ALLOWANCE, "{what}: {peak} KiB, {idle} KiB idle");
}

/// A server that repeatedly announces a turn, and grants nothing, does not receive unlimited requests.
#[test]
fn a_waiter_notified_repeatedly_sends_requests_at_a_limited_rate() {
    let busy = bulk(
        r#"{"outcome":"busy","kind":"string","remaining":60000,"position":1,"call_remaining":0,"now":1769824800123,
            "can_be_notified":true,"holders":0}"#,
    );
    let called = [b">3\r\n".to_vec(), bulk("message"), bulk("c"), bulk("called")].concat();
    let server = answering(move |_| Some([busy.clone(), called.clone()].concat()));
    let place = Place::new();
    let run = place.run().backend(format!("redis://127.0.0.1:{}", server.port())).args(["--wait", "3s"]);
    let output = run.command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    let asked = server.commands().iter().filter(|words| words[0].starts_with("EVAL")).count();
    // Two for each tenth of a second, and some to begin and to leave.
    assert!((5..=70).contains(&asked), "{asked} questions");
}
