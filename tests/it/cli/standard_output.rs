//! Output that cannot be written is a failure: a script must not take nothing for an empty answer.

use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
use std::fs::File;

/// What commands print.
const COMMANDS: [&[&str]; 12] = [
    &["status", "x"],
    &["status", "--json"],
    &["status", "--history", "x"],
    &["history", "--timeline", "x"],
    &["status", "--watch", "x"],
    &["config", "show"],
    &["doctor", "--json"],
    &["man", "run"],
    &["completions", "bash"],
    &["help"],
    &["run", "--help"],
    &["--version"],
];

fn output(store: &Store, args: &[&str], redirected: impl Fn(Dlock) -> Dlock) -> Output {
    let dlock = store.place.bare().env("DLOCK_BACKEND", store.url()).args(args);
    let output = redirected(dlock).output();
    assert_eq!(output.exit, Exit::Code(70), "{args:?}: {}", output.stderr);
    output
}

#[test]
fn a_standard_output_that_is_closed_or_full_is_a_failure() {
    let store = Store::file();
    for args in COMMANDS {
        let closed = output(&store, args, |dlock| dlock.after_shell("exec >&-"));
        assert_eq!(closed.stderr, "dlock: cannot write to standard output: it is closed\n", "{args:?}");
        let full = output(&store, args, |dlock| {
            dlock.stdout(File::options().write(true).open("/dev/full").unwrap())
        });
        let why = "dlock: cannot write to standard output: no space left on device\n";
        assert_eq!(full.stderr, why, "{args:?}");
    }
}

/// A run prints nothing itself, and its command finds what it would find without dlock.
#[test]
fn a_run_does_not_need_a_standard_output() {
    for store in Store::each() {
        let text = "{ echo text; } 2>/dev/null || exit 3; exit 4";
        let run = store.run_with_ttl("60s").command(["bash", "-c", text]);
        assert_eq!(run.after_shell("exec >&-").output().outcome(), (Exit::Code(3), "", ""));
    }
}
