//! `dlock acquire`: its options and its plan.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::table::{check, check_note, check_ttl};
use super::target::{check_wait, one_name};
use super::value::checked;
use super::{CommonArguments, Configuration, Settings, Source, Sourced, StoreTarget};
use crate::backend::location::Demand;
use crate::duration;
use crate::exit::Failure;
use crate::lease::validity::Terms;
use crate::lock::LockName;

/// `dlock acquire`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock acquire [OPTIONS] --ttl <DURATION> NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/acquire.txt")
)]
pub struct AcquireArguments {
    /// Name of the lock
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Length of the lease, from 1s to 24h; it ends by itself unless dlock renew extends it
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub ttl: Option<Duration>,

    /// Give up at once when another client holds the lock (the default)
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], help_heading = "Lock")]
    pub no_wait: bool,

    /// Write the token to this file (mode 0600), and nothing to standard output
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub token_file: Option<PathBuf>,

    /// Print one JSON object instead of the token alone
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    #[command(flatten)]
    pub settings: AcquireSettings,

    #[command(flatten)]
    pub common: CommonArguments,
}

/// The settings of a run that `dlock acquire` has options for too.
#[derive(Debug, Default)]
pub struct AcquireSettings(pub Settings);

impl Args for AcquireSettings {
    fn augment_args(command: Command) -> Command {
        command.args(["wait", "retry", "note", "conflict_exit_code"].into_iter().filter_map(Settings::option))
    }

    fn augment_args_for_update(command: Command) -> Command {
        AcquireSettings::augment_args(command)
    }
}

impl FromArgMatches for AcquireSettings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<AcquireSettings, clap::Error> {
        Settings::from_arg_matches(matches).map(AcquireSettings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

pub struct AcquirePlan {
    pub name: LockName,
    pub target: StoreTarget,
    pub terms: Terms,
    pub settings: Settings,
}

impl AcquirePlan {
    /// Checks all arguments.
    ///
    /// # Errors
    /// Contradictions and bad values, a store that keeps no leases (64); bad
    /// environment or URL (78).
    pub fn new(arguments: &AcquireArguments) -> Result<AcquirePlan, Failure> {
        let name = one_name(
            &arguments.names,
            "one NAME, and no command: dlock acquire takes the lock for later steps; dlock run is for a command",
            "acquire --ttl 10m nightly",
        )?;
        check_wait(arguments.no_wait, &arguments.settings.0)?;
        let ttl = arguments.ttl.ok_or_else(|| {
            Failure::usage(
                "no --ttl: the lease of a token is not renewed automatically: give its length, such as --ttl 10m \
                 (DLOCK_TTL is ignored here)",
            )
        })?;
        let given = Sourced { value: ttl, source: Source::Flag("--ttl") };
        check(&Some(given.clone()), check_ttl)?;
        let configuration = Configuration::read(&arguments.common)?;
        let flags =
            Settings { ttl: Some(given), ..arguments.settings.0.clone().with_no_wait(arguments.no_wait) };
        let settings = configuration.settings(flags, &arguments.common, std::slice::from_ref(&name))?;
        check(&settings.note, |note| check_note(note))?;
        let backend = configuration.backend(settings.backend.as_ref())?;
        let unnamed = if backend.source == Source::Default { "no backend configured, and " } else { "" };
        let target = StoreTarget::new(&arguments.common, backend, std::slice::from_ref(&name))?;
        if !target.store.keeps_leases() {
            return Err(Failure::usage(format!(
                "{unnamed}{} holds a lock only as long as a process does: use dlock run, or a store that keeps leases, such \
                 as -b redis://HOST",
                target.store.display()
            )));
        }
        target.check(Demand::Lease(ttl), &Source::Flag("--ttl"))?;
        let terms = Terms { ttl, grace: Terms::default_grace(ttl), connect_timeout: target.connect_timeout };
        Ok(AcquirePlan { name, target, terms, settings })
    }
}
