//! `dlock history`, which `dlock status --history` is too: its options and its plan.

use std::ffi::OsString;

use clap::Args;
use jiff::Zoned;

use super::target::contradiction;
use super::value::checked;
use super::when::{When, Window};
use super::{CommonArguments, Selection};
use crate::backend::location::Demand;
use crate::exit::Failure;

/// `dlock history`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock history [OPTIONS] [NAME|GLOB]...",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/history.txt")
)]
pub struct HistoryArguments {
    /// Names or patterns (* ? [..]) of the locks to show; by default all that have a history
    #[arg(value_name = "NAME|GLOB", num_args = 0..)]
    pub names: Vec<OsString>,

    #[command(flatten)]
    pub options: HistoryOptions,

    /// Show all columns, also the fencing token, and do not cut them to the width of the terminal
    #[arg(long, help_heading = "Output")]
    pub wide: bool,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    #[command(flatten)]
    pub common: CommonArguments,
}

/// Options of a history.
#[derive(Debug, Default, Args)]
pub struct HistoryOptions {
    /// Only what did not go well, without attempts that were kept out by a run that succeeded
    #[arg(long, help_heading = "History")]
    pub failed: bool,

    /// Only what ended at or after this time: 12h (ago), 22:00, 2026-11-26, '2026-11-26 22:00' or RFC 3339
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = checked(When::parse), help_heading = "History")]
    pub since: Option<When>,

    /// Only what began before this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = checked(When::parse), help_heading = "History")]
    pub until: Option<When>,

    /// Draw a picture: a row for each host, time from left to right, a bar for each hold
    #[arg(long, help_heading = "History")]
    pub timeline: bool,
}

impl HistoryOptions {
    /// Returns the first of these options that is given.
    pub(super) fn given(&self) -> Option<&'static str> {
        let flags = [
            (self.failed, "--failed"),
            (self.since.is_some(), "--since"),
            (self.until.is_some(), "--until"),
            (self.timeline, "--timeline"),
        ];
        flags.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }
}

/// How a history is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryStyle {
    Table,
    WideTable,
    Timeline,
    Json,
}

pub struct HistoryPlan {
    pub selection: Selection,
    pub style: HistoryStyle,
    pub window: Window,
    /// Leave out what went well.
    pub only_failed: bool,
}

/// The arguments of either command.
pub(super) struct HistoryRequest<'a> {
    pub(super) names: &'a [OsString],
    pub(super) options: &'a HistoryOptions,
    pub(super) wide: bool,
    pub(super) json: bool,
    pub(super) common: &'a CommonArguments,
}

impl HistoryPlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Contradictions, bad names, or a store without a history (64); bad environment or URL (78).
    pub fn new(arguments: &HistoryArguments) -> Result<HistoryPlan, Failure> {
        let HistoryArguments { names, options, wide, json, common } = arguments;
        HistoryPlan::of(&HistoryRequest { names, options, wide: *wide, json: *json, common })
    }

    pub(super) fn of(request: &HistoryRequest<'_>) -> Result<HistoryPlan, Failure> {
        let options = request.options;
        let style = match (options.timeline, request.json, request.wide) {
            (true, true, _) => return contradiction("--timeline", "--json"),
            (true, false, true) => return contradiction("--timeline", "--wide"),
            (true, false, false) => HistoryStyle::Timeline,
            (false, true, _) => HistoryStyle::Json,
            (false, false, true) => HistoryStyle::WideTable,
            (false, false, false) => HistoryStyle::Table,
        };
        let window = Window::new(options.since, options.until, &Zoned::now())?;
        let selection = Selection::new(request.names, request.common)?;
        if let Some(why) = selection.target.store.refuses(Demand::History) {
            return Err(Failure::usage(format!("{}: {why}", selection.target.store.display())));
        }
        selection.check_list()?;
        Ok(HistoryPlan { selection, style, window, only_failed: options.failed })
    }
}
