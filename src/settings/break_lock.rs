//! `dlock break`: its options and its plan.

use std::ffi::OsString;

use clap::Args;

use super::table::check_note;
use super::target::exact_name;
use super::value::{Setting, checked, parse_fencing_token};
use super::{CommonArguments, Source, StoreTarget};
use crate::exit::Failure;
use crate::lease::acquire::Wait;
use crate::lock::{FencingToken, LockName};

/// `dlock break`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock break [OPTIONS] NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/break.txt")
)]
pub struct BreakArguments {
    /// Name of the lock
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Do not ask for confirmation; required without a terminal
    #[arg(short, long, help_heading = "Break")]
    pub yes: bool,

    /// Break only the hold with this fencing token, as shown by status
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = checked(parse_fencing_token), help_heading = "Break")]
    pub fencing_token: Option<FencingToken>,

    /// Reason to report to the holder
    #[arg(long, value_name = "TEXT", help_heading = "Break")]
    pub reason: Option<String>,

    /// Wait up to this long until the lock is free, or forever [default: the rest of the lease]
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(Wait::parse), help_heading = "Break")]
    pub wait: Option<Wait>,

    /// Remove the lock even if its holder cannot be notified or has not responded: its command may still run
    #[arg(long, help_heading = "Break")]
    pub force: bool,

    #[command(flatten)]
    pub common: CommonArguments,
}

pub struct BreakPlan<'a> {
    pub options: &'a BreakArguments,
    pub target: StoreTarget,
    pub name: LockName,
    pub reason: Option<String>,
}

impl<'a> BreakPlan<'a> {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Bad names and values (64), bad environment or URL (78).
    pub fn new(arguments: &'a BreakArguments) -> Result<BreakPlan<'a>, Failure> {
        let name = match arguments.names.as_slice() {
            [name] => exact_name("break", name)?,
            [] => return Err(Failure::usage("break: which lock? dlock break NAME")),
            _ => return Err(Failure::usage("break takes one NAME: a lock is broken on its own")),
        };
        let reason = arguments.reason.clone().unwrap_or_default();
        check_note(&reason).map_err(|error| Source::Flag("--reason").failure(error))?;
        Ok(BreakPlan {
            options: arguments,
            target: StoreTarget::of(&arguments.common, std::slice::from_ref(&name))?,
            name,
            reason: Some(reason).filter(|reason| !reason.is_empty()),
        })
    }
}
