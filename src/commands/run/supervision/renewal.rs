//! What the keepers report: renewals, failures to renew, losses, revocations.

use super::super::supervised::{Stopped, Unguarded};
use super::{LONGEST_GRACE_AFTER_LOSS, Supervision};
use crate::backend::Loss;
use crate::clock::Moment;
use crate::duration::show_distance;
use crate::lease::keeper;
use crate::lock::Revocation;
use crate::settings::OnLost;

impl Supervision<'_> {
    pub(super) fn on_keeper(&mut self, lock: usize, event: keeper::Event) {
        match event {
            keeper::Event::Renewed { validity, took } => {
                let is_too_late =
                    matches!(self.supervised.stopped, Some(Stopped::Deadline(late)) if late == lock);
                let supervised = &mut self.supervised.locks[lock];
                supervised.note_renewal(validity, took);
                // Otherwise the failure is why the command is being stopped.
                if !is_too_late {
                    supervised.trouble = None;
                    if std::mem::take(&mut supervised.has_warned) {
                        self.run.reporter.renewed(&supervised.name, self.run.plan.target.store.display());
                    }
                }
                self.checked = false;
                if let Some(deadlines) = self.deadlines() {
                    self.supervisor.arm(deadlines);
                }
                self.confirmed(lock);
            }
            keeper::Event::Lost(loss) => self.on_lost(lock, loss),
            keeper::Event::Revoked(revocation) => self.on_revoked(lock, revocation),
            keeper::Event::Trouble(why) => self.on_trouble(lock, why),
        }
    }

    /// Notes a failure to renew. The first one that leaves less than half of the lease is reported even with `-q`.
    fn on_trouble(&mut self, lock: usize, why: String) {
        let (plan, reporter) = (self.run.plan, self.run.reporter);
        let now = Moment::now();
        let supervised = &mut self.supervised.locks[lock];
        let (name, store) = (&supervised.name, plan.target.store.display());
        match supervised.validity {
            Some(validity)
                if now >= validity.start_before
                    && self.supervised.stopped.is_none()
                    && !supervised.has_warned =>
            {
                supervised.has_warned = true;
                let what = match plan.settings.on_lost() {
                    OnLost::Kill => {
                        format!("the command will be stopped in {}", show_distance(validity.term - now))
                    }
                    OnLost::Warn => {
                        format!("the lock will be lost in {}", show_distance(validity.ends - now))
                    }
                };
                let line = format!("{name}: cannot renew on {store}: {why}; {what} unless that changes");
                reporter.renewal_failing(name, &line);
            }
            _ if supervised.trouble.is_some() => {}
            _ => reporter.detail(&format!("{name} on {store}: cannot renew: {why}")),
        }
        supervised.trouble = Some(why);
    }

    /// Called when this lock is confirmed, or is no longer needed: a command that waits for the last of them
    /// is continued.
    pub(super) fn confirmed(&mut self, lock: usize) {
        if let Some(unknown) = &mut self.resume_when_ours {
            unknown.retain(|unknown| *unknown != lock);
            if unknown.is_empty() {
                self.resume_when_ours = None;
                self.supervisor.resume();
            }
        }
    }

    fn on_lost(&mut self, lock: usize, loss: Loss) {
        let plan = self.run.plan;
        let is_revoked = matches!(self.supervised.stopped, Some(Stopped::Revoked(..)));
        if plan.settings.on_lost() == OnLost::Warn && !is_revoked {
            return self.go_on_without(lock, Unguarded::Lost(loss));
        }
        // No deadline matters any more, whatever happens to the other locks.
        self.supervised.locks.iter_mut().for_each(|lock| lock.validity = None);
        self.supervised.stopped.get_or_insert(Stopped::Lost(lock, loss));
        // A stopped command must not run another instruction, nor run beside the command of another holder.
        if loss == Loss::Taken || self.command_stopped {
            return self.supervisor.kill();
        }
        // If the command is being stopped already, the earlier end of the two counts.
        let grace = plan.terms.grace.min(LONGEST_GRACE_AFTER_LOSS);
        self.supervisor.terminate(Moment::now() + grace);
    }

    /// The lock stays held until the tree is dead, and is then released normally, whatever `--on-lost` is.
    fn on_revoked(&mut self, lock: usize, revocation: Revocation) {
        if self.supervised.stopped.is_none() {
            self.supervised.stopped = Some(Stopped::Revoked(lock, revocation));
            self.resume_when_ours = None;
            self.supervisor.terminate(Moment::now() + self.run.plan.terms.grace);
        }
    }
}
