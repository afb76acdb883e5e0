//! `--stop-signal`: the signal that a command gets first when dlock has to stop it.

use crate::acquire::refusal::assert_usage;
use crate::support::place::Place;
use crate::support::probe;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use std::time::Duration;

/// A command that ends when it gets this signal.
const ON_HUP: [&str; 2] = ["signals", "exit:HUP=0"];

/// Asserts that the command got this signal and no other, except the SIGCONT that comes with it.
#[track_caller]
fn assert_got(run: &Running, signal: &str) {
    assert_eq!(signals_in(&run.stdout()), ["ready", signal], "{}", run.stderr());
}

/// What a probe printed, without SIGCONT: the kernel decides which of two pending signals comes first.
fn signals_in(printed: &str) -> Vec<String> {
    let names = printed.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| *name != "CONT").map(str::to_owned).collect()
}

#[test]
fn max_runtime_sends_it() {
    let names = [("HUP", "HUP"), ("SIGHUP", "HUP"), ("hup", "HUP"), ("1", "HUP"), ("10", "USR1")];
    let of_each_store = Store::each().into_iter().flat_map(|store| {
        names.map(|(name, shown)| {
            let run = store.run_with_ttl("30s").name(name).args(["--stop-signal", name]);
            // A busy machine has started all of them by then.
            let run = run.args(["--max-runtime", "8s"]).probe(["signals", "exit:HUP=0", "exit:USR1=0"]);
            (run.spawn(), shown)
        })
    });
    let mut runs: Vec<_> = of_each_store.collect();
    for (run, shown) in &mut runs {
        assert_eq!(run.wait().exit, Exit::Code(124), "{}", run.stderr());
        assert_got(run, shown);
    }
}

#[test]
fn kill_follows_after_the_grace() {
    let run = Place::new().run().args(["--stop-signal", "WINCH", "--max-runtime", "5s", "--grace", "2s"]);
    let mut run = run.probe(["signals"]).spawn();
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(124), "{}", output.stderr);
    assert!(output.elapsed >= Duration::from_secs(7), "{:?}", output.elapsed);
    assert_got(&run, "WINCH");
}

#[test]
fn a_real_time_signal_can_be_named() {
    let place = Place::new();
    let mut runs = ["RTMIN+3", "SIGRTMAX-27", "37"].map(|name| {
        let run = place.run().name(name).args(["--stop-signal", name, "--max-runtime", "6s"]);
        run.command(["bash", "-c", "trap 'echo got; exit' RTMIN+3; while :; do sleep 0.05; done"]).spawn()
    });
    for run in &mut runs {
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(124), "got\n"), "{}", output.stderr);
    }
}

#[test]
fn a_revocation_sends_it() {
    for store in Store::each() {
        let mut run = store.run_with_ttl("30s").args(["--stop-signal", "HUP"]).probe(ON_HUP).spawn();
        run.await_ready();
        let broken = store.place.bare().args(["break", "--yes", "-b", store.url(), "x"]).output();
        assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
        assert_eq!(run.wait().exit, Exit::Code(76));
        assert_got(&run, "HUP");
    }
}

#[test]
fn orphans_that_are_killed_get_it() {
    for store in Store::each() {
        let orphan = probe::command(ON_HUP).join(" ");
        let text = format!("exec 3>out; {orphan} >&3 & until grep -q ready out; do sleep 0.05; done");
        let run = store.run_with_ttl("30s").args(["--orphans", "kill", "--stop-signal", "HUP"]);
        let output = run.sh(&text).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
        assert_eq!(signals_in(&store.place.read("out")), ["ready", "HUP"]);
    }
}

mod with_a_lease {
    use super::*;
    use crate::support::proxy::Proxy;
    use nix::sys::signal::Signal;

    /// Long enough for a busy machine to start the command, and to report the signal.
    const OPTIONS: [&str; 4] = ["--stop-signal", "HUP", "--grace", "2700ms"];

    #[test]
    fn a_lost_lock_sends_it() {
        let store = Store::redis();
        let mut run = store.run_with_ttl("30s").args(["--stop-signal", "HUP"]).probe(ON_HUP).spawn();
        run.await_ready();
        store.space().command(&["DEL", &store.space().key("x")]);
        assert_eq!(run.wait().exit, Exit::Code(76));
        assert_got(&run, "HUP");
    }

    #[test]
    fn a_silent_store_sends_it() {
        let store = Store::redis();
        let proxy = Proxy::to(store.space().port());
        let run = store.behind(proxy.port()).run_with_ttl("6s").args(OPTIONS);
        let mut run = run.probe(ON_HUP).spawn();
        run.await_ready();
        proxy.hold_both();
        assert_eq!(run.wait().exit, Exit::Code(76));
        assert_got(&run, "HUP");
    }

    /// The guard acts alone.
    #[test]
    fn a_stopped_dlock_cannot_prevent_it() {
        let store = Store::redis();
        let mut run = store.run_with_ttl("6s").args(OPTIONS).probe(ON_HUP).spawn();
        run.await_ready();
        run.signal(Signal::SIGSTOP);
        run.await_stdout("HUP");
        run.signal(Signal::SIGCONT);
        assert_eq!(run.wait().exit, Exit::Code(76));
        assert_got(&run, "HUP");
    }
}

#[test]
fn signals_that_cannot_ask_a_command_to_end_are_rejected() {
    let unknown = "expected the name or the number of a signal, such as INT or 2";
    let kill = "KILL always follows, after --grace: name the signal before it";
    let stop = "STOP and CONT do not end a command";
    let cases = [
        ("KILL", kill),
        ("sigkill", kill),
        ("9", kill),
        ("STOP", stop),
        ("19", stop),
        ("SIGCONT", stop),
        ("18", stop),
        ("0", unknown),
        ("-1", unknown),
        ("32", unknown),
        ("65", unknown),
        ("99999999999", unknown),
        ("EAT", unknown),
        ("SIG", unknown),
        ("SIGSIGTERM", unknown),
        ("RTMIN-1", unknown),
        ("RTMAX+1", unknown),
        ("RTMIN-3", unknown),
        ("RTMAX-60", unknown),
        ("TERM,INT", unknown),
    ];
    for (value, why) in cases {
        let line = format!("invalid value '{value}' for '--stop-signal <SIG>': {why}");
        assert_usage([(&["run", "--stop-signal", value, "x", "--", "touch", "t"][..], line.as_str())]);
    }
}
