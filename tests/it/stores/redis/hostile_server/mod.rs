//! A server that is none, or that wants to do harm: 69, in bounded memory and bounded time.

mod invalid_replies;

use crate::support::SOON;
use crate::support::fake::Fake;
use crate::support::peak::{ALLOWANCE, peaks};
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::wait::{at_a_time, until};
use std::time::Duration;

/// Lets a run try repeatedly for a while, so that its size can be measured; returns how it ended and its peak.
fn watched(server: &Fake) -> (Output, u64) {
    let place = Place::new();
    let url = format!("redis://127.0.0.1:{}/0", server.port());
    let mut run = place
        .run()
        .backend(url)
        .args(["--connect-timeout", "300ms", "--retry", "700ms"])
        .command(["touch", "t"])
        .spawn();
    let until = std::time::Instant::now() + SOON;
    let mut peak = 0;
    loop {
        peak = peak.max(peaks(run.pid()));
        if let Some(output) = run.poll() {
            assert!(!place.path("t").exists(), "the command ran: {output:?}");
            return (output.clone(), peak);
        }
        assert!(std::time::Instant::now() < until, "dlock does not give up: {}", run.stderr());
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The peak of a run whose server is silent.
fn idle() -> u64 {
    let (output, peak) = watched(&Fake::silent());
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    peak
}

/// One hostile server, and its name.
type Case = (String, Fake);

fn case(what: impl Into<String>, server: Fake) -> Case {
    (what.into(), server)
}

/// Tries them, several at a time: most of the time is spent waiting.
fn assert_withstands_all(cases: impl IntoIterator<Item = Case>) {
    let idle = idle();
    at_a_time(6, cases, |(what, server)| assert_withstands(&what, &server, idle));
}

fn assert_withstands(what: &str, server: &Fake, idle: u64) {
    let (output, peak) = watched(server);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{what}: {}", output.stderr);
    let line = &output.stderr;
    let beginning = format!("dlock: x on redis://127.0.0.1:{}/0: ", server.port());
    assert!(line.starts_with(&beginning), "{what}: {line}");
    assert!(line.contains("; the command did not run; gave up after "), "{what}: {line}");
    assert!(line.lines().count() == 1 && line.len() < 1000, "{what}: {line}");
    assert!(!line.trim_end().chars().any(char::is_control), "{what}: {line:?}");
    until(SOON, &format!("a connection: {what}"), || server.connections() > 0);
    assert!(peak < idle + ALLOWANCE, "{what}: {peak} KiB, {idle} KiB against a silent server");
}

/// F47
#[test]
fn a_server_of_an_unknown_protocol_is_69() {
    let unasked = case("SMTP, unasked", Fake::saying("220 mail.example ESMTP\r\n"));
    let asked = [
        ("SMTP", &b"220 mail.example ESMTP\r\n"[..]),
        ("TLS", b"\x15\x03\x01\x00\x02\x02\x28"),
        ("nothing", b""),
        ("line breaks", b"\r\n\r\n\r\n\r\n"),
        ("zeros", &[0; 4096]),
    ];
    let asked = asked.into_iter().map(|(what, bytes)| case(what, Fake::answering_once(bytes)));
    assert_withstands_all(asked.chain([unasked]));
}

/// F47
#[test]
fn a_malformed_reply_is_69() {
    let answers = [
        "$-5\r\n",
        "*-7\r\n",
        "%-3\r\n",
        ":1e5\r\n",
        ":99999999999999999999\r\n",
        "$3\r\nabcdef\r\n",
        "$x\r\n",
        "*\r\n",
        "$18446744073709551616\r\n",
        "#maybe\r\n",
        "_x\r\n",
        "(zz\r\n",
        ",nonsense\r\n",
        "=3\r\nabc\r\n",
        "?\r\n",
        "-\r\n-\r\n-\r\n",
        "+\r\n+\r\n+\r\n",
        "*0\r\n*0\r\n*0\r\n",
        ":1\r\n:1\r\n:1\r\n",
        "-ERR\r\n",
        "-ERR \u{1b}]52;c;ZXZpbA==\u{7}\u{9b}2J\u{202e}\r\n-ERR \u{1b}[2J\r\n-ERR \u{1b}[2J\r\n",
    ];
    assert_withstands_all(
        answers.into_iter().map(|bytes| case(format!("{bytes:?}"), Fake::answering_once(bytes))),
    );
}

/// F47
#[test]
fn an_announced_length_is_not_trusted() {
    let filler = vec![b'a'; 65536];
    let mut cases = Vec::new();
    for head in [
        "$1000000000\r\n",
        "$9223372036854775807\r\n",
        "=1000000000\r\n",
        "!1000000000\r\n",
        "+",
        "-",
        "(1",
        ":1",
    ] {
        cases.push(case(format!("{head:?}, then nothing"), Fake::saying(head)));
        cases.push(case(format!("{head:?} without end"), Fake::endless(head, filler.clone())));
    }
    assert_withstands_all(cases);
}

/// F47
#[test]
fn an_announced_count_is_not_trusted() {
    let mut cases = Vec::new();
    for head in [
        "*1000000000\r\n",
        "*9223372036854775807\r\n",
        "%1000000000\r\n",
        "~1000000000\r\n",
        ">1000000000\r\n",
    ] {
        cases.push(case(format!("{head:?}, then nothing"), Fake::saying(head)));
        for item in [":1\r\n", "_\r\n", "$-1\r\n", "*0\r\n", "+\r\n", "$1\r\na\r\n"] {
            cases.push(case(format!("{head:?} with {item:?}"), Fake::endless(head, item.repeat(10_000))));
        }
    }
    assert_withstands_all(cases);
}

/// F47
#[test]
fn a_deeply_nested_reply_is_69() {
    let levels = ["*1\r\n", "%1\r\n", "~1\r\n", ">1\r\n", "|1\r\n", "*2\r\n:1\r\n", "%1\r\n:1\r\n"];
    let nested = |level: &str| case(format!("{level:?} in itself"), Fake::endless("", level.repeat(10_000)));
    assert_withstands_all(levels.map(nested));
}

/// F47
#[test]
fn endless_replies_are_69() {
    let push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n";
    let endless = [
        ("letters", "a".repeat(65536)),
        ("line breaks", "\r\n".repeat(30_000)),
        ("answers", "+OK\r\n".repeat(10_000)),
        ("errors", "-ERR no\r\n".repeat(10_000)),
        ("pushes", push.repeat(2_000)),
        ("attributes", "|1\r\n+a\r\n+b\r\n".repeat(5_000)),
    ];
    assert_withstands_all(endless.map(|(what, again)| case(what, Fake::endless("", again))));
}

/// F47
#[test]
fn a_slow_reply_is_69() {
    let idle = idle();
    let pause = Duration::from_millis(20);
    for (first, again) in
        [("+", "a"), ("$1000\r\n", "a"), ("*1000\r\n", ":1\r\n"), ("", ">1\r\n+x\r\n"), ("", "*1\r\n")]
    {
        assert_withstands(&format!("{first:?} {again:?}"), &Fake::trickling(first, again, pause), idle);
    }
}
