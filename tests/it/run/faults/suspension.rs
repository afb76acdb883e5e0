//! dlock itself or its host is stopped, frozen or killed.

use super::fixture::Fixture;
use super::freezer::Freezer;
use crate::support::SOON;
use crate::support::fake::Fake;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::wait::{side_by_side, throughout, until};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// F22
#[test]
fn a_dlock_stopped_past_its_lease_finds_its_command_dead() {
    let fixture = Fixture::new();
    let mut run = fixture.ticker();
    let next_holder = fixture.next_holder();
    fixture.await_renewals(1);
    run.signal(Signal::SIGSTOP);
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    fixture.assert_last_tick_in_time();
    run.assert_running();
    fixture.assert_inherits(next_holder);
    let holder = fixture.stranger();
    run.signal(Signal::SIGCONT);
    fixture.assert_reports_loss(&run.wait());
    // It continues while another client holds the lock, and does not touch that lock.
    fixture.assert_undisturbed(holder);
}

/// F22
#[test]
fn a_dlock_stopped_for_half_a_lease_continues() {
    let fixture = Fixture::new().ttl(24);
    let mut run = fixture.witness();
    // Not after a renewal: dlock might be stopped before it has read the reply.
    run.signal(Signal::SIGSTOP);
    until(SOON, "a stopped dlock", || process::stopped(run.pid()));
    throughout(Duration::from_secs(12), "the lock is held", || fixture.is_held());
    run.signal(Signal::SIGCONT);
    run.assert_running();
    fixture.await_renewals(2);
    // The command gets the signal that the shell sends for it, and nothing else.
    fixture.go();
    let output = run.wait();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(5), ""));
    assert!(!output.stdout.contains("TERM"), "{}", output.stdout);
}

/// F22
#[test]
fn a_waiter_stopped_in_the_queue_takes_its_turn_when_continued() {
    let fixture = Fixture::new();
    let mut holder = fixture.witness_of(fixture.direct());
    let waiter = fixture.next_holder();
    waiter.signal(Signal::SIGSTOP);
    until(SOON, "a stopped dlock", || process::stopped(waiter.pid()));
    fixture.go();
    assert_eq!(holder.wait().exit, Exit::Code(5));
    // A stopped waiter blocks no other.
    fixture.assert_succession();
    waiter.signal(Signal::SIGCONT);
    fixture.assert_inherits(waiter);
}

/// Freezes a run until its lease has ended at the store.
#[track_caller]
fn freeze_past_the_lease(fixture: &Fixture, freezer: &Freezer) {
    freezer.freeze();
    until(SOON, "the end of the lease", || !fixture.is_held());
}

/// F23
#[test]
fn a_host_suspended_past_the_lease_does_not_continue_the_command() {
    // At most 50 ms after the thaw. Delays of the machine itself do not count: one of five tries decides, and
    // all of them end in the same way.
    let mut ran = Vec::new();
    for _ in 0..5 {
        let (fixture, freezer) = (Fixture::new().ttl(5), Freezer::new());
        let mut run = fixture.ticker_of(freezer.of(fixture.run()));
        freeze_past_the_lease(&fixture, &freezer);
        // Another client has it, and ran, by the time of the thaw.
        let output = fixture.recording(fixture.direct(), &["state"]).output();
        assert_eq!(output.exit, Exit::Code(0));
        let thawed = freezer.thaw();
        fixture.inherited_lock.await_free();
        ran.push(Duration::from_nanos(fixture.last_tick().saturating_sub(thawed)));
        fixture.assert_reports_loss(&run.wait());
        fixture.assert_succession();
        if ran.last().is_some_and(|ran| *ran <= Duration::from_millis(50)) {
            return;
        }
    }
    panic!("the command ran on after the thaw for {ran:?}");
}

/// F23
#[test]
fn a_host_suspended_for_less_than_the_lease_continues_the_command() {
    let (fixture, freezer) = (Fixture::new().ttl(12), Freezer::new());
    let run = fixture.witness_of(freezer.of(fixture.run()));
    // Not after a renewal, as above.
    freezer.freeze();
    throughout(Duration::from_secs(5), "the lock is held", || fixture.is_held());
    freezer.thaw();
    fixture.await_renewals(2);
    fixture.assert_undisturbed(run);
}

/// A request to a fenced resource: the token, and whether it was accepted.
type Writes = Arc<Mutex<Vec<(u64, bool)>>>;

/// A resource that keeps the largest token so far, and refuses smaller ones.
fn fenced_resource() -> (Fake, Writes) {
    let writes = Writes::default();
    let theirs = Arc::clone(&writes);
    let fake = Fake::scripted(move |words| {
        let token: u64 = words[1].parse().unwrap();
        let mut writes = theirs.lock().unwrap();
        let largest = writes.iter().filter(|(_, taken)| *taken).map(|(token, _)| *token).max();
        let taken = largest.is_none_or(|largest| token >= largest);
        writes.push((token, taken));
        Some(if taken { b"+OK\r\n".to_vec() } else { b"-FENCED\r\n".to_vec() })
    });
    (fake, writes)
}

/// A command that writes to it repeatedly.
fn writer(run: crate::support::dlock::Dlock, resource: &Fake) -> Running {
    let text = "trap '' TERM; exec 3<>/dev/tcp/127.0.0.1/$0; echo ready
        printf -v say '*2\\r\\n$5\\r\\nWRITE\\r\\n$%d\\r\\n%s\\r\\n' ${#DLOCK_FENCING_TOKEN} $DLOCK_FENCING_TOKEN
        while [ ! -e go ]; do printf %s \"$say\" >&3; read -r -u 3 answer; done";
    let mut run = run.command(["bash", "-c", text, &resource.port().to_string()]).spawn();
    run.await_ready();
    run
}

/// F23
#[test]
fn a_fenced_resource_refuses_every_late_write_of_a_suspended_command() {
    side_by_side(["kill", "warn"], |option| {
        let (fixture, freezer) = (Fixture::new(), Freezer::new());
        let (resource, writes) = fenced_resource();
        let mut first = writer(freezer.of(fixture.run().args(["--on-lost", option])), &resource);
        until(SOON, "a write", || !writes.lock().unwrap().is_empty());
        freeze_past_the_lease(&fixture, &freezer);
        let second = writer(fixture.direct(), &resource);
        let first_token = writes.lock().unwrap()[0].0;
        until(SOON, "a later token", || writes.lock().unwrap().last().unwrap().0 > first_token);
        let before = writes.lock().unwrap().len();
        freezer.thaw();
        if option == "kill" {
            assert_eq!(first.wait().exit, Exit::Code(76));
        } else {
            first.await_stderr("the command goes on");
            let late =
                || writes.lock().unwrap()[before..].iter().filter(|(token, _)| *token == first_token).count();
            until(SOON, "late writes", || late() >= 10);
        }
        fixture.go();
        let (mut first, mut second) = (first, second);
        first.wait();
        assert_eq!(second.wait().exit, Exit::Code(0));
        let writes = writes.lock().unwrap();
        let change = writes.iter().position(|(token, _)| *token > first_token).unwrap();
        assert!(writes[..change].iter().all(|(_, taken)| *taken));
        assert!(writes[change..].iter().all(|(token, taken)| *taken == (*token > first_token)), "{option}");
    });
}

/// F24
#[test]
fn after_a_killed_dlock_the_next_one_starts_when_the_tree_is_dead_and_the_lease_expired() {
    let fixture = Fixture::new();
    let mut run = fixture.ticker();
    let next_holder = fixture.next_holder();
    fixture.await_renewals(1);
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    let lease_ends = fixture.command(&["PEXPIRETIME", &fixture.key()]).int();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    fixture.assert_last_tick_in_time();
    fixture.assert_inherits(next_holder);
    fixture.place().marker().await_end();
    // The token is the server's time of the grant, and the lease ends by the same clock. A waiter that missed this
    // moment would ask again after its own lease, 20 s later.
    let granted = i64::try_from(fixture.tokens()[1] / 1000).unwrap();
    assert!((0..=5000).contains(&(granted - lease_ends)), "{} ms after the lease", granted - lease_ends);
}

/// F24
#[test]
fn a_killed_waiter_blocks_no_other() {
    let fixture = Fixture::new();
    let mut holder = fixture.witness_of(fixture.direct());
    let mut waiter = fixture.next_holder();
    waiter.signal(Signal::SIGKILL);
    assert_eq!(waiter.wait().exit, Exit::by(Signal::SIGKILL));
    fixture.go();
    assert_eq!(holder.wait().outcome(), (Exit::Code(5), "ready\n", ""));
    fixture.assert_succession();
    fixture.place().marker().await_end();
}

/// A guard that learns of that before it has read that the command was let go would take it for one that was stopped
/// before its start, and continue it.
#[test]
fn a_command_that_stops_itself_at_once_stays_stopped() {
    let fixture = Fixture::new().ttl(20);
    let mut holder = fixture.witness();
    let mut run = fixture.direct().args(["-v", "--wait", "forever"]).probe(["stop"]).spawn();
    run.await_stderr("waiting");
    let guard = run.guard();
    let command = || process::children(guard).first().cloned();
    until(SOON, "the parked process of the command", || command().is_some());
    // Between its last look at its messages and the one at its children, the guard stands still for a while, once: if it did so
    // again, dlock would take it for a hung one.
    let delays =
        ["-qq", "-o", "/dev/null", "-e", "trace=waitid", "-e", "inject=waitid:delay_enter=2000000:when=1"];
    let mut strace = Command::new("strace").args(delays).args(["-p", &guard.to_string()]).spawn().unwrap();
    until(SOON, "an attached strace", || {
        process::status_field(guard, "TracerPid").is_some_and(|pid| pid != "0")
    });
    process::send(guard, Signal::SIGCHLD);
    until(SOON, "a guard that is held", || process::Stat::of(guard).is_some_and(|stat| stat.state == 't'));
    fixture.go();
    assert_eq!(holder.wait().exit, Exit::Code(5));
    run.await_ready();
    let is_stopped = || command().is_some_and(|command| command.is_stopped());
    until(SOON, "a command that has stopped itself", is_stopped);
    throughout(Duration::from_secs(5), "a stopped command", is_stopped);
    nix::sys::signal::kill(Pid::from_raw(strace.id().cast_signed()), Signal::SIGTERM).unwrap();
    strace.wait().unwrap();
    process::send(command().expect("a command").pid, Signal::SIGCONT);
    run.await_stdout("resumed\n");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGTERM));
}
