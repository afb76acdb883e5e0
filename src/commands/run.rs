//! `dlock run`: takes the lock, runs the command under it, and releases it. Joins the lease and the child,
//! which are independent of each other.
//!
//! What always holds: the lock is released only after the command has ended, and its tree unless `--orphans leave`
//! spares it.

mod acquisition;
mod conclusion;
mod environment;
mod outcome;
mod release;
mod supervision;

use super::{event_loop, no_event_loop};
use crate::backend::{Release, StoreError};
use crate::child::signals::Source;
use crate::child::{Inherited, Spec, Supervisor, Terminal, fork_guard};
use crate::clock::{Alarm, Moment};
use crate::exit::{Exit, Failure};
use crate::identity;
use crate::lease::acquire::NotGranted;
use crate::lease::acquire_all::{HeldLock, Lock};
use crate::lock::{Claim, Identity, LockName, Token};
use crate::outer::OuterHolds;
use crate::report::{Cause, Files, Reporter, RunReport, Started, undated};
use crate::settings::{self, Configuration, OutputFiles, RunArguments, RunPlan};

use self::outcome::RunOutcome;
use self::release::was_released;

/// What the phases of a run share.
struct Run<'a> {
    plan: &'a RunPlan,
    reporter: &'a Reporter,
    signals: Source,
    alarm: Alarm,
}

pub fn run(arguments: Box<RunArguments>, inherited: Inherited) -> Exit {
    let started = Started::now();
    let mut reporter = Reporter::of(&arguments.common);
    let mut files = Files::default();
    let configuration = Configuration::read(&arguments.common);
    let readable = configuration.as_ref().ok();
    let prepared = files.check(&OutputFiles::of(&arguments, readable));
    let prepared = prepared.and_then(|()| prepare(&arguments, &configuration, inherited, &reporter));
    let (mut report, result) = match prepared {
        Ok((plan, supervisor)) => {
            reporter = reporter.silenced(plan.settings.quiet());
            let mut report =
                RunReport::new(started, &plan.names, Some(plan.target.store.display().to_owned()));
            let result = start(plan, supervisor, &reporter, &mut report);
            (report, result)
        }
        Err(failure) => {
            let (names, backend) = settings::known(&arguments, readable);
            (RunReport::new(started, &names, backend), Err(failure))
        }
    };
    if let Err(failure) = result {
        reporter.failure(&failure);
        report = report.failed(&failure);
    }
    // The locks are released by now: writing the files delays no waiter.
    files.write(&report, &reporter);
    report.exit
}

/// Makes the plan, and forks the guard process, the last step before a runtime exists.
fn prepare(
    arguments: &RunArguments,
    configuration: &Result<Configuration, Failure>,
    inherited: Inherited,
    reporter: &Reporter,
) -> Result<(RunPlan, Supervisor), Failure> {
    let plan = RunPlan::new(arguments, configuration)?;
    plan.check_nesting()?;
    let reporter = reporter.clone().silenced(plan.settings.quiet());
    reporter.set_subject(&plan.names, plan.target.store.display());
    reporter.notices(&plan.target.notices);
    let spec = Spec { program: plan.program.clone(), inherited, terminal: Terminal::open() };
    let supervisor = fork_guard(spec).map_err(|error| Failure::internal(error.to_string()))?;
    Ok((plan, supervisor))
}

fn start(
    plan: RunPlan,
    mut supervisor: Supervisor,
    reporter: &Reporter,
    report: &mut RunReport,
) -> Result<(), Failure> {
    let runtime = match event_loop() {
        Ok(runtime) => runtime,
        Err(error) => {
            supervisor.dismiss();
            return Err(no_event_loop(error));
        }
    };
    let result = runtime.block_on(async {
        let sources = Source::new().and_then(|signals| Ok((signals, Alarm::new()?)));
        match sources.and_then(|sources| supervisor.watch().map(|()| sources)) {
            Ok((signals, alarm)) => {
                Run { plan: &plan, reporter, signals, alarm }.run(supervisor, report).await
            }
            Err(error) => {
                supervisor.dismiss();
                Err(no_event_loop(error))
            }
        }
    });
    // The process ends, and the kernel closes everything at once. A pending name lookup, or a lock that a
    // thread waits for, must not delay it.
    std::mem::forget(runtime);
    result
}

impl Run<'_> {
    /// Goes through all phases, and records their results in the report.
    async fn run(&self, mut supervisor: Supervisor, report: &mut RunReport) -> Result<(), Failure> {
        let outer = OuterHolds::of_environment();
        let locks = self.locks(&outer);
        report.requested = true;
        let (held, mut keepers) = match self.acquire(&locks, &mut supervisor, report).await {
            Ok(Some(granted)) => granted,
            not_acquired => {
                supervisor.dismiss();
                let result = not_acquired.map(drop);
                self.record_in_history(&locks, report, &result).await;
                return result;
            }
        };
        let granted_at = Moment::now();
        let late = |validity: crate::lease::validity::Validity| Moment::now() >= validity.start_before;
        let too_late = held.iter().any(|held| held.lease_state.validity.is_some_and(late));
        let mut outcome = if too_late {
            // dlock was stopped between the grant and now: too little of the lease is left to stop a command in time.
            RunOutcome::never_ran(&held)
        } else {
            super::warn_of_hazard(&held, &self.plan.target, self.reporter);
            self.warn_of_undated_success(&locks, &held);
            let launch = environment::launch(self.plan, &locks, &held, &outer);
            self.supervise(&held, &mut keepers, launch, &mut supervisor).await
        };
        drop(keepers);
        // On a connection that was opened meanwhile.
        super::warn_of_exposure(&self.plan.target, self.reporter);
        self.note_outcome(&held, &outcome, report);
        let counts = self.plan.settings.once_per.is_some() && report.succeeded() && !outcome.was_told_to_end;
        outcome.success = counts.then_some(granted_at);
        report.held = Some(Moment::now() - granted_at);
        let too_late = too_late.then(|| {
            let late = StoreError::unreachable("too little of the lease is left to run a command safely");
            report.cause = Some(Cause { lock: None, text: late.to_string() });
            self.lock_wait().failure(&locks[0].claim, NotGranted::Failed(late))
        });
        if let Some(failure) = &too_late {
            *report = report.clone().failed(failure);
        }
        let released = self.release_all(&locks, &held, &outcome, report).await;
        report.held = Some(Moment::now() - granted_at);
        report.released = Some(released.iter().all(was_released));
        for ((lock, held), released) in locks.iter().zip(&held).zip(&released) {
            let (name, rest) = (&lock.claim.name, held.lease_state.rest());
            match released {
                Ok(Release::Released) => self.reporter.released(name),
                // Where dlock itself has kept it until a signal came, that has been reported.
                Ok(Release::Kept) if held.grant.lease.is_some() && !rest.is_zero() => {
                    self.reporter.kept(name, rest);
                }
                _ => {}
            }
        }
        supervisor.dismiss();
        if let Some(failure) = too_late {
            return Err(failure);
        }
        report.error = self.report_outcome(&outcome, released);
        std::mem::forget(locks);
        Ok(())
    }

    /// Warns of a record that should not be trusted to say when the lock was last used with success.
    fn warn_of_undated_success(&self, locks: &[Lock], held: &[HeldLock]) {
        for (lock, held) in locks.iter().zip(held) {
            if let Some(ahead) = held.grant.undated {
                let (name, store) = (&lock.claim.name, self.plan.target.store.display());
                self.reporter.warning(&undated(name, store, ahead));
            }
        }
    }

    /// Returns the claims, each with its own store connection.
    fn locks(&self, outer: &OuterHolds) -> Vec<Lock> {
        let plan = self.plan;
        let identity = identity::of_this_process(plan.program.file_name(), plan.settings.note());
        let lock = |(index, name): (usize, &LockName)| {
            let next_lock = plan.names.get(index + 1).map(|next| next.as_str().to_owned());
            let once_per = plan.settings.once_per.as_ref().map(|known| known.value);
            let claim = Claim {
                mode: plan.mode,
                min_hold: plan.settings.min_hold(),
                identity: Identity { next_lock, ..identity.clone() },
                // Inside a hold the last success would not be looked for.
                outer: if once_per.is_some() { Vec::new() } else { outer.tokens() },
                once_per,
                requires_outer_hold: outer.claims(name, plan.target.store.display()),
                ..Claim::new(name.clone(), Token::random(), plan.terms.ttl)
            };
            Lock::new(claim, plan.target.store.open())
        };
        plan.names.iter().enumerate().map(lock).collect()
    }
}
