//! `dlock run`: takes the lock, runs the command under it, and releases it. Joins the lease and the child,
//! which are independent of each other.
//!
//! What always holds: the lock is released only after the command has ended, and its tree unless `--orphans leave`
//! spares it.

mod acquisition;
mod conclusion;
mod environment;
mod release;
mod supervised;
mod supervision;

use std::ffi::OsString;

use super::{event_loop, no_event_loop};
use crate::backend::{Release, StoreError};
use crate::child::signals::Source;
use crate::child::{ForkError, ForkedGuard, Supervisor};
use crate::clock::{Alarm, Moment};
use crate::exit::{Exit, Failure};
use crate::identity;
use crate::lease::acquire::NotGranted;
use crate::lease::acquire_all::{HeldLock, Lock};
use crate::lease::acquire_any::Wanted;
use crate::lock::{Claim, Identity, LockName, Token};
use crate::outer::OuterHolds;
use crate::priority;
use crate::report::{Cause, Files, Reporter, RunReport, Started, undated};
use crate::settings::{self, Configuration, OutputFiles, RunArguments, RunPlan};

use self::release::was_released;
use self::supervised::Supervised;

/// What the phases of a run share.
struct Run<'a> {
    plan: &'a RunPlan,
    reporter: &'a Reporter,
    signals: Source,
    alarm: Alarm,
}

/// Returns whether this is a `run` by its first words. Its guard is forked before the arguments are read, because it takes
/// longer to get ready than they do; otherwise it is forked after.
pub fn is_obvious(arguments: &[OsString]) -> bool {
    arguments.get(1).is_some_and(|word| word == "run") && arguments.iter().any(|word| word == "--")
}

pub fn run(arguments: Box<RunArguments>, guard: Result<ForkedGuard, ForkError>) -> Exit {
    let started = Started::now();
    let mut reporter = Reporter::of(&arguments.common);
    let mut files = Files::default();
    let configuration = Configuration::read(&arguments.common);
    let readable = configuration.as_ref().ok();
    let checked = files.check(&OutputFiles::of(&arguments, readable));
    let plan = checked.and_then(|()| plan(&arguments, &configuration, &reporter));
    let (mut report, result) = match with_supervisor(plan, guard) {
        Ok((plan, supervisor)) => {
            reporter = reporter
                .silenced(plan.settings.quiet())
                .with_conflict_exit_code(plan.settings.conflict_exit_code());
            let mut report =
                RunReport::new(started, &plan.names, Some(plan.target.store.display().to_owned()));
            if plan.wanted == Wanted::Any {
                report = report.of_any();
            }
            let result = start(plan, supervisor, &reporter, &mut report);
            (report, result)
        }
        Err(failure) => {
            let (names, backend) = settings::known(&arguments, readable);
            let report = RunReport::new(started, &names, backend);
            let report = if arguments.any.is_some() { report.of_any() } else { report };
            (report, Err(failure))
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

/// Tells the guard of its command, the last step before a runtime exists.
fn with_supervisor(
    plan: Result<RunPlan, Failure>,
    guard: Result<ForkedGuard, ForkError>,
) -> Result<(RunPlan, Supervisor), Failure> {
    let plan = plan?;
    let supervisor = guard.and_then(|guard| guard.supervise(&plan.program));
    Ok((plan, supervisor.map_err(|error| Failure::internal(error.to_string()))?))
}

fn plan(
    arguments: &RunArguments,
    configuration: &Result<Configuration, Failure>,
    reporter: &Reporter,
) -> Result<RunPlan, Failure> {
    let plan = RunPlan::new(arguments, configuration)?;
    plan.check_nesting()?;
    let reporter = reporter.clone().silenced(plan.settings.quiet());
    reporter.set_subject(&plan.names, plan.target.store.display());
    reporter.notices(&plan.target.notices);
    Ok(plan)
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
    super::end(runtime);
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
        let late = held.iter().find(|held| held.lease_state.is_too_short());
        let mut supervised = if late.is_some() {
            // dlock was stopped between the grant and now: too little of the lease is left to stop a command in time.
            Supervised { ran: false, ..Supervised::at_first(&held) }
        } else {
            super::warn_of_hazard(&held, &self.plan.target, self.reporter);
            self.warn_of_undated_success(&held);
            let launch = environment::launch(self.plan, &held, &outer);
            self.supervise(&held, &mut keepers, launch, &mut supervisor).await
        };
        let late = late.or_else(|| held.first().filter(|_| supervised.was_launched_too_late()));
        drop(keepers);
        // On a connection that was opened meanwhile.
        super::warn_of_exposure(&self.plan.target, self.reporter);
        self.note_end(&held, &supervised, report);
        let counts =
            self.plan.settings.once_per.is_some() && report.succeeded() && !supervised.was_told_to_end;
        supervised.success = counts.then_some(granted_at);
        report.held = Some(Moment::now() - granted_at);
        let too_late = late.map(|held| {
            let late = StoreError::unreachable("too little of the lease is left to run a command safely");
            report.cause = Some(Cause { lock: None, text: late.to_string() });
            self.lock_wait().failure(&held.lock.claim, NotGranted::Failed(late))
        });
        if let Some(failure) = &too_late {
            *report = report.clone().failed(failure);
        }
        let released = self.release_all(&held, &supervised, report, &mut supervisor).await;
        priority::restore();
        report.held = Some(Moment::now() - granted_at);
        report.released = Some(released.iter().all(was_released));
        for (held, released) in held.iter().zip(&released) {
            let (name, rest) = (held.name(), held.lease_state.rest());
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
        report.error = self.report_end(&supervised, released);
        drop(held);
        std::mem::forget(locks);
        Ok(())
    }

    /// Warns of a last success that was ignored because its time cannot be right.
    fn warn_of_undated_success(&self, held: &[HeldLock<'_>]) {
        for held in held {
            if let Some(ahead) = held.grant.undated {
                self.reporter.warning(&undated(held.name(), self.plan.target.store.display(), ahead));
            }
        }
    }

    /// Returns the claims, each with its own store connection.
    fn locks(&self, outer: &OuterHolds) -> Vec<Lock> {
        let plan = self.plan;
        let supersedes = plan.settings.supersede.is_some();
        let identity = identity::of_this_process(plan.program.file_name(), plan.settings.note());
        let lock = |(index, name): (usize, &LockName)| {
            let next_lock = match plan.wanted {
                Wanted::All => plan.names.get(index + 1).map(|next| next.as_str().to_owned()),
                Wanted::Any => None,
            };
            let once_per = plan.settings.once_per.as_ref().map(|known| known.value);
            let requires_outer_hold = outer.claims(name, plan.target.store.display());
            // An outer run is not superseded because one inside it would be.
            let supersedes = supersedes && !requires_outer_hold;
            let claim = Claim {
                mode: plan.mode,
                min_hold: plan.settings.min_hold(),
                identity: Identity { next_lock, supersedes, ..identity.clone() },
                // Inside a hold the last success would not be looked for.
                outer: if once_per.is_some() { Vec::new() } else { outer.tokens() },
                once_per,
                requires_outer_hold,
                ..Claim::new(name.clone(), Token::random(), plan.terms.ttl)
            };
            Lock::new(claim, plan.target.store.open())
        };
        let mut locks: Vec<Lock> = plan.names.iter().enumerate().map(lock).collect();
        if plan.wanted == Wanted::Any {
            // One that this process runs under is entered, and none beside it taken.
            locks.sort_by_key(|lock| !lock.claim.requires_outer_hold);
        }
        locks
    }
}
