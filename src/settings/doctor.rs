//! `dlock doctor`: which checks, or which change.

use std::ffi::OsString;

use clap::Args;

use super::target::checked_name;
use super::value::{checked, parse_fencing_floor};
use super::{CommonArguments, Source, StoreTarget};
use crate::backend::location::Demand;
use crate::exit::Failure;
use crate::lock::{FencingToken, LockName};

/// `dlock doctor`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock doctor [OPTIONS]\n       dlock doctor [OPTIONS] --fencing-floor N NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/doctor.txt")
)]
pub struct DoctorArguments {
    /// Name of the lock, with --fencing-floor
    #[arg(value_name = "NAME")]
    pub names: Vec<OsString>,

    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Create what the store needs before its first lock, such as a table, and then check it
    #[arg(long, conflicts_with = "policy")]
    pub init: bool,

    /// Instead of the checks, make every later fencing token of NAME larger than N; NAME must be free
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = checked(parse_fencing_floor), conflicts_with_all = ["json", "init", "policy"])]
    pub fencing_floor: Option<FencingToken>,

    /// Print the commands that give a user the rights that dlock needs, and contact no store
    #[arg(long, conflicts_with = "json", help_heading = "Output")]
    pub policy: bool,

    #[command(flatten)]
    pub common: CommonArguments,
}

/// `dlock doctor --fencing-floor`
pub struct FloorPlan {
    pub target: StoreTarget,
    pub name: LockName,
    pub floor: FencingToken,
}

impl FloorPlan {
    /// Checks all arguments; `None` if there is no floor.
    ///
    /// # Errors
    /// A bad or missing name, or a store without fencing tokens (64); bad environment or URL (78).
    pub fn of(arguments: &DoctorArguments) -> Result<Option<FloorPlan>, Failure> {
        let (floor, name) = match (arguments.fencing_floor, arguments.names.as_slice()) {
            (None, []) => return Ok(None),
            (Some(floor), [name]) => (floor, checked_name(name)?),
            (Some(_), []) => {
                let why = "--fencing-floor: of which lock? dlock doctor --fencing-floor N nightly";
                return Err(Failure::usage(why));
            }
            (Some(_), names) => {
                let why = format!(
                    "--fencing-floor: one NAME is needed, not {}: repeat it for each lock",
                    names.len()
                );
                return Err(Failure::usage(why));
            }
            (None, _) => {
                let why = "doctor checks a store, and takes no NAME: for the state of a lock, see dlock status NAME";
                return Err(Failure::usage(why));
            }
        };
        let target = StoreTarget::of(&arguments.common, std::slice::from_ref(&name))?;
        target.check(Demand::FencingTokens, &Source::Flag("--fencing-floor"))?;
        Ok(Some(FloorPlan { target, name, floor }))
    }
}
