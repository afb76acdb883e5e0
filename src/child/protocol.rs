//! What the two halves of dlock say to each other, over a socket pair. Each message is a length and JSON: a handful per
//! run, so that plainness counts for more than bytes.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::stop::{Deadlines, Orphans};
use super::sys;
use crate::clock::Moment;

/// Which process group the command runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Group {
    /// One of its own; in the terminal's foreground if so said.
    Own {
        /// dlock is in the foreground now and gives it to the command.
        foreground: bool,
    },
    /// dlock's, because others (a pipeline, a script) share it with dlock on a terminal.
    Shared,
}

/// Moments as they travel: time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Until {
    earliest: Duration,
    term: Duration,
    kill: Duration,
    dead: Duration,
}

impl From<Deadlines> for Until {
    fn from(deadlines: Deadlines) -> Until {
        Until {
            earliest: deadlines.earliest.since_boot(),
            term: deadlines.term.since_boot(),
            kill: deadlines.kill.since_boot(),
            dead: deadlines.dead.since_boot(),
        }
    }
}

impl From<Until> for Deadlines {
    fn from(until: Until) -> Deadlines {
        Deadlines {
            earliest: Moment::from_boot(until.earliest),
            term: Moment::from_boot(until.term),
            kill: Moment::from_boot(until.kill),
            dead: Moment::from_boot(until.dead),
        }
    }
}

/// What the command gets on top of what dlock itself was started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// Variables to set.
    pub set: Vec<(String, String)>,
    /// Variables to remove.
    pub unset: Vec<String>,
    /// Its process group.
    pub group: Group,
    /// It must not be started after this time since boot.
    pub not_after: Option<Duration>,
}

/// From dlock to the guarding process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuard {
    /// A descriptor whose closing would free the lock travels with this.
    Keep,
    /// The lock is ours and the command is about to be let go.
    Start {
        /// Its process group.
        group: Group,
        /// How long the lease allows it to run; `None` without a lease.
        until: Option<Until>,
        /// `--orphans`
        orphans: Orphans,
        /// `--grace`
        grace: Duration,
        /// So many descriptors have come before.
        keeps: usize,
    },
    /// A renewal was acknowledged.
    Arm(Until),
    /// dlock got this signal. Whether it is passed on is decided later.
    Told(i32),
    /// Pass this signal on.
    Forward(i32),
    /// SIGTERM now, SIGKILL at this time since boot.
    Terminate {
        /// When SIGKILL follows.
        kill_at: Duration,
    },
    /// SIGKILL now.
    Kill,
    /// To be answered at once by [`FromGuard::Pong`].
    Ping,
    /// The lock is still ours after a stop: let the command go on.
    Continue {
        /// Give it the terminal.
        foreground: bool,
    },
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// The kernel would not execute it: this errno.
    NotExecuted(i32),
}

/// From the guarding process to dlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuard {
    /// The command's process exists (and waits, or runs).
    Command(i32),
    /// The command was stopped by this signal.
    Stopped(i32),
    /// The command goes on after a stop.
    Continued,
    /// The answer to [`ToGuard::Ping`].
    Pong,
    /// The guarding process itself got a signal.
    Signalled {
        /// Its number.
        signal: i32,
        /// The process that has sent it.
        sender: i32,
    },
    /// No renewal came in time: the tree is being stopped.
    DeadlineReached,
    /// By the time by which the tree had to be dead, so many of its processes were not known to be.
    Overdue(usize),
    /// This process of the tree may not be signalled by us.
    NotPermitted(i32),
    /// This process of the tree has not died of SIGKILL yet; 0 when it cannot be found.
    StillAlive(i32),
    /// The command itself has ended.
    Ended(Ended),
    /// Everything is over; the guarding process leaves.
    Finished {
        /// Background processes live on without the lock.
        orphans_left: bool,
    },
    /// The command's process could not be made: this errno. The guarding process leaves.
    NotForked(i32),
    /// The guarding process could not do its work.
    Broken(String),
}

/// One end of the socket pair.
pub struct Channel {
    socket: UnixStream,
    buffer: Vec<u8>,
    passed: Option<OwnedFd>,
}

/// What reading brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<M> {
    /// A message.
    Message(M),
    /// Nothing more for now.
    Nothing,
    /// The other end is closed: its process is gone.
    Closed,
}

/// A broken pipe is an error and no signal; where there is no such flag, SIGPIPE is ignored or blocked in both halves.
#[cfg(target_os = "linux")]
const NO_SIGNAL: MsgFlags = MsgFlags::MSG_NOSIGNAL;
#[cfg(not(target_os = "linux"))]
const NO_SIGNAL: MsgFlags = MsgFlags::empty();

/// Far above any message: the environment of `DLOCK_HELD` is the largest part.
const LARGEST: usize = 1 << 20;

impl Channel {
    /// Both ends, close-on-exec and non-blocking.
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

    /// Sends one message, and a duplicate of a descriptor with it.
    ///
    /// # Errors
    /// `EPIPE` when the other end is gone, `EAGAIN` when it has not read for a very long time.
    pub fn send(&self, message: &impl Serialize, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        self.send_all(&frame(message)?, fd)
    }

    /// Sends of these bytes what the socket takes now.
    ///
    /// # Errors
    /// `EPIPE` when the other end is gone. A full socket takes 0 bytes, which is not an error.
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

    fn send_all(&self, frame: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
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
                // A long message to a slow reader; a reader that has stopped is noticed by other means.
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

    /// Waits until the socket takes more, or its other end is gone.
    ///
    /// # Errors
    /// None is known.
    pub fn wait_writable(&self) -> io::Result<()> {
        self.is_writable_within(PollTimeout::NONE).map(drop)
    }

    fn is_writable_within(&self, timeout: PollTimeout) -> io::Result<bool> {
        Ok(poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)], timeout)? > 0)
    }

    /// Takes the next message without blocking.
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

    /// The descriptor that came with the last message that had one.
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

/// A message as it travels, on the socket and on the pipe to the parked command.
///
/// # Errors
/// The message is larger than any that is meant.
pub fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(message)?;
    if json.len() > LARGEST {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut frame = (json.len() as u32).to_le_bytes().to_vec();
    frame.extend(json);
    Ok(frame)
}

/// Cuts the first whole message off the buffer: `None` when it is not complete, `Some(None)` when it cannot be read.
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
        assert_eq!(guard.receive::<ToGuard>(), Received::Closed);
    }

    #[test]
    fn a_long_message_fits() {
        let (dlock, mut guard) = Channel::pair().expect("socket pair");
        let message = FromGuard::Broken("x".repeat(60_000));
        dlock.send(&message, None).expect("send");
        assert_eq!(guard.receive(), Received::Message(message));
    }
}
