//! A pseudo terminal with a session on it, and an interactive shell in that session.

use super::SOON;
use super::place::Place;
use super::process::{Marker, Stat};
use super::running::Exit;
use super::wait::eventually;
use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The prompt of the interactive shell.
pub const PROMPT: &str = "<prompt>";

/// Ctrl-C, as a key.
pub const CTRL_C: &str = "\x03";
/// Ctrl-Z, as a key.
pub const CTRL_Z: &str = "\x1a";
/// Ctrl-\, as a key.
pub const CTRL_BACKSLASH: &str = "\x1c";
/// Ctrl-D, as a key.
pub const CTRL_D: &str = "\x04";

/// A terminal, seen from the side of the keyboard and the screen. It does not echo by default.
pub struct Terminal {
    master: std::fs::File,
    leader: Child,
    marker: Marker,
    screen: String,
    seen: usize,
    ended: Option<Exit>,
}

impl Terminal {
    /// Starts `command` as leader of a new session that has a new terminal.
    pub fn start(place: &Place, mut command: Command) -> Self {
        let (master, slave) = pair();
        let mut settings = tcgetattr(&slave).expect("settings of a terminal");
        settings.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHOCTL);
        tcsetattr(&slave, SetArg::TCSANOW, &settings).expect("settings of a terminal");
        let marker = place.next_marker();
        command.env(Marker::VARIABLE, marker.value()).env("HOME", place.home()).env("TERM", "vt100");
        let stream = || Stdio::from(slave.try_clone().expect("a descriptor"));
        command.stdin(stream()).stdout(stream()).stderr(stream());
        // SAFETY: setsid(2) and ioctl(2) are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                if libc::ioctl(0, libc::TIOCSCTTY, 0) == -1 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let leader = command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Self { master: master.into(), leader, marker, screen: String::new(), seen: 0, ended: None }
    }

    /// Starts an interactive bash with job control, and waits for its prompt.
    #[track_caller]
    pub fn bash(place: &Place) -> Self {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "--noediting", "-i"]).current_dir(place.path("."));
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"DLOCK_") {
                bash.env_remove(name);
            }
        }
        bash.env_remove("CI").env_remove("PROMPT_COMMAND").env("PS1", PROMPT).env("HISTFILE", "/dev/null");
        bash.env("DLOCK", super::dlock::BINARY).env("PROBE", super::probe::path());
        bash.env("DLOCK_BACKEND", place.url());
        let mut terminal = Self::start(place, bash);
        terminal.expect(PROMPT);
        terminal
    }

    /// Types keys.
    pub fn type_keys(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Types a line and the key that ends it.
    pub fn line(&mut self, line: &str) {
        self.type_keys(&format!("{line}\n"));
    }

    /// Types a command for the shell, waits for the next prompt and returns what was printed before it.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.line(line);
        self.expect(PROMPT)
    }

    /// Waits until `text` appears after what was expected before; returns the text before it.
    #[track_caller]
    pub fn expect(&mut self, text: &str) -> String {
        self.expect_within(SOON, text)
    }

    /// Like `expect`, with a deadline.
    #[track_caller]
    pub fn expect_within(&mut self, deadline: Duration, text: &str) -> String {
        let until = std::time::Instant::now() + deadline;
        loop {
            let fresh = &self.screen[self.seen..];
            if let Some(at) = fresh.find(text) {
                let before = fresh[..at].to_owned();
                self.seen += at + text.len();
                return before;
            }
            let left = until.saturating_duration_since(std::time::Instant::now());
            assert!(
                !left.is_zero(),
                "waited {deadline:?} in vain for {text:?} on the screen: {:?}",
                self.screen
            );
            assert!(self.read(left), "no {text:?} on the screen before its session ended: {:?}", self.screen);
        }
    }

    /// Reads the available output; false when the other side is closed.
    fn read(&mut self, patience: Duration) -> bool {
        use nix::poll::{PollFd, PollFlags, poll};
        use std::os::fd::AsFd;
        let timeout = u16::try_from(patience.as_millis().clamp(1, 1000)).unwrap();
        let mut ready = [PollFd::new(self.master.as_fd(), PollFlags::POLLIN)];
        if !poll(&mut ready, timeout).is_ok_and(|count| count > 0) {
            return true;
        }
        let mut buffer = [0; 65536];
        match self.master.read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                // A terminal writes `\r\n` for each `\n`.
                self.screen.push_str(&String::from_utf8_lossy(&buffer[..count]).replace('\r', ""));
                true
            }
            // EIO: the last process that had the terminal open has closed it.
            Err(_) => false,
        }
    }

    /// Everything printed so far, as far as it was read.
    pub fn screen(&mut self) -> &str {
        self.read(Duration::from_millis(1));
        &self.screen
    }

    /// Resizes the window.
    pub fn resize(&self, lines: u16, columns: u16) {
        let size = libc::winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: `size` is a winsize for the kernel to read.
        let result = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(result, 0, "the size of a terminal can be set");
    }

    /// The session leader's process id.
    pub fn leader(&self) -> i32 {
        i32::try_from(self.leader.id()).expect("a process id")
    }

    /// The marker that everything on this terminal carries.
    pub fn marker(&self) -> &Marker {
        &self.marker
    }

    /// The process group that gets keys and the signals of keys.
    pub fn foreground(&self) -> i32 {
        let mut group = 0;
        // SAFETY: `group` is a pid_t for the kernel to write to.
        let result = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCGPGRP, &raw mut group) };
        assert_eq!(result, 0, "the foreground group of a terminal can be read");
        group
    }

    /// The settings of the terminal.
    pub fn settings(&self) -> Termios {
        tcgetattr(&self.master).expect("settings of a terminal")
    }

    /// Turns a setting of the local modes on, such as TOSTOP.
    pub fn set_local(&self, flag: LocalFlags, on: bool) {
        let mut settings = self.settings();
        settings.local_flags.set(flag, on);
        tcsetattr(&self.master, SetArg::TCSANOW, &settings).expect("settings of a terminal");
    }

    /// Live processes of the session whose program has this name, as truncated by the kernel.
    pub fn processes(&self, comm: &str) -> Vec<Stat> {
        self.marker.bearers().into_iter().filter(|stat| stat.comm == comm).collect()
    }

    /// Waits for the one process of the session whose program has this name.
    #[track_caller]
    pub fn process(&self, comm: &str) -> i32 {
        let one = || self.processes(comm).first().map(|stat| stat.pid);
        eventually(SOON, &format!("a process {comm:?} on the terminal"), one)
    }

    /// Waits until the session leader ends.
    #[track_caller]
    pub fn wait(&mut self) -> Exit {
        let exit = eventually(SOON, "the end of the session leader", || {
            self.read(Duration::from_millis(1));
            self.leader.try_wait().expect("our own child")
        });
        while self.read(Duration::from_millis(1)) && self.screen_grows() {}
        self.ended = Some(exit.into());
        exit.into()
    }

    fn screen_grows(&mut self) -> bool {
        let before = self.screen.len();
        self.read(Duration::from_millis(20));
        self.screen.len() > before
    }

    /// Hangs the terminal up, as a closed window or a lost connection does.
    pub fn hang_up(mut self) -> HungUp {
        let null = std::fs::File::open("/dev/null").expect("/dev/null");
        drop(std::mem::replace(&mut self.master, null));
        HungUp(self)
    }
}

/// A terminal after its hangup; its processes end with it.
pub struct HungUp(Terminal);

impl HungUp {
    /// Live processes of the session whose program has this name.
    pub fn processes(&self, comm: &str) -> Vec<Stat> {
        self.0.processes(comm)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.leader.kill();
            self.marker.kill_all();
            let _ = self.leader.wait();
        }
    }
}

/// Both ends of a new pseudo terminal, close-on-exec from the start: other tests fork at any time.
fn pair() -> (OwnedFd, OwnedFd) {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = posix_openpt(flags).expect("a pseudo terminal");
    grantpt(&master).expect("a pseudo terminal");
    unlockpt(&master).expect("a pseudo terminal");
    let name = ptsname_r(&master).expect("the name of a pseudo terminal");
    let mut options = std::fs::File::options();
    options.read(true).write(true).custom_flags(libc::O_NOCTTY);
    let slave = options.open(&name).expect("a pseudo terminal");
    // SAFETY: the descriptor is owned here, and nothing else closes it.
    let master = unsafe { std::os::fd::FromRawFd::from_raw_fd(std::os::fd::IntoRawFd::into_raw_fd(master)) };
    (master, slave.into())
}
