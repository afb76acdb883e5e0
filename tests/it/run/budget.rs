//! What a short run costs, in numbers that do not depend on the speed or the load of the machine. A change that raises one of
//! them has to raise it here too, with the reason in its commit. Times, and the pages that are touched, are measured by the
//! benchmark.

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::trace::{self, Call};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;

/// The system calls that reach something outside of the process. The others wait (`pidfd_open` for a guard that has not ended
/// by then), or concern memory, signals, timers and events: their number depends on the order in which the processes run.
const COUNTED: &[&str] = &[
    "access",
    "clone",
    "clone3",
    "connect",
    "execve",
    "faccessat2",
    "flock",
    "getdents64",
    "mkdir",
    "newfstatat",
    "openat",
    "pipe2",
    "pread64",
    "prlimit64",
    "pwrite64",
    "readlink",
    "rename",
    "rmdir",
    "sendto",
    "setsockopt",
    "socket",
    "socketpair",
    "statx",
    "unlink",
];

/// A run of `/bin/true`.
struct Run {
    calls: Vec<Call>,
    /// The processes and threads: what they are in this run.
    roles: HashMap<i32, &'static str>,
}

/// The process or thread that a call has created.
fn child_of(call: &Call) -> Option<i32> {
    call.name.starts_with("clone").then(|| call.result.trim().parse().ok()).flatten()
}

impl Run {
    /// Runs dlock under strace(1), after a run that has left the records of the lock.
    fn of(run: impl Fn() -> Dlock) -> Run {
        let run = || run().command(["/bin/true"]);
        let first = run().output();
        assert!(first.exit == Exit::Code(0), "{}", first.stderr);
        let run = run();
        let file = run.place().path("trace");
        let strace = ["strace", "-f", "-q", "-s", "256", "-o"].map(Into::into);
        let run = run.wrapped_by(strace.into_iter().chain([file.clone().into_os_string()]));
        // A cgroup costs some more, on the hosts that have them.
        let output = run.without_cgroups().output();
        assert!(output.exit == Exit::Code(0), "{} (is strace installed?)", output.stderr);
        let mut run = Run { calls: trace::read(&file), roles: HashMap::new() };
        run.find_roles();
        run.skip_loader();
        run
    }

    /// dlock forks the guard, which forks the command, and, when that has run for a moment, a witness, whose own calls and fork
    /// are not counted.
    fn find_roles(&mut self) {
        self.roles.insert(self.calls[0].thread, "dlock");
        let mut children_of_dlock = ["guard", "witness"].into_iter();
        for call in &self.calls {
            let Some(child) = child_of(call) else { continue };
            let role = match self.role(call) {
                _ if call.arguments.contains("CLONE_THREAD") => "thread",
                "dlock" => children_of_dlock.next().unwrap_or("another process"),
                "guard" => "command",
                _ => "another process",
            };
            self.roles.insert(child, role);
        }
    }

    /// Leaves out the dynamic loader, which a released binary does not have.
    fn skip_loader(&mut self) {
        let begin = self.calls.iter().position(|call| call.text() == "/proc/self/fd");
        self.calls.drain(..begin.expect("the descriptors are listed first"));
    }

    fn role(&self, call: &Call) -> &'static str {
        self.roles.get(&call.thread).copied().unwrap_or("?")
    }

    fn position(&self, what: &str, is: impl Fn(&Call) -> bool) -> usize {
        self.calls.iter().position(is).unwrap_or_else(|| panic!("no {what} in {:#?}", self.calls))
    }

    /// The command's first instruction, and its end.
    fn command(&self) -> (usize, usize) {
        let is = |call: &Call| self.role(call) == "command";
        let begin = self.position("execve", |call| is(call) && call.name == "execve");
        (begin, self.position("end", |call| is(call) && call.name == "exit"))
    }

    fn is_counted(&self, call: &Call) -> bool {
        let is_witness = |thread: i32| self.roles.get(&thread) == Some(&"witness");
        let is_of_witness = is_witness(call.thread) || child_of(call).is_some_and(is_witness);
        COUNTED.contains(&call.name.as_str()) && !is_of_witness && !call.result.contains("EAGAIN")
    }

    /// The number of calls of each kind.
    fn counts(&self, calls: &[Call]) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        calls
            .iter()
            .filter(|call| self.is_counted(call))
            .for_each(|call| *counts.entry(&call.name).or_default() += 1);
        counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }

    /// The files that are opened, in the order of each process.
    fn files(&self, calls: &[Call]) -> String {
        let mut files = String::new();
        for role in ["dlock", "thread", "guard", "command"] {
            let opened = calls.iter().filter(|call| call.name == "openat" && self.role(call) == role);
            let names: Vec<String> = opened.map(|call| self.generic(call.text())).collect();
            let _ = writeln!(files, "{}", format!("{role}: {}", names.join(" ")).trim_end());
        }
        files
    }

    /// Returns a path without what differs from run to run.
    fn generic(&self, path: &str) -> String {
        let name = path.rsplit('/').next().unwrap_or_default();
        match path.split('/').nth(1) {
            _ if Path::new(path).starts_with(std::env::temp_dir()) => name.to_owned(),
            Some("proc") => path
                .split('/')
                .map(|part| if part.parse::<i32>().is_ok() { "PID" } else { part })
                .collect::<Vec<_>>()
                .join("/"),
            Some("etc" | "dev") => path.to_owned(),
            _ => name.to_owned(),
        }
    }

    /// The flights to the store: what was sent before something was received.
    fn flights(&self) -> (usize, usize) {
        let (mut flights, mut bytes, mut is_sending) = (0, 0, false);
        for call in &self.calls {
            let count: usize = call.result.trim().parse().unwrap_or_default();
            match call.name.as_str() {
                "sendto" => {
                    flights += usize::from(!is_sending);
                    bytes += count;
                    is_sending = true;
                }
                "recvfrom" if count > 0 => is_sending = false,
                _ => {}
            }
        }
        (flights, bytes)
    }

    /// What is done between the end of the command and the call that releases the lock, with that call. The guard exits beside
    /// it, after its message.
    fn steps_to_release(&self, is_release: impl Fn(&Call) -> bool) -> String {
        let (_, end) = self.command();
        let after = &self.calls[end..];
        let release = after.iter().position(is_release).expect("a release");
        let is_step = |call: &&Call| match self.role(call) {
            "guard" => call.arguments.contains("Ended"),
            _ => self.is_counted(call),
        };
        let step = |call: &Call| match call.name.as_str() {
            name @ ("openat" | "statx") => {
                format!("{} {name} {}", self.role(call), self.generic(call.text())).trim_end().to_owned()
            }
            name => format!("{} {name}", self.role(call)),
        };
        after[..=release].iter().filter(is_step).map(step).collect::<Vec<_>>().join(", ")
    }

    /// What dlock itself does between the release and its end.
    fn steps_after_release(&self, is_release: impl Fn(&Call) -> bool) -> String {
        let (_, end) = self.command();
        let release = self.calls[end..].iter().position(is_release).expect("a release");
        let is_step = |call: &&Call| matches!(self.role(call), "dlock" | "thread") && self.is_counted(call);
        let step = |call: &Call| format!("{} {} {}", self.role(call), call.name, self.generic(call.text()));
        let steps = self.calls[end + release + 1..].iter().filter(is_step);
        steps.map(|call| step(call).trim_end().to_owned()).collect::<Vec<_>>().join(", ")
    }

    fn processes(&self) -> usize {
        self.roles.values().filter(|role| **role != "thread" && **role != "witness").count()
    }

    fn threads(&self) -> usize {
        self.roles.values().filter(|role| **role == "thread").count()
    }
}

/// Compares a run with what it may cost.
#[track_caller]
fn assert_costs(run: &Run, is_release: impl Fn(&Call) -> bool + Copy, expected: &str) {
    let (begin, _) = run.command();
    let until_command = &run.calls[..begin];
    let mut costs = format!("processes {}, threads {}\n", run.processes(), run.threads());
    let _ = writeln!(costs, "calls until the command: {}", run.counts(until_command));
    costs.push_str(&run.files(until_command));
    let _ = writeln!(costs, "until the release: {}", run.steps_to_release(is_release));
    let _ = writeln!(costs, "{}", format!("after it: {}", run.steps_after_release(is_release)).trim_end());
    let (flights, bytes) = run.flights();
    // Tokens, pids and times have different lengths.
    let _ = writeln!(costs, "flights {flights}, with up to {} bytes", bytes.next_multiple_of(100));
    assert_eq!(costs, expected, "\n{costs}");
}

#[test]
fn a_run_on_a_file() {
    let place = Place::new();
    let run = Run::of(|| place.run());
    assert_costs(
        &run,
        |call| call.name == "flock",
        concat!(
            "processes 3, threads 1\n",
            "calls until the command: clone 2, clone3 1, faccessat2 1, flock 2, getdents64 2, newfstatat 3, openat 11, pipe2 2, ",
            "pread64 1, prlimit64 3, pwrite64 1, readlink 1, socketpair 1, statx 15\n",
            "dlock: /proc/self/fd /dev/tty /dev/null /etc/dlock/config.toml config.toml /etc/passwd /proc/PID/stat ",
            "/proc/sys/kernel/random/boot_id\n",
            "thread: x.lock x.dlock\n",
            "guard: /proc/self/cgroup\n",
            "command:\n",
            "until the release: guard sendmsg, thread statx, thread statx x.lock, thread openat x.dlock, thread statx, ",
            "thread pread64, thread statx, thread pwrite64, thread flock\n",
            "after it: thread openat x%history.dlock, thread statx, thread flock, thread statx, thread statx x%history.dlock, ",
            "thread statx\n",
            "flights 0, with up to 0 bytes\n",
        ),
    );
}

#[test]
fn a_run_on_redis() {
    let store = crate::support::store::Store::redis();
    let run = Run::of(|| store.run());
    assert_costs(
        &run,
        |call| call.name == "sendto",
        concat!(
            "processes 3, threads 0\n",
            "calls until the command: clone 2, connect 1, faccessat2 1, getdents64 2, newfstatat 3, openat 9, pipe2 2, prlimit64 3, ",
            "readlink 1, sendto 1, setsockopt 6, socket 1, socketpair 1, statx 7\n",
            "dlock: /proc/self/fd /dev/tty /dev/null /etc/dlock/config.toml config.toml /etc/passwd /proc/PID/stat ",
            "/proc/sys/kernel/random/boot_id\n",
            "thread:\n",
            "guard: /proc/self/cgroup\n",
            "command:\n",
            "until the release: guard sendmsg, dlock sendto\n",
            "after it:\n",
            "flights 2, with up to 1200 bytes\n",
        ),
    );
}

#[test]
fn a_run_on_postgresql() {
    let server = crate::support::postgres::Postgres::lent();
    let place = Place::new();
    let run = Run::of(|| place.run().backend(server.url()));
    assert_costs(
        &run,
        |call| call.name == "sendto",
        concat!(
            "processes 3, threads 0\n",
            "calls until the command: clone 2, connect 1, faccessat2 1, getdents64 2, newfstatat 3, openat 10, pipe2 2, prlimit64 3, ",
            "readlink 1, sendto 4, setsockopt 6, socket 1, socketpair 1, statx 7\n",
            "dlock: /proc/self/fd /dev/tty /dev/null /etc/dlock/config.toml config.toml /etc/passwd /proc/PID/stat ",
            "/proc/sys/kernel/random/boot_id .pgpass\n",
            "thread:\n",
            "guard: /proc/self/cgroup\n",
            "command:\n",
            "until the release: guard sendmsg, dlock sendto\n",
            "after it:\n",
            "flights 5, with up to 5300 bytes\n",
        ),
    );
}

/// S40: a command that forks without a pause from its first instruction on keeps the CPUs from processes that have yet to do
/// this.
#[test]
fn the_priority_is_raised_before_the_command_runs() {
    let place = Place::new();
    let run = Run::of(|| place.run());
    let first = |role: &str, name: &str| {
        run.position(&format!("{name} of {role}"), |call| run.role(call) == role && call.name == name)
    };
    assert!(first("dlock", "setpriority") < first("command", "execve"));
    // Its first message says that it has forked the command.
    assert!(first("guard", "setpriority") < first("guard", "sendmsg"));
}

/// The end of the processes must not delay the next holder, for which the same CPUs are needed.
#[test]
fn the_priority_is_restored_once_the_lock_is_released() {
    let place = Place::new();
    let run = Run::of(|| place.run());
    let of = |role: &str, name: &str| {
        let calls = run.calls.iter().enumerate();
        calls
            .filter(|(_, call)| run.role(call) == role && call.name == name)
            .map(|(at, _)| at)
            .collect::<Vec<_>>()
    };
    let released = of("thread", "flock").into_iter().chain(of("dlock", "flock")).max();
    for (role, urgent) in [("dlock", released), ("guard", of("guard", "sendmsg").pop())] {
        let priorities = of(role, "setpriority");
        assert_eq!(priorities.len(), 2, "{role}");
        assert!(priorities[1] > urgent.expect("a release, and its message"), "{role}");
    }
}
