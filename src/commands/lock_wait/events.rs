//! What happens while dlock waits for locks: signals, news of the parked command, and the time for the next message.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use super::progress::Progress;
use super::{Interruption, LockWait};
use crate::child::signals::{self, EndRequests, WhileWaiting};
use crate::child::{Event, Supervisor, sys};
use crate::clock::{Alarm, Moment};
use crate::commands::or_never;
use crate::lease::acquire::WaitContext;

/// dlock stops waiting for the store and the guard process this long after the request to end. What follows
/// (a note in the history, the end of the guard process) is bounded too: dlock is gone within a second.
const LEAVE_WITHIN: Duration = Duration::from_millis(800);

/// The events of one wait.
pub(super) struct Events<'a> {
    wait: &'a LockWait<'a>,
    progress: &'a Progress<'a>,
    /// Of the parked command.
    supervisor: Option<&'a mut Supervisor>,
    requests: EndRequests,
    /// The wait was interrupted, and is being ended.
    pub(super) leaving: Option<Leaving>,
    /// Ends the parked command.
    kill: Option<Pin<Box<dyn Future<Output = ()> + 'a>>>,
    /// Ticks when there is something to report now and then.
    report_alarm: Option<Alarm>,
    report_at: Moment,
}

/// The end of an interrupted wait.
pub(super) struct Leaving {
    pub(super) why: Interruption,
    pub(super) by: Instant,
}

enum Reaction {
    Nothing,
    /// The locks that are already held are to be checked.
    CheckHeld,
    End(Interruption),
}

impl<'a> Events<'a> {
    pub(super) fn new(
        wait: &'a LockWait<'a>,
        progress: &'a Progress<'a>,
        supervisor: Option<&'a mut Supervisor>,
    ) -> Events<'a> {
        Events {
            wait,
            progress,
            supervisor,
            requests: EndRequests::default(),
            leaving: None,
            kill: None,
            report_alarm: wait.reporter.reports_waiting().then(Alarm::new).and_then(Result::ok),
            report_at: Moment::now() + progress.line.interval(),
        }
    }

    /// Handles events until an attempt to acquire the locks ends, and returns its result. `None`: it was cancelled, and did
    /// not end in time.
    ///
    /// # Errors
    /// The second terminating signal: its sender does not want to wait for the store.
    pub(super) async fn handle_during<T>(
        &mut self,
        mut attempt: Pin<&mut impl Future<Output = T>>,
        context: &WaitContext<'_>,
    ) -> Result<Option<T>, Interruption> {
        let wait = self.wait;
        let older_holder = &self.progress.older_holder;
        let mut revoking = wait.supersedes_holder.then(|| Box::pin(older_holder.revoke_each(wait.target)));
        let ended = loop {
            let reaction = tokio::select! {
                // A signal that came before the grant was read takes precedence: the grant has not been
                // reported yet.
                biased;
                arrival = wait.signals.next() => self.on_signal(arrival.signal)?,
                ended = &mut attempt => break Some(ended),
                event = or_never(self.supervisor.as_mut().map(|supervisor| supervisor.next())) => reaction_to(event),
                () = or_never(revoking.as_mut()) => Reaction::Nothing,
                () = or_never(self.kill.as_mut()) => {
                    self.kill = None;
                    Reaction::Nothing
                }
                () = or_never(self.leaving.as_ref().map(|leaving| sleep_until(leaving.by))) => break None,
                () = or_never(self.report_alarm.as_ref().map(|alarm| alarm.until(self.report_at))) => {
                    self.report_at = Moment::now() + self.progress.line.interval();
                    if self.leaving.is_none() {
                        self.progress.line.update();
                    }
                    Reaction::Nothing
                }
            };
            match reaction {
                Reaction::Nothing => {}
                Reaction::CheckHeld => context.check_held.send_replace(()),
                Reaction::End(why) => {
                    self.leave(why);
                    context.give_up.cancel();
                }
            }
        };
        if let (Some(kill), Some(leaving)) = (self.kill.take(), &self.leaving) {
            let _ = timeout_at(leaving.by, kill).await;
        }
        Ok(ended)
    }

    /// Begins to end the wait.
    fn leave(&mut self, why: Interruption) {
        let is_signal = matches!(why, Interruption::Signal(_));
        if !is_signal && let Some(supervisor) = self.supervisor.take() {
            self.kill = Some(Box::pin(supervisor.kill_tree(|_| {})));
        }
        let by = Instant::now() + LEAVE_WITHIN;
        self.leaving.get_or_insert(Leaving { why, by });
    }

    /// dlock may be stopped or terminated by the signal; and continued in the foreground or background.
    ///
    /// # Errors
    /// It is the second terminating signal: its sender does not want to wait for the store.
    fn on_signal(&mut self, signal: i32) -> Result<Reaction, Interruption> {
        self.progress.line.clear();
        let reaction = self.meaning_of(signal)?;
        self.report_at = self.report_at.min(Moment::now() + self.progress.line.interval());
        Ok(reaction)
    }

    /// What a signal means to a waiting dlock.
    ///
    /// # Errors
    /// It is the second terminating signal.
    fn meaning_of(&mut self, signal: i32) -> Result<Reaction, Interruption> {
        if signal == libc::SIGCHLD {
            // Stopped with dlock's process group, before it had left that. The command does not run yet.
            if let Some(supervisor) = &mut self.supervisor
                && supervisor.guard_stopped().is_some()
            {
                supervisor.continue_guard();
            }
            return Ok(Reaction::Nothing);
        }
        if signal == libc::SIGCONT {
            // One of several locks that are already held may have been revoked.
            return Ok(Reaction::CheckHeld);
        }
        if signals::is_ignored(signal) {
            return Ok(Reaction::Nothing);
        }
        match signals::while_waiting(signal) {
            WhileWaiting::Stop if self.leaving.is_none() => sys::raise_default(signal),
            WhileWaiting::End => {
                let is_second = self.requests.note();
                return match self.leaving.take_if(|_| is_second) {
                    Some(leaving) => Err(leaving.why),
                    None => Ok(Reaction::End(Interruption::Signal(signal))),
                };
            }
            _ => {}
        }
        Ok(Reaction::Nothing)
    }
}

fn reaction_to(event: Event) -> Reaction {
    match event {
        Event::GuardLost(why) => Reaction::End(Interruption::Guard(why)),
        Event::Ended(_) | Event::Finished { .. } => {
            Reaction::End(Interruption::Guard("the waiting process of the command died".into()))
        }
        _ => Reaction::Nothing,
    }
}
