//! Core dumps: those of dlock would contain tokens and passwords.

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::wait::until;
use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

fn cores(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.path(".")).unwrap().flatten().map(|entry| entry.file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| name.starts_with("core")).collect()
}

/// Makes a process crash as by its own fault: its next instruction is invalid. Signals from other processes
/// are handled.
fn crash(pid: i32) {
    let memory = File::options().write(true).open(format!("/proc/{pid}/mem")).unwrap();
    for mapping in fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().lines() {
        let mut words = mapping.split_whitespace();
        let (range, rights) = (words.next().unwrap(), words.next().unwrap());
        let (from, to) = range.split_once('-').unwrap();
        let address = |text| u64::from_str_radix(text, 16).unwrap();
        if rights.contains('x') && mapping.contains('/') {
            let nonsense = vec![0xff; (address(to) - address(from)) as usize];
            if memory.write_all_at(&nonsense, address(from)).is_err() {
                // It has woken up meanwhile, by what it was waiting for, and is gone.
                break;
            }
        }
    }
    // Whatever it waits for, it continues, unless it has woken up by itself and is gone already.
    for signal in [Signal::SIGSTOP, Signal::SIGCONT] {
        let result = kill(Pid::from_raw(pid), signal);
        assert!(matches!(result, Ok(()) | Err(Errno::ESRCH)), "{result:?}");
    }
}

/// F47: neither dlock, nor its guard, nor the process that waits to become the command.
#[test]
fn no_process_of_dlock_dumps_core() {
    let unlimited = || Ok(setrlimit(Resource::RLIMIT_CORE, libc::RLIM_INFINITY, libc::RLIM_INFINITY)?);
    for victim in ["dlock", "guard", "parked"] {
        let place = Place::new();
        let mut holder = place.run().stdin(std::process::Stdio::piped()).sh("echo ready; exec cat").spawn();
        holder.await_ready();
        let mut run =
            place.run().args(["-v", "--wait", "forever"]).before_exec(unlimited).command(["true"]).spawn();
        run.await_stderr("waiting at position 1");
        let (guard, parked) = (run.guard(), run.command());
        let pid = match victim {
            "dlock" => run.pid(),
            "guard" => guard,
            _ => parked,
        };
        crash(pid);
        let output = run.wait();
        assert_ne!(output.exit, Exit::Code(0), "{victim}");
        assert!(!output.core_dumped, "{victim}");
        until(SOON, "the end of them all", || ![guard, parked].into_iter().any(process::alive));
        // Where the kernel pipes cores to a program those of the others cannot be observed.
        assert_eq!(cores(&place), [""; 0], "{victim}");
        drop(holder.take_stdin());
        assert_eq!(holder.wait().exit, Exit::Code(0));
    }
}

/// S02: the command is the same as without dlock.
#[test]
fn the_command_has_the_inherited_limits_of_core_dumps() {
    for (soft, hard) in [(0, 0), (0, 8192), (4096, 8192), (1, 1), (u64::MAX, u64::MAX)] {
        let place = Place::new();
        let limits = move || Ok(setrlimit(Resource::RLIMIT_CORE, soft, hard)?);
        let seen = |run: crate::support::dlock::Dlock| {
            let output = run.before_exec(limits).sh("grep core /proc/self/limits").output();
            assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
            output.stdout
        };
        assert_eq!(seen(place.run()), seen(place.run().without_dlock()), "{soft} {hard}");
    }
}
