//! The real binary behind a small builder.

use super::place::Place;
use super::process::Marker;
use super::running::{Output, Running};
use nix::sys::signal::Signal;
use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Path of the binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_dlock");

/// Variables that must not leak from the environment of the test run.
const UNWANTED: &[&str] = &["CI", "NO_COLOR", "REDISCLI_AUTH", "XDG_CONFIG_HOME", "XDG_STATE_HOME"];

/// One invocation of dlock: `dlock run -b BACKEND OPTIONS NAME -- COMMAND` by default.
pub struct Dlock {
    place: Place,
    subcommand: Option<&'static str>,
    backend: Option<String>,
    options: Vec<OsString>,
    name: Option<OsString>,
    command: Option<Vec<OsString>>,
    wrapper: Vec<OsString>,
    direct: bool,
    environment: Vec<(OsString, Option<OsString>)>,
    directory: PathBuf,
    stdin: Option<Stdio>,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    group: Group,
    before_exec: Vec<Box<dyn FnMut() -> std::io::Result<()> + Send + Sync>>,
}

/// The process group and session that dlock is started in.
#[derive(Clone, Copy, PartialEq)]
enum Group {
    /// Leader of a new group in the tests' session.
    Own,
    /// The process group of the test.
    Inherited,
    /// Leader of a new session.
    Session,
}

impl Dlock {
    /// `dlock run` in a new place.
    pub fn run() -> Self {
        Place::new().run()
    }

    /// `dlock` without any argument, in a new place.
    pub fn bare() -> Self {
        Place::new().bare()
    }

    pub(super) fn in_place(place: Place, subcommand: Option<&'static str>) -> Self {
        Self {
            backend: subcommand.map(|_| place.url()),
            name: subcommand.map(|_| "x".into()),
            directory: place.path("."),
            place,
            subcommand,
            options: Vec::new(),
            command: None,
            wrapper: Vec::new(),
            direct: false,
            environment: Vec::new(),
            stdin: None,
            stdout: None,
            stderr: None,
            group: Group::Own,
            before_exec: Vec::new(),
        }
    }

    /// Adds an argument before NAME.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.options.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments before NAME.
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.options.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets the backend, instead of the directory of this place.
    pub fn backend(mut self, url: impl Into<String>) -> Self {
        self.backend = Some(url.into());
        self
    }

    /// Omits `--backend`.
    pub fn no_backend(mut self) -> Self {
        self.backend = None;
        self
    }

    /// Sets NAME, instead of `x`.
    pub fn name(mut self, name: impl AsRef<OsStr>) -> Self {
        self.name = Some(name.as_ref().to_owned());
        self
    }

    /// Omits NAME.
    pub fn no_name(mut self) -> Self {
        self.name = None;
        self
    }

    /// Sets the command after `--`.
    pub fn command(mut self, command: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command = Some(command.into_iter().map(|arg| arg.as_ref().to_owned()).collect());
        self
    }

    /// Runs the probe with these arguments as the command.
    pub fn probe<const N: usize>(self, args: [&str; N]) -> Self {
        self.command(super::probe::command(args))
    }

    /// Runs a script of `sh -c` as the command.
    pub fn sh(self, text: &str) -> Self {
        self.command(["sh", "-c", text])
    }

    /// Sets a variable.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Removes a variable.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), None));
        self
    }

    /// Sets the working directory, instead of the place itself.
    pub fn current_dir(mut self, directory: impl AsRef<Path>) -> Self {
        self.directory = directory.as_ref().to_owned();
        self
    }

    /// Sets standard input, instead of /dev/null.
    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.stdin = Some(stdin.into());
        self
    }

    /// Sets standard output, instead of a file that [`Output::stdout`] shows.
    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Sets standard error, instead of a file that [`Output::stderr`] shows.
    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }

    /// Starts dlock through another program that execs it, such as `nohup` or `nice`.
    pub fn wrapped_by(mut self, wrapper: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.wrapper.splice(0..0, wrapper.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Starts dlock from a shell script, which ends with `exec dlock`.
    pub fn after_shell(self, text: &str) -> Self {
        self.wrapped_by(["sh", "-c", &format!("{text}\nexec \"$@\""), "sh"])
    }

    /// Runs dlock without a cgroup file system: in a mount namespace with an empty one over it.
    pub fn without_cgroups(self) -> Self {
        self.after_shell("mount -t tmpfs none /sys/fs/cgroup || exit 99").wrapped_by(["unshare", "-m"])
    }

    /// Runs the command itself in the same way but without dlock: the reference for comparisons.
    pub fn without_dlock(mut self) -> Self {
        self.direct = true;
        self
    }

    /// Starts dlock in the test's own process group.
    pub fn in_our_group(mut self) -> Self {
        self.group = Group::Inherited;
        self
    }

    /// Starts dlock as leader of a new session, as cron or ssh do.
    pub fn in_own_session(mut self) -> Self {
        self.group = Group::Session;
        self
    }

    /// Starts dlock with this signal ignored.
    pub fn ignoring(self, signal: Signal) -> Self {
        // SAFETY: signal(2) is async-signal-safe and changes the new process only.
        self.before_exec(move || match unsafe { libc::signal(signal as i32, libc::SIG_IGN) } {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        })
    }

    /// Starts dlock with this signal blocked.
    pub fn blocking(self, signal: Signal) -> Self {
        self.before_exec(move || {
            let mut set = nix::sys::signal::SigSet::empty();
            set.add(signal);
            Ok(set.thread_block()?)
        })
    }

    /// Gives dlock a duplicate of the descriptor `original` under this number.
    pub fn with_descriptor(self, number: RawFd, original: RawFd) -> Self {
        self.before_exec(move || {
            // SAFETY: dup2(2) and fcntl(2) take integers and are async-signal-safe. The original may have this number
            // already, and is close-on-exec then.
            if unsafe { libc::dup2(original, number) == -1 || libc::fcntl(number, libc::F_SETFD, 0) == -1 } {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        })
    }

    /// Calls a function in the new process, between fork and exec: async-signal-safe calls only.
    pub fn before_exec(mut self, act: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) -> Self {
        self.before_exec.push(Box::new(act));
        self
    }

    /// The arguments after the program name.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut line: Vec<OsString> = Vec::new();
        line.extend(self.subcommand.map(OsString::from));
        if let Some(backend) = &self.backend {
            line.extend(["--backend".into(), backend.into()]);
        }
        line.extend(self.options.iter().cloned());
        line.extend(self.name.iter().cloned());
        if let Some(command) = &self.command {
            line.push("--".into());
            line.extend(command.iter().cloned());
        }
        line
    }

    /// The place that it runs in.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The prepared process and the marker it will carry; standard input and outputs are not set yet.
    pub(super) fn prepare(&mut self) -> (Command, Marker) {
        let mut line = std::mem::take(&mut self.wrapper);
        if self.direct {
            line.extend(self.command.take().expect("a command"));
        } else {
            line.push(BINARY.into());
            line.extend(self.arguments());
        }
        let marker = self.place.next_marker();
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).current_dir(&self.directory);
        for (name, _) in std::env::vars_os() {
            let bytes = name.as_encoded_bytes();
            let is_proxy = bytes.to_ascii_lowercase().ends_with(b"_proxy");
            if is_proxy || bytes.starts_with(b"DLOCK_") || bytes.starts_with(b"CONSUL_") {
                command.env_remove(name);
            }
        }
        for name in UNWANTED {
            command.env_remove(name);
        }
        command.env("HOME", self.place.home()).env(Marker::VARIABLE, marker.value());
        for (name, value) in &self.environment {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        (command, marker)
    }

    /// Starts it.
    pub fn spawn(mut self) -> Running {
        let (mut command, marker) = self.prepare();
        match self.group {
            Group::Own => {
                command.process_group(0);
            }
            Group::Inherited => {}
            Group::Session => self.before_exec.insert(0, Box::new(|| Ok(nix::unistd::setsid().map(drop)?))),
        }
        for act in self.before_exec {
            // SAFETY: `before_exec` requires async-signal-safe calls from its callers.
            unsafe { command.pre_exec(act) };
        }
        Running::start(command, marker, self.place, [self.stdin, self.stdout, self.stderr])
    }

    /// Runs it to its end, which must come within the default deadline.
    #[track_caller]
    pub fn output(self) -> Output {
        self.spawn().wait()
    }
}
