//! F47, F59: a server that logs everybody in, and replies with what does harm: 69, in bounded memory and bounded time.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::peak::{ALLOWANCE, peaks};
use crate::support::running::{Exit, Output, Running};
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A message: a letter, its length, and its content.
fn message(letter: u8, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len() + 4).unwrap().to_be_bytes();
    [&[letter], &length[..], content].concat()
}

/// The description of rows with this number of text columns.
fn columns(count: u16) -> Vec<u8> {
    let column = [&b"c\0"[..], &[0; 6], &25_u32.to_be_bytes(), &[0xff, 0xff], &[0xff; 4], &[0, 0]].concat();
    message(b'T', &[&count.to_be_bytes()[..], &column.repeat(count.into())].concat())
}

/// A row of this number of columns without a value.
fn row(count: u16) -> Vec<u8> {
    message(b'D', &[&count.to_be_bytes()[..], &[0xff; 4].repeat(count.into())].concat())
}

/// Logs a client in, and waits for its first request.
fn welcome(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut request = [0; 8];
    // For TLS, which it does not have.
    stream.read_exact(&mut request)?;
    stream.write_all(b"N")?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut start = vec![0; u32::from_be_bytes(length) as usize - 4];
    stream.read_exact(&mut start)?;
    let primary = message(b'S', b"in_hot_standby\0off\0");
    let key = message(b'K', &[0, 0, 0, 1, 0, 0, 0, 1]);
    stream.write_all(&[message(b'R', &[0; 4]), primary, key, message(b'Z', b"I")].concat())?;
    stream.read_exact(&mut request)
}

/// A server that replies to every request with `first`, and then with `again` as often as it is taken, up to `times`.
fn replying(first: Vec<u8>, again: Vec<u8>, times: usize) -> Fake {
    let begin = [message(b'1', b""), first].concat();
    Fake::start(move |_, mut stream| {
        if welcome(&mut stream).is_ok() && stream.write_all(&begin).is_ok() {
            let _ = (0..times).try_for_each(|_| stream.write_all(&again));
            // Until the client has gone.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    })
}

fn spawn(server: &Fake, timeout: &str, retry: &str) -> Running {
    let url = format!("postgres://web@127.0.0.1:{}/app", server.port());
    let run = Dlock::run().backend(url).args(["--connect-timeout", timeout, "--retry", retry]);
    run.sh("echo ran").spawn()
}

/// Lets a run try repeatedly for a while; returns how it ended and its peak.
fn watched(server: &Fake) -> (Output, u64) {
    let (mut run, until) = (spawn(server, "1s", "2s"), Instant::now() + SOON);
    let mut most = 0;
    loop {
        most = most.max(peaks(run.pid()));
        if let Some(output) = run.poll() {
            return (output.clone(), most);
        }
        assert!(Instant::now() < until, "dlock does not give up: {}", run.stderr());
        std::thread::sleep(Duration::from_micros(500));
    }
}

/// The rows, fields, texts and messages that fit into a reply.
#[test]
fn replies_are_bounded_in_memory() {
    let idle = watched(&Fake::silent()).1;
    let endless = usize::MAX;
    let huge = [&b"D\x3f\xff\xff\xff\0\x01\x3f\xff\xff\x00"[..], &[b'x'; 1 << 16]].concat();
    for (what, server) in [
        ("rows without a column", replying(columns(0), row(0).repeat(4096), endless)),
        ("rows of one column", replying(columns(1), row(1).repeat(4096), endless)),
        ("rows of many columns", replying(columns(1600), row(1600).repeat(8), endless)),
        ("descriptions", replying(Vec::new(), columns(8).repeat(64), endless)),
        ("one huge row", replying(columns(1), huge, 1)),
        ("one huge text", replying(columns(1), [b'D', 0x3f, 0xff, 0xff, 0xff].repeat(1 << 12), endless)),
        ("notifications", replying(Vec::new(), message(b'A', b"\0\0\0\x01a\0b\0").repeat(4096), endless)),
        ("settings", replying(Vec::new(), message(b'S', b"a\0b\0").repeat(4096), endless)),
    ] {
        let (output, most) = watched(&server);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{what}: {}", output.stderr);
        assert!(most < idle + ALLOWANCE, "{what}: {most} KiB, {idle} KiB against a silent server");
    }
}

#[test]
fn rows_with_other_columns_than_announced_are_no_reply() {
    let end = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    for (announced, sent) in [(11, 1), (0, 11), (1, 0)] {
        let server = replying([columns(announced), row(sent), end.clone()].concat(), Vec::new(), 1);
        // The last attempt has time for the reply.
        let output = spawn(&server, "10s", "2s").wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
        assert!(output.stderr.contains("the server closed the connection"), "{}", output.stderr);
    }
}

/// While the replies come as fast as they are taken.
#[test]
fn a_signal_ends_a_run_against_an_endless_reply() {
    let server = replying(columns(0), row(0).repeat(4096), usize::MAX);
    let mut run = spawn(&server, "1s", "60s");
    until(SOON, "a few attempts", || server.connections() > 3);
    let sent = Instant::now();
    run.signal(Signal::SIGTERM);
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::by(Signal::SIGTERM), ""), "{}", output.stderr);
    // Two seconds, as for any store that does not reply; the rest is for a busy machine.
    assert!(sent.elapsed() < Duration::from_secs(10), "{:?}", sent.elapsed());
}
