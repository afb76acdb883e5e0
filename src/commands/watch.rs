//! `dlock status --watch` on a terminal: redraws on the alternate screen until a signal or `q` ends it.
//!
//! Called by `commands/status`. What always holds: however it ends, also by a panic, the terminal is as it was before.

mod display;

use std::collections::VecDeque;
use std::io;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use self::display::Display;
use crate::backend::{StoreError, io_text};
use crate::child::signals::{self, Source, WhileWaiting};
use crate::child::sys;
use crate::exit::{Exit, Failure};
use crate::report::is_stdout_writable;
use crate::report::screen::{Size, frame};

/// How much of a frame is written at a time, and how long a terminal that takes no more is left alone: it may have been
/// stopped with Ctrl-S, and signals are handled meanwhile.
const AT_A_TIME: usize = 256;
const PAUSE: Duration = Duration::from_millis(20);

/// Shows what `look` sees at each interval. `text` lays out what was seen, or why nothing was, for the terminal as it is.
///
/// # Errors
/// The first look fails, or a later one for another reason than a store that is unavailable; the terminal is gone.
pub(super) async fn on_terminal<S>(
    interval: Duration,
    mut look: impl AsyncFnMut() -> Result<S, StoreError>,
    text: impl Fn(&Result<S, StoreError>) -> String,
    failure: impl Fn(&StoreError) -> Failure,
) -> Result<Exit, Failure> {
    // Before there is another thread, which would be interrupted in place of this one.
    let mut watch = Watch::begin().map_err(no_terminal)?;
    let mut seen: Option<Result<S, StoreError>> = None;
    loop {
        let shown = || seen.as_ref().map(&text);
        let looked = match watch.until(look(), shown).await? {
            ControlFlow::Break(exit) => return Ok(exit),
            ControlFlow::Continue(looked) => looked,
        };
        match &looked {
            // A store that is unavailable at the start is an error; later it may recover.
            Err(error) if seen.is_none() || !matches!(error, StoreError::Unavailable { .. }) => {
                return Err(failure(error));
            }
            _ => seen = Some(looked),
        }
        let shown = || seen.as_ref().map(&text);
        if let Some(exit) = watch.draw(&shown).await? {
            return Ok(exit);
        }
        if let ControlFlow::Break(exit) = watch.until(tokio::time::sleep(interval), shown).await? {
            return Ok(exit);
        }
    }
}

fn no_terminal(error: io::Error) -> Failure {
    Failure::internal(format!("cannot use the terminal: {}", io_text(&error)))
}

/// What happens besides the looks.
enum Event {
    Signal(i32),
    /// `q` was typed.
    Quit,
    /// This job has the terminal again.
    Returned,
}

struct Watch {
    display: Display,
    signals: Source,
    /// Signals that came while a frame was being written.
    deferred: VecDeque<i32>,
}

impl Watch {
    fn begin() -> io::Result<Watch> {
        signals::block()?;
        Ok(Watch { display: Display::new()?, signals: Source::new()?, deferred: VecDeque::new() })
    }

    /// Does the work, and meanwhile what the terminal asks for; `text` is what it shows. Returns the exit if that is over.
    async fn until<T>(
        &mut self,
        work: impl Future<Output = T>,
        text: impl Fn() -> Option<String>,
    ) -> Result<ControlFlow<Exit, T>, Failure> {
        let mut work = pin!(work);
        loop {
            let event = match self.deferred.pop_front() {
                Some(signal) => Event::Signal(signal),
                None => tokio::select! {
                    biased;
                    arrival = self.signals.next() => Event::Signal(arrival.signal),
                    () = self.display.quit() => Event::Quit,
                    () = self.display.returned() => Event::Returned,
                    done = &mut work => return Ok(ControlFlow::Continue(done)),
                },
            };
            let exit = match event {
                Event::Quit => Some(Exit::SUCCESS),
                Event::Returned => self.draw(&text).await?,
                Event::Signal(signal) => self.signal(signal, &text).await?,
            };
            if let Some(exit) = exit {
                return Ok(ControlFlow::Break(exit));
            }
        }
    }

    /// Does what a signal asks for. Returns the exit if it ends dlock.
    async fn signal(
        &mut self,
        signal: i32,
        text: &impl Fn() -> Option<String>,
    ) -> Result<Option<Exit>, Failure> {
        match signals::while_waiting(signal) {
            _ if signals::is_ignored(signal) => return Ok(None),
            WhileWaiting::End => return Ok(Some(Exit::Signal(signal))),
            WhileWaiting::Stop => {
                self.display.leave();
                sys::raise_default(signal);
            }
            WhileWaiting::Nothing if !matches!(signal, libc::SIGCONT | libc::SIGWINCH) => return Ok(None),
            WhileWaiting::Nothing => {}
        }
        self.draw(text).await
    }

    /// Notes a signal for later. As in the kernel, one that continues takes back those that stop.
    fn defer(&mut self, signal: i32) {
        if signal == libc::SIGCONT {
            self.deferred.retain(|signal| !signals::stops(*signal));
        }
        self.deferred.push_back(signal);
    }

    /// Draws the text, if there is one yet, unless another job has the terminal. Returns the exit if a signal ends dlock.
    async fn draw(&mut self, text: &impl Fn() -> Option<String>) -> Result<Option<Exit>, Failure> {
        let Some(text) = text() else { return Ok(None) };
        if !self.display.is_foreground() {
            return Ok(None);
        }
        let entered = self.display.enter().map_err(no_terminal)?;
        let frame = format!("{entered}{}", frame(&text, Size::of_stdout()));
        for part in frame.as_bytes().chunks(AT_A_TIME) {
            while !is_stdout_writable() {
                tokio::select! {
                    biased;
                    arrival = self.signals.next() => match signals::while_waiting(arrival.signal) {
                        WhileWaiting::End if !signals::is_ignored(arrival.signal) => {
                            return Ok(Some(Exit::Signal(arrival.signal)));
                        }
                        _ => self.defer(arrival.signal),
                    },
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
            self.display.write(part).map_err(no_terminal)?;
        }
        Ok(None)
    }
}
