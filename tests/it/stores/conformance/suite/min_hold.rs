//! `--min-hold`: the lock is kept for the minimum time, whatever happens to the command and to dlock.

use super::nesting::inner;
use super::queue_of_runs::{assert_served_in_order, wall_clock, with_time};
use crate::stores::conformance::client::{Client, LONG};
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use crate::support::wait::{throughout, until};
use dlock::backend::{Ending, Release, Renewal};
use dlock::lock::{Holder, Mode};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// A minimum time that a check waits for.
const HOLD: Duration = Duration::from_millis(1500);
/// A minimum time that no check waits for.
const FOR_LONG: &str = "10m";

/// `dlock run --min-hold D`
fn run_for(rig: &dyn Rig, hold: &str) -> Dlock {
    rig.run().args(["--min-hold", hold])
}

/// A run of this shell script whose lock is kept for long, returned when its command has ended and the lock is still
/// kept.
async fn kept(rig: &dyn Rig, text: &str) -> (Running, Holder) {
    let mut run = run_for(rig, FOR_LONG).sh(&format!("echo ready; {text}")).spawn();
    run.await_ready();
    let mut other = Client::new(rig, "x");
    let end = Instant::now() + SOON;
    loop {
        let holder = other.refused().await;
        if holder.ended.is_some() {
            return (run, holder);
        }
        assert!(Instant::now() < end, "its command has not ended: {holder:?}");
    }
}

/// Waits until the lock is available, and returns the time.
async fn free_at(rig: &dyn Rig) -> Instant {
    Client::new(rig, "x").acquire_in_the_end().await;
    Instant::now()
}

pub async fn the_lock_is_kept_for_min_hold(rig: &mut dyn Rig) {
    let began = Instant::now();
    let mut run = run_for(rig, "1500ms").sh("echo ran").spawn();
    run.await_stdout("ran\n");
    let free = free_at(rig).await;
    assert!(free - began >= HOLD - HOLD / 100, "free after {:?}", free - began);
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// With `-v`. Without it, a run that exits at once needs no explanation.
pub async fn a_run_reports_who_keeps_the_lock(rig: &mut dyn Rig) {
    let stays = !rig.has_leases();
    // The command ends before that on a busy machine too.
    let hold = if stays { "6s" } else { FOR_LONG };
    let mut run = run_for(rig, hold).args(["-v"]).sh("echo ran").spawn();
    if stays {
        run.await_stderr("x: the command has ended; dlock keeps the lock for another ");
        run.assert_running();
    }
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
    let who = if stays { "dlock" } else { "the store" };
    let beginning = format!("dlock: x: the command has ended; {who} keeps the lock for another ");
    let is_line = |line: &&str| line.starts_with(&beginning) && line.ends_with(" (--min-hold)");
    assert_eq!(output.stderr.lines().filter(is_line).count(), 1, "{}", output.stderr);
    assert_eq!(output.stderr.matches("(--min-hold)").count(), 1, "{}", output.stderr);
}

pub async fn min_hold_does_not_delay_a_longer_command(rig: &mut dyn Rig) {
    let output = rig.run().args(["--min-hold", "20ms"]).sh("sleep 0.1; echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn busy_reports_that_min_hold_keeps_the_lock(rig: &mut dyn Rig) {
    for (text, exit) in [("true", 0), ("exit 3", 3)] {
        let (mut run, holder) = kept(rig, text).await;
        assert!(holder.remaining.is_some_and(|rest| rest > Duration::from_secs(500)), "{holder:?}");
        let refused = rig.run().sh("echo ran").output();
        assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
        let line = refused.stderr.as_str();
        let host = holder.identity.unwrap().host;
        assert!(line.starts_with(&format!("dlock: x ran on {host} until ")), "{line}");
        assert!(line.contains(" and is kept until "), "{line}");
        assert!(line.ends_with(" by --min-hold; not waiting\n"), "{line}");
        if !rig.has_leases() {
            run.assert_running();
            run.signal(Signal::SIGTERM);
        }
        assert_eq!(run.wait().outcome(), (Exit::Code(exit), "ready\n", ""));
        Client::new(rig, "x").refused().await;
        // For the next round; on a file also the record of its keeper.
        rig.wipe();
    }
}

/// Where the store can keep the lock without dlock, dlock does not stay.
pub async fn a_run_returns_as_soon_as_the_store_keeps_the_lock_by_itself(rig: &mut dyn Rig) {
    let (mut run, _) = kept(rig, "true").await;
    if rig.has_leases() {
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        assert!(!rig.foreign_lock("x", None));
    } else {
        throughout(Duration::from_millis(300), "the run stays", || run.poll().is_none());
        assert!(!rig.foreign_lock("x", None));
        // Without a process, only other dlocks can be excluded; or everything, as long as its session lasts.
        run.signal(Signal::SIGTERM);
        assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        if rig.ends_with_its_process() {
            // The guard, or a session of a server, may outlive dlock by a moment.
            until(SOON, "a free lock", || rig.is_free_to_others("x"));
        } else {
            assert!(!rig.is_free_to_others("x"));
        }
    }
    let holder = Client::new(rig, "x").refused().await;
    assert!(
        holder.ended.is_some() && holder.remaining.is_some_and(|rest| rest > LONG - SOON * 2),
        "{holder:?}"
    );
}

/// Kills a run with this minimum time when its command has worked for `work`. Its lease of four seconds can be renewed in
/// time on a busy machine.
async fn kill(rig: &dyn Rig, hold: Duration, work: Duration) {
    let began = Instant::now();
    let inherited_lock = rig.place().inherited_lock();
    let hold_ms = format!("{}ms", hold.as_millis());
    // Otherwise the lease would expire later.
    let run = run_for(rig, &hold_ms).args(["--ttl", &rig.ttl(4)]);
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
    run.await_ready();
    tokio::time::sleep(work).await;
    run.signal(Signal::SIGKILL);
    // On a slow machine the renewal may have been too late; that changes nothing.
    assert!([Exit::by(Signal::SIGKILL), Exit::Code(76)].contains(&run.wait().exit));
    let free = free_at(rig).await;
    assert!(inherited_lock.is_free(), "the lock was free before the command was dead");
    assert!(free - began >= hold - hold / 100, "free after {:?}", free - began);
}

pub async fn min_hold_outlasts_a_killed_dlock(rig: &mut dyn Rig) {
    if rig.has_sessions() {
        // Nothing is left of a dead owner.
        return;
    }
    kill(rig, Duration::from_millis(5500), Duration::ZERO).await;
}

/// Two renewals later.
pub async fn renewals_do_not_shorten_min_hold(rig: &mut dyn Rig) {
    if rig.has_leases() {
        kill(rig, Duration::from_millis(7500), Duration::from_millis(2800)).await;
    }
}

/// A run that is stopped for longer than its lease loses its lock; the store keeps it nevertheless.
pub async fn min_hold_outlasts_a_lost_lock(rig: &mut dyn Rig) {
    if !rig.has_leases() {
        return;
    }
    let inherited_lock = rig.place().inherited_lock();
    let run = run_for(rig, FOR_LONG).args(["--ttl", &rig.ttl(4)]);
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).spawn();
    run.await_ready();
    run.signal(Signal::SIGSTOP);
    until(SOON, "the end of the command", || inherited_lock.is_free());
    run.signal(Signal::SIGCONT);
    assert_eq!(run.wait().exit, Exit::Code(76));
    let holder = Client::new(rig, "x").refused().await;
    assert!(holder.remaining.is_some_and(|rest| rest > LONG - SOON * 2), "{holder:?}");
}

/// Failures that only the kernel detects in execve(2).
pub async fn min_hold_does_not_apply_when_the_command_cannot_be_executed(rig: &mut dyn Rig) {
    let script = rig.place().script("bad", "#!/no/such/interpreter\n");
    let output = run_for(rig, FOR_LONG).command([script]).output();
    assert!(matches!(output.exit, Exit::Code(126 | 127)), "{output:?}");
    assert_eq!(rig.traces("x"), [""; 0]);
    Client::new(rig, "x").acquire().await;
}

pub async fn a_waiting_run_is_granted_the_lock_when_min_hold_ends(rig: &mut dyn Rig) {
    // Long enough for two to join the queue on a busy machine.
    const HOLD: Duration = Duration::from_secs(7);
    let (began, since) = (Instant::now(), wall_clock());
    let mut run = run_for(rig, "7s").sh("echo ready").spawn();
    run.await_ready();
    let waiter = |what: &str| {
        let text = format!("echo {} >>log", with_time(what));
        rig.run().args(["-v", "--wait", "forever"]).sh(&text).spawn()
    };
    let mut first = waiter("first");
    first.await_stderr("waiting");
    let mut second = waiter("second");
    second.await_stderr("waiting");
    assert_eq!(first.wait().exit, Exit::Code(0));
    assert!(began.elapsed() >= HOLD - HOLD / 100, "after {:?}", began.elapsed());
    assert_eq!((second.wait().exit, run.wait().exit), (Exit::Code(0), Exit::Code(0)));
    assert_served_in_order(rig, &["first", "second"], since + HOLD.as_millis());
    until(SOON, "nothing left", || rig.traces("x").is_empty());
}

pub async fn a_grant_and_a_renewal_cover_at_least_the_rest_of_min_hold(rig: &mut dyn Rig) {
    if !rig.has_leases() {
        return;
    }
    const TTL: Duration = Duration::from_secs(10);
    let mut owner = Client::new(rig, "x").with_ttl(TTL);
    owner.claim.min_hold = LONG;
    owner.acquire().await;
    let remaining = Client::new(rig, "x").refused().await.remaining.unwrap();
    assert!(remaining <= LONG + rig.rounding() && remaining > LONG / 2, "{remaining:?}");
    for (rest, expected) in [(LONG, LONG), (TTL / 2, TTL), (LONG, LONG), (Duration::ZERO, TTL)] {
        assert_eq!(
            owner.backend.renew(&owner.claim, rest).await,
            Ok(Renewal::Held { lease: Some(TTL), revoked: None })
        );
        let remaining = Client::new(rig, "x").refused().await.remaining.unwrap();
        let most = expected + rig.rounding();
        assert!(remaining <= most && remaining > expected / 2, "{remaining:?} of {expected:?}");
    }
}

/// With the backend trait.
pub async fn a_release_within_min_hold_leaves_the_lock_without_a_holder(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    assert_kept(rig, &mut owner, LONG).await;
    let holder = Client::new(rig, "x").refused().await;
    assert!(holder.ended.is_some_and(|ended| ended < SOON), "{holder:?}");
    assert!(holder.remaining.is_some_and(|rest| rest <= LONG + rig.rounding()), "{holder:?}");
    assert!(!rig.foreign_lock("x", None));
}

async fn assert_kept(rig: &dyn Rig, owner: &mut Client, rest: Duration) {
    let release = owner.backend.release(&owner.claim, rest, Ending::default()).await.unwrap();
    match rig.has_leases() {
        true => assert_eq!(release, Release::Kept),
        false => assert!(matches!(release, Release::NotYet(again) if again <= rest), "{release:?}"),
    }
}

/// Although the lease that the waiter knows of ends much later.
pub async fn a_waiter_is_granted_what_was_released_within_min_hold(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let waiting = Client::new(rig, "x").wait_beside().await;
    let began = Instant::now();
    assert_kept(rig, &mut owner, HOLD).await;
    if !rig.has_leases() {
        tokio::time::sleep(HOLD / 2).await;
        assert!(!waiting.is_granted());
        tokio::time::sleep(HOLD / 2).await;
        assert_eq!(owner.release().await, Release::Released);
    }
    waiting.granted().await;
    assert!(began.elapsed() >= HOLD - HOLD / 100, "after {:?}", began.elapsed());
}

pub async fn a_slot_is_kept_for_min_hold(rig: &mut dyn Rig) {
    let slot = || Client::new(rig, "x").in_mode(Mode::Slots(2));
    let (mut first, mut second) = (slot(), slot());
    first.acquire().await;
    second.acquire().await;
    let began = Instant::now();
    // Long enough for the two requests below on a busy machine.
    let rest = 2 * HOLD;
    first.backend.release(&first.claim, rest, Ending::default()).await.unwrap();
    let busy = slot().busy().await;
    assert_eq!((busy.holders.len(), busy.promised), (2, false));
    let waiting = slot().wait_beside().await;
    if !rig.has_leases() {
        tokio::time::sleep(rest).await;
        assert!(!waiting.is_granted());
        first.release().await;
    }
    let (_waiting, grant) = waiting.granted().await;
    assert_eq!(grant.slot, Some(0));
    assert!(began.elapsed() >= rest - rest / 100, "after {:?}", began.elapsed());
    second.assert_held().await;
}

pub async fn the_min_hold_of_an_inner_run_that_has_passed_keeps_nothing(rig: &mut dyn Rig) {
    let passed = 1 + rig.rounding().as_secs();
    let text = format!("{} true; sleep {passed}", inner(rig, "--min-hold 100ms"));
    assert_eq!(rig.run().sh(&text).output().outcome(), (Exit::Code(0), "", ""));
    let next = rig.run().args(["--no-wait"]).command(["true"]).output();
    assert_eq!(next.outcome(), (Exit::Code(0), "", ""));
}

pub async fn the_min_hold_of_an_inner_run_is_respected(rig: &mut dyn Rig) {
    let began = Instant::now();
    let text = format!("{} true; echo inside", inner(rig, "--min-hold 1500ms"));
    let mut run = rig.run().sh(&text).spawn();
    run.await_stdout("inside\n");
    let free = free_at(rig).await;
    assert!(free - began >= HOLD - HOLD / 100, "free after {:?}", free - began);
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "inside\n", ""));
}
