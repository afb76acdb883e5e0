//! The controlling terminal: whether there is one, which process group is in its foreground, and moving that to the
//! command and back.

use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};

use super::protocol::Group;
use super::tree;

/// The controlling terminal of the session, if there is one.
pub struct Terminal {
    fd: Option<OwnedFd>,
    group: Pid,
    /// Standard input or output is a pipe. The first process of a pipeline may check its group before the shell has
    /// started the others; this reveals the pipeline nevertheless.
    piped: bool,
}

impl Terminal {
    /// Opens the controlling terminal. To be called while standard input and output are still the inherited ones.
    pub fn open() -> Terminal {
        let piped = is_pipe(std::io::stdin()) || is_pipe(std::io::stdout());
        let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        Terminal { fd: open("/dev/tty", flags, Mode::empty()).ok(), group: getpgrp(), piped }
    }

    /// Returns whether there is a controlling terminal: only then does job control matter.
    pub fn exists(&self) -> bool {
        self.fd.is_some()
    }

    /// Returns the process group for the command: its own if dlock is alone in its group, which without a terminal is
    /// the case if it leads the group. In a pipeline or a script all processes stay in one group, so that the
    /// terminal's signals and its foreground are what they would be without dlock. `own_pids` are dlock's own
    /// processes.
    pub fn group_for_command(&self, own_pids: &[i32]) -> Group {
        let leader = self.group == nix::unistd::getpid();
        if !leader {
            return Group::Shared;
        }
        if !self.exists() {
            return Group::Own { foreground: false };
        }
        let foreground = self.is_foreground();
        let no_shell = !foreground && self.group_is_orphaned();
        if no_shell || self.piped || tree::group_is_shared(own_pids).unwrap_or(true) {
            return Group::Shared;
        }
        Group::Own { foreground }
    }

    /// Returns whether no shell exists to continue a stopped dlock: the parent is in another session. The kernel then
    /// does not stop processes of the group that read or write from the background (`credentials(7)`); nor must the
    /// command be stopped.
    fn group_is_orphaned(&self) -> bool {
        getsid(Some(getppid())) != getsid(None)
    }

    /// Returns whether dlock's own process group is in the foreground.
    pub fn is_foreground(&self) -> bool {
        self.foreground() == Some(self.group)
    }

    /// Puts a process group into the foreground. SIGTTOU, which a background process receives for that, is blocked in
    /// every process of dlock.
    pub fn give_to(&self, group: i32) {
        if let Some(fd) = &self.fd {
            // The terminal may be gone, or the session's leader may have taken it: nothing can be done about either.
            let _ = tcsetpgrp(fd, Pid::from_raw(group));
        }
    }

    /// Takes the foreground back from the command's group, unless the shell has given it to another group meanwhile.
    pub fn take_back(&self, from: i32) {
        if self.foreground() == Some(Pid::from_raw(from)) {
            self.give_to(self.group.as_raw());
        }
    }

    fn foreground(&self) -> Option<Pid> {
        tcgetpgrp(self.fd.as_ref()?).ok()
    }
}

fn is_pipe(fd: impl std::os::fd::AsFd) -> bool {
    nix::sys::stat::fstat(fd).is_ok_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFIFO)
}
