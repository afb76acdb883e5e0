//! The terminal while it shows the alternate screen: its mode, and the key that ends it.

use std::io::{self, IsTerminal, stdin, stdout};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};
use nix::unistd::{getpgrp, read, tcgetpgrp};

use crate::readiness::Readiness;
use crate::report::screen::{ENTER, LEAVE};
use crate::report::to_stdout;

/// How long the restoration of the screen may take: the terminal may be stopped or gone.
const PATIENCE: Duration = Duration::from_millis(500);

/// How often a job in the background looks whether it has the terminal again.
const RETURN: Duration = Duration::from_millis(500);

/// The terminal that standard output is. Restored when the value is dropped.
pub(super) struct Display {
    /// Shared with the hook that a panic calls.
    is_entered: Arc<AtomicBool>,
    /// The keyboard, if standard input is a terminal too.
    keyboard: Option<Readiness>,
    /// Its settings before the screen was entered.
    settings: Option<Termios>,
}

impl Display {
    /// # Errors
    /// No descriptor is left, or the terminal is gone.
    pub(super) fn new() -> io::Result<Display> {
        let (keyboard, settings) = match stdin().is_terminal() {
            true => (Some(Readiness::of(&stdin())?), Some(tcgetattr(stdin())?)),
            false => (None, None),
        };
        let is_entered = Arc::new(AtomicBool::new(false));
        restore_on_panic(is_entered.clone(), settings.map(Into::into));
        Ok(Display { is_entered, keyboard, settings: None })
    }

    /// Whether this job has the terminal. Without job control, every process has it.
    pub(super) fn is_foreground(&self) -> bool {
        tcgetpgrp(stdout()).map_or(true, |group| group == getpgrp())
    }

    /// Has keys delivered one by one, without an echo. Returns the sequence that switches the screen; nothing if it is
    /// entered already.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn enter(&mut self) -> io::Result<&'static str> {
        if self.keyboard.is_some() {
            let before = tcgetattr(stdin())?;
            let mut settings = before.clone();
            settings.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
            // A read returns what there is.
            settings.control_chars[SpecialCharacterIndices::VMIN as usize] = 0;
            settings.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
            // After a stop that could not be caught, another program may have changed them.
            if settings != before {
                tcsetattr(stdin(), SetArg::TCSANOW, &settings)?;
                self.settings.get_or_insert(before);
            }
        }
        let was_entered = self.is_entered.swap(true, Ordering::Relaxed);
        Ok(if was_entered { "" } else { ENTER })
    }

    /// Restores the screen and the settings, if the screen is entered.
    pub(super) fn leave(&mut self) {
        restore(&self.is_entered, |leave| _ = to_stdout(leave, Some(PATIENCE)));
        // Another job that has the terminal has settings of its own.
        if let Some(settings) = self.settings.take().filter(|_| self.is_foreground()) {
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, &settings);
        }
    }

    /// Writes a part of a frame.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn write(&self, part: &[u8]) -> io::Result<()> {
        to_stdout(part, None)
    }

    /// Waits until `q` is typed; other keys are read and ignored. Dropping the future loses none.
    pub(super) async fn quit(&self) {
        let Some(keyboard) = &self.keyboard else { return std::future::pending().await };
        loop {
            let mut keys = [0; 64];
            // While the settings are not those of the screen, a read would wait for a line, or stop a background job.
            while self.settings.is_some() && self.is_foreground() {
                match read(stdin(), &mut keys) {
                    Ok(count) if keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => return,
                    Ok(count) if count > 0 => {}
                    _ => break,
                }
            }
            keyboard.wait().await;
            if is_hung_up() {
                // It would be ready for ever. Writing will fail.
                return std::future::pending().await;
            }
        }
    }

    /// Waits until this job has the terminal again, if its screen is not entered: a shell tells only a job that is stopped.
    pub(super) async fn returned(&self) {
        loop {
            tokio::time::sleep(RETURN).await;
            if !self.is_entered.load(Ordering::Relaxed) && self.is_foreground() {
                return;
            }
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Whether the terminal that standard input was is gone.
fn is_hung_up() -> bool {
    let stdin = stdin();
    let mut ready = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let gone = PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    poll(&mut ready, PollTimeout::ZERO).is_err()
        || ready[0].revents().is_some_and(|revents| revents.intersects(gone))
}

/// Has the sequence written that restores the screen, if it is entered. Returns whether it was.
fn restore(is_entered: &AtomicBool, write: impl FnOnce(&str)) -> bool {
    let was_entered = is_entered.swap(false, Ordering::Relaxed);
    if was_entered {
        write(LEAVE);
    }
    was_entered
}

/// Restores the terminal before the message of a panic, which ends the process without dropping anything.
fn restore_on_panic(is_entered: Arc<AtomicBool>, settings: Option<libc::termios>) {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let was_entered = restore(&is_entered, |leave| _ = to_stdout(leave, Some(PATIENCE)));
        if let Some(settings) = settings.filter(|_| was_entered) {
            let _ = tcsetattr(stdin(), SetArg::TCSANOW, &Termios::from(settings));
        }
        report(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a panic would write.
    fn written(display: &Display) -> String {
        let mut written = String::new();
        restore(&display.is_entered, |text| written.push_str(text));
        written
    }

    #[test]
    fn only_a_screen_that_was_entered_is_left() {
        let mut display = Display { is_entered: Arc::default(), keyboard: None, settings: None };
        assert_eq!(written(&display), "");
        assert_eq!(display.enter().expect("no terminal is needed"), ENTER);
        assert_eq!(display.enter().expect("no terminal is needed"), "");
        assert_eq!([written(&display), written(&display)], [LEAVE, ""]);
    }
}
