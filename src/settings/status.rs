//! `dlock status`: its options and its plan.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::target::{checked_name, contradiction};
use super::value::checked;
use super::{CommonArguments, Configuration, Source, StoreTarget};
use crate::backend::location::Demand;
use crate::duration::{self, show};
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::lock::LockName;
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

    /// Show the last outcomes: who ran it, when, for how long, or why it did not run
    #[arg(long, help_heading = "What to show")]
    pub history: bool,

    /// With --history: only what did not go well
    #[arg(long, help_heading = "What to show")]
    pub failed: bool,

    /// Show all columns, also the fencing token, and do not cut them to the width of the terminal
    #[arg(long, help_heading = "Output")]
    pub wide: bool,

    /// Refresh continuously until interrupted
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = checked(duration::parse), help_heading = "What to show")]
    pub watch: Option<Duration>,

    /// Print one JSON object; with --watch, one per line
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Exit with 1 if the last success of any of the locks began longer ago than this, and with 2 beyond a second duration
    #[arg(long, value_name = "D[,D2]", value_parser = checked(age_limits), help_heading = "What to show")]
    pub overdue: Option<AgeLimits>,

    /// With --overdue: one line as of a Nagios plug-in, and 3 if the store cannot be queried
    #[arg(long, help_heading = "Output")]
    pub nagios: bool,

    /// Exit with 75 if any of the locks is held
    #[arg(long, help_heading = "Output")]
    pub exit_code: bool,

    #[command(flatten)]
    pub common: CommonArguments,
}

pub struct StatusPlan<'a> {
    pub options: &'a StatusArguments,
    pub target: StoreTarget,
    /// The locks that were named, each once; shown whether they are held or not, including foreign ones.
    pub names: Vec<LockName>,
    /// The patterns for locks that dlocks hold or wait for.
    pub patterns: Vec<Pattern>,
    /// Their texts.
    globs: Vec<String>,
}

/// The shortest interval of `--watch`: shorter ones would be a load on the store.
const SHORTEST_WATCH: Duration = Duration::from_millis(100);

/// The longest limit of `--overdue`: the store forgets a success a day later.
const LONGEST_AGE: Duration = Duration::from_secs(30 * 86400);

/// Parses one or two durations.
fn age_limits(text: &str) -> Result<AgeLimits, String> {
    let (warning, critical) = match text.split_once(',') {
        Some((warning, critical)) => (warning, Some(critical)),
        None => (text, None),
    };
    let limit = |text: &str| match duration::parse(text)? {
        Duration::ZERO => Err("must be longer than zero".to_owned()),
        limit if limit > LONGEST_AGE => {
            let (limit, longest) = (show(limit), show(LONGEST_AGE));
            Err(format!("{limit} is longer than {longest}: stores forget a success after 31d"))
        }
        limit => Ok(limit),
    };
    let limits = AgeLimits { warning: limit(warning)?, critical: critical.map(limit).transpose()? };
    match limits.critical {
        Some(critical) if critical <= limits.warning => {
            let (warning, critical) = (show(limits.warning), show(critical));
            Err(format!("the second limit, {critical}, is not longer than the first, {warning}"))
        }
        _ => Ok(limits),
    }
}

impl StatusArguments {
    /// Checks what goes with `--overdue`.
    ///
    /// # Errors
    /// A contradiction, or no lock is named (64).
    fn check_overdue(&self) -> Result<(), Failure> {
        if self.overdue.is_none() {
            return match self.nagios {
                true => Err(Failure::usage(
                    "--nagios prints what is overdue: did you mean dlock status --nagios --overdue 26h NAME",
                )),
                false => Ok(()),
            };
        }
        let others = [
            ("--history", self.history),
            ("--watch", self.watch.is_some()),
            ("--wide", self.wide),
            ("--exit-code", self.exit_code),
        ];
        if let Some((other, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
            return contradiction("--overdue", other);
        }
        if self.nagios && self.json {
            return contradiction("--nagios", "--json");
        }
        if self.names.is_empty() {
            return Err(Failure::usage(
                "--overdue needs the locks to check: names, patterns, or '*' for all",
            ));
        }
        Ok(())
    }
}

impl<'a> StatusPlan<'a> {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Contradictions and bad names (64), bad environment or URL (78).
    pub fn new(arguments: &'a StatusArguments) -> Result<StatusPlan<'a>, Failure> {
        if arguments.failed && !arguments.history {
            return Err(Failure::usage(
                "--failed selects outcomes: did you mean dlock status --history --failed",
            ));
        }
        if arguments.watch.is_some() && arguments.history {
            return contradiction("--watch", "--history");
        }
        if arguments.history && arguments.exit_code {
            return contradiction("--history", "--exit-code");
        }
        if arguments.watch.is_some() && arguments.exit_code {
            return contradiction("--watch", "--exit-code");
        }
        if let Some(interval) = arguments.watch.filter(|interval| *interval < SHORTEST_WATCH) {
            let (interval, least) = (show(interval), show(SHORTEST_WATCH));
            return Err(Failure::usage(format!("--watch: {interval} is too short, at least {least}")));
        }
        arguments.check_overdue()?;
        let mut names: Vec<LockName> = Vec::new();
        let mut patterns = Vec::new();
        let mut globs = Vec::new();
        for given in &arguments.names {
            let pattern = given.to_str().map(Pattern::new);
            match pattern.as_ref().map(|pattern| (pattern, pattern.literal())) {
                Some((pattern, None)) => {
                    patterns.push(pattern.clone());
                    globs.extend(given.to_str());
                }
                literal => {
                    let text = literal.and_then(|(_, literal)| literal);
                    let name = checked_name(text.as_ref().map_or(given.as_os_str(), |text| text.as_ref()))?;
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
        }
        let configuration = Configuration::read(&arguments.common)?;
        let backend = configuration.resolve(&arguments.common, &names)?;
        let others = match globs.is_empty() && !names.is_empty() {
            true => Vec::new(),
            false => configuration.others(&backend, &globs)?,
        };
        let mut target = StoreTarget::new(&arguments.common, backend, &names)?;
        let history = [("--history", arguments.history), ("--overdue", arguments.overdue.is_some())];
        for (flag, _) in history.into_iter().filter(|(_, is_given)| *is_given) {
            target.check(Demand::History, &Source::Flag(flag))?;
        }
        if let Some(why) = target.store.refuses(Demand::List)
            && (names.is_empty() || !patterns.is_empty())
        {
            return Err(Failure::usage(format!("{}: {why}", target.store.display())));
        }
        if !others.is_empty() {
            target.notices.push(format!(
                "queried only {}, but the configuration has locks on {} too: see -b {}",
                target.store.display(),
                others.join(", "),
                others.join(" or -b ")
            ));
        }
        let globs = globs.into_iter().map(str::to_owned).collect();
        Ok(StatusPlan { options: arguments, target, names, patterns, globs })
    }

    /// Returns the patterns, as they were given, for which this is false.
    pub fn unmatched(&self, has_match: impl Fn(&Pattern) -> bool) -> Vec<String> {
        let pairs = self.patterns.iter().zip(&self.globs);
        pairs.filter(|(pattern, _)| !has_match(pattern)).map(|(_, glob)| glob.clone()).collect()
    }

    /// Whether the list of locks is needed from the store.
    pub fn needs_list(&self) -> bool {
        !self.patterns.is_empty() || self.names.is_empty()
    }

    /// Whether a listed lock matches the arguments.
    pub fn matches(&self, name: &LockName) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(name.as_str()))
    }
}
