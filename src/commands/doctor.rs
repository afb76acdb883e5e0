//! `dlock doctor`: runs the checks of the store and of this host, and prints the findings.
//!
//! Called by `lib`. What always holds: without `--init` and `--fencing-floor` nothing is left in the
//! store.

mod fencing_floor;
mod host;

use std::slice::from_ref;

use super::{execute, notices_about};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding, Note};
use crate::backend::location::Policy;
use crate::clock::{Alarm, Moment};
use crate::duration::show;
use crate::exit::{Exit, Failure};
use crate::report::{DoctorReport, Form, Reporter, printable};
use crate::settings::{DoctorArguments, FloorPlan, StoreTarget};

const PROBLEMS: u8 = 1;
const NOT_MADE: &str =
    "a running command is stopped before its lease ends; the remaining checks were not made";

/// Checks the store. Signals keep their default actions: everything that the checks leave behind expires by
/// itself.
pub fn doctor(arguments: &DoctorArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    match FloorPlan::of(arguments) {
        Ok(None) => {}
        Ok(Some(plan)) => {
            return execute(
                &reporter,
                Ok(plan),
                |plan| notices_about(&reporter, from_ref(&plan.name), &plan.target),
                async |plan| fencing_floor::raise(plan, &reporter).await,
            );
        }
        Err(failure) => return reporter.failure(&failure),
    }
    if arguments.policy {
        let target = StoreTarget::of_policy(&arguments.common);
        return target.map_or_else(|failure| reporter.failure(&failure), |target| policy(&target, &reporter));
    }
    execute(
        &reporter,
        StoreTarget::of_doctor(&arguments.common),
        |target| notices_about(&reporter, &[], target),
        async |target| diagnose(target, arguments).await,
    )
}

/// Prints the commands alone, so that they can be piped to the client of the store.
fn policy(target: &StoreTarget, reporter: &Reporter) -> Exit {
    let Policy { commands, note } = target.store.policy();
    reporter.notices(&[note]);
    super::print(&commands.iter().map(|command| format!("{}\n", printable(command))).collect::<String>())
}

async fn diagnose(target: &StoreTarget, arguments: &DoctorArguments) -> Result<Exit, Failure> {
    let alarm = Alarm::new().map_err(super::no_event_loop)?;
    let mut diagnosis = examine(target, arguments, &alarm).await?;
    diagnosis.findings.push(host::processes());
    let text = if arguments.json { diagnosis.json() } else { diagnosis.text(Form::of_stdout()) };
    Ok(match super::print(&text) {
        Exit::SUCCESS if diagnosis.problems() > 0 => Exit::Status(PROBLEMS),
        exit => exit,
    })
}

/// Collects the findings of the store's checks, until they are complete or no note has arrived within the
/// connect timeout.
async fn examine(
    target: &StoreTarget,
    arguments: &DoctorArguments,
    alarm: &Alarm,
) -> Result<DoctorReport, Failure> {
    let (mut examination, mut notes) = Diagnosis::new();
    if arguments.init {
        examination = examination.creating();
    }
    let mut store = target.store.open();
    let mut diagnosis = DoctorReport::of(target.store.display());
    let mut step = "reachability";
    let mut begun = Moment::now();
    let examined = {
        let mut examining = store.examine(&examination);
        loop {
            tokio::select! {
                biased;
                examined = &mut examining => break Some(examined),
                Some(note) = notes.recv() => {
                    begun = Moment::now();
                    step = take(note, &mut diagnosis).unwrap_or(step);
                }
                () = alarm.until(begun + target.connect_timeout) => break None,
            }
        }
    };
    while let Ok(note) = notes.try_recv() {
        step = take(note, &mut diagnosis).unwrap_or(step);
    }
    match examined {
        Some(Ok(())) => Ok(diagnosis),
        Some(Err(StoreError::Config(text))) => {
            Err(Failure::config(format!("{}: {text}", target.store.display())))
        }
        Some(Err(error)) => {
            diagnosis.findings.push(aborted(step, &error));
            Ok(diagnosis)
        }
        None => {
            let late = format!("no answer within {}", show(target.connect_timeout));
            diagnosis.findings.push(aborted(step, &StoreError::unanswered(late)));
            Ok(diagnosis)
        }
    }
}

/// Adds a note to the diagnosis; returns the step that begins, if the note begins one.
fn take(note: Note, diagnosis: &mut DoctorReport) -> Option<&'static str> {
    match note {
        Note::Begins(step) => return Some(step),
        Note::Found(finding) => diagnosis.findings.push(finding),
        Note::Answered(question, answer) => diagnosis.answers.push((question, answer)),
        Note::Ttl(ttl) => diagnosis.recommended_ttl = Some(ttl),
    }
    None
}

/// Returns the finding that ends the checks.
fn aborted(step: &'static str, error: &StoreError) -> Finding {
    let finding = Finding::failure(step, error);
    let consequence = finding.consequence.map(|consequence| format!("{consequence}; {NOT_MADE}"));
    Finding { consequence, ..finding }
}
