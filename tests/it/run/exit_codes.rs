//! The end of the command, passed through.

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::{SOON, probe};
use nix::sys::signal::Signal;
use std::process::Command;

/// Every signal that ends a process by default: the named ones, and the real-time ones.
fn fatal_signals() -> impl Iterator<Item = i32> {
    let harmless =
        [Signal::SIGCHLD, Signal::SIGCONT, Signal::SIGURG, Signal::SIGWINCH].map(|harmless| harmless as i32);
    let stopping =
        [Signal::SIGSTOP, Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].map(|stop| stop as i32);
    // 32 and 33 belong to the C library.
    let all = (1..=31).chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
    all.filter(move |signal| !harmless.contains(signal) && !stopping.contains(signal))
}

/// S01
#[test]
fn every_exit_status_of_the_command_is_passed_through() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for quarter in 0..4 {
            let place = &place;
            scope.spawn(move || {
                for code in quarter * 64..quarter * 64 + 64 {
                    let run = place.run().name(format!("x{quarter}")).sh(&format!("exit {code}"));
                    assert_eq!(run.output().outcome(), (Exit::Code(code), "", ""));
                }
            });
        }
    });
}

/// S02
#[test]
fn dlock_dies_of_the_signal_that_killed_the_command() {
    let place = Place::new();
    for signal in fatal_signals() {
        let output = place.run().probe(["die", &signal.to_string()]).output();
        assert_eq!(output.outcome(), (Exit::Signal(signal), "", ""));
        assert!(place.lock_is_free("x"), "after signal {signal}");
    }
}

/// S02
#[test]
fn a_shell_sees_128_plus_the_signal() {
    let place = Place::new();
    let line = format!(
        "'{}' run -b '{}' x -- sh -c 'kill -9 $$'; echo $?",
        crate::support::dlock::BINARY,
        place.url()
    );
    let output = Command::new("sh").args(["-c", &line]).env("HOME", place.home()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "137\n");
}

/// S02
#[test]
fn dlock_does_not_add_a_core_dump_to_that_of_the_command() {
    use nix::sys::resource::{Resource, setrlimit};
    let place = Place::new();
    let unlimited = || Ok(setrlimit(Resource::RLIMIT_CORE, libc::RLIM_INFINITY, libc::RLIM_INFINITY)?);
    let run = place.run().probe(["die", "QUIT"]).before_exec(unlimited);
    let output = run.output();
    assert_eq!(output.outcome(), (Exit::by(Signal::SIGQUIT), "", ""));
    assert!(!output.core_dumped);
    // Where the kernel pipes cores to a program there is nothing to count.
    let names = std::fs::read_dir(place.path(".")).unwrap().flatten().map(|entry| entry.file_name());
    let cores: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("core")).collect();
    assert!(cores.len() <= 1, "{cores:?}");
}

/// S02
#[test]
fn as_the_first_process_of_a_namespace_dlock_exits_with_128_plus_the_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGSEGV] {
        let run = Dlock::run().probe(["die", &(signal as i32).to_string()]);
        let output = run.wrapped_by(["unshare", "-pf", "--mount-proc"]).output();
        assert_eq!(output.outcome(), (Exit::Code(128 + signal as i32), "", ""));
    }
}

/// S03
#[test]
fn a_command_that_does_not_exist_is_127() {
    for command in ["no-such-command", "./no-such-file", "/no/such/directory/command"] {
        let place = Place::new();
        let output = place.run().command([command]).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(127), ""), "{command}");
        assert!(output.stderr.starts_with("dlock: ") && output.stderr.contains(command), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        assert!(place.lock_is_free("x"));
    }
}

/// S03
#[test]
fn a_command_that_may_not_be_executed_is_126() {
    let place = Place::new();
    place.write("plain-file", "exit 0\n");
    std::fs::create_dir(place.path("directory")).unwrap();
    std::os::unix::fs::symlink("loop", place.path("loop")).unwrap();
    place.script("bad-interpreter", "#!/no/such/interpreter\n");
    for command in ["./plain-file", "./directory", "./loop", "./bad-interpreter"] {
        let output = place.run().command([command]).output();
        assert_eq!(
            (output.exit, output.stdout.as_str()),
            (Exit::Code(126), ""),
            "{command}: {}",
            output.stderr
        );
        assert!(output.stderr.starts_with("dlock: ") && output.stderr.contains(command), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        assert!(place.lock_is_free("x"), "after {command}");
        assert_eq!(place.marker().bearers().len(), 0);
    }
}

/// S03
#[test]
fn path_and_mode_bits_are_checked_before_the_lock_is_acquired() {
    let place = Place::new();
    place.write("plain-file", "exit 0\n");
    let mut holder = place.run().probe(["ignore-term"]).spawn();
    holder.await_ready();
    for (command, code) in [("no-such-command", 127), ("./plain-file", 126), ("true", 75)] {
        assert_eq!(place.run().command([command]).output().exit, Exit::Code(code), "{command}");
    }
}

/// S03
#[test]
fn a_script_without_an_interpreter_is_run_by_the_shell() {
    let place = Place::new();
    place.script("text", "echo \"$0 $1\"; exit 7\n");
    let output = place.run().command(["./text", "argument"]).output();
    assert_eq!(output.outcome(), (Exit::Code(7), "./text argument\n", ""));
}

/// S03
#[test]
fn an_empty_executable_succeeds_as_in_a_shell() {
    let place = Place::new();
    place.script("empty", "");
    assert_eq!(place.run().command(["./empty"]).output().outcome(), (Exit::Code(0), "", ""));
}

/// S03
#[test]
fn a_binary_of_no_known_format_is_126_and_frees_the_lock() {
    let place = Place::new();
    place.script("binary", "\u{7f}ELF\0\0\0\0\u{1}\0garbage\0\n");
    let output = place.run().command(["./binary"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(126), ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: ") && output.stderr.contains("./binary"), "{}", output.stderr);
    assert!(place.lock_is_free("x"));
}

/// S03
#[test]
fn arguments_that_are_too_long_are_126_and_free_the_lock() {
    // dlock's own arguments are fewer than the command's variables are more: somewhere below the limit
    // that a stack of 2 MiB allows dlock still starts, and its command does not.
    let place = Place::new();
    let mut outcomes = Vec::new();
    for padding in (514_500..524_288_usize).step_by(100) {
        let mut run = place.run().command(["true"]).after_shell("ulimit -s 2048");
        for (number, size) in [100_000; 5].into_iter().chain([padding - 500_000]).enumerate() {
            run = run.env(format!("PADDING{number}"), "x".repeat(size));
        }
        let output = run.output();
        if !output.stderr.is_empty() && !output.stderr.starts_with("dlock: ") {
            break;
        }
        assert!(place.lock_is_free("x"), "with {padding} bytes");
        outcomes.push(output.exit);
    }
    outcomes.dedup();
    assert_eq!(outcomes, [Exit::Code(0), Exit::Code(126)]);
}

/// S03
#[test]
fn the_path_is_searched_as_execvp_does() {
    let place = Place::new();
    for directory in ["first", "second", "third"] {
        std::fs::create_dir(place.path(directory)).unwrap();
    }
    place.write("first/tool", "not executable\n");
    place.script("second/tool", "#!/bin/sh\necho second\n");
    place.script("third/tool", "#!/bin/sh\necho third\n");
    let path = format!("{}:{}:{}:/usr/bin:/bin", place.arg("first"), place.arg("second"), place.arg("third"));
    let output = place.run().command(["tool"]).env("PATH", path).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "second\n", ""));
    let output = place.run().command(["tool"]).env("PATH", place.path("first")).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(126), ""), "{}", output.stderr);
}

/// S03
#[test]
fn a_shell_text_is_run_by_the_shell() {
    let output = Dlock::run().args(["-c", "echo \"$DLOCK_NAME\"; exit 3"]).output();
    assert_eq!(output.outcome(), (Exit::Code(3), "x\n", ""));
}

/// S25
#[test]
fn dlock_ends_with_its_command_although_a_grandchild_keeps_the_output_open() {
    use std::io::Read;
    let place = Place::new();
    let (mut output, input) = std::io::pipe().unwrap();
    let mut run =
        place.run().args(["--orphans", "leave"]).sh("sleep 1000 & echo $!; exit 4").stdout(input).spawn();
    assert_eq!(run.wait_within(SOON).outcome(), (Exit::Code(4), "", ""));
    let mut written = [0; 16];
    let count = output.read(&mut written).unwrap();
    let grandchild: i32 = std::str::from_utf8(&written[..count]).unwrap().trim().parse().unwrap();
    assert!(crate::support::process::alive(grandchild));
    assert!(place.lock_is_free("x"));
}

/// S01
#[test]
fn the_probe_is_found_by_its_path() {
    let output = Dlock::run().command([probe::path()]).arg("-q").output();
    assert_eq!(output.exit, Exit::Code(101), "a probe without a mode panics: {output:?}");
}
