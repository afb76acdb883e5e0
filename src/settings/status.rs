//! `dlock status`: its options and its plan.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::history::{HistoryOptions, HistoryPlan, HistoryRequest};
use super::target::contradiction;
use super::value::{checked, parse_age_limits};
use super::{CommonArguments, Selection};
use crate::duration::{self, show};
use crate::exit::Failure;
use crate::lock::overdue::AgeLimits;

/// `dlock status`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock status [OPTIONS] [NAME|GLOB]...",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/status.txt")
)]
pub struct StatusArguments {
    /// Names or patterns (* ? [..]) of the locks to show; by default all that are held or awaited
    #[arg(value_name = "NAME|GLOB", num_args = 0..)]
    pub names: Vec<OsString>,

    /// Show the latest outcomes of each lock; the same as dlock history
    #[arg(long, help_heading = "What to show")]
    pub history: bool,

    #[command(flatten)]
    pub of_history: HistoryOptions,

    /// Show all columns, also the fencing token, and do not cut them to the width of the terminal
    #[arg(long, help_heading = "Output")]
    pub wide: bool,

    /// Refresh continuously, until Ctrl-C or, on a terminal, q
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = checked(duration::parse), help_heading = "What to show")]
    pub watch: Option<Duration>,

    /// Print one JSON object; with --watch, one per line
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Exit with 1 if the last success of any of the locks began longer ago than this, and with 2 beyond a second duration
    #[arg(long, value_name = "D[,D2]", value_parser = checked(parse_age_limits), help_heading = "What to show")]
    pub overdue: Option<AgeLimits>,

    /// With --overdue: one line as of a Nagios plug-in, and 3 if the locks cannot be checked
    #[arg(long, help_heading = "Output")]
    pub nagios: bool,

    /// Print metrics of the locks, also of those with a history only, in the text format of Prometheus
    #[arg(long, help_heading = "Output")]
    pub prometheus: bool,

    /// Exit with 75 if any of the locks is held or frozen
    #[arg(long, help_heading = "Output")]
    pub exit_code: bool,

    #[command(flatten)]
    pub common: CommonArguments,
}

pub struct StatusPlan<'a> {
    pub options: &'a StatusArguments,
    pub selection: Selection,
}

/// The shortest interval of `--watch`: shorter ones would be a load on the store.
const SHORTEST_WATCH: Duration = Duration::from_millis(100);

impl StatusArguments {
    /// Returns the options that are given, besides those of every command.
    pub(super) fn given(&self) -> Vec<&'static str> {
        let flags = [
            (self.history, "--history"),
            (self.watch.is_some(), "--watch"),
            (self.wide, "--wide"),
            (self.exit_code, "--exit-code"),
            (self.json, "--json"),
            (self.overdue.is_some(), "--overdue"),
            (self.nagios, "--nagios"),
            (self.prometheus, "--prometheus"),
        ];
        let given = flags.into_iter().filter_map(|(is_given, flag)| is_given.then_some(flag));
        given.chain(self.of_history.given()).collect()
    }

    /// Returns the plan of a history, if one is to be shown.
    ///
    /// # Errors
    /// Those of [`HistoryPlan::new`], and what only the present has (64).
    pub fn history_plan(&self) -> Result<Option<HistoryPlan>, Failure> {
        let StatusArguments { names, of_history: options, wide, json, common, .. } = self;
        match (self.history, self.watch, self.exit_code) {
            (false, ..) => Ok(None),
            (true, Some(_), _) => contradiction("--watch", "--history"),
            (true, None, true) => contradiction("--history", "--exit-code"),
            (true, None, false) => {
                let request = HistoryRequest { names, options, wide: *wide, json: *json, common };
                HistoryPlan::of(&request).map(Some)
            }
        }
    }
}

impl<'a> StatusPlan<'a> {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Contradictions and bad names (64), bad environment or URL (78).
    pub fn new(arguments: &'a StatusArguments) -> Result<StatusPlan<'a>, Failure> {
        if let Some(flag) = arguments.of_history.given() {
            return Err(Failure::usage(format!(
                "{flag} selects outcomes: did you mean dlock history {flag}"
            )));
        }
        if arguments.watch.is_some() && arguments.exit_code {
            return contradiction("--watch", "--exit-code");
        }
        if let Some(interval) = arguments.watch.filter(|interval| *interval < SHORTEST_WATCH) {
            let (interval, least) = (show(interval), show(SHORTEST_WATCH));
            return Err(Failure::usage(format!("--watch: {interval} is too short, at least {least}")));
        }
        let selection = Selection::new(&arguments.names, &arguments.common)?;
        selection.check_list()?;
        Ok(StatusPlan { options: arguments, selection })
    }
}
