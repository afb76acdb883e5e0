//! dlock on a terminal, under a real interactive shell.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::process;
use crate::support::pty::{CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, PROMPT, Terminal};
use crate::support::running::Exit;
use crate::support::wait::{throughout, until};
use nix::sys::signal::Signal;
use nix::sys::termios::LocalFlags;
use nix::unistd::{Pid, getpgid};
use std::process::Command;
use std::time::{Duration, Instant};

/// dlock directly on a terminal, as session leader: as with `ssh -t host dlock ...`.
fn alone(place: &Place, command: &[&str]) -> Terminal {
    let mut dlock = Command::new(crate::support::dlock::BINARY);
    dlock.args(["run", "-q", "-b", &place.url(), "x", "--"]).args(command).current_dir(place.path("."));
    Terminal::start(place, dlock)
}

/// Waits until the shell is in the foreground again.
fn await_shell(terminal: &Terminal) {
    until(SOON, "the shell in the foreground", || terminal.foreground() == terminal.leader());
}

/// A command that leaves a process which ignores Ctrl-C, and notes its pid and its own.
const LEAVES_AN_ORPHAN: &str = "#!/bin/sh\n(trap '' INT; exec sleep 1000) &\necho $! $$ >pids\n";

/// Waits until such a command has ended, and returns the pid of what it has left.
#[track_caller]
fn await_orphan(place: &Place) -> i32 {
    let mut pids = Vec::new();
    until(SOON, "the end of the command", || {
        let text = std::fs::read_to_string(place.path("pids")).unwrap_or_default();
        pids = text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()).collect();
        matches!(pids[..], [_, command] if !process::alive(command))
    });
    pids[0]
}

/// Ends what a command has left. dlock may not have noticed yet that the command has ended: then the key is for that alone.
#[track_caller]
fn end_by_ctrl_c(terminal: &mut Terminal, orphan: i32) {
    until(SOON, "the end of what the command has left", || {
        terminal.type_keys(CTRL_C);
        !process::alive(orphan)
    });
    await_shell(terminal);
}

/// S08
#[test]
fn ctrl_c_reaches_the_command_once_and_its_status_is_passed_through() {
    // In a pipeline dlock and its command share a group, and each key reaches both of them.
    for behind in ["", " | (trap '' INT QUIT; cat)"] {
        let place = Place::new();
        let mut terminal = Terminal::bash(&place);
        terminal.line("set -o pipefail");
        terminal.line(&format!("\"$DLOCK\" run x -- \"$PROBE\" signals exit:QUIT=5{behind}"));
        terminal.expect("ready\n");
        terminal.type_keys(CTRL_C);
        terminal.expect("INT kernel\n");
        throughout(Duration::from_millis(200), "one INT", || terminal.screen().matches("INT ").count() == 1);
        terminal.type_keys(CTRL_BACKSLASH);
        assert_eq!(terminal.expect("QUIT kernel\n"), "");
        await_shell(&terminal);
        terminal.line("echo status=$?");
        terminal.expect("status=5\n");
        assert!(place.lock_is_free("x"));
    }
}

/// S08
#[test]
fn ctrl_c_ends_a_command_and_the_shell_sees_the_signal() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.line("\"$DLOCK\" run x -- sleep 1000; echo status=$?");
    let sleep = terminal.process("sleep");
    until(SOON, "the command in the foreground", || terminal.foreground() == sleep);
    terminal.type_keys(CTRL_C);
    await_shell(&terminal);
    assert!(!process::alive(sleep));
    // A shell whose job dies of SIGINT abandons the whole line, as it does without dlock.
    terminal.line("echo status=$?");
    terminal.expect("status=130\n");
    assert!(place.lock_is_free("x"));
}

/// S08
#[test]
fn ctrl_c_reaches_the_command_once_without_a_shell() {
    let place = Place::new();
    let probe = crate::support::probe::path();
    let mut terminal = alone(&place, &[probe.to_str().unwrap(), "signals", "exit:QUIT=5"]);
    terminal.expect("ready\n");
    terminal.type_keys(CTRL_C);
    terminal.expect("INT kernel\n");
    throughout(Duration::from_millis(200), "one INT", || terminal.screen().matches("INT ").count() == 1);
    terminal.type_keys(CTRL_BACKSLASH);
    assert_eq!(terminal.expect("QUIT kernel\n"), "");
    assert_eq!(terminal.wait(), Exit::Code(5));
}

/// S55: a signal that ends the command ends what it leaves too, whichever way it came.
#[test]
fn ctrl_c_and_kill_stop_what_a_command_leaves() {
    let place = Place::new();
    let text = "#!/bin/sh\ntrap 'exit 3' INT\n(trap '' INT; exec sleep 1000) &\necho $! >left\necho started\n\
                while :; do sleep 0.05; done\n";
    place.script("command", text);
    let mut terminal = Terminal::bash(&place);
    for (behind, statuses) in [("", "3"), (" | (trap '' INT; cat)", "3 0")] {
        for by_key in [true, false] {
            terminal.line(&format!("\"$DLOCK\" run x -- ./command{behind}"));
            terminal.expect("started\n");
            let left: i32 = place.read("left").trim().parse().unwrap();
            match by_key {
                true => terminal.type_keys(CTRL_C),
                false => process::send(terminal.process("dlock"), Signal::SIGINT),
            }
            await_shell(&terminal);
            assert!(!process::alive(left), "{behind:?}, by key: {by_key}");
            terminal.line("echo \"statuses=${PIPESTATUS[*]}\"");
            terminal.expect(&format!("statuses={statuses}\n"));
        }
    }
}

/// With `--orphans wait`, also if dlock shares its process group, and the command has ended.
#[test]
fn ctrl_c_stops_the_orphans_that_are_waited_for() {
    let place = Place::new();
    place.script("command", LEAVES_AN_ORPHAN);
    let mut terminal = Terminal::bash(&place);
    for behind in ["", " | (trap '' INT; cat)"] {
        terminal.line(&format!("\"$DLOCK\" run --orphans wait x -- ./command{behind}"));
        let orphan = await_orphan(&place);
        let dlock = terminal.process("dlock");
        until(SOON, "dlock in the foreground", || {
            terminal.foreground() == getpgid(Some(Pid::from_raw(dlock))).unwrap().as_raw()
        });
        end_by_ctrl_c(&mut terminal, orphan);
        assert!(place.lock_is_free("x"), "{behind:?}");
        std::fs::remove_file(place.path("pids")).unwrap();
    }
}

/// A job that a key has told to end has not done its work, whatever its status.
#[test]
fn a_job_that_ctrl_c_has_ended_is_not_done() {
    let place = Place::new();
    place.script("command", "#!/bin/sh\ntrap 'exit 0' INT\necho started\nwhile :; do sleep 0.05; done\n");
    let mut terminal = Terminal::bash(&place);
    for behind in ["", " | (trap '' INT; cat)"] {
        terminal.line(&format!("\"$DLOCK\" run --once-per 23h x -- ./command{behind}"));
        terminal.expect("started\n");
        terminal.type_keys(CTRL_C);
        await_shell(&terminal);
        terminal.line("echo \"status=${PIPESTATUS[0]}\"");
        terminal.expect("status=0\n");
    }
    terminal.line("\"$DLOCK\" run --once-per 23h x -- echo 'was open'");
    terminal.expect("was open\n");
}

/// S09
#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.line("\"$DLOCK\" run x -- sh -c 'echo started; read line; echo \"got $line\"; exit 4'");
    terminal.expect("started\n");
    let dlock = terminal.process("dlock");
    let command = terminal.process("sh");
    for _ in 0..3 {
        until(SOON, "the command in the foreground", || terminal.foreground() == command);
        terminal.type_keys(CTRL_Z);
        terminal.expect("Stopped");
        terminal.expect(PROMPT);
        assert!(process::stopped(dlock) && process::stopped(command));
        assert_eq!(terminal.foreground(), terminal.leader());
        assert!(!place.lock_is_free("x"));
        terminal.line("fg");
        until(SOON, "a job that goes on", || !process::stopped(dlock) && !process::stopped(command));
    }
    until(SOON, "the command in the foreground", || terminal.foreground() == command);
    terminal.line("hello");
    terminal.expect("got hello\n");
    await_shell(&terminal);
    terminal.line("echo status=$?");
    terminal.expect("status=4\n");
}

/// S09: as cpulimit(1) does it. The shell may have put the job into the background.
#[test]
fn a_command_that_is_stopped_for_a_moment_leaves_dlock_running() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.line("\"$DLOCK\" run x -- sh -c 'echo started; until [ -e go ]; do sleep 0.05; done'");
    terminal.expect("started\n");
    let dlock = terminal.process("dlock");
    let command = terminal.process("sh");
    for round in 0..200 {
        process::send(command, Signal::SIGSTOP);
        // As long as it takes dlock to be told, more or less.
        std::thread::sleep(Duration::from_micros(20 * (round % 20)));
        process::send(command, Signal::SIGCONT);
    }
    until(SOON, "a job that goes on", || !process::stopped(dlock) && !process::stopped(command));
    until(SOON, "a job that stays so", || {
        let begin = Instant::now();
        while !process::stopped(dlock) && begin.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        begin.elapsed() >= Duration::from_secs(1)
    });
    place.write("go", "");
    until(SOON, "the end of dlock", || !process::alive(dlock));
    await_shell(&terminal);
}

/// S09: the terminal is not given to the process group of a command that has ended.
#[test]
fn ctrl_z_and_fg_while_orphans_are_waited_for_leave_dlock_in_the_foreground() {
    let place = Place::new();
    place.script("command", LEAVES_AN_ORPHAN);
    let mut terminal = Terminal::bash(&place);
    terminal.line("\"$DLOCK\" run --orphans wait x -- ./command");
    let orphan = await_orphan(&place);
    let dlock = terminal.process("dlock");
    let group = getpgid(Some(Pid::from_raw(dlock))).unwrap().as_raw();
    until(SOON, "dlock in the foreground", || terminal.foreground() == group);
    for _ in 0..2 {
        until(SOON, "a stopped dlock", || {
            terminal.type_keys(CTRL_Z);
            // Not again at once: a key that sends a signal discards what is written at that moment, such as the prompt.
            let begin = Instant::now();
            while !process::stopped(dlock) && begin.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(5));
            }
            process::stopped(dlock)
        });
        terminal.expect(PROMPT);
        terminal.line("fg");
        until(SOON, "dlock that goes on", || !process::stopped(dlock));
        throughout(Duration::from_millis(200), "it is in the foreground", || {
            [group, terminal.leader()].contains(&terminal.foreground())
        });
    }
    end_by_ctrl_c(&mut terminal, orphan);
    assert!(place.lock_is_free("x"));
}

/// S09
#[test]
fn bg_continues_a_stopped_job_in_the_background() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    let file = place.arg("tick");
    terminal.line(&format!("\"$DLOCK\" run x -- \"$PROBE\" tick '{file}'"));
    terminal.expect("ready\n");
    let command = terminal.process("probe");
    terminal.type_keys(CTRL_Z);
    terminal.expect("Stopped");
    until(SOON, "a stopped command", || process::stopped(command));
    let last = place.read("tick");
    terminal.line("bg");
    until(SOON, "a command that goes on", || !process::stopped(command) && place.read("tick") != last);
    await_shell(&terminal);
    terminal.line("kill -KILL %1; wait %1; echo status=$?");
    terminal.expect("status=137\n");
    until(SOON, "the death of the command", || !process::alive(command));
}

/// S10
#[test]
fn a_background_job_that_reads_the_terminal_stops_and_reads_after_fg() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.line("\"$DLOCK\" run x -- sh -c 'read line; echo \"got $line\"' &");
    let dlock = terminal.process("dlock");
    let command = terminal.process("sh");
    until(SOON, "a stopped job", || process::stopped(dlock) && process::stopped(command));
    let before = process::cpu_ticks(dlock);
    throughout(Duration::from_millis(500), "it stays stopped", || {
        process::stopped(dlock) && process::stopped(command)
    });
    assert!(process::cpu_ticks(dlock) - before <= 5, "a stopped dlock spins");
    terminal.line("fg");
    until(SOON, "the command in the foreground", || terminal.foreground() != terminal.leader());
    until(SOON, "a job that goes on", || !process::stopped(dlock) && !process::stopped(command));
    terminal.line("hello");
    terminal.expect("got hello\n");
    await_shell(&terminal);
    terminal.line("echo status=$?");
    terminal.expect("status=0\n");
}

/// S11
#[test]
fn a_background_job_that_writes_stops_under_tostop_and_writes_after_fg() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.set_local(LocalFlags::TOSTOP, true);
    terminal.line("\"$DLOCK\" run x -- sh -c 'echo written; exit 6' &");
    let dlock = terminal.process("dlock");
    let command = terminal.process("sh");
    until(SOON, "a stopped job", || process::stopped(dlock) && process::stopped(command));
    // A job of which Bash does not know yet that it has stopped is not continued by `fg`.
    terminal.line("until jobs | grep -q Stopped; do sleep 0.05; done; echo \"is known\"");
    terminal.expect("is known\n");
    assert!(!terminal.screen().contains("written\n"));
    terminal.line("fg");
    terminal.expect("written\n");
    await_shell(&terminal);
    terminal.line("echo status=$?");
    terminal.expect("status=6\n");
}

/// S11
#[test]
fn a_background_job_that_writes_continues_without_tostop() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.line("\"$DLOCK\" run x -- sh -c 'echo written; exit 6' & wait $!; echo status=$?");
    terminal.expect("written\n");
    terminal.expect("status=6\n");
}

/// S12
#[test]
fn an_interactive_shell_under_dlock_has_job_control() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    let before = terminal.settings();
    terminal.line("PS1='inner> ' \"$DLOCK\" run x -- bash --norc --noprofile --noediting -i");
    terminal.expect("inner> ");
    terminal.line("sleep 1000");
    let sleep = terminal.process("sleep");
    until(SOON, "sleep in the foreground", || terminal.foreground() == sleep);
    terminal.type_keys(CTRL_Z);
    terminal.expect("Stopped");
    assert!(process::stopped(sleep));
    terminal.line("fg");
    until(SOON, "sleep in the foreground", || terminal.foreground() == sleep && !process::stopped(sleep));
    terminal.type_keys(CTRL_C);
    until(SOON, "the death of sleep", || !process::alive(sleep));
    terminal.expect("inner> ");
    terminal.line("kill -STOP $$; echo resumed");
    terminal.expect("Stopped");
    terminal.line("fg");
    terminal.expect("resumed\n");
    terminal.line("exit 3");
    await_shell(&terminal);
    terminal.line("echo status=$?");
    terminal.expect("status=3\n");
    assert_eq!(terminal.settings(), before);
}

/// S12
#[test]
fn the_terminal_is_restored_after_each_way_to_end() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    let before = terminal.settings();
    for (line, status) in [
        ("\"$DLOCK\" run x -- true", "0"),
        ("\"$DLOCK\" run x -- no-such-command 2>/dev/null", "127"),
        ("\"$DLOCK\" run x -- sh -c 'kill -KILL $$'", "137"),
        ("\"$DLOCK\" run --max-runtime 200ms --grace 0 x -- sleep 1000 2>/dev/null", "124"),
        ("\"$DLOCK\" run --orphans kill x -- sh -c 'sleep 1000 & exit 8'", "8"),
    ] {
        terminal.line(line);
        terminal.line("echo status=$?");
        terminal.expect(&format!("status={status}\n"));
        await_shell(&terminal);
        assert_eq!(terminal.settings(), before, "after {line}");
        assert!(place.lock_is_free("x"), "after {line}");
    }
}

/// S12
#[test]
fn alone_on_a_terminal_the_command_has_its_own_foreground_group() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.line("\"$DLOCK\" run x -- \"$PROBE\" terminal");
    terminal.expect("{\"group_of_its_own\":true,\"foreground\":true}\n");
    terminal.line("");
    await_shell(&terminal);
    let probe = crate::support::probe::path();
    let mut terminal = alone(&place, &[probe.to_str().unwrap(), "terminal"]);
    terminal.expect("{\"group_of_its_own\":true,\"foreground\":true}\n");
    terminal.line("");
    assert_eq!(terminal.wait(), Exit::Code(0));
}

/// S12
#[test]
fn detecting_that_dlock_is_alone_in_its_group_is_reliable() {
    let probe = crate::support::probe::path();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let place = Place::new();
                    let mut terminal = alone(&place, &[probe.to_str().unwrap(), "terminal"]);
                    terminal.expect("{\"group_of_its_own\":true,\"foreground\":true}\n");
                }
            });
        }
    });
}

/// S28
#[test]
fn a_hangup_reaches_the_command_and_dlock_waits_for_it() {
    let place = Place::new();
    let (log, leave) = (place.arg("log"), format!("leave:{}=0", place.arg("leave")));
    let probe = crate::support::probe::path();
    let script = format!("PROBE_OUTPUT='{log}' exec '{}' signals '{leave}'", probe.display());
    let terminal = alone(&place, &["sh", "-c", &script]);
    until(SOON, "the probe", || place.read("log") == "ready\n");
    let gone = terminal.hang_up();
    until(SOON, "a hang-up at the command", || place.read("log").contains("HUP "));
    throughout(Duration::from_millis(300), "dlock and the lock", || {
        gone.processes("dlock").len() == 1 && !place.lock_is_free("x")
    });
    place.write("leave", "");
    until(SOON, "a free lock", || place.lock_is_free("x") && gone.processes("dlock").is_empty());
    // From the kernel at once, forwarded by dlock once at most.
    assert!(place.read("log").matches("HUP ").count() <= 2, "{}", place.read("log"));
}

/// S36
#[test]
fn a_pager_behind_dlock_reads_keys_and_the_whole_job_stops_and_ends() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    // After `fg` the shell has one status only, without a stop it has both: Ctrl-C ends all but the pager.
    for (stopped, statuses) in [(true, "0"), (false, "130 0")] {
        terminal.line("\"$DLOCK\" run x -- seq 100000 | less");
        page(&mut terminal, &["dlock", "seq", "less"], stopped);
        terminal.type_keys("q");
        await_shell(&terminal);
        terminal.line("echo \"statuses=${PIPESTATUS[*]}\"");
        terminal.expect(&format!("statuses={statuses}\n"));
        until(SOON, "a free lock", || place.lock_is_free("x"));
    }
}

/// S36
#[test]
fn a_pager_under_dlock_in_a_pipeline_reads_keys_and_stops_with_the_job() {
    let place = Place::new();
    let numbers: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    place.write("f", &numbers);
    let mut terminal = Terminal::bash(&place);
    // After `fg` the shell has one status only, without a stop it has both: Ctrl-C ends all but the pager.
    for (stopped, statuses) in [(true, "0"), (false, "130 0")] {
        terminal.line("cat f | \"$DLOCK\" run x -- less");
        page(&mut terminal, &["dlock", "cat", "less"], stopped);
        terminal.type_keys("q");
        await_shell(&terminal);
        terminal.line("echo \"statuses=${PIPESTATUS[*]}\"");
        terminal.expect(&format!("statuses={statuses}\n"));
        until(SOON, "a free lock", || place.lock_is_free("x"));
    }
}

/// S36
#[test]
fn ctrl_c_ends_a_whole_pipeline_once() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    for line in ["\"$DLOCK\" run x -- sleep 1000 | cat", "sleep 1000 | \"$DLOCK\" run x -- cat"] {
        terminal.line(line);
        let pids = ["dlock", "sleep", "cat"].map(|comm| terminal.process(comm));
        terminal.type_keys(CTRL_C);
        await_shell(&terminal);
        until(SOON, "the end of the job", || !pids.iter().any(|pid| process::alive(*pid)));
        assert!(place.lock_is_free("x"));
        terminal.ask("true");
    }
}

/// S36
#[test]
fn a_script_on_a_terminal_keeps_dlock_and_its_command_in_its_own_group() {
    let place = Place::new();
    place.script("script", "#!/bin/sh\n\"$DLOCK\" run x -- \"$PROBE\" terminal\n\"$DLOCK\" run x -- cat\n");
    let mut terminal = Terminal::bash(&place);
    terminal.line("./script; echo status=$?");
    terminal.expect("{\"group_of_its_own\":false,\"foreground\":true}\n");
    terminal.line("");
    terminal.process("cat");
    terminal.line("through");
    terminal.expect("through\n");
    terminal.type_keys(CTRL_D);
    terminal.expect("status=0\n");
}

/// Reads the first lines in a pager, stops and resumes the job of these programs if requested, and pages on.
#[track_caller]
fn page(terminal: &mut Terminal, programs: &[&str], stop: bool) {
    terminal.expect("1\n2\n3\n");
    let pids: Vec<i32> = programs.iter().map(|comm| terminal.process(comm)).collect();
    terminal.type_keys(" ");
    terminal.expect("\n30\n");
    throughout(Duration::from_millis(200), "nothing is stopped", || {
        !pids.iter().any(|pid| process::stopped(*pid))
    });
    if stop {
        terminal.type_keys(CTRL_Z);
        until(SOON, "a stopped job", || pids.iter().all(|pid| process::stopped(*pid)));
        await_shell(terminal);
        terminal.line("fg");
        until(SOON, "a job that goes on", || !pids.iter().any(|pid| process::stopped(*pid)));
    }
    terminal.type_keys(" ");
    terminal.expect("\n60\n");
    // As without dlock, Ctrl-C only interrupts a pager.
    let less = terminal.process("less");
    terminal.type_keys(CTRL_C);
    throughout(Duration::from_millis(200), "the pager lives", || process::alive(less));
}
