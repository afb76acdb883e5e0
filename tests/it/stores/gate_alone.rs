//! A user that may not have dlock's own table: a lock is that of its gate alone.

use crate::support::dlock::{BINARY, Dlock};
use crate::support::place::Place;
use crate::support::running::Exit;
use std::process::Stdio;

/// Runs of this user exclude each other and those of `owner`, who has the table, for longer than a lease; what needs the
/// table is refused with a sentence that begins like this.
#[track_caller]
pub fn assert_exclusive_only(url: &str, owner: &str, sentence: &str) {
    let place = Place::new();
    let run = || place.run().backend(url).args(["--ttl", "6s"]);
    let held = "echo ready; echo token=$DLOCK_FENCING_TOKEN; exec cat";
    let mut holder = run().stdin(Stdio::piped()).sh(held).spawn();
    holder.await_ready();
    let patient = place.run().backend(owner).args(["--wait", "7s"]).sh("echo ran").output();
    assert_eq!((patient.exit, patient.stdout.as_str()), (Exit::Code(75), ""), "{}", patient.stderr);
    let hasty = run().sh("echo ran").output();
    assert_eq!((hasty.exit, hasty.stdout.as_str()), (Exit::Code(75), ""), "{}", hasty.stderr);
    let mut waiter = run().args(["-v", "--wait", "1m"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    drop(holder.take_stdin());
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\ntoken=\n", ""));
    let waited = waiter.wait();
    assert_eq!((waited.exit, waited.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", waited.stderr);
    let kept = run().args(["--min-hold", "10m"]).sh("echo ran").output();
    assert_eq!(kept.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(place.run().backend(owner).name("x").sh("true").output().exit, Exit::Code(75), "min-hold");
    let refused = |dlock: Dlock| {
        let output = dlock.output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{}", output.stderr);
        assert!(output.stderr.contains(sentence), "{}", output.stderr);
        assert!(output.stderr.contains("see dlock doctor --policy"), "{}", output.stderr);
    };
    refused(run().name("y").args(["--once-per", "1h"]).sh("echo ran"));
    refused(run().name("y").command([BINARY, "run", "-b", url, "y", "--", "echo", "ran"]));
    refused(place.bare().args(["acquire", "-b", url, "--ttl", "10m", "y"]));
    let unbroken = place.bare().args(["break", "-b", url, "x", "--yes"]).output();
    assert_eq!(unbroken.exit, Exit::Code(75), "{}", unbroken.stdout);
    assert!(unbroken.stderr.contains("it is not a dlock, and cannot be notified"), "{}", unbroken.stderr);
    let output = run().name("y").sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "what was refused has left nothing behind");
}
