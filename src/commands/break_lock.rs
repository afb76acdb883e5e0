//! `dlock break`: notifies the holder that its lock is revoked, and waits until it has released the lock. A freeze ends first.

use std::io::{BufRead, IsTerminal};
use std::slice::from_ref;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::{execute, hold, notices_about, thaw, within};
use crate::backend::StoreError;
use crate::backend::admin::{LockAdmin, OTHER_FORMAT, Removal};
use crate::clock::Moment;
use crate::duration::show_distance;
use crate::exit::{Exit, Failure};
use crate::identity;
use crate::lease::acquire::Wait;
use crate::lock::record::{BROKEN, REMOVED};
use crate::lock::{Holder, LockState, Record, Revocation};
use crate::report::{Reporter, broken_by, describe_freeze, describe_holder, printable, removed, store_error};
use crate::settings::{BreakArguments, BreakPlan};

/// The poll interval for a store without notifications.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The time limit for a holder without a lease.
const WITHOUT_LEASE: Duration = Duration::from_secs(30);
/// A lease counts as expired this much later than at the store.
const MARGIN: Duration = Duration::from_millis(200);

pub fn break_lock(arguments: &BreakArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    let plan =
        BreakPlan::new(arguments).and_then(|plan| match plan.options.yes || std::io::stdin().is_terminal() {
            true => Ok(plan),
            false => Err(Failure::usage(
                "break asks for confirmation, and standard input is not a terminal: give --yes",
            )),
        });
    execute(
        &reporter,
        plan,
        |plan| notices_about(&reporter, from_ref(&plan.name), &plan.target),
        async |plan| run(plan, &reporter).await,
    )
}

async fn run(plan: &BreakPlan<'_>, reporter: &Reporter) -> Result<Exit, Failure> {
    let store = plan.target.store.display();
    let mut breaking = Breaking { plan, reporter, store: plan.target.store.open(), notified: false };
    breaking.run().await.map_err(|error| {
        let mut failure = store_error(&format!("{} on {store}", plan.name), &error);
        if breaking.notified {
            failure.message.push_str("; its holder has already been notified, see dlock status");
        }
        failure
    })
}

struct Breaking<'a> {
    plan: &'a BreakPlan<'a>,
    reporter: &'a Reporter,
    store: Box<dyn LockAdmin>,
    /// A revocation was written to the store.
    notified: bool,
}

impl Breaking<'_> {
    async fn run(&mut self) -> Result<Exit, StoreError> {
        let plan = self.plan;
        let (name, store) = (&plan.name, plan.target.store.display());
        within(plan.target.connect_timeout, self.store.connect()).await?;
        let LockState { mut holders, mut freeze, .. } = self.state().await?;
        if let Some(fencing) = plan.options.fencing_token {
            holders.retain(|holder| holder.fencing == Some(fencing));
            freeze = None;
            if holders.is_empty() {
                return Ok(self.say(&format!("{name} on {store} is not held with fencing token {fencing}")));
            }
        }
        if holders.is_empty() && freeze.is_none() {
            return Ok(self.say(&format!("{name} on {store} is free")));
        }
        if holders.iter().any(|holder| holder.hint.as_deref() == Some(OTHER_FORMAT)) {
            return Err(StoreError::Config(format!("it is {OTHER_FORMAT}: use that one")));
        }
        for holder in &holders {
            let token = holder.fencing.map(|token| format!(", fencing token {token}")).unwrap_or_default();
            let before =
                holder.revoked.as_ref().map(|revocation| format!(", already {}", broken_by(revocation)));
            let before = before.unwrap_or_default();
            self.say(&format!("{name} is held by {}{token}{before}", describe_holder(holder, store)));
        }
        if let Some(freeze) = &freeze {
            self.say(&describe_freeze(name, freeze));
        }
        if !self.plan.options.yes {
            if !self.is_confirmed(holders.is_empty()) {
                self.reporter.warning(&format!("{name} is left unchanged"));
                return Ok(Exit::CONTENDED);
            }
            // The confirmation may have taken longer than the server's idle timeout: connect anew.
            self.store = plan.target.store.open();
        }
        if let Some(freeze) = &freeze {
            let is_gone = !thaw::end(&mut *self.store, name, freeze, &plan.target).await?;
            let how = if is_gone { "is not frozen by it any more" } else { "is thawed" };
            self.say(&format!("{name} on {store} {how}"));
            if holders.is_empty() {
                return Ok(Exit::SUCCESS);
            }
        }
        let begin = Moment::now();
        for holder in &holders {
            self.tell(holder).await?;
        }
        let left = self.wait_for(&holders, begin).await?;
        if left.is_empty() {
            for holder in holders.iter().filter(|holder| can_be_notified(holder)) {
                self.note(BROKEN, holder).await;
            }
            return Ok(self.say(&format!("{name} on {store}: that hold has ended")));
        }
        match plan.options.force {
            true => self.take_away(&left).await,
            false => Ok(self.not_yet(&left)),
        }
    }

    async fn state(&mut self) -> Result<LockState, StoreError> {
        hold::look(&mut *self.store, &self.plan.name, None, self.plan.target.connect_timeout).await
    }

    fn say(&self, line: &str) -> Exit {
        super::print(&format!("{}\n", printable(line)))
    }

    fn is_confirmed(&self, is_free: bool) -> bool {
        self.reporter.question(match self.plan.options.force {
            _ if is_free => "thaw it? [y/N]",
            true => "remove it, although its command may still run beside that of the next holder? [y/N]",
            false => "stop its command and break it? [y/N]",
        });
        let mut answer = String::new();
        let answered = std::io::stdin().lock().read_line(&mut answer).is_ok();
        if !answer.ends_with('\n') {
            self.reporter.end_of_question();
        }
        answered && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")
    }

    async fn tell(&mut self, holder: &Holder) -> Result<(), StoreError> {
        if !can_be_notified(holder) {
            return Ok(());
        }
        let by = format!("{}@{}", identity::user(), identity::host());
        let revocation = Revocation { by, reason: self.plan.reason.clone() };
        let revoking = self.store.revoke(&self.plan.name, holder, &revocation);
        within(self.plan.target.connect_timeout, revoking).await?;
        self.notified = true;
        if let Some(identity) = &holder.identity {
            identity::wake(identity, &self.plan.name);
        }
        Ok(())
    }

    /// Waits until none of these holds is left; returns those that still are.
    async fn wait_for(&mut self, holders: &[Holder], begin: Moment) -> Result<Vec<Holder>, StoreError> {
        let notified: Vec<&Holder> = holders.iter().filter(|holder| can_be_notified(holder)).collect();
        let rest = notified.iter().map(|holder| holder.remaining.map_or(WITHOUT_LEASE, |rest| rest + MARGIN));
        let until = match self.plan.options.wait {
            Some(Wait::No) => Some(begin),
            Some(Wait::For(wait)) => Some(begin + wait),
            Some(Wait::Forever) => None,
            None => Some(begin + rest.max().unwrap_or_default()),
        };
        // Holders that cannot be notified are not awaited, unless --wait is given.
        let pointless = notified.is_empty() && self.plan.options.wait.is_none();
        loop {
            let mut left = match self.state().await {
                Ok(state) => state.holders,
                // The store may recover within the time limit.
                Err(StoreError::Unavailable { .. }) if until.is_none_or(|until| Moment::now() < until) => {
                    let pause = until.map_or(POLL_INTERVAL, |until| POLL_INTERVAL.min(until - Moment::now()));
                    sleep(pause).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            left.retain(|left| holders.iter().any(|holder| holder.is_same_hold(left)));
            if left.is_empty() || pointless || until.is_some_and(|until| Moment::now() >= until) {
                return Ok(left);
            }
            let pause = until.map_or(POLL_INTERVAL, |until| POLL_INTERVAL.min(until - Moment::now()));
            // Wakes up earlier if the store sends a notification.
            let _ = timeout(pause, self.store.changed()).await;
        }
    }

    fn not_yet(&self, left: &[Holder]) -> Exit {
        let plan = self.plan;
        let (name, store) = (&plan.name, plan.target.store.display());
        let keeps_leases = plan.target.store.keeps_leases();
        for holder in left {
            let notified = can_be_notified(holder);
            let what = match &holder.identity {
                Some(_) if notified => "it has been notified, and has not released it yet",
                Some(_) => "it has no process that could be notified",
                None => "it is not a dlock, and cannot be notified",
            };
            let rest = match holder.remaining {
                // For the others this was printed before.
                Some(rest) if notified => {
                    format!("; its lease ends in {} unless it is renewed", show_distance(rest))
                }
                _ => String::new(),
            };
            let help = match (keeps_leases, notified) {
                (true, true) => {
                    "; wait longer (--wait), or remove it even if its command still runs (--force)"
                }
                (true, false) => "; --force removes it even if its command still runs",
                (false, true) => "; wait longer (--wait), or stop that process",
                (false, false) => "; stop that process, and the lock is free",
            };
            let line =
                format!("{name} is still held by {}: {what}{rest}{help}", describe_holder(holder, store));
            self.reporter.held(Some(name), Some(holder), &line);
        }
        Exit::CONTENDED
    }

    /// Records in the history of the lock that this hold was ended by an operator.
    async fn note(&mut self, outcome: &str, holder: &Holder) {
        let record = Record {
            outcome: outcome.to_owned(),
            identity: identity::of_this_process("dlock break".into(), None),
            fencing_token: holder.fencing,
            holder: holder.identity.clone(),
            reason: self.plan.reason.clone(),
            ..Record::default()
        };
        hold::note(&mut *self.store, &self.plan.name, &record, hold::RECORD).await;
    }

    async fn take_away(&mut self, left: &[Holder]) -> Result<Exit, StoreError> {
        let plan = self.plan;
        let (name, store) = (&plan.name, plan.target.store.display());
        let mut status = Exit::SUCCESS;
        for holder in left {
            let whose = describe_holder(holder, store);
            let removal = within(plan.target.connect_timeout, self.store.remove(name, holder)).await?;
            self.reporter.warning(&match removal {
                Removal::Removed => removed(name, holder, store),
                Removal::Changed => format!("{name} is no longer held as shown: nothing was removed"),
                Removal::Impossible => format!(
                    "{name} is held by {whose} in a session or by a descriptor, which --force cannot end: stop that \
                     process"
                ),
            });
            if removal == Removal::Removed {
                self.note(REMOVED, holder).await;
            } else {
                status = Exit::CONTENDED;
            }
        }
        if status == Exit::SUCCESS {
            self.say(&format!("{name} on {store}: that hold has ended"));
        }
        Ok(status)
    }
}

/// Whether the holder can be notified: a live dlock, or one that has left its lock to the store; not a token,
/// which has no process.
fn can_be_notified(holder: &Holder) -> bool {
    let attended = holder.identity.as_ref().is_some_and(|identity| !identity.unattended);
    attended && (holder.fencing.is_some() || holder.digest.is_some())
}
