//! `dlock run`: take the lock, run the command under it, release. Joins the lease and the child, which know nothing of
//! each other.

mod acquiring;
mod environment;
mod running;

use std::time::Duration;

use crate::backend::{Backend, Release, StoreError};
use crate::child::protocol::Ended;
use crate::child::signals::{self, Source};
use crate::child::{Half, Inherited, Spec, Supervisor, Terminal, split};
use crate::cli::RunArguments;
use crate::clock::{Alarm, Moment};
use crate::duration::show;
use crate::exit::{self, Exit, Failure};
use crate::identity;
use crate::lock::{Claim, Token};
use crate::plan::{self, RunPlan};
use crate::report::{Reporter, store_failure};

use self::acquiring::Acquired;
use self::running::{End, Stopped};

/// Runs the command and returns how dlock ends.
pub fn run(arguments: Box<RunArguments>, inherited: Inherited) -> Exit {
    let reporter =
        Reporter::new(arguments.quiet, arguments.verbose, arguments.log_format.unwrap_or_default());
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
    let plan = plan::run(arguments)?;
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
    // A name that is still being looked up must not hold us up.
    runtime.shutdown_background();
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
        let plan = self.plan;
        let token = Token::random()
            .map_err(|error| Failure::internal(format!("no random numbers for a token: {error}")))?;
        let identity = identity::of_this_process(plan.program.file_name(), plan.note.clone());
        let claim = Claim { name: plan.name.clone(), token, ttl: plan.terms.ttl, identity };
        let mut backend = plan.store.open();

        let (grant, validity) = match self.acquire(backend.as_mut(), &claim, &mut supervisor).await {
            Acquired::Granted(grant, validity) => (grant, validity),
            Acquired::Not(exit) => {
                supervisor.dismiss();
                return exit;
            }
        };
        if validity.is_some_and(|validity| Moment::now() >= validity.start_before) {
            // Stopped between the grant and now: not enough of the lease is left to stop a command in good order.
            let late = StoreError::unreachable("too little of the lease is left to run a command safely");
            let _ = self.release(backend.as_mut(), &claim, &End::default()).await;
            supervisor.dismiss();
            return Err(self.failed(&late));
        }
        let end = self.keep_and_watch(backend.as_mut(), &claim, grant, validity, &mut supervisor).await;
        let released = self.release(backend.as_mut(), &claim, &end).await;
        supervisor.dismiss();
        self.say_end(&end, released);
        Ok(self.exit(&end))
    }

    /// Frees the lock, once, within a bounded time; a second fatal signal cuts that short.
    async fn release(
        &self,
        backend: &mut dyn Backend,
        claim: &Claim,
        end: &End,
    ) -> Result<Release, StoreError> {
        if let Some(Stopped::Lost(_)) = end.stopped {
            // The store itself has said that it is not ours any more.
            return Ok(Release::NotHeld);
        }
        let mut bound = self.plan.terms.connect_timeout;
        if let Some(ends) = end.lease_ends {
            // Beyond the end of the lease there is nothing to release; but one try it always gets.
            bound = bound.min((ends - Moment::now()).max(Duration::from_millis(500)));
        }
        let attempt = async {
            backend.connect().await?;
            match backend.release(claim).await {
                // The connection broke: whether the lock was freed is unknown, and asking again changes nothing then.
                Err(StoreError::Unavailable { maybe_applied, .. }) => {
                    backend.connect().await?;
                    match backend.release(claim).await? {
                        Release::NotHeld if maybe_applied => Ok(Release::Released),
                        release => Ok(release),
                    }
                }
                result => result,
            }
        };
        tokio::pin!(attempt);
        let limit = self.alarm.until(Moment::now() + bound);
        tokio::pin!(limit);
        let mut fatal_signals = 0;
        loop {
            tokio::select! {
                biased;
                result = &mut attempt => return result,
                () = &mut limit => {
                    return Err(StoreError::unanswered(format!("no answer within {} ms", bound.as_millis())));
                }
                arrival = self.signals.next() => {
                    fatal_signals += usize::from(signals::ENDING.contains(&arrival.signal));
                    if fatal_signals == 2 {
                        return Err(StoreError::unanswered("interrupted by a second signal"));
                    }
                }
            }
        }
    }

    /// What there is to say in the end, in one line each.
    fn say_end(&self, end: &End, released: Result<Release, StoreError>) {
        let name = &self.plan.name;
        let store = self.plan.store.display();
        if let Some(stopped) = &end.stopped {
            let what = match stopped {
                Stopped::Lost(loss) => {
                    format!("{name} on {store}: the lock was lost: {}", running::describe(*loss))
                }
                Stopped::Deadline => {
                    let why = end.trouble.as_deref().unwrap_or("dlock was stopped, or too slow");
                    format!("{name} on {store}: the lock could not be renewed in time ({why})")
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
        match released {
            // A deadline means that the store does not answer, or that the lease is over: nothing more to say.
            Err(error) if !matches!(end.stopped, Some(Stopped::Deadline)) => {
                let rest = end
                    .lease_ends
                    .map(|ends| format!("; it ends by itself within {}", show(ends - Moment::now())));
                let rest = rest.unwrap_or_default();
                self.reporter.warning(&format!("{name} on {store}: could not be released: {error}{rest}"));
            }
            Ok(Release::NotHeld) if end.stopped.is_none() && end.lost.is_none() => {
                self.reporter
                    .warning(&format!("{name} on {store}: was not held any more when the command ended"));
            }
            _ => {}
        }
    }

    fn exit(&self, end: &End) -> Exit {
        match (&end.stopped, end.ended) {
            (Some(Stopped::Guard(_)), _) => Exit::Status(exit::INTERNAL),
            (Some(Stopped::Lost(_) | Stopped::Deadline), _) => Exit::Status(exit::LOST),
            (Some(Stopped::MaxRuntime(_)), _) => Exit::Status(exit::MAX_RUNTIME),
            (None, Some(Ended::Exited(status))) => Exit::Status(status as u8),
            (None, Some(Ended::Killed(signal))) => Exit::Signal(signal),
            (None, Some(Ended::NotExecuted(errno))) => {
                Exit::Status(plan::program_failure(self.plan.program.exec_failure(errno)).status())
            }
            (None, None) => Exit::Status(exit::INTERNAL),
        }
    }

    fn failed(&self, error: &StoreError) -> Failure {
        let can_retry =
            self.plan.patience.retry.is_zero() && self.plan.patience.wait == crate::lease::acquire::Wait::No;
        store_failure(&self.plan.name, self.plan.store.display(), error, can_retry)
    }
}
