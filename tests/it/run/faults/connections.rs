//! A store that cannot be reached before the lock is acquired.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::{Connection, Options, Redis};
use crate::support::running::{Exit, Output};
use crate::support::server::free_port;
use crate::support::tls::Flaw;
use crate::support::wait::until;
use std::time::Duration;

/// Runs a command that must not run, and asserts that the store is named as the cause.
#[track_caller]
fn assert_unavailable(run: Dlock) -> Output {
    let place = run.place().clone();
    // A server that answers late is not to be taken for one that does not.
    let output = run.args(["--connect-timeout", "1800ms"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis"), "{}", output.stderr);
    assert!(output.stderr.contains("the command did not run"), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    place.marker().await_end();
    output
}

fn at(port: u16) -> Dlock {
    Place::new().run().backend(format!("redis://127.0.0.1:{port}/0"))
}

/// F01
#[test]
fn a_closed_port_is_unavailable() {
    let output = assert_unavailable(at(free_port()));
    assert!(output.stderr.contains("refused"), "{}", output.stderr);
    assert!(output.stderr.contains("--retry"), "the flag that helps: {}", output.stderr);
}

/// F01
#[test]
fn a_server_that_closes_at_once_is_unavailable() {
    let fixture = Fixture::new();
    fixture.proxy.refuse();
    assert_unavailable(fixture.run());
    assert!(!fixture.is_held());
}

/// F01
#[test]
fn a_server_that_never_replies_is_unavailable() {
    let silent = Fake::silent();
    let output = assert_unavailable(at(silent.port()));
    assert!(output.stderr.contains("no answer within "), "{}", output.stderr);
}

/// F01
#[test]
fn a_server_of_an_unknown_protocol_is_unavailable() {
    for answer in ["220 mail ESMTP\r\n", "+OK POP3\r\n"] {
        let fake = Fake::answering_once(answer);
        assert_unavailable(at(fake.port()));
    }
}

/// F01
#[test]
fn a_host_that_does_not_exist_is_unavailable() {
    let output = assert_unavailable(Place::new().run().backend("redis://no-such-host.invalid/0"));
    assert!(output.stderr.contains("no-such-host.invalid"), "{}", output.stderr);
}

/// F01
#[test]
fn a_silent_name_server_is_unavailable_within_the_time_out() {
    // A resolver that listens and never replies: the C library alone would wait for 10 s.
    let place = Place::new();
    let hosts = place.write("nsswitch.conf", "hosts: dns\n");
    let resolv = place.write("resolv.conf", "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n");
    let prepare = format!(
        "ip link set lo up && mount --bind {} /etc/nsswitch.conf && mount --bind {} /etc/resolv.conf && \
         nft 'add table inet f; add chain inet f i {{ type filter hook input priority 0; }}; \
         add rule inet f i udp dport 53 drop' || exit 99",
        hosts.display(),
        resolv.display()
    );
    let run = place.run().backend("redis://store.example/0").after_shell(&prepare);
    let output = assert_unavailable(run.wrapped_by(["unshare", "-mn"]));
    assert!(output.elapsed < Duration::from_secs(20), "{:?}", output.elapsed);
}

/// F01
#[test]
fn a_server_that_drops_packets_is_unavailable() {
    let prepare = "ip link set lo up && ip addr add 10.9.9.9/32 dev lo && \
        nft 'add table inet f; add chain inet f i { type filter hook input priority 0; }; \
        add rule inet f i ip daddr 10.9.9.9 drop' || exit 99";
    let run = Place::new().run().backend("redis://10.9.9.9/0").after_shell(prepare);
    let output = assert_unavailable(run.wrapped_by(["unshare", "-n"]));
    assert!(output.stderr.contains("no connection within "), "{}", output.stderr);
}

/// F01
#[test]
fn a_network_without_a_route_is_unavailable() {
    let run = Place::new().run().backend("redis://10.9.9.9/0").wrapped_by(["unshare", "-n"]);
    let output = assert_unavailable(run);
    assert!(output.stderr.contains("unreachable"), "{}", output.stderr);
}

fn with_certificate(flaw: Flaw) -> Redis {
    Redis::start_with(Options { tls: Some(flaw), ..Options::default() })
}

/// F01
#[test]
fn a_server_with_an_unverified_certificate_is_unavailable() {
    for (flaw, word) in [(Flaw::Expired, "expired"), (Flaw::WrongHost, "not valid for")] {
        let redis = with_certificate(flaw);
        let output = assert_unavailable(Place::new().run().backend(redis.url()));
        assert!(output.stderr.contains(word), "{}", output.stderr);
    }
    // An authority that is not among the trusted ones.
    let (redis, stranger) = (with_certificate(Flaw::None), with_certificate(Flaw::None));
    let url =
        format!("rediss://127.0.0.1:{}/0?ca_file={}", redis.port(), stranger.certificates().ca.display());
    let output = assert_unavailable(Place::new().run().backend(url));
    assert!(output.stderr.contains("certificate"), "{}", output.stderr);
}

/// F01
#[test]
fn a_server_with_a_verified_certificate_is_used() {
    let redis = with_certificate(Flaw::None);
    let output = Place::new().run().backend(redis.url()).sh("echo ran; exit 3").output();
    assert_eq!(output.outcome(), (Exit::Code(3), "ran\n", ""));
}

/// F01
#[test]
fn a_wait_continues_until_a_late_store_is_up() {
    for (option, end) in [
        (["--wait", "forever"], "again"),
        (["--wait", "60s"], "for another 1m"),
        (["--retry", "60s"], "for another 1m"),
    ] {
        let fixture = Fixture::new();
        fixture.proxy.refuse();
        let mut run = fixture.run().args(option).args(["-v"]).sh("echo ran; exit 3").spawn();
        // After the first one, four others find out what kind of server it is.
        until(SOON, "attempts", || fixture.proxy.attempts() >= 7);
        run.assert_running();
        fixture.proxy.heal();
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(3), "ran\n"), "{}", output.stderr);
        assert!(!fixture.is_held());
        let store = fixture.proxied_url();
        let lines: Vec<&str> = output.stderr.lines().collect();
        let [failure, recovery, grant, release] = lines[..] else { panic!("{}", output.stderr) };
        let why = "the server closed the connection";
        assert!(failure.starts_with(&format!("dlock: cannot reach {store}: {why}")), "{failure}");
        let trying = failure.rsplit_once("; trying ").map(|(_, trying)| trying);
        // A slow start leaves a little less than the minute.
        let is_less = trying.is_some_and(|trying| trying.starts_with("for another 5") && end != "again");
        assert!(trying == Some(end) || is_less, "{failure}");
        assert_eq!(recovery, format!("dlock: {store} replies again"));
        assert!(grant.starts_with("dlock: x was granted after "), "{grant}");
        assert_eq!(release, "dlock: x was released");
    }
}

/// F01
#[test]
fn a_wait_that_ends_without_the_store_is_unavailable_not_contended() {
    for option in [["--wait", "1s"], ["--retry", "1s"]] {
        let fake = Fake::answering_once("");
        let output = assert_unavailable(at(fake.port()).args(option));
        assert!(output.elapsed >= Duration::from_secs(1), "{:?}", output.elapsed);
        let said = output.stderr.trim_end().rsplit_once("; the command did not run; gave up after ");
        assert!(said.is_some_and(|(_, waited)| waited.ends_with('s')), "{}", output.stderr);
        // It was tried again, with pauses: more than once, but not in a busy loop.
        assert!((3..100).contains(&fake.connections()), "{} attempts", fake.connections());
    }
}

/// F01
#[test]
fn a_store_that_fails_during_a_wait_is_unavailable() {
    let fixture = Fixture::new();
    let mut holder = fixture.with_inherited_lock(fixture.direct(), &["ignore-term"]).spawn();
    holder.await_ready();
    let mut waiter =
        fixture.run().args(["-v", "--wait", "4s", "--connect-timeout", "500ms"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    fixture.proxy.hold_both();
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    holder.assert_running();
}

/// F01
#[test]
fn a_store_with_a_transient_failure_is_waited_for() {
    let fixture = Fixture::new();
    let mut holder = fixture.witness_of(fixture.direct());
    let run = fixture.run().args(["-v", "--wait", "forever", "--connect-timeout", "500ms"]);
    let mut waiter = fixture.recording(run, &["next-holder", fixture.inherited_lock.path()]).spawn();
    waiter.await_stderr("waiting");
    fixture.proxy.refuse();
    fixture.go();
    assert_eq!(holder.wait().exit, Exit::Code(5));
    assert!(!fixture.is_held());
    fixture.proxy.heal();
    fixture.assert_inherits(waiter);
}

/// Checks the rig: the port of a killed server is closed.
#[test]
fn a_killed_server_refuses() {
    let mut redis = Redis::start();
    redis.kill();
    assert!(Connection::to(redis.port()).is_err());
    assert_unavailable(Place::new().run().backend(redis.url()));
}
