//! The command inherits the same state as without dlock.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::Stdio;

/// The output of `probe state` when it is started in this way.
fn state(run: Dlock) -> Value {
    let output = run.probe(["state"]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    serde_json::from_str(&output.stdout).unwrap()
}

/// Removes the parts that always differ between two processes, and the intended changes by dlock.
fn comparable(mut state: Value) -> Value {
    let fields = state.as_object_mut().unwrap();
    for different in ["pid", "pgrp", "session", "death_signal"] {
        fields.remove(different);
    }
    let environment = fields["environment"].as_object_mut().unwrap();
    environment.retain(|name, _| {
        !["DLOCK_NAME", "DLOCK_TOKEN", "DLOCK_FENCING_TOKEN", "DLOCK_HELD", "IT_MARK"]
            .contains(&name.as_str())
    });
    state
}

/// Asserts that a command started by dlock inherits the same as when it is started in the same way without it.
#[track_caller]
fn assert_transparent(place: &Place, prepare: impl Fn(Dlock) -> Dlock) {
    let without = comparable(state(prepare(place.run()).without_dlock()));
    let with = comparable(state(prepare(place.run())));
    assert_eq!(with, without);
}

/// S15
#[test]
fn a_command_inherits_everything_unchanged() {
    assert_transparent(&Place::new(), |run| run);
}

/// S15
#[test]
fn a_command_inherits_limits_umask_niceness_and_directory() {
    let place = Place::new();
    std::fs::create_dir(place.path("deep")).unwrap();
    assert_transparent(&place, |run| {
        run.current_dir(place.path("deep"))
            .after_shell("umask 027; ulimit -n 300; ulimit -c 0; ulimit -s 4096; ulimit -t 1000; echo 500 >/proc/self/oom_score_adj")
            .wrapped_by(["nice", "-n", "5"])
    });
}

/// S15
#[test]
fn a_command_inherits_ignored_and_blocked_signals() {
    let place = Place::new();
    assert_transparent(&place, |run| {
        let ignored = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1];
        let blocked = [Signal::SIGUSR2, Signal::SIGALRM, Signal::SIGWINCH, Signal::SIGCHLD];
        let run = ignored.into_iter().fold(run, Dlock::ignoring);
        blocked.into_iter().fold(run, Dlock::blocking)
    });
    assert_transparent(&place, |run| {
        let ignored = [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU, Signal::SIGCHLD, Signal::SIGCONT];
        ignored.into_iter().fold(run, Dlock::ignoring)
    });
}

/// S15
#[test]
fn a_command_inherits_sigpipe_exactly() {
    let place = Place::new();
    assert_transparent(&place, |run| run.ignoring(Signal::SIGPIPE));
    let ignored = |run: Dlock| u64::from_str_radix(state(run)["ignored"].as_str().unwrap(), 16).unwrap();
    let pipe = 1 << (Signal::SIGPIPE as i32 - 1);
    assert_eq!(ignored(place.run().ignoring(Signal::SIGPIPE)) & pipe, pipe);
    assert_eq!(ignored(place.run()) & pipe, 0);
}

/// S15
#[test]
fn nohup_stays_effective() {
    let state = state(Place::new().run().wrapped_by(["nohup"]));
    let ignored = u64::from_str_radix(state["ignored"].as_str().unwrap(), 16).unwrap();
    assert_eq!(ignored & 1, 1, "{ignored:x}");
}

/// S15
#[test]
fn alone_in_its_group_without_a_terminal_dlock_stays_in_its_session() {
    let place = Place::new();
    let own = i64::from(nix::unistd::getsid(None).unwrap().as_raw());
    assert_eq!(state(place.run())["session"], own);
    let mut run = place.run().probe(["state"]).in_own_session().spawn();
    let dlock = i64::from(run.pid());
    let state: Value = serde_json::from_str(&run.wait().stdout).unwrap();
    assert_eq!(state["session"], dlock);
    assert_eq!((&state["tty"], &state["foreground"]), (&"0".into(), &"-1".into()));
}

/// S15, S36
#[test]
fn in_a_script_without_a_terminal_the_command_stays_in_the_group_of_the_script() {
    let place = Place::new();
    let (dlock, probe) = (crate::support::dlock::BINARY, crate::support::probe::path());
    let text = format!("'{dlock}' run -b '{}' x -- '{}' state; exit $?", place.url(), probe.display());
    let mut script = place.run().command(["sh", "-c", &text]).without_dlock().in_own_session().spawn();
    let group = i64::from(script.pid());
    let state: Value = serde_json::from_str(&script.wait().stdout).unwrap();
    assert_eq!((&state["session"], &state["pgrp"]), (&group.into(), &group.into()));
}

/// S15
#[test]
fn the_environment_has_four_more_variables() {
    let place = Place::new();
    let environment = |run: Dlock| state(run.env("ODD", "a=b\nc").env("EMPTY", ""))["environment"].clone();
    let with = environment(place.run());
    let without = environment(place.run().without_dlock());
    let (with, without) = (with.as_object().unwrap(), without.as_object().unwrap());
    let added: Vec<&String> = with.keys().filter(|name| !without.contains_key(*name)).collect();
    assert_eq!(added, ["DLOCK_FENCING_TOKEN", "DLOCK_HELD", "DLOCK_NAME", "DLOCK_TOKEN"]);
    assert_eq!(with["DLOCK_NAME"], "x");
    assert!(without.iter().all(|(name, value)| name == "IT_MARK" || with.get(name) == Some(value)));
}

/// S14
#[test]
fn only_inherited_descriptors_are_open_in_the_command() {
    for store in Store::each() {
        let more = "exec 7</dev/null 9</dev/zero";
        let mut outputs = [false, true].map(|direct| {
            let run = store.run_with_ttl("30s").probe(["fds"]).after_shell(more).stderr(Stdio::null());
            let run = if direct { run.without_dlock() } else { run };
            let output = run.output();
            assert_eq!(output.exit, Exit::Code(0));
            output.stdout
        });
        for text in &mut outputs {
            // Each run has a separate file for its standard output.
            *text = text.lines().filter(|line| !line.starts_with("1 ")).collect::<Vec<_>>().join("\n");
        }
        assert_eq!(outputs[0], outputs[1]);
        assert!(outputs[0].contains("\n7 /dev/null\n9 /dev/zero"), "{}", outputs[0]);
    }
}

/// S52: they belong to the command, whose own end of a pipe may be the last.
#[test]
fn no_dlock_process_keeps_an_inherited_descriptor_open() {
    for store in Store::each() {
        let (mut read, write) = std::io::pipe().unwrap();
        let number = write.as_raw_fd();
        let text = "echo to-7 >&7; exec 7>&-; echo ready; exec sleep 1000";
        let run = store.run_with_ttl("30s").command(["bash", "-c", &format!("exec 400>&-; {text}")]);
        let mut run = run.with_descriptor(7, number).with_descriptor(400, number).spawn();
        drop(write);
        run.await_ready();
        let mut text = String::new();
        read.read_to_string(&mut text).unwrap();
        assert_eq!(text, "to-7\n");
        run.assert_running();
    }
}

/// Descriptors that dlock itself writes to stay open for it.
#[test]
fn a_descriptor_named_by_an_option_is_used() {
    let place = Place::new();
    let file = std::fs::File::create(place.path("report")).unwrap();
    let number = file.as_raw_fd();
    let run = place.run().args(["--report", "/dev/fd/8"]).command(["true"]).with_descriptor(8, number);
    assert_eq!(run.output().outcome(), (Exit::Code(0), "", ""));
    assert!(place.read("report").starts_with("{\"version\":1"), "{}", place.read("report"));
}

/// S13
#[test]
fn closed_standard_streams_stay_closed_and_are_not_replaced() {
    let place = Place::new();
    for closed in [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 1, 2]] {
        let output = place.path("probe-output");
        let _ = std::fs::remove_file(&output);
        let fds = closed.clone();
        let close = move || {
            for fd in &fds {
                nix::unistd::close(*fd)?;
            }
            Ok(())
        };
        let run = place.run().probe(["state"]).env("PROBE_OUTPUT", &output).before_exec(close).output();
        assert_eq!(run.outcome(), (Exit::Code(0), "", ""));
        let state: Value = serde_json::from_str(&place.read("probe-output")).unwrap();
        let expected: Vec<bool> = [0, 1, 2].iter().map(|fd| !closed.contains(fd)).collect();
        assert_eq!(state["streams"], Value::from(expected), "closed: {closed:?}");
    }
}

/// S13
#[test]
fn a_message_of_dlock_never_lands_in_a_file_that_took_a_closed_streams_place() {
    let place = Place::new();
    std::fs::write(place.lock_file("x"), "precious\n").unwrap();
    let mut holder = place.run().probe(["ignore-term"]).spawn();
    holder.await_ready();
    let files = || {
        let names = std::fs::read_dir(place.locks()).unwrap().flatten().map(|entry| entry.path());
        let names = names.filter(|path| !path.to_string_lossy().ends_with("%history.dlock"));
        let mut contents: Vec<_> = names.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        contents.sort();
        contents
    };
    let before = files();
    let close = || {
        for fd in 0..3 {
            nix::unistd::close(fd)?;
        }
        Ok(())
    };
    assert_eq!(place.run().command(["true"]).before_exec(close).output().exit, Exit::Code(75));
    assert_eq!(files(), before);
    drop(holder);
    assert_eq!(
        place.run().args(["--wait", "20s"]).command(["true"]).before_exec(close).output().exit,
        Exit::Code(0)
    );
    assert_eq!(std::fs::read_to_string(place.lock_file("x")).unwrap(), "precious\n");
}

/// S13
#[test]
fn a_gigabyte_is_passed_through_unchanged() {
    const BLOCK: usize = 1 << 20;
    let pattern: Vec<u8> = (0..BLOCK).map(|at| u8::try_from(at % 251).unwrap()).collect();
    let place = Place::new();
    let (mut read, write) = std::io::pipe().unwrap();
    let mut run = place.run().command(["cat"]).stdin(Stdio::piped()).stdout(write).spawn();
    let mut stdin = run.take_stdin();
    let theirs = pattern.clone();
    let writer = std::thread::spawn(move || {
        for number in 0_u64..1024 {
            stdin.write_all(&number.to_ne_bytes()).unwrap();
            stdin.write_all(&theirs[8..]).unwrap();
        }
    });
    let mut block = vec![0; BLOCK];
    for number in 0_u64..1024 {
        read.read_exact(&mut block).unwrap();
        assert_eq!(block[..8], number.to_ne_bytes());
        assert!(block[8..] == pattern[8..], "block {number} differs");
    }
    assert_eq!(read.read(&mut block).unwrap(), 0, "more came out than went in");
    writer.join().unwrap();
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "", ""));
}

/// S13
#[test]
fn dlock_reads_nothing_of_the_commands_input() {
    let place = Place::new();
    let path = place.write("input", "first\nsecond\n");
    let file = std::fs::File::open(&path).unwrap();
    let mut rest = file.try_clone().unwrap();
    let output = place.run().command(["head", "-c", "6"]).stdin(file).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "first\n", ""));
    let mut text = String::new();
    rest.read_to_string(&mut text).unwrap();
    assert_eq!(text, "second\n");
}

/// S30
#[test]
fn a_full_disk_on_standard_output_only_affects_the_command() {
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = Dlock::run().sh("echo x 2>/dev/null; exit 3").stdout(full()).stderr(full()).output();
    assert_eq!(output.exit, Exit::Code(3));
}

/// S30
#[test]
fn an_unwritable_standard_error_does_not_change_the_status() {
    let closed_pipe = || {
        let (read, write) = std::io::pipe().unwrap();
        drop(read);
        Stdio::from(write)
    };
    let full = || Stdio::from(std::fs::File::options().write(true).open("/dev/full").unwrap());
    let place = Place::new();
    for stderr in [closed_pipe, full] as [fn() -> Stdio; 2] {
        let mut holder =
            place.run().args(["--max-runtime", "1h"]).probe(["signals", "exit:TERM=5"]).stderr(stderr());
        holder = holder.arg("-vv");
        let mut holder = holder.spawn();
        holder.await_ready();
        assert_eq!(place.run().command(["true"]).stderr(stderr()).output().exit, Exit::Code(75));
        assert_eq!(place.run().command(["no-such-command"]).stderr(stderr()).output().exit, Exit::Code(127));
        assert_eq!(place.run().arg("--no-such-option").stderr(stderr()).output().exit, Exit::Code(64));
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.wait().exit, Exit::Code(5));
        let stopped =
            place.run().args(["--max-runtime", "100ms"]).command(["sleep", "1000"]).stderr(stderr());
        assert_eq!(stopped.output().exit, Exit::Code(124));
        assert!(place.lock_is_free("x"));
    }
}

/// S30
#[test]
fn a_command_in_a_broken_pipe_dies_of_sigpipe_as_without_dlock() {
    let (read, write) = std::io::pipe().unwrap();
    drop(read);
    let output = Dlock::run().command(["yes"]).stdout(write).output();
    assert_eq!(output.outcome(), (Exit::by(Signal::SIGPIPE), "", ""));
}

/// S30
#[test]
fn a_stalled_reader_of_standard_error_does_not_block_dlock_forever() {
    // A full pipe that is not read: the deadline of a command must not depend on a message.
    let (read, mut write) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK)).unwrap();
    while write.write(&[b'.'; 4096]).is_ok() {}
    while write.write(b".").is_ok() {}
    nix::fcntl::fcntl(&write, nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::empty())).unwrap();
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    // A busy machine has started the command by then.
    let run = place.run().args(["--max-runtime", "4s", "--grace", "100ms"]);
    let mut run = run.probe(["--inherited-lock", inherited_lock.path(), "ignore-term"]).stderr(write).spawn();
    run.await_ready();
    inherited_lock.await_free();
    drop(read);
    assert_eq!(run.wait_within(SOON).exit, Exit::Code(124));
}
