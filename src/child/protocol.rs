//! The messages between dlock and its guard, over a socket pair. Each message is a length and JSON: there are few per
//! run, so simplicity matters more than size.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::cgroup::CgroupPath;
use super::deadlines::Deadlines;
use super::stop::StopOptions;
use super::sys;
use crate::clock::Moment;

/// Which process group the command runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Group {
    /// A group of its own, in the terminal's foreground if `foreground` is set.
    Own {
        /// dlock is in the foreground now and passes it to the command.
        foreground: bool,
    },
    /// dlock's group, because other processes (a pipeline, a script) share it with dlock on a terminal.
    Shared,
}

/// What is added to the environment that dlock was started with, and where and when the command may start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to remove.
    pub unset: Vec<String>,
    /// Its process group.
    pub group: Group,
    /// It must not be started after this moment.
    pub not_after: Option<Moment>,
}

/// A message from dlock to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuard {
    /// Carries a descriptor whose closing would free the lock.
    Keep,
    /// The lock is held and the command is about to be let go.
    Start {
        /// Its process group.
        group: Group,
        /// The deadlines of the lease; `None` without a lease.
        until: Option<Deadlines>,
        /// How the tree is stopped.
        stop: StopOptions,
        /// The number of descriptors sent before.
        keeps: usize,
    },
    /// A renewal was acknowledged.
    Arm(Deadlines),
    /// dlock has received this signal. Whether it is forwarded is decided later.
    Received(i32),
    /// Forward this signal to the command.
    Forward(i32),
    /// The stop signal now, SIGKILL at this moment. The guard replies as to a ping.
    Terminate {
        /// When SIGKILL follows.
        kill_at: Moment,
    },
    /// SIGKILL now. The guard replies as to a ping.
    Kill,
    /// A ping; the guard replies at once with [`FromGuard::Pong`].
    Ping,
    /// The lock is still held after a stop: continue the command.
    Continue {
        /// Give it the terminal.
        foreground: bool,
    },
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(i32),
    /// The kernel did not execute it; the errno.
    NotExecuted(i32),
}

/// A message from the guard to dlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuard {
    /// The command's process exists (parked or running).
    Command {
        /// Its number.
        pid: i32,
        /// The cgroup that was created for it.
        cgroup: Option<CgroupPath>,
    },
    /// The reply to [`ToGuard::Ping`], and to an order to stop the tree.
    Pong,
    /// The guard itself has received a signal.
    Signalled {
        /// Its number.
        signal: i32,
        /// The process that sent it.
        sender: i32,
    },
    /// Something happened to the command or to the guard.
    Event(Event),
}

/// What happened to the command or to the guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command was continued.
    Continued,
    /// No renewal was acknowledged in time: the tree is being stopped.
    DeadlineReached,
    /// SIGKILL is being sent to the tree.
    Killing,
    /// At the deadline for the tree's death, this many of its processes were not known to be dead.
    Overdue(usize),
    /// The guard may not signal this process of the tree.
    NotPermitted(i32),
    /// This process of the tree has not died of SIGKILL yet; 0 if it cannot be found.
    StillAlive(i32),
    /// The terminal has told the command to end.
    Interrupted,
    /// The command itself has ended.
    Ended(Ended),
    /// The whole tree has ended, or what is left of it lives on without the lock. The guard exits.
    Finished {
        /// Background processes live on.
        orphans_left: bool,
    },
    /// The guard is dead, stopped or broken; the reason. The receiver calls [`super::Supervisor::kill_tree`].
    GuardLost(String),
}

/// One end of the socket pair.
pub struct Channel {
    socket: UnixStream,
    buffer: Vec<u8>,
    passed: Option<OwnedFd>,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<M> {
    /// A message.
    Message(M),
    /// No complete message is available.
    Nothing,
    /// The other end is closed: its process is gone.
    Closed,
}

/// A broken pipe is an error, not a signal; on systems without such a flag, SIGPIPE is ignored or blocked in both
/// processes.
const NO_SIGNAL: MsgFlags = MsgFlags::MSG_NOSIGNAL;

/// Far above the size of any message: `DLOCK_HELD` is the largest part.
const LARGEST: usize = 1 << 20;

impl Channel {
    /// Returns both ends, close-on-exec and non-blocking.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn pair() -> io::Result<(Channel, Channel)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Channel::new(one)?, Channel::new(other)?))
    }

    fn new(socket: UnixStream) -> io::Result<Channel> {
        socket.set_nonblocking(true)?;
        Ok(Channel { socket, buffer: Vec::new(), passed: None })
    }

    /// Sends one message, with a duplicate of a descriptor if there is one.
    ///
    /// # Errors
    /// `EPIPE` if the other end is gone, `EAGAIN` if it has not read for a very long time.
    pub fn send(&self, message: &impl Serialize, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let frame = frame(message)?;
        let fds: Vec<RawFd> = fd.iter().map(|fd| fd.as_raw_fd()).collect();
        let rights = [ControlMessage::ScmRights(&fds)];
        let control = if fds.is_empty() { &[][..] } else { &rights[..] };
        let mut sent = 0;
        while sent < frame.len() {
            let control = if sent == 0 { control } else { &[] };
            match sendmsg::<()>(
                self.socket.as_raw_fd(),
                &[IoSlice::new(&frame[sent..])],
                control,
                NO_SIGNAL,
                None,
            ) {
                Ok(count) => sent += count,
                Err(Errno::EINTR) => {}
                // A long message to a slow reader; a stopped reader is detected by other means.
                Err(Errno::EAGAIN) if sent > 0 => {
                    if !self.is_writable_within(PollTimeout::from(1000u16))? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Sends as many of these bytes as the socket takes now, and returns their number.
    ///
    /// # Errors
    /// `EPIPE` if the other end is gone. A full socket takes 0 bytes, which is not an error.
    pub fn send_some(&self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match sendmsg::<()>(self.socket.as_raw_fd(), &[IoSlice::new(bytes)], &[], NO_SIGNAL, None) {
                Ok(count) => return Ok(count),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(0),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns whether the socket takes more within this time, or its other end is gone.
    ///
    /// # Errors
    /// None known.
    pub fn is_writable_within(&self, timeout: PollTimeout) -> io::Result<bool> {
        Ok(poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)], timeout)? > 0)
    }

    /// Returns the next message without blocking.
    pub fn receive<M: DeserializeOwned>(&mut self) -> Received<M> {
        loop {
            if let Some(message) = take_frame(&mut self.buffer) {
                return message.map_or(Received::Closed, Received::Message);
            }
            match self.fill() {
                Ok(0) => return Received::Closed,
                Ok(_) => {}
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Received::Nothing,
                Err(_) => return Received::Closed,
            }
        }
    }

    /// Returns the descriptor that came with the last message that had one.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.passed.take()
    }

    fn fill(&mut self) -> Result<usize, Errno> {
        let mut bytes = [0u8; 4096];
        let (count, passed) = sys::receive(self.socket.as_fd(), &mut bytes)?;
        self.passed = passed.or(self.passed.take());
        self.buffer.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Encodes a message for the socket, or for the pipe to the parked command.
///
/// # Errors
/// The message is larger than the limit.
pub fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    if json.len() > LARGEST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut frame = (json.len() as u32).to_le_bytes().to_vec();
    frame.extend(json);
    Ok(frame)
}

/// Removes the first whole message from the buffer: `None` if it is not complete, `Some(None)` if it cannot be read.
pub fn take_frame<M: DeserializeOwned>(buffer: &mut Vec<u8>) -> Option<Option<M>> {
    let length = u32::from_le_bytes(buffer.get(..4)?.try_into().ok()?) as usize;
    if length > LARGEST {
        return Some(None);
    }
    let message = serde_json::from_slice(buffer.get(4..4 + length)?).ok();
    buffer.drain(..4 + length);
    Some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_descriptors_arrive() {
        let (dlock, mut guard) = Channel::pair().expect("socket pair");
        assert_eq!(guard.receive::<ToGuard>(), Received::Nothing);
        let file = std::fs::File::open("/dev/null").expect("open");
        dlock.send(&ToGuard::Forward(15), Some(file.as_fd())).expect("send");
        dlock.send(&ToGuard::Kill, None).expect("send");
        assert_eq!(guard.receive(), Received::Message(ToGuard::Forward(15)));
        assert!(guard.take_descriptor().is_some());
        assert_eq!(guard.receive(), Received::Message(ToGuard::Kill));
        drop(dlock);
        // A process that another test has forked meanwhile has the other end too, until it executes its program.
        let begun = std::time::Instant::now();
        let mut last = guard.receive::<ToGuard>();
        while last == Received::Nothing && begun.elapsed() < std::time::Duration::from_secs(30) {
            std::thread::sleep(std::time::Duration::from_millis(1));
            last = guard.receive();
        }
        assert_eq!(last, Received::Closed);
    }

    #[test]
    fn a_long_message_fits() {
        let (dlock, mut guard) = Channel::pair().expect("socket pair");
        let message = FromGuard::Event(Event::GuardLost("x".repeat(60_000)));
        dlock.send(&message, None).expect("send");
        assert_eq!(guard.receive(), Received::Message(message));
    }
}
