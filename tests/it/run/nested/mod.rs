//! A dlock inside the hold of another one, on the same lock.

mod behind_a_silent_store;

use crate::support::dlock::BINARY;
use crate::support::inherited_lock::InheritedLock;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{side_by_side, throughout, until};
use crate::support::{SOON, probe, process};
use nix::sys::signal::Signal;
use std::time::Duration;

/// The lease of the runs, of which a busy machine may stand still for more than a second.
const TTL: &str = "6s";
/// Longer than the lease of the killed ones.
const PAST_THE_LEASE: Duration = Duration::from_secs(7);

/// The arguments of a dlock on the lock `x` with a probe as its command, for use in the command of another one.
fn inner<const N: usize>(url: &str, probe: [&str; N]) -> Vec<String> {
    let dlock = [BINARY, "run", "-b", url, "--ttl", TTL, "x", "--"].map(str::to_owned);
    dlock.into_iter().chain(probe::command(probe)).collect()
}

/// `sh -c TEXT` with these arguments as `$@`.
fn shell(text: &str, words: Vec<String>) -> Vec<String> {
    ["sh", "-c", text, "sh"].into_iter().map(str::to_owned).chain(words).collect()
}

/// The dlock that runs inside this one.
#[track_caller]
fn inner_of(run: &Running) -> i32 {
    let halves = [run.pid(), run.guard()];
    let tree = process::descendants(run.pid());
    let inner = tree.iter().find(|stat| stat.comm == "dlock" && !halves.contains(&stat.pid));
    inner.expect("an inner dlock").pid
}

/// Another client without waiting is refused.
#[track_caller]
fn assert_held(store: &Store) {
    assert_eq!(store.run().command(["true"]).output().exit, Exit::Code(75));
}

/// A waiter is granted the lock, and no process with the inherited lock is alive then.
#[track_caller]
fn assert_inherits(next_holder: &mut Running) {
    let output = next_holder.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
}

/// Another client is granted the lock, and no process with the inherited lock is alive then.
#[track_caller]
fn assert_succession(store: &Store, inherited_lock: &InheritedLock) {
    let run = store.run_with_ttl(TTL).args(["--wait", "forever"]);
    let output = run.probe(["next-holder", inherited_lock.path()]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "clean\n", ""));
}

/// S32
#[test]
fn fifty_dlocks_enter_one_lock_and_signals_and_statuses_traverse_them_all() {
    for store in Store::each() {
        let (inherited_lock, held) = (store.place.inherited_lock(), store.place.arg("held"));
        let mut words = probe::command(["--inherited-lock", inherited_lock.path(), "signals", "exit:TERM=9"]);
        words.insert(0, held);
        let mut command = shell(r#"echo "$DLOCK_HELD" >"$1"; shift; exec "$@""#, words);
        for _ in 1..50 {
            command.splice(0..0, [BINARY, "run", "-b", store.url(), "x", "--"].map(str::to_owned));
        }
        let mut run = store.run_with_ttl("30s").command(command).spawn();
        run.await_ready();
        let held: serde_json::Value = serde_json::from_str(&store.place.read("held")).unwrap();
        let all = |key: &str| {
            let mut values: Vec<String> =
                held.as_array().unwrap().iter().map(|hold| hold[key].to_string()).collect();
            values.sort();
            values.dedup();
            values.len()
        };
        assert_eq!((held.as_array().unwrap().len(), all("token"), all("fencing_token")), (50, 50, 1));
        assert_held(&store);
        run.signal(Signal::SIGUSR1);
        run.await_stdout("USR1 ");
        run.signal(Signal::SIGTERM);
        let output = run.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(9), ""));
        let reported: Vec<&str> =
            output.stdout.lines().map(|line| line.split(' ').next().unwrap_or_default()).collect();
        assert_eq!(reported, ["ready", "USR1", "TERM"]);
        assert!(!store.is_held(), "{}: something is left of the fifty", store.url());
        assert_succession(&store, &inherited_lock);
    }
}

/// A dlock whose command has ended and has left another dlock, in a separate session and with a probe on the
/// inherited lock, which works until the file `go` exists.
#[track_caller]
fn outlived(store: &Store) -> Running {
    let (inherited_lock, log, go) =
        (store.place.inherited_lock(), store.place.arg("log"), store.place.arg("go"));
    let mut words =
        inner(store.url(), ["--inherited-lock", inherited_lock.path(), "hold", &log, "until", &go]);
    words.insert(0, log);
    let text = r#"log=$1; shift; setsid "$@" & until [ -s "$log" ]; do sleep 0.05; done; touch ended"#;
    let mut run = store.run_with_ttl(TTL).args(["--orphans", "leave"]).command(shell(text, words)).spawn();
    run.await_ready();
    until(SOON, "the end of the outer command", || store.place.path("ended").exists());
    run
}

/// S32
#[test]
fn an_inner_dlock_that_outlives_the_outer_keeps_the_lock() {
    side_by_side(Store::each(), |store| {
        let inherited_lock = store.place.inherited_lock();
        let mut run = outlived(&store);
        if store.url().starts_with("redis") {
            assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        }
        let mut next_holder = store.next_holder(&inherited_lock);
        throughout(PAST_THE_LEASE, "the inner one keeps the lock", || {
            store.is_held() && next_holder.poll().is_none()
        });
        store.place.write("go", "");
        assert_inherits(&mut next_holder);
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        assert_eq!(store.place.read("log").lines().count(), 2, "the inner command ran to its end");
        assert!(!store.is_held());
    });
}

/// Of two locks, one is kept for the run inside. When a signal ends that, nothing is wrong with the other one.
#[test]
fn a_released_lock_is_not_reported_when_the_stay_for_another_one_ends() {
    let store = Store::file();
    let go = store.place.arg("go");
    let mut words = inner(store.url(), ["hold", &store.place.arg("log"), "until", &go]);
    words.insert(0, store.place.arg("log"));
    let text = r#"log=$1; shift; setsid "$@" & until [ -s "$log" ]; do sleep 0.05; done"#;
    let run = store.run_with_ttl(TTL).arg("y").args(["--orphans", "leave"]);
    let mut run = run.command(shell(text, words)).spawn();
    until(SOON, "a held x, a free y", || store.place.path("log").exists() && store.place.lock_is_free("y"));
    run.assert_running();
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    store.place.write("go", "");
}

/// S16, S32: the outer one's descriptor is the lock, so it stays until the inner one has ended; but it may be killed.
#[test]
fn an_inner_dlock_takes_over_the_lock_when_the_outer_is_killed() {
    let store = Store::file();
    let inherited_lock = store.place.inherited_lock();
    let mut run = outlived(&store);
    let mut next_holder = store.next_holder(&inherited_lock);
    throughout(Duration::from_millis(500), "the outer one stays", || run.poll().is_none());
    let guards: Vec<_> =
        process::children(run.pid()).into_iter().filter(|child| child.comm == "lock-guard").collect();
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    // It has the descriptor, too, if it has not ended yet.
    until(SOON, "the end of the guard", || !guards.iter().any(|guard| process::alive(guard.pid)));
    // Between the two flock(1) might get it for an instant, a dlock cannot.
    until(SOON, "the inner one has taken the lock over", || store.is_held());
    throughout(PAST_THE_LEASE, "the inner one keeps the lock", || {
        store.is_held() && next_holder.poll().is_none()
    });
    store.place.write("go", "");
    assert_inherits(&mut next_holder);
    assert_eq!(store.place.read("log").lines().count(), 2, "the inner command ran to its end");
}

/// S16, S32
#[test]
fn killing_the_outer_dlock_kills_the_inner_tree() {
    side_by_side(Store::each(), |store| {
        let inherited_lock = store.place.inherited_lock();
        let pids = store.place.arg("pids");
        let words = inner(store.url(), ["--inherited-lock", inherited_lock.path(), "tree", "3", &pids]);
        let mut run = store.run_with_ttl(TTL).command(words).spawn();
        run.await_ready();
        let inner = inner_of(&run);
        let halves = [run.pid(), run.guard()];
        let mut next_holder = store.next_holder(&inherited_lock);
        run.signal(Signal::SIGKILL);
        store.await_death_under_lock(&inherited_lock);
        assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
        assert_inherits(&mut next_holder);
        assert!(!process::alive(inner));
        until(SOON, "the end of everybody", || store.place.marker().bearers().is_empty());
        // The inner one has had no time to remove what it had created there.
        until(SOON, "the end of the cgroups", || process::cgroups_named_after(&halves).is_empty());
    });
}

/// S16, S32
#[test]
fn killing_the_inner_dlock_kills_its_tree_while_the_outer_keeps_the_lock() {
    side_by_side(Store::each(), |store| {
        let (inherited_lock, pids) = (store.place.inherited_lock(), store.place.arg("pids"));
        let (go, witness) = (store.place.arg("go"), probe::path());
        let words = inner(store.url(), ["--inherited-lock", inherited_lock.path(), "tree", "3", &pids]);
        let text = format!(
            r#""$@"; echo "inner: $?"; exec '{}' signals 'leave:{go}=5'"#,
            witness.to_str().expect("a path in UTF-8")
        );
        let mut run = store.run_with_ttl(TTL).command(shell(&text, words)).spawn();
        run.await_ready();
        process::send(inner_of(&run), Signal::SIGKILL);
        inherited_lock.await_free();
        run.await_stdout("inner: 137\nready\n");
        throughout(PAST_THE_LEASE, "the outer one holds on", || store.is_held() && run.poll().is_none());
        assert_held(&store);
        store.place.write("go", "");
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\ninner: 137\nready\n"));
        assert!(!store.is_held());
        assert_succession(&store, &inherited_lock);
    });
}
