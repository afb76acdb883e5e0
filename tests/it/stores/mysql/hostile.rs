//! F47, F59: a server that sends more than it was asked for.

use crate::support::SOON;
use crate::support::fake::Fake;
use crate::support::mariadb::fake::{self, Client, greeting, packet};
use crate::support::peak::{ALLOWANCE, peaks};
use crate::support::place::Place;
use crate::support::running::{Exit, Output, Running};
use nix::sys::signal::Signal;
use std::io;
use std::time::{Duration, Instant};

/// For how long a run tries that gets no end of a reply.
const LIMIT: Duration = Duration::from_secs(2);

/// What a busy machine may add to that.
const DELAY: Duration = Duration::from_secs(8);

/// For how long a run tries that is to end by itself.
const PATIENCE: Duration = Duration::from_secs(8);

const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];
/// Likewise, and another result follows.
const OK_AND_MORE: &[u8] = &[0, 0, 0, 10, 0, 0, 0];
const END: &[u8] = &[0xfe, 0, 0, 2, 0];
const END_AND_MORE: &[u8] = &[0xfe, 0, 0, 10, 0];

/// The description of a column, as far as it is looked at.
const COLUMN: &[u8] = b"\x03def";

/// A server that accepts every login and replies to the first request so.
fn server(reply: impl Fn(&mut Client) -> io::Result<()> + Send + Sync + 'static) -> Fake {
    fake::start(greeting("8.4.0", "caching_sha2_password", false), None, move |client| {
        client.write(OK)?;
        client.read()?;
        reply(client)?;
        client.read().map(drop)
    })
}

/// These packets, with numbers.
fn packets<'a>(payloads: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut number = 1;
    payloads.into_iter().flat_map(|payload| packet(&mut number, payload)).collect()
}

/// Sends these packets, and then those over and over.
fn endless(first: &[&'static [u8]], again: &[u8]) -> Fake {
    let first = packets(first.iter().copied());
    let again = packets([again; 1000]);
    server(move |client| {
        client.write_raw(&first)?;
        loop {
            client.write_raw(&again)?;
        }
    })
}

fn run(place: &Place, server: &Fake, limit: Duration) -> Running {
    let url = format!("mysql://me@127.0.0.1:{}/db", server.port());
    let limit = format!("{}s", limit.as_secs());
    place.run().backend(url).args(["--connect-timeout", &limit]).command(["touch", "t"]).spawn()
}

/// How a run ends that tries for so long, its peak, and after which time.
fn watched(server: &Fake, limit: Duration) -> (Output, u64, Duration) {
    let (place, began) = (Place::new(), Instant::now());
    let mut run = run(&place, server, limit);
    let mut peak = 0;
    loop {
        peak = peak.max(peaks(run.pid()));
        if let Some(output) = run.poll() {
            assert!(!place.path("t").exists(), "the command ran: {output:?}");
            return (output.clone(), peak, began.elapsed());
        }
        assert!(began.elapsed() < SOON, "dlock does not give up: {}", run.stderr());
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn a_reply_without_end_is_given_up() {
    let (_, idle, _) = watched(&Fake::silent(), LIMIT);
    let many_columns = vec![0xfb; 2000];
    let long = vec![b'x'; 60_000];
    let long_value = [&[0xfd, 0x60, 0xea, 0][..], &long].concat();
    for (what, server) in [
        ("results", endless(&[], OK_AND_MORE)),
        ("columns", endless(&[&[0xfd, 0xff, 0xff, 0xff]], COLUMN)),
        ("columns of 60 KB", endless(&[&[1]], &long)),
        ("rows of an empty text", endless(&[&[1], COLUMN, END], &[0])),
        ("rows of a NULL", endless(&[&[1], COLUMN, END], &[0xfb])),
        ("rows of 60 KB", endless(&[&[1], COLUMN, END], &long_value)),
        ("empty results", endless(&[], &[1])),
        ("rows of 2,000 NULLs", {
            let columns: Vec<&[u8]> = std::iter::once(&[0xfc, 0xd0, 7][..])
                .chain(std::iter::repeat_n(COLUMN, 2000))
                .chain([END])
                .collect();
            let (first, again) = (packets(columns), packets([&many_columns[..]; 100]));
            server(move |client| {
                client.write_raw(&first)?;
                loop {
                    client.write_raw(&again)?;
                }
            })
        }),
        (
            "a packet of 16 MB",
            server(|client| {
                client.write_raw(&[0xfe, 0xff, 0xff, 1])?;
                loop {
                    client.write_raw(&[1; 1 << 16])?;
                }
            }),
        ),
        (
            "a login without end",
            fake::start(greeting("8.4.0", "caching_sha2_password", false), None, |client| {
                loop {
                    client.write(&[1, 3])?;
                }
            }),
        ),
    ] {
        let (output, peak, took) = watched(&server, PATIENCE);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{what}: {}", output.stderr);
        let is_reason = |reason: &str| output.stderr.contains(reason);
        assert!(is_reason("a reply is too long") || is_reason("not valid"), "{what}: {}", output.stderr);
        assert!(took < LIMIT + DELAY, "{what}: {took:?}");
        assert!(peak < idle + ALLOWANCE, "{what}: {peak} KiB, {idle} KiB against a silent server");
        println!("{what}: {} KiB above idle, {took:?}", peak.saturating_sub(idle));
    }
}

#[test]
fn rows_with_other_columns_than_announced_are_rejected() {
    for (what, reply) in [
        ("too many values", packets([&[1][..], COLUMN, END, &[0, 0], END])),
        ("too few values", packets([&[2][..], COLUMN, COLUMN, END, &[0], END])),
        ("more columns than announced", packets([&[1][..], COLUMN, COLUMN, END, &[0], END])),
        ("fewer columns than announced", packets([&[2][..], COLUMN, END, &[0, 0], END])),
        ("no number of columns", packets([&[0xff_u8, 0][..]])),
        ("a text without its end", packets([&[1][..], COLUMN, END, &[9, 0], END])),
    ] {
        let (output, ..) = watched(&server(move |client| client.write_raw(&reply)), PATIENCE);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{what}: {}", output.stderr);
        assert!(!output.stderr.contains("panic"), "{what}: {}", output.stderr);
        assert!(output.stderr.contains("a packet that is not valid"), "{what}: {}", output.stderr);
    }
}

/// A reply that goes on, slowly, for ever.
#[test]
fn a_reply_that_trickles_ends_with_the_limit_or_a_signal() {
    let trickle = || {
        server(|client| {
            client.write_raw(&packets([&[1][..], COLUMN, END]))?;
            loop {
                client.write_raw(&packets([&[0][..]]))?;
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let (output, _, took) = watched(&trickle(), LIMIT);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(took < LIMIT + DELAY, "{took:?}");
    let (place, server) = (Place::new(), trickle());
    let url = format!("mysql://me@127.0.0.1:{}/db", server.port());
    let run = place.run().backend(url).args(["--connect-timeout", "1m"]);
    let mut run = run.command(["touch", "t"]).spawn();
    crate::support::wait::until(SOON, "a connection", || server.connections() > 0);
    run.signal(Signal::SIGTERM);
    let told = Instant::now();
    let output = run.wait();
    assert_eq!(output.exit, Exit::by(Signal::SIGTERM), "{}", output.stderr);
    // Two seconds, as for any store that does not reply.
    assert!(told.elapsed() < Duration::from_secs(2) + DELAY, "{:?}", told.elapsed());
}

/// It would be taken for the reply to the next request.
#[test]
fn what_was_not_requested_is_not_a_reply() {
    let unrequested = "the server sent more than was requested";
    for (what, bytes, message) in [
        ("a repeated reply", packets([OK, OK]), unrequested),
        ("part of a packet", [packets([OK]), vec![7, 0]].concat(), unrequested),
        (
            "the reason for the end",
            packets([OK, b"\xff\xbf\x0f#HY000Too late"]),
            "the server has ended the request (error 4031: Too late)",
        ),
    ] {
        let server = fake::start(
            greeting("8.4.0", "caching_sha2_password", false),
            None,
            move |client: &mut Client| {
                client.write_raw(&bytes)?;
                client.read().map(drop)
            },
        );
        let (output, ..) = watched(&server, PATIENCE);
        let message = format!(
            "dlock: x on mysql://me@127.0.0.1:{}/db: {message}; the command did not run, see --retry\n",
            server.port()
        );
        assert_eq!(output.outcome(), (Exit::Code(69), "", message.as_str()), "{what}");
    }
}

/// The database was selected at the beginning of the session, so that one without it is another session.
#[test]
fn a_session_that_has_lost_its_database_is_another_one() {
    let begun = packets([
        OK_AND_MORE,
        OK_AND_MORE,
        // The id of the connection, which is that of the greeting, and `read_only`.
        &[2],
        COLUMN,
        COLUMN,
        END,
        b"\x011\x010",
        END_AND_MORE,
        // No variable of a cluster.
        &[2],
        COLUMN,
        COLUMN,
        END,
        END_AND_MORE,
        OK_AND_MORE,
        &[2],
        COLUMN,
        COLUMN,
        END,
        b"\x0bdlock_locks\x0aBASE TABLE",
        END,
    ]);
    let server = server(move |client| {
        client.write_raw(&begun)?;
        client.read()?;
        client.write(b"\xff\x16\x04#3D000No database selected")
    });
    let url = format!("mysql://me@127.0.0.1:{}/db?recipe=get_lock", server.port());
    let output = Place::new().run().backend(&url).sh("echo ran").output();
    let message = format!(
        "dlock: x on {url}: a proxy shares the connections of the server among its clients, so that a lock of GET_LOCK is \
         not that of one client: name the server itself, or use recipe=table; the command did not run\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", message.as_str()));
}
