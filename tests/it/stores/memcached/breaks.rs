//! `dlock break`, without a fencing token that would name the hold.

use crate::support::dlock::BINARY;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};

fn broken(place: &Place, memcached: &Memcached, options: &[&str]) -> Output {
    place.bare().args(["break", "-b", &memcached.url(), "--yes"]).args(options).arg("x").output()
}

/// The other process inside is told as well.
#[test]
fn a_live_holder_stops_its_command() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let url = memcached.url();
    let text = format!("'{BINARY}' run -q -b '{url}' x -- sh -c 'echo ready; exec sleep 600'");
    let mut run = place.run().backend(&url).args(["-q", "--ttl", "1m"]).sh(&text).spawn();
    run.await_ready();
    let output = broken(&place, &memcached, &["--reason", "hangs"]);
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    let ended = format!("x on {url}: that hold has ended\n");
    assert!(output.stdout.ends_with(&ended), "{}", output.stdout);
    let ran = run.wait();
    assert_eq!(ran.exit, Exit::Code(76), "{}", ran.stderr);
    assert!(ran.stderr.contains("hangs"), "{}", ran.stderr);
    assert_eq!(memcached.get("dlock:x"), None);
}

#[test]
fn a_lock_kept_by_min_hold_is_free_at_once() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let run = place.run().backend(memcached.url()).args(["-q", "--min-hold", "10m"]).sh("echo ran");
    assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
    assert!(memcached.get("dlock:x").is_some());
    assert_eq!(broken(&place, &memcached, &[]).exit, Exit::Code(0));
    assert_eq!(memcached.get("dlock:x"), None);
}

/// The item of another program is deleted only by force, and only if it is still the one that was shown.
#[test]
fn a_foreign_holder_is_removed_only_by_force() {
    let (memcached, place) = (Memcached::start(), Place::new());
    assert!(memcached.add("dlock:x", None, "worker 3"));
    let output = broken(&place, &memcached, &[]);
    assert_eq!(output.exit, Exit::Code(75), "{}", output.stderr);
    assert!(output.stderr.contains("it is not a dlock, and cannot be notified"), "{}", output.stderr);
    assert!(!output.stderr.contains("worker"), "{}", output.stderr);
    assert_eq!(memcached.get("dlock:x").as_deref(), Some("worker 3"));
    let output = broken(&place, &memcached, &["--force"]);
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
    assert_eq!(memcached.get("dlock:x"), None);
}

/// A token has no process.
#[test]
fn the_holder_of_a_token_is_removed_only_by_force() {
    let (memcached, place) = (Memcached::start(), Place::new());
    let acquired = place.bare().args(["acquire", "-q", "-b", &memcached.url(), "--ttl", "10m", "x"]).output();
    assert_eq!(acquired.exit, Exit::Code(0), "{}", acquired.stderr);
    assert_eq!(broken(&place, &memcached, &[]).exit, Exit::Code(75));
    assert!(memcached.get("dlock:x").is_some());
    assert_eq!(broken(&place, &memcached, &["--force"]).exit, Exit::Code(0));
    assert_eq!(memcached.get("dlock:x"), None);
}
