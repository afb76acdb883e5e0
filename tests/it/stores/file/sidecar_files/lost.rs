//! A sidecar that is deleted, emptied or replaced by another valid one.

use super::{assert_held, assert_one_at_a_time, assert_run, end, hold, noted, sidecar, wait};
use crate::support::SOON;
use crate::support::dlock::BINARY;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use std::fs;
use std::time::Duration;

/// What happens to it.
#[derive(Clone, Copy, Debug)]
enum Change {
    Deleted,
    Emptied,
    /// Another, empty file.
    ReplacedByNothing,
    /// Another file with the same content, as from a backup.
    ReplacedByACopy,
}

use Change::{Deleted, Emptied, ReplacedByACopy, ReplacedByNothing};

fn change(place: &Place, change: Change) {
    let path = sidecar(place);
    let content = match change {
        Deleted => return fs::remove_file(path).unwrap(),
        Emptied => return fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap(),
        ReplacedByNothing => String::new(),
        ReplacedByACopy => fs::read_to_string(&path).unwrap(),
    };
    fs::rename(place.write("other", &content), path).unwrap();
}

/// A waiter that misses the notification would check again only after a minute.
#[track_caller]
fn all_run(mut waiters: Vec<Running>) {
    for waiter in &mut waiters {
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\n"), "{}", output.stderr);
    }
}

/// F38
#[test]
fn a_lost_sidecar_grants_no_lock_and_blocks_no_waiter() {
    for what in [Deleted, Emptied, ReplacedByNothing, ReplacedByACopy] {
        let place = Place::new();
        let holder = hold(place.run());
        let mut waiters: Vec<Running> = (1..=3).map(|position| wait(&place, place.run(), position)).collect();
        change(&place, what);
        for mode in [&["--exclusive"][..], &["--shared"], &["--slots", "2"]] {
            assert_held(place.run().args(mode));
        }
        waiters.push(noted(&place, place.run().args(["--wait", "forever"])).spawn());
        waiters[3].await_stderr("waiting at position");
        assert_held(place.run());
        end(holder);
        all_run(waiters);
        assert_one_at_a_time(&place, 4);
        assert_run(place.run(), 0, "");
    }
}

/// F38
#[test]
fn a_lost_sidecar_admits_no_writer_beside_readers() {
    for what in [Deleted, Emptied, ReplacedByNothing, ReplacedByACopy] {
        let place = Place::new();
        let readers = [(); 2].map(|()| hold(place.run().arg("--shared")));
        let writer = wait(&place, place.run(), 1);
        change(&place, what);
        assert_held(place.run());
        let [first, second] = readers;
        end(first);
        assert_held(place.run());
        end(second);
        all_run(vec![writer]);
        assert_run(place.run(), 0, "");
    }
}

/// F38: the kernel counts no slots, and admits readers beside holders of slots. A slot is not granted twice; that
/// readers are excluded again is ensured when the holders check their lock, a third of the ttl later at most.
#[test]
fn a_lost_sidecar_admits_no_holder_beyond_the_slots() {
    for what in [Deleted, Emptied, ReplacedByNothing, ReplacedByACopy] {
        let place = Place::new();
        let holders = [(); 2].map(|()| hold(place.run().args(["--ttl", "1s", "--slots", "2"])));
        change(&place, what);
        assert_held(place.run().args(["--slots", "2"]));
        until(Duration::from_secs(10), &format!("readers to be kept out again: {what:?}"), || {
            place.run().arg("--shared").command(["true"]).output().exit == Exit::Code(75)
        });
        // One of the holders is known again, and perhaps not both.
        assert_held(place.run().args(["--slots", "2"]));
        holders.into_iter().for_each(end);
        assert_run(place.run().args(["--slots", "2"]), 0, "");
    }
}

/// F38: the hold of the outer one is no longer recorded; admitting the inner one would be a guess.
#[test]
fn a_nested_dlock_with_a_lost_sidecar_is_refused_and_does_not_hang() {
    let place = Place::new();
    let inner = format!(
        "rm '{}'; '{BINARY}' run -b '{}' --wait forever x -- echo ran; echo $?",
        sidecar(&place).display(),
        place.url()
    );
    let line = format!(
        "dlock: x on {}: the lock that this command runs under (DLOCK_HELD) was lost; the command did not run\n",
        place.url()
    );
    assert_eq!(place.run().sh(&inner).output().outcome(), (Exit::Code(0), "76\n", line.as_str()));
    assert_run(place.run(), 0, "");
}

/// F38: after a restart of the host no recorded process can exist, whatever its recorded lease.
#[test]
fn entries_of_an_earlier_boot_are_ignored() {
    let place = Place::new();
    let mut keeper = place.run().args(["--min-hold", "1h"]).command(["true"]).spawn();
    until(SOON, "one who keeps the lock", || place.read("locks/x.dlock").contains("\"ended_at\":1"));
    let mut waiter = wait(&place, place.run().args(["--note", "in line"]), 1);
    let content = place.read("locks/x.dlock");
    for run in [&mut waiter, &mut keeper] {
        run.signal(nix::sys::signal::Signal::SIGKILL);
        run.wait();
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert!(content.contains(boot.trim()) && content.contains("in line"), "{content}");
    let noted: serde_json::Value = serde_json::from_str(content.lines().next().unwrap()).unwrap();
    let noted = noted["fencing_token"].as_u64().unwrap();

    let same_boot = Place::new();
    fs::write(sidecar(&same_boot), &content).unwrap();
    let kept = same_boot.run().command(["true"]).output();
    assert!(kept.exit == Exit::Code(75) && kept.stderr.contains("by --min-hold; not waiting"), "{kept:?}");

    let after = Place::new();
    fs::write(sidecar(&after), content.replace(boot.trim(), "00000000-0000-4000-8000-000000000000")).unwrap();
    let run = after.run().sh("echo \"$DLOCK_FENCING_TOKEN\"").output();
    assert_eq!((run.exit, run.stderr.as_str()), (Exit::Code(0), ""));
    assert!(run.stdout.trim().parse::<u64>().unwrap() > noted, "{} after {noted}", run.stdout);
    assert!(
        !after.read("locks/x.dlock").lines().next().unwrap().contains("in line"),
        "the line is forgotten"
    );
}
