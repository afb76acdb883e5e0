//! `dlock run`: take the lock, run the command under it, release. Joins the lease and the child, which know nothing of
//! each other.

mod acquiring;
mod environment;
mod nesting;
mod releasing;
mod running;

use crate::backend::{Release, StoreError};
use crate::child::protocol::Ended;
use crate::child::signals::Source;
use crate::child::{Half, Inherited, Spec, Supervisor, Terminal, split};
use crate::cli::RunArguments;
use crate::clock::{Alarm, Moment};
use crate::duration::show;
use crate::exit::{self, Exit, Failure};
use crate::identity;
use crate::lease::acquire::Wait;
use crate::lease::together::Lock;
use crate::lock::{Claim, LockName, Token};
use crate::plan::{RunPlan, program_failure};
use crate::report::{Reporter, hazard_of, revoked, store_failure};

use self::acquiring::Acquired;
use self::nesting::OuterHolds;
use self::running::{End, Stopped};

/// Runs the command and returns how dlock ends.
pub fn run(arguments: Box<RunArguments>, inherited: Inherited) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    match prepare(&arguments, inherited, &reporter) {
        Ok((plan, half)) => start(plan, half, &reporter).unwrap_or_else(|failure| reporter.failure(&failure)),
        Err(failure) => reporter.failure(&failure),
    }
}

/// Plans, and splits dlock into its two halves: the last thing before any runtime exists.
fn prepare(
    arguments: &RunArguments,
    inherited: Inherited,
    reporter: &Reporter,
) -> Result<(RunPlan, Half), Failure> {
    let plan = RunPlan::new(arguments)?;
    for notice in &plan.notices {
        reporter.warning(notice);
    }
    let spec = Spec { program: plan.program.clone(), inherited, terminal: Terminal::open() };
    let half = split(spec)
        .map_err(|error| Failure::internal(format!("cannot start the guarding process: {error}")))?;
    Ok((plan, half))
}

fn start(plan: RunPlan, half: Half, reporter: &Reporter) -> Result<Exit, Failure> {
    let internal = |error: std::io::Error| Failure::internal(format!("cannot start the event loop: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(internal)?;
    let exit = runtime.block_on(async {
        let signals = Source::new().map_err(internal)?;
        let alarm = Alarm::new().map_err(internal)?;
        let supervisor = Supervisor::new(half).map_err(internal)?;
        Session { plan: &plan, reporter, signals, alarm }.run(supervisor).await
    });
    // The process ends, and the kernel closes everything at once. Nor must a name hold us up that is still being looked
    // up, or a lock that a thread waits for.
    std::mem::forget(runtime);
    exit
}

/// What the phases of a run have in common.
struct Session<'a> {
    plan: &'a RunPlan,
    reporter: &'a Reporter,
    signals: Source,
    alarm: Alarm,
}

impl Session<'_> {
    async fn run(&self, mut supervisor: Supervisor) -> Result<Exit, Failure> {
        let outer = OuterHolds::of_environment();
        let locks = self.locks(&outer)?;
        let (held, mut keeping) = match self.acquire(&locks, &mut supervisor).await {
            Acquired::Granted(held, keeping) => (held, keeping),
            Acquired::Not(exit) => {
                supervisor.dismiss();
                return exit;
            }
        };
        let late = |validity: crate::lease::validity::Validity| Moment::now() >= validity.start_before;
        if held.iter().any(|held| held.standing.validity.is_some_and(late)) {
            // Stopped between the grant and now: not enough of the lease is left to stop a command in good order.
            drop(keeping);
            let late = StoreError::unreachable("too little of the lease is left to run a command safely");
            let _ = self.release_all(&locks, &held, &End::never_ran(&held)).await;
            supervisor.dismiss();
            return Err(self.failed(&locks[0].claim.name, &late));
        }
        if let Some(hazard) = held.iter().find_map(|held| held.hazard.as_ref()) {
            self.reporter.warning(&hazard_of(self.plan.store.display(), hazard));
        }
        let launch = environment::launch(self.plan, &locks, &held, &outer);
        let end = self.keep_and_watch(&held, &mut keeping, launch, &mut supervisor).await;
        drop(keeping);
        let released = self.release_all(&locks, &held, &end).await;
        supervisor.dismiss();
        self.say_end(&end, released);
        std::mem::forget(locks);
        Ok(self.exit(&end))
    }

    /// What is asked for, each on a store of its own.
    fn locks(&self, outer: &OuterHolds) -> Result<Vec<Lock>, Failure> {
        let plan = self.plan;
        let identity = identity::of_this_process(plan.program.file_name(), plan.note.clone());
        let lock = |name: &LockName| {
            let token = Token::random()
                .map_err(|error| Failure::internal(format!("no random numbers for a token: {error}")))?;
            let claim = Claim {
                name: name.clone(),
                token,
                mode: plan.mode,
                ttl: plan.terms.ttl,
                min_hold: plan.min_hold,
                identity: identity.clone(),
                outer: outer.tokens(),
                inside: outer.claims(name, plan.store.display()),
            };
            Ok(Lock::new(claim, plan.store.open()))
        };
        plan.names.iter().map(lock).collect()
    }

    /// What there is to say in the end, in one line each.
    fn say_end(&self, end: &End, released: Vec<Result<Release, StoreError>>) {
        let name = &self.plan.label();
        let store = self.plan.store.display();
        let of = |lock: usize| &self.plan.names[lock];
        if let Some(stopped) = &end.stopped {
            let what = match stopped {
                Stopped::Lost(lock, loss) => {
                    format!("{} on {store}: the lock was lost: {}", of(*lock), running::describe(*loss))
                }
                Stopped::Revoked(lock, revocation) => revoked(of(*lock), store, revocation),
                Stopped::Deadline(lock) => {
                    let why = end.trouble[*lock].as_deref().unwrap_or("dlock was stopped, or too slow");
                    format!("{} on {store}: the lock could not be renewed in time ({why})", of(*lock))
                }
                Stopped::MaxRuntime(limit) => format!("{name}: --max-runtime {} is over", show(*limit)),
                Stopped::Guard(why) => format!("{name}: {why}"),
            };
            let done = match end.not_permitted {
                true => "not all of its processes could be stopped",
                false => "the command was stopped",
            };
            self.reporter.error(&format!("{what}; {done}"));
        }
        if let Some(Ended::NotExecuted(errno)) = end.ended {
            self.reporter.error(&self.plan.program.exec_failure(errno).to_string());
        }
        if end.orphans_left && !self.plan.orphans_chosen {
            self.reporter.warning(&format!(
                "{name}: the command left background processes, which go on without the lock; see --orphans"
            ));
        }
        for (lock, released) in released.into_iter().enumerate() {
            let name = of(lock);
            match released {
                // A deadline means that the store does not answer, or that the lease is over: nothing more to say.
                Err(error) if !matches!(end.stopped, Some(Stopped::Deadline(_))) => {
                    let rest = end.lease_ends[lock]
                        .map(|ends| format!("; it ends by itself within {}", show(ends - Moment::now())));
                    let rest = rest.unwrap_or_default();
                    self.reporter
                        .warning(&format!("{name} on {store}: could not be released: {error}{rest}"));
                }
                Ok(Release::NotHeld) if end.stopped.is_none() && !end.lost[lock] => {
                    self.reporter
                        .warning(&format!("{name} on {store}: was not held any more when the command ended"));
                }
                _ => {}
            }
        }
    }

    fn exit(&self, end: &End) -> Exit {
        match (&end.stopped, end.ended) {
            (Some(Stopped::Guard(_)), _) => Exit::Status(exit::INTERNAL),
            (Some(Stopped::Lost(..) | Stopped::Revoked(..) | Stopped::Deadline(_)), _) => {
                Exit::Status(exit::LOST)
            }
            (Some(Stopped::MaxRuntime(_)), _) => Exit::Status(exit::MAX_RUNTIME),
            (None, Some(Ended::Exited(status))) => Exit::Status(status as u8),
            (None, Some(Ended::Killed(signal))) => Exit::Signal(signal),
            (None, Some(Ended::NotExecuted(errno))) => {
                Exit::Status(program_failure(self.plan.program.exec_failure(errno)).status())
            }
            (None, None) => Exit::Status(exit::INTERNAL),
        }
    }

    fn failed(&self, name: &LockName, error: &StoreError) -> Failure {
        let can_retry = self.plan.patience.retry.is_zero() && self.plan.patience.wait == Wait::No;
        store_failure(name, self.plan.store.display(), error, can_retry)
    }
}
