//! `dlock acquire`: takes a lease without a process, to be renewed with its token.

use std::cell::RefCell;
use std::io;
use std::os::fd::AsFd;
use std::slice::from_ref;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::json;

use super::lock_wait::{Interruption, LockWait};
use super::{execute, hold, no_signals, notices_about};
use crate::backend::location::Demand;
use crate::backend::{Ending, Release, StoreError, io_text};
use crate::child::signals::{self, Source};
use crate::clock::{Alarm, Moment};
use crate::exit::{Exit, Failure, FailureKind};
use crate::identity;
use crate::lease::acquire::NotGranted;
use crate::lease::acquire_all::{HeldLock, Lock};
use crate::lease::acquire_any::Wanted;
use crate::lock::record::ACQUIRED;
use crate::lock::{Claim, Holder, Identity, Record, Token};
use crate::report::{self, Outcome, Reporter, TokenFile, frozen_by, lock_error, milliseconds, to_stdout};
use crate::settings::{self, AcquireArguments, AcquirePlan};

/// The name shown to other clients instead of a command.
const COMMAND: &str = "dlock acquire";

/// The time limit for the reader of a token.
const READER_WITHIN: Duration = Duration::from_secs(2);

pub fn acquire(arguments: &AcquireArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    // Signals are blocked from the beginning, so that exceeding the file size limit is an error and does not
    // kill dlock (SIGXFSZ).
    let blocked = signals::block().map(drop).map_err(no_signals);
    let planned = blocked.and_then(|()| Ok((AcquirePlan::new(arguments)?, token_file(arguments)?)));
    let reporter = match &planned {
        Ok((AcquirePlan { settings, .. }, _)) => {
            reporter.silenced(settings.quiet()).with_conflict_exit_code(settings.conflict_exit_code())
        }
        Err(_) => reporter,
    };
    let work = async |(plan, token_file): &(AcquirePlan, Option<TokenFile>)| {
        let (json, token_file) = (arguments.json, token_file.as_ref());
        Acquiring { plan, json, token_file, reporter: &reporter, replaceable: RefCell::default() }
            .take_and_write_token()
            .await
    };
    execute(
        &reporter,
        planned,
        |(plan, _)| notices_about(&reporter, from_ref(&plan.name), &plan.target),
        work,
    )
}

/// Returns the file for the token, if one was named, and checks that the token can be written.
///
/// # Errors
/// It cannot (64).
fn token_file(arguments: &AcquireArguments) -> Result<Option<TokenFile>, Failure> {
    let file = arguments.token_file.as_deref().map(TokenFile::find).transpose();
    let file =
        file.map_err(|error| settings::Source::Flag("--token-file").failure(report::reason(&error)))?;
    if (file.is_none() || arguments.json) && !is_inherited(io::stdout()) {
        return Err(Failure::usage("standard output is closed: the token would be lost, see --token-file"));
    }
    Ok(file)
}

/// Whether a standard descriptor was inherited: those passed on by exec have no close-on-exec flag, and one
/// that was opened in place of a closed one does.
fn is_inherited(descriptor: impl AsFd) -> bool {
    let flags = fcntl(descriptor, FcntlArg::F_GETFD).map(FdFlag::from_bits_retain);
    flags.is_ok_and(|flags| !flags.contains(FdFlag::FD_CLOEXEC))
}

struct Acquiring<'a> {
    plan: &'a AcquirePlan,
    json: bool,
    /// The file for the token instead of standard output.
    token_file: Option<&'a TokenFile>,
    reporter: &'a Reporter,
    /// The token in the file that was found to own nothing.
    replaceable: RefCell<Option<Token>>,
}

impl Acquiring<'_> {
    async fn take_and_write_token(&self) -> Result<Exit, Failure> {
        let plan = self.plan;
        let signals = Source::new().map_err(no_signals)?;
        let alarm = Alarm::new().map_err(no_signals)?;
        match self.check_unless_signalled(&signals).await {
            Err(signal) => return Ok(Exit::Signal(signal)),
            // It may recover while the lock is waited for; the file is checked again before it is written.
            Ok(Err(Failure { kind: FailureKind::Unavailable, .. })) => {}
            Ok(checked) => checked?,
        }
        let lock = Lock::new(self.claim(), plan.target.store.open());
        let lock_wait = LockWait {
            reporter: self.reporter,
            signals: &signals,
            alarm: &alarm,
            target: &plan.target,
            patience: plan.settings.patience(),
            terms: &plan.terms,
            is_ttl_chosen: true,
            supersedes_holder: false,
            consequence: "",
        };
        let awaited = lock_wait.locks(std::slice::from_ref(&lock), Wanted::All, None).await;
        super::warn_of_exposure(&plan.target, self.reporter);
        let awaited = match awaited {
            Ok(awaited) => awaited,
            Err(Interruption::Signal(signal)) => return Ok(Exit::Signal(signal)),
            Err(Interruption::Guard(why)) => return Err(Failure::internal(why)),
        };
        let waited = awaited.waited;
        let held = match awaited.granted {
            Ok((held, keepers)) => {
                drop(keepers);
                held
            }
            Err((_, NotGranted::Contended(ref busy))) => {
                let instead =
                    "a separate token cannot be acquired inside it: omit dlock acquire, or use another name";
                let line = lock_wait.report_contended(&awaited, &plan.name, busy, instead);
                let record = Record {
                    outcome: Outcome::Contended.as_str().to_owned(),
                    dlock_exit: plan.settings.conflict_exit_code().into(),
                    kept_ms: busy.holder().and_then(Holder::kept).map(milliseconds),
                    holder: busy.holder().and_then(|holder| holder.identity.clone()),
                    error: Some(busy.freeze.as_deref().map_or(line, frozen_by)),
                    ..self.record(&lock.claim, awaited.waited)
                };
                hold::note(&mut **lock.backend(), &plan.name, &record, hold::RECORD).await;
                return Ok(Exit::Status(plan.settings.conflict_exit_code()));
            }
            Err((lock, why)) => return Err(lock_wait.failure_after(awaited.waited, &lock.claim, why)),
        };
        let checked = self.check_token_file().await;
        if let Err(failure) = checked.and_then(|()| self.write_token(&held, &lock.claim, &lock_wait)) {
            return Err(self.take_back(&lock, failure).await);
        }
        super::warn_of_hazard(&held, &plan.target, self.reporter);
        let record = Record {
            outcome: ACQUIRED.to_owned(),
            fencing_token: held.first().and_then(|held| held.grant.fencing),
            ..self.record(&lock.claim, waited)
        };
        hold::note(&mut **lock.backend(), &plan.name, &record, hold::RECORD).await;
        Ok(Exit::SUCCESS)
    }

    fn record(&self, claim: &Claim, waited: Duration) -> Record {
        Record { identity: claim.identity.clone(), waited_ms: milliseconds(waited), ..Record::default() }
    }

    /// Checks the token file, unless a signal ends dlock.
    ///
    /// # Errors
    /// The signal.
    async fn check_unless_signalled(&self, signals: &Source) -> Result<Result<(), Failure>, i32> {
        tokio::select! {
            biased;
            signal = super::ended_by(signals) => Err(signal),
            checked = self.check_token_file() => Ok(checked),
        }
    }

    /// Checks that the token in the file, if there is one, owns no lock: it would be lost, and the lock could not be
    /// released. The lock that is being acquired does not count: it is granted only when that token has lost it.
    ///
    /// # Errors
    /// It owns a lock, or the file cannot be read (64); the store could not be queried (69, 77, 78).
    async fn check_token_file(&self) -> Result<(), Failure> {
        let Some(file) = self.token_file else { return Ok(()) };
        let (plan, path) = (self.plan, file.path().display());
        let refuse = |why: String| Failure::usage(format!("--token-file: {why}"));
        let token = settings::token_in(file.path());
        let token = token.map_err(|error| refuse(format!("cannot read '{path}': {}", io_text(&error))))?;
        let Some(token) = token.filter(|token| self.replaceable.borrow().as_ref() != Some(token)) else {
            return Ok(());
        };
        let store = plan.target.store.display();
        if let Some(why) = plan.target.store.refuses(Demand::List) {
            return Err(refuse(format!(
                "the token in '{path}' may still own a lock on {store}, and {why}: remove the file, or name another one"
            )));
        }
        let owned = hold::lock_of(&mut *plan.target.store.open(), &token, plan.target.connect_timeout).await;
        let unknown = format!("; whether the token in '{path}' still owns a lock is unknown");
        match owned.map_err(|error| lock_error(&plan.name, store, &error, &unknown))? {
            Some(name) if name != plan.name => Err(refuse(format!(
                "the token in '{path}' still owns {name} on {store}: release it first, or name another file"
            ))),
            _ => {
                self.replaceable.replace(Some(token));
                Ok(())
            }
        }
    }

    fn claim(&self) -> Claim {
        let plan = self.plan;
        let of_this_process = identity::of_this_process(COMMAND.into(), plan.settings.note());
        // No nesting: the owner of the token would not know when the outer hold ends.
        Claim {
            identity: Identity { unattended: true, ..of_this_process },
            ..Claim::new(plan.name.clone(), Token::random(), plan.terms.ttl)
        }
    }

    fn write_token(
        &self,
        held: &[HeldLock<'_>],
        claim: &Claim,
        lock_wait: &LockWait<'_>,
    ) -> Result<(), Failure> {
        let (plan, token) = (self.plan, &claim.token);
        let Some(HeldLock { grant, lease_state, .. }) = held.first() else {
            return Err(Failure::internal("granted without a lock"));
        };
        if lease_state.is_too_short() {
            // The process was stopped between the grant and now.
            let late = StoreError::unreachable("too little of the lease is left");
            return Err(lock_wait.failure(claim, NotGranted::Failed(late)));
        }
        let cannot = |what: String, error: io::Error| {
            Failure::internal(format!("{}: cannot write the token to {what}: {}", plan.name, io_text(&error)))
        };
        let text = match (self.json, self.token_file) {
            (true, file) => report::json::line(&json!({
                "version": 1,
                "name": plan.name.as_str(),
                "token": file.is_none().then(|| token.reveal()),
                "fencing_token": grant.fencing,
                "expires_in_ms": lease_state.validity.map(|validity| milliseconds(validity.ends - Moment::now())),
                "backend": plan.target.store.display(),
            })),
            (false, None) => format!("{}\n", token.reveal()),
            (false, Some(_)) => String::new(),
        };
        to_stdout(&text, Some(READER_WITHIN)).map_err(|error| cannot("standard output".into(), error))?;
        // The file is written last, so that a released token does not replace another one.
        match self.token_file {
            Some(file) => {
                file.write(token).map_err(|error| cannot(format!("'{}'", file.path().display()), error))
            }
            None => Ok(()),
        }
    }

    /// Releases the lock because its token could not be written.
    async fn take_back(&self, lock: &Lock, Failure { kind, message }: Failure) -> Failure {
        let mut backend = lock.backend();
        let limit = self.plan.terms.connect_timeout;
        let released = hold::release(&mut **backend, &lock.claim, Duration::ZERO, Ending::default(), limit);
        let then = match released.await {
            Ok(Release::Released) => "the lock was released".to_owned(),
            Ok(_) => "the lock was no longer held".to_owned(),
            Err(error) => format!("and the lock could not be released, it expires with its lease: {error}"),
        };
        Failure { kind, message: format!("{message}; {then}") }
    }
}
