//! Signals in the short windows of a start: a sweep over a thousand moments.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use nix::sys::signal::Signal;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Number of moments.
const TRIES: u32 = 1000;
/// Number of concurrent runs.
const AT_ONCE: u32 = 2;
/// From one moment to the next; a multiple of it is each of them.
const STRIDE: u32 = 617;

/// Duration of a whole run on this machine, the median of some: one that was held up would stretch the sweep.
fn whole_run(place: &Place, lane: u32) -> Duration {
    let run = || place.run().name(format!("lane{lane}")).command(["true"]).output();
    let mut runs: Vec<Duration> = (0..11).map(|_| run().elapsed).collect();
    runs.sort_unstable();
    runs[runs.len() / 2]
}

/// Starts a dlock for each of a thousand moments between its own start and well after the start of its
/// command, and passes it on at that moment, together with the name of its lock.
///
/// `act` returns whether the command had started. Both cases must have been frequent, or the moments between,
/// which are the subject, were missed. So the moments follow the speed of the machine, which changes meanwhile.
fn sweep(place: &Place, act: impl Fn(Running, &str) -> bool + Sync) {
    let started = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for lane in 0..AT_ONCE {
            let (act, started) = (&act, &started);
            scope.spawn(move || {
                // Measured beside the other lanes, as in the test.
                let mut span = whole_run(place, lane) * 2;
                for number in (lane..TRIES).step_by(AT_ONCE as usize) {
                    let name = format!("x{number}");
                    // Early and late ones alternate.
                    let moment = Instant::now() + span * (number * STRIDE % TRIES) / TRIES;
                    let run = place.run().name(&name).sh("echo started; exec sleep 1000").spawn();
                    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
                    let has_started = act(run, &name);
                    started.fetch_add(u32::from(has_started), Ordering::Relaxed);
                    span = span.mul_f64(if has_started { 0.95 } else { 1.0 / 0.95 });
                }
            });
        }
    });
    let started = started.into_inner();
    assert!(
        (TRIES / 20..TRIES - TRIES / 20).contains(&started),
        "in {started} of {TRIES} tries the command had started"
    );
}

/// S06
#[test]
fn a_signal_is_never_lost_on_the_way_to_the_command() {
    let place = Place::new();
    sweep(&place, |mut run, name| {
        run.signal(Signal::SIGTERM);
        // If it were lost, the command would run for a thousand seconds.
        let output = run.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::by(Signal::SIGTERM), ""), "{name}");
        assert!(place.lock_is_free(name), "{name}");
        !output.stdout.is_empty()
    });
    until(SOON, "the end of everybody", || place.marker().bearers().is_empty());
}

/// S17
#[test]
fn a_killed_dlock_never_leaves_a_command_without_a_supervisor() {
    let place = Place::new();
    sweep(&place, |mut run, _| {
        run.signal(Signal::SIGKILL);
        let output = run.wait();
        assert_eq!(output.exit, Exit::by(Signal::SIGKILL));
        !output.stdout.is_empty()
    });
    until(SOON, "the end of every command and guard", || place.marker().bearers().is_empty());
    assert!((0..TRIES).all(|number| place.lock_is_free(&format!("x{number}"))));
}

/// S17
#[test]
fn a_killed_guard_never_leaves_a_command_without_a_supervisor() {
    let place = Place::new();
    for number in 0..100 {
        let mut run = place.run().name(format!("x{number}")).command(["sleep", "1000"]).spawn();
        crate::support::process::send(run.guard(), Signal::SIGKILL);
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(70), ""), "{}", output.stderr);
        let left = run.marker().bearers();
        assert!(left.iter().all(|stat| stat.comm != "sleep"), "{left:?}");
        // A parked process dies with its guard, and if dlock was not to inherit it yet, it is not waited for.
        run.marker().await_end();
        assert!(place.lock_is_free(&format!("x{number}")));
    }
}

mod on_redis {
    use crate::support::SOON;
    use crate::support::process;
    use crate::support::proxy::{Proxy, Way};
    use crate::support::running::Exit;
    use crate::support::store::Store;
    use crate::support::wait::{throughout, until};
    use nix::sys::signal::Signal;
    use std::time::Duration;

    /// S06
    #[test]
    fn a_signal_while_a_grant_is_in_flight_leaves_neither_command_nor_key() {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let store = Store::redis();
            let proxy = Proxy::to(store.space().port());
            proxy.hold(Way::Down);
            let started = store.place.arg("started");
            let mut run = store.behind(proxy.port()).run_with_ttl("60s").command(["touch", &started]).spawn();
            until(SOON, "a grant at the store", || store.is_held());
            run.signal(signal);
            proxy.heal();
            assert_eq!(run.wait().exit, Exit::by(signal));
            assert!(!store.place.path("started").exists());
            until(SOON, "a key that is cleaned up", || !store.is_held());
        }
    }

    /// S05
    #[test]
    fn a_signal_ends_a_dlock_whose_store_is_silent() {
        use crate::support::fake::Fake;
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1] {
            let fake = Fake::silent();
            let place = crate::support::place::Place::new();
            let url = format!("redis://127.0.0.1:{}/0", fake.port());
            let run =
                place.run().backend(url).args(["--connect-timeout", "1h"]).command(["touch", "started"]);
            let mut run = run.spawn();
            until(SOON, "a question to the store", || !fake.heard().is_empty());
            run.signal(signal);
            // It may wait a second for the reply: far less than its timeout.
            assert_eq!(run.wait_within(Duration::from_secs(10)).exit, Exit::by(signal));
            assert!(!place.path("started").exists());
            assert_eq!(place.marker().bearers().len(), 0);
        }
    }

    /// S05
    #[test]
    fn a_signal_ends_a_waiting_dlock_and_leaves_no_key() {
        let store = Store::redis();
        let mut holder = store.run_with_ttl("60s").probe(["signals", "exit:TERM=0"]).spawn();
        holder.await_ready();
        let keys = store.space().keys();
        let token = store.space().command(&["GET", &store.space().key("x")]);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGALRM] {
            let mut waiter =
                store.run().args(["-v", "--wait", "forever"]).command(["touch", "started"]).spawn();
            waiter.await_stderr("waiting");
            waiter.signal(signal);
            assert_eq!(waiter.wait_within(Duration::from_secs(10)).exit, Exit::by(signal));
            assert_eq!(store.space().keys(), keys);
            assert_eq!(store.space().command(&["GET", &store.space().key("x")]), token);
        }
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.wait().exit, Exit::Code(0));
        assert!(!store.place.path("started").exists());
    }

    /// S05: a shell passes a hang-up on to its jobs, and then the kernel sends it as well. That is no second request.
    #[test]
    fn a_hangup_that_arrives_twice_leaves_nothing_behind() {
        let store = Store::redis();
        let proxy = Proxy::to(store.space().port());
        let behind = store.behind(proxy.port());
        let mut holder = store.run_with_ttl("60s").probe(["signals", "exit:TERM=0"]).spawn();
        holder.await_ready();
        let keys = store.space().keys();
        let run =
            behind.place.bare().args(["run", "-v", "--wait", "forever", "--ttl", "60s", "-b", behind.url()]);
        let mut waiter = run.args(["a", "x", "--", "touch", "started"]).spawn();
        waiter.await_stderr("waiting");
        proxy.delay(Way::Up, Duration::from_millis(100));
        for _ in 0..2 {
            waiter.signal(Signal::SIGHUP);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(waiter.wait().exit, Exit::by(Signal::SIGHUP), "{}", waiter.stderr());
        assert_eq!(store.space().keys(), keys, "{}", waiter.stderr());
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.wait().exit, Exit::Code(0));
    }

    /// S05
    #[test]
    fn a_signal_ends_a_waiting_dlock_whose_store_became_silent() {
        let store = Store::redis();
        let proxy = Proxy::to(store.space().port());
        let mut holder = store.run_with_ttl("60s").probe(["signals", "exit:TERM=0"]).spawn();
        holder.await_ready();
        let run =
            store.behind(proxy.port()).run().args(["-v", "--wait", "forever", "--connect-timeout", "1h"]);
        let mut waiter = run.command(["touch", "started"]).spawn();
        waiter.await_stderr("waiting");
        proxy.hold_both();
        waiter.signal(Signal::SIGTERM);
        assert_eq!(waiter.wait_within(Duration::from_secs(10)).exit, Exit::by(Signal::SIGTERM));
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.wait().exit, Exit::Code(0));
        assert!(!store.place.path("started").exists());
    }

    /// A dlock whose command has ended and whose release was sent, but waits in the proxy.
    fn releasing(store: &Store, proxy: &Proxy) -> crate::support::running::Running {
        let go = store.place.arg("go");
        let run = store.behind(proxy.port()).run_with_ttl("60s").args(["--connect-timeout", "30s"]);
        let mut run = run.probe(["hold", &store.place.arg("log"), "until", &go, "exit", "5"]).spawn();
        run.await_ready();
        let before = proxy.flights().len();
        proxy.hold(Way::Up);
        store.place.write("go", "");
        until(SOON, "a release", || proxy.flights().len() > before);
        run
    }

    /// S07
    #[test]
    fn a_signal_during_release_does_not_stop_the_release() {
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            let store = Store::redis();
            let proxy = Proxy::to(store.space().port());
            let mut run = releasing(&store, &proxy);
            run.signal(signal);
            throughout(Duration::from_millis(300), "the release is awaited", || run.poll().is_none());
            proxy.heal();
            assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
            assert!(!store.is_held());
        }
    }

    /// S07
    #[test]
    fn a_second_sigterm_during_release_ends_dlock_at_once() {
        let store = Store::redis();
        let proxy = Proxy::to(store.space().port());
        let mut run = releasing(&store, &proxy);
        run.signal(Signal::SIGTERM);
        // Two that are pending at the same time are one.
        until(SOON, "dlock to read the signal", || {
            let pending = process::signal_set(run.pid(), "ShdPnd");
            pending.is_none_or(|pending| pending & (1 << (Signal::SIGTERM as u64 - 1)) == 0)
        });
        throughout(Duration::from_millis(300), "the release is awaited", || run.poll().is_none());
        run.signal(Signal::SIGTERM);
        // Its timeout alone would take 30 s.
        let output = run.wait_within(Duration::from_secs(10));
        assert!([Exit::Code(5), Exit::by(Signal::SIGTERM)].contains(&output.exit), "{output:?}");
        assert!(store.is_held(), "the store was not asked");
        assert_eq!(store.place.marker().bearers().len(), 0);
    }

    /// S29
    #[test]
    fn a_recycled_process_id_is_never_signalled() {
        let store = Store::redis();
        let proxy = Proxy::to(store.space().port());
        let place = &store.place;
        place.script(
            "namespace",
            r#"#!/bin/sh
"$DLOCK" run -b "$URL" --ttl 60s --connect-timeout 30s x -- \
    sh -c 'echo $$ >command-pid; echo ready; while ! test -e go; do sleep 0.05; done; exit 5' &
dlock=$!
while ! test -e recycle; do sleep 0.05; done
echo $(($(cat command-pid) - 1)) >/proc/sys/kernel/ns_last_pid
"$PROBE" signals >bystander &
bystander=$!
echo $bystander >bystander-pid
while ! test -e signal; do sleep 0.05; done
kill -TERM $dlock
touch signalled
wait $dlock
echo "status $?"
kill -KILL $bystander
"#,
        );
        let mut namespace = std::process::Command::new("unshare");
        namespace
            .args(["-pf", "--mount-proc", "./namespace"])
            .current_dir(place.path("."))
            .env("HOME", place.home());
        namespace.env("DLOCK", crate::support::dlock::BINARY).env("PROBE", crate::support::probe::path());
        namespace.env("URL", store.space().url_at(proxy.port()));
        let mut terminal = crate::support::pty::Terminal::start(place, namespace);
        terminal.expect("ready\n");
        let before = proxy.flights().len();
        proxy.hold(Way::Up);
        place.write("go", "");
        until(SOON, "a release", || proxy.flights().len() > before);
        place.write("recycle", "");
        // The shell writes the process id when the bystander runs, which is ready in the meantime.
        until(SOON, "a bystander", || {
            place.read("bystander") == "ready\n" && place.read("bystander-pid").ends_with('\n')
        });
        assert_eq!(place.read("bystander-pid"), place.read("command-pid"), "the process id is recycled");
        place.write("signal", "");
        until(SOON, "a signal", || place.path("signalled").exists());
        throughout(Duration::from_millis(500), "no signal for the bystander", || {
            place.read("bystander") == "ready\n"
        });
        proxy.heal();
        terminal.expect("status 5\n");
        assert_eq!(place.read("bystander"), "ready\n");
    }
}
