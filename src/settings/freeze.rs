//! `dlock freeze` and `dlock thaw`: their options and their plans.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use clap::Args;

use super::table::check_note;
use super::target::{contradiction, exact_name};
use super::value::{Setting, checked};
use super::{CommonArguments, Source, StoreTarget, suggestion};
use crate::duration;
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::lease::acquire::Wait;
use crate::lock::LockName;

/// The longest freeze with an end.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// `dlock freeze`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock freeze [OPTIONS] {--for DURATION | --forever} NAME...",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/freeze.txt")
)]
pub struct FreezeArguments {
    /// Names of the locks
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// How long the locks are frozen
    #[arg(long = "for", value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(parse_lasts), help_heading = "Freeze")]
    pub lasts: Option<Duration>,

    /// Freeze them until dlock thaw
    #[arg(long, help_heading = "Freeze")]
    pub forever: bool,

    /// Reason to show to those that are kept out
    #[arg(long, value_name = "TEXT", help_heading = "Freeze")]
    pub reason: Option<String>,

    /// Wait up to this long until the holders have ended [default: forever]
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(Wait::parse), help_heading = "Freeze")]
    pub wait: Option<Wait>,

    /// Do not wait for the holders, which keep the locks until they end
    #[arg(long, help_heading = "Freeze")]
    pub now: bool,

    #[command(flatten)]
    pub common: CommonArguments,
}

/// `dlock thaw`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock thaw [OPTIONS] NAME...",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/thaw.txt")
)]
pub struct ThawArguments {
    /// Names of the locks
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    #[command(flatten)]
    pub common: CommonArguments,
}

/// Parses how long a freeze lasts.
///
/// # Errors
/// It is no duration, no time at all, or too long.
fn parse_lasts(text: &str) -> Result<Duration, String> {
    match duration::parse(text)? {
        Duration::ZERO => Err("must be longer than zero".into()),
        lasts if lasts > LONGEST => Err("longer than a year: give --forever".into()),
        lasts => Ok(lasts),
    }
}

/// Returns the names, which must not be patterns, each of them once.
///
/// # Errors
/// There is none, or a bad one (64).
fn exact_names(command: &str, names: &[OsString]) -> Result<Vec<LockName>, Failure> {
    let mut exact = Vec::new();
    for name in names {
        let name = exact_name(command, OsStr::new(name))?;
        if !exact.contains(&name) {
            exact.push(name);
        }
    }
    match exact.is_empty() {
        true => Err(Failure::usage(format!("{command}: which lock? dlock {command} NAME"))),
        false => Ok(exact),
    }
}

pub struct FreezePlan {
    pub target: StoreTarget,
    pub names: Vec<LockName>,
    /// See [`FreezeRequest::reason`](crate::lock::FreezeRequest::reason).
    pub reason: Option<String>,
    /// See [`FreezeRequest::lasts`](crate::lock::FreezeRequest::lasts).
    pub lasts: Option<Duration>,
    /// How long to wait for the holders.
    pub wait: Wait,
    /// Holders are not waited for, and may go on.
    pub leaves_holders: bool,
}

impl FreezePlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Bad names and values (64), bad environment or URL (78).
    pub fn new(arguments: &FreezeArguments) -> Result<FreezePlan, Failure> {
        let names = exact_names("freeze", &arguments.names)?;
        match (arguments.lasts, arguments.forever) {
            (Some(_), true) => contradiction("--for", "--forever")?,
            (None, false) => {
                return Err(Failure::usage("freeze: for how long? give --for DURATION or --forever"));
            }
            _ => {}
        }
        if arguments.now && arguments.wait.is_some() {
            contradiction("--now", "--wait")?;
        }
        let reason = arguments.reason.clone().unwrap_or_default();
        check_note(&reason).map_err(|error| Source::Flag("--reason").failure(error))?;
        Ok(FreezePlan {
            target: StoreTarget::of(&arguments.common, &names)?,
            names,
            reason: Some(reason).filter(|reason| !reason.is_empty()),
            lasts: arguments.lasts,
            wait: if arguments.now { Wait::No } else { arguments.wait.unwrap_or(Wait::Forever) },
            leaves_holders: arguments.now,
        })
    }
}

/// Returns the command line that thaws these names.
pub fn thaw_command(names: &[LockName]) -> String {
    let words: Vec<OsString> = names.iter().map(|name| Pattern::escaped(name.as_str()).into()).collect();
    suggestion::line(&["dlock thaw"], &words)
}

pub struct ThawPlan {
    pub target: StoreTarget,
    pub names: Vec<LockName>,
}

impl ThawPlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Bad names (64), bad environment or URL (78).
    pub fn new(arguments: &ThawArguments) -> Result<ThawPlan, Failure> {
        let names = exact_names("thaw", &arguments.names)?;
        Ok(ThawPlan { target: StoreTarget::of(&arguments.common, &names)?, names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_a_word_of_the_command_that_thaws_them() {
        let names = ["a b", "job*", "plain"].map(|name| LockName::new(name).expect("a name"));
        assert_eq!(thaw_command(&names), r"dlock thaw 'a b' 'job\*' plain");
    }
}
