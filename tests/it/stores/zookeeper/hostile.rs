//! Strangers who fill the directory of a lock, and servers that want to do harm: bounded memory and bounded time.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::peak::{ALLOWANCE, peaks};
use crate::support::running::{Exit, Output};
use crate::support::zookeeper::ZooKeeper;
use crate::support::zookeeper::session::Kind;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// For how long a run tries. It ends at most a second later, unless the machine is busy.
const LIMIT: Duration = Duration::from_secs(2);
/// What a busy machine may add to that.
const DELAY: Duration = Duration::from_secs(8);

/// Lets a run try for two seconds, and wait so long for its first replies. Returns how it ended, when, and its largest
/// size.
fn watched(url: &str, timeout: &str, options: &[&str]) -> (Output, Duration, u64) {
    let run = Dlock::run().backend(url).args(["--connect-timeout", timeout, "--wait", "2s"]).args(options);
    let began = Instant::now();
    let mut run = run.sh("echo ran").spawn();
    let mut most = 0;
    loop {
        most = most.max(peaks(run.pid()));
        if let Some(output) = run.poll() {
            return (output.clone(), began.elapsed(), most);
        }
        assert!(began.elapsed() < SOON, "dlock does not give up: {}", run.stderr());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn idle() -> u64 {
    watched(&format!("zookeeper://127.0.0.1:{}", Fake::silent().port()), "2s", &[]).2
}

/// Anyone who may create nodes in it can fill the directory of a lock.
#[test]
fn many_foreign_nodes_are_refused_in_time() {
    let zookeeper = ZooKeeper::start();
    let idle = idle();
    let mut session = zookeeper.session();
    session.create_all("/dlock/x");
    let mut sum = 0;
    for (count, message) in [(9_999, None), (25_000, Some("/dlock/x has more than 10000 nodes"))] {
        let paths: Vec<String> = (sum..count).map(|number| format!("/dlock/x/{number:010}")).collect();
        sum = count;
        session.create_many(&paths, Kind::Persistent).unwrap();
        for options in [&[][..], &["--shared"], &["--slots", "10000"]] {
            let (output, took, peak) = watched(&zookeeper.url(), "5s", options);
            let expected = if message.is_some() { 69 } else { 75 };
            let (exit, stderr) = (output.exit, &output.stderr);
            println!("{count} {options:?}: {exit:?} after {took:?}, {peak} KiB, {idle} KiB idle");
            assert_eq!((exit, output.stdout.as_str()), (Exit::Code(expected), ""), "{count}: {stderr}");
            assert!(message.is_none_or(|message| stderr.contains(message)), "{stderr}");
            assert!(took < LIMIT + DELAY, "{count} {options:?}: after {took:?}");
            assert!(peak < idle + ALLOWANCE, "{count} {options:?}: {peak} KiB, {idle} KiB idle");
        }
        let mut waiter = Dlock::run().backend(zookeeper.url()).args(["--wait", "forever"]).sh("").spawn();
        waiter.guard();
        let began = Instant::now();
        waiter.signal(Signal::SIGTERM);
        assert_eq!(waiter.wait().exit, Exit::by(Signal::SIGTERM));
        assert!(
            began.elapsed() < Duration::from_secs(2) + DELAY,
            "{count}: {:?} after SIGTERM",
            began.elapsed()
        );
    }
    session.close().unwrap();
}

fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    [&(body.len() as u32).to_be_bytes()[..], &body].concat()
}

fn text(text: &[u8]) -> Vec<u8> {
    framed(&[text])
}

/// A reply without an error to a request.
fn reply(request: &[u8], body: &[u8]) -> Vec<u8> {
    framed(&[&request[..4], &7u64.to_be_bytes(), &[0; 4], body])
}

/// The reply to the request for a session, which is number 1.
fn begun() -> Vec<u8> {
    framed(&[&[0; 4], &15_000u32.to_be_bytes(), &1u64.to_be_bytes(), &text(&[0; 16])])
}

/// The status of a node that belongs to session 1 and was written once.
fn stat() -> [u8; 68] {
    let mut stat = [0; 68];
    (stat[7], stat[15], stat[51]) = (5, 5, 1);
    stat
}

/// A server that begins sessions, creates nodes, and has these children and this value in each of them.
fn server(children: Vec<u8>, value: Vec<u8>) -> Fake {
    Fake::framed(move |number, request| match request.get(4..8).map(|code| code[3]) {
        _ if number == 0 => begun(),
        Some(15 | 19) => {
            let length = u32::from_be_bytes(request[8..12].try_into().expect("a length")) as usize;
            let path = [&request[12..12 + length], b"0000999999"].concat();
            reply(request, &[text(&path), stat().to_vec()].concat())
        }
        Some(12) => reply(request, &children),
        Some(4) if request.windows(7).any(|part| part == b"#beside") => {
            framed(&[&request[..4], &7u64.to_be_bytes(), &(-101i32).to_be_bytes()])
        }
        Some(4) => reply(request, &value),
        Some(5) => reply(request, &stat()),
        _ => reply(request, &[]),
    })
}

fn names(count: usize) -> Vec<u8> {
    let names = (0..count).flat_map(|number| text(format!("-n9999-lock-{number:010}").as_bytes()));
    (count as u32).to_be_bytes().into_iter().chain(names).collect()
}

/// F47: lengths and counts are not trusted.
#[test]
fn hostile_replies_are_69_in_bounded_memory_and_time() {
    let idle = idle();
    let int = |number: i32| number.to_be_bytes().to_vec();
    let value = |data: &[u8]| [text(data), stat().to_vec()].concat();
    let ours = br#"{"format":1,"fencing_token":0,"members":[],"line":[]}"#;
    let large = vec![b'x'; 1_000_000];
    let cases = [
        ("a count without names", server(int(i32::MAX), value(b""))),
        ("a negative count", server(int(-1), value(b""))),
        ("a name without end", server([int(1), int(i32::MAX)].concat(), value(b""))),
        ("empty names", server([int(250_000), vec![0; 1_000_000]].concat(), value(b""))),
        ("many names", server(names(40_000), value(b""))),
        ("large values", server(names(9_000), value(&large))),
        ("values of ours", server(names(9_000), value(ours))),
        ("a value without end", server(names(9), int(i32::MAX))),
        ("no values", server(names(9_000), Vec::new())),
    ];
    let begin = begun();
    let endless = |again: &[u8]| Fake::endless(begin.clone(), again.repeat(1 + 100_000 / again.len()));
    let event = framed(&[&(-1i32).to_be_bytes(), &[0; 16]]);
    let others = [
        ("a length without end", Fake::saying([begun(), vec![0, 15, 255, 255]].concat())),
        ("a length that is too long", Fake::saying([begun(), vec![255; 4]].concat())),
        ("events without end", endless(&event)),
        ("replies to nothing", endless(&framed(&[&9u32.to_be_bytes(), &[0; 12]]))),
        ("empty messages", endless(&[0; 4])),
    ];
    let cases: Vec<(&str, Fake)> = cases.into_iter().chain(others).collect();
    let check = |what: &str, server: &Fake, options: &[&str]| {
        let url = format!("zookeeper://127.0.0.1:{}", server.port());
        let (output, took, peak) = watched(&url, "2s", options);
        println!("{what} {options:?}: {:?} after {took:?}, {peak} KiB, {idle} KiB idle", output.exit);
        let is_refused = matches!(output.exit, Exit::Code(69 | 75));
        assert!(is_refused && output.stdout.is_empty(), "{what} {options:?}: {output:?}");
        assert!(took < LIMIT + DELAY, "{what} {options:?}: after {took:?}");
        assert!(peak < idle + ALLOWANCE, "{what} {options:?}: {peak} KiB, {idle} KiB idle");
    };
    // Both runs of two cases at a time: they wait for most of the time.
    for two in cases.chunks(2) {
        std::thread::scope(|scope| {
            for (what, server) in two {
                scope.spawn(|| check(what, server, &[]));
                scope.spawn(|| check(what, server, &["--slots", "9999"]));
            }
        });
    }
}
