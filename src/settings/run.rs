//! `dlock run`: its options and its plan.

use std::ffi::OsString;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::any::{ANY, AnyOf};
use super::pool::MOST_NAMES;
use super::target::{check_wait, checked_name, contradiction};
use super::{CommonArguments, Configuration, Settings, Source, Sourced, StoreTarget};
use crate::backend::location::Demand;
use crate::child::{Program, ProgramError};
use crate::duration::show;
use crate::exit::{Failure, FailureKind};
use crate::lease::acquire::Wait;
use crate::lease::acquire_any::Wanted;
use crate::lease::validity::Terms;
use crate::lock::{LockName, Mode};
use crate::outer::OuterHolds;

/// `dlock run`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock run [OPTIONS] NAME... -- COMMAND [ARG]...\n       dlock run [OPTIONS] NAME... -c 'SHELL TEXT'\n       \
                      dlock run [OPTIONS] --any NAME,NAME... -- COMMAND [ARG]...",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/run.txt")
)]
pub struct RunArguments {
    /// Names of the locks, taken one after another in a fixed order
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Take the first of these locks that becomes free, in place of NAME; a single word is a pool in the configuration
    #[arg(long, value_name = "NAME,NAME...|POOL", value_parser = NonEmptyStringValueParser::new(), help_heading = "Lock")]
    pub any: Option<String>,

    /// Take the lock exclusively (the default)
    #[arg(short = 'x', long, visible_short_alias = 'e', help_heading = "Lock")]
    pub exclusive: bool,

    /// Share the lock with other shared holders
    #[arg(short, long, help_heading = "Lock")]
    pub shared: bool,

    /// Do not wait for the lock (the default)
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], help_heading = "Lock")]
    pub no_wait: bool,

    /// Run this command string with /bin/sh -c
    #[arg(short = 'c', value_name = "SHELL TEXT", help_heading = "Command")]
    pub shell: Vec<OsString>,

    #[command(flatten)]
    pub settings: Settings,

    #[command(flatten)]
    pub common: CommonArguments,

    /// flock's -o
    #[arg(short = 'o', long = "close", hide = true)]
    pub flock_close: bool,

    /// flock's -u
    #[arg(short = 'u', long = "unlock", hide = true)]
    pub flock_unlock: bool,

    /// flock's -F
    #[arg(short = 'F', long = "no-fork", hide = true)]
    pub flock_no_fork: bool,

    /// Everything after the first `--`; `None` when there is none.
    #[arg(skip)]
    pub command: Option<Vec<OsString>>,

    /// A line without a name or a command, completed; otherwise empty.
    #[arg(skip)]
    pub meant: String,
}

pub struct RunPlan {
    /// The first lock, as typed.
    pub first: LockName,
    /// The locks, each once, in the canonical order in which every run takes or tries them: that of their bytes.
    pub names: Vec<LockName>,
    pub wanted: Wanted,
    pub mode: Mode,
    pub target: StoreTarget,
    /// Lease, grace, timeouts.
    pub terms: Terms,
    pub settings: Settings,
    pub program: Program,
}

impl RunArguments {
    /// Returns the settings of a run under these locks.
    ///
    /// # Errors
    /// A variable has an invalid value, or the tables of two locks contradict each other (78).
    fn resolve(&self, configuration: &Configuration, names: &[LockName]) -> Result<Settings, Failure> {
        let mut flags = self.settings.clone().with_no_wait(self.no_wait);
        // A mode on the command line overrides the mode of a file.
        let has_mode = self.exclusive || self.shared;
        if has_mode {
            let one = Sourced { value: 1, source: Source::Flag("--exclusive") };
            flags.slots = Some(self.settings.slots.clone().unwrap_or(one));
        }
        let mut settings = configuration.settings(flags, &self.common, names)?;
        if has_mode {
            settings.slots = self.settings.slots.clone();
        }
        // Zero only overrides the period of a file.
        settings.once_per = settings.once_per.filter(|period| !period.value.is_zero());
        Ok(settings)
    }
}

impl RunPlan {
    /// Checks all arguments and finds the command.
    ///
    /// # Errors
    /// Contradictions and bad values (64), bad environment or URL (78), a command that was not found (127) or cannot be
    /// executed (126).
    pub fn new(
        arguments: &RunArguments,
        configuration: &Result<Configuration, Failure>,
    ) -> Result<RunPlan, Failure> {
        refuse_flock_options(arguments)?;
        check_wait(arguments.no_wait, &arguments.settings)?;
        let command = command(arguments)?;
        let asked = Asked::of(arguments)?;
        refuse_two_modes(arguments)?;
        let configuration = configuration.as_ref().map_err(Failure::clone)?;
        let (wanted, names) = asked.resolve(configuration)?;
        let settings = arguments.resolve(configuration, &names)?;
        if wanted == Wanted::All {
            configuration.check_together(&settings, &names)?;
        }
        let backend = configuration.backend(settings.backend.as_ref())?;
        let mode = match arguments.shared {
            true => Mode::Shared,
            false => Mode::of_slots(settings.slots()),
        };
        let target = StoreTarget::new(&arguments.common, backend, &names)?;
        if settings.require_server() && target.store.is_on_this_host() {
            let source = settings.require_server.as_ref().map_or(&Source::Default, |known| &known.source);
            let key = if matches!(source, Source::File(_)) { ": require_server" } else { "" };
            let store = target.store.display();
            return Err(Failure::config(format!(
                "{source}{key}: a lock on {store} would be for this host only: name a server with --backend"
            )));
        }
        let of_mode = match mode {
            Mode::Shared => &Source::Flag("--shared"),
            _ => settings.slots.as_ref().map_or(&Source::Flag("--slots"), |slots| &slots.source),
        };
        target.check(Demand::Mode(mode), of_mode)?;
        if let Some(once_per) = &settings.once_per {
            target.check(Demand::OncePer, &once_per.source)?;
        }
        if let Some(ttl) = &settings.ttl {
            target.check(Demand::Lease(ttl.value), &ttl.source)?;
        }
        let terms = settings.terms(target.connect_timeout)?;
        let first = names[0].clone();
        let names = in_order(names);
        match wanted {
            Wanted::All => check_once_per(&settings, &names, mode)?,
            Wanted::Any => check_any(&settings, mode)?,
        }
        check_supersede(&settings, wanted, &names, mode)?;
        if names.len() > MOST_NAMES {
            let found = names.len();
            return Err(Failure::usage(format!(
                "at most {MOST_NAMES} locks can be taken together, but {found} were given"
            )));
        }
        Ok(RunPlan { first, names, wanted, mode, target, terms, program: find(&command)?, settings })
    }

    /// Checks that a run with `--once-per` is not inside a hold of the same lock, where it would not be excluded.
    ///
    /// # Errors
    /// It is (64, or 78 if the option does not come from the command line).
    pub fn check_nesting(&self) -> Result<(), Failure> {
        let Some(once_per) = &self.settings.once_per else { return Ok(()) };
        match OuterHolds::of_environment().claims(&self.first, self.target.store.display()) {
            true => Err(once_per.source.failure(format!(
                "this command runs under a hold of {} already: give --once-per to the outer dlock run",
                self.first
            ))),
            false => Ok(()),
        }
    }
}

fn refuse_flock_options(arguments: &RunArguments) -> Result<(), Failure> {
    let refused = if arguments.flock_close {
        "-o is an option of flock: dlock never passes the lock's descriptor on, so omit it"
    } else if arguments.flock_unlock {
        "-u is an option of flock: dlock releases the lock itself when the command ends, so omit it"
    } else if arguments.flock_no_fork {
        "-F is an option of flock: dlock must keep running to guard the command, so omit it"
    } else {
        return Ok(());
    };
    Err(Failure::usage(refused))
}

/// Returns the command as typed: after `--`, or the shell text of `-c`.
fn command(arguments: &RunArguments) -> Result<Vec<OsString>, Failure> {
    match (&arguments.command, arguments.shell.as_slice()) {
        (_, [_, _, ..]) => {
            Err(Failure::usage("the argument '-c <SHELL TEXT>' cannot be used multiple times"))
        }
        (Some(_), [_]) => Err(Failure::usage("-c and -- contradict each other: give the command once")),
        (Some(command), []) if !command.is_empty() => Ok(command.clone()),
        (None, [text]) => Ok(vec!["/bin/sh".into(), "-c".into(), text.clone()]),
        (_, []) => Err(Failure::usage(format!("no command: did you mean: {}", arguments.meant))),
    }
}

fn no_name(arguments: &RunArguments) -> Failure {
    Failure::usage(format!("no lock name: did you mean: {}", arguments.meant))
}

/// The locks that a command line asks for.
enum Asked<'a> {
    /// All of these, as typed: at least one.
    All(Vec<LockName>),
    /// `--any`
    Any(AnyOf<'a>),
}

impl Asked<'_> {
    /// # Errors
    /// A name is missing or invalid, or `--any` does not go with the rest of the command line (64).
    fn of(arguments: &RunArguments) -> Result<Asked<'_>, Failure> {
        let Some(any) = &arguments.any else {
            return match arguments.names.is_empty() {
                true => Err(no_name(arguments)),
                false => {
                    let names = arguments.names.iter().map(|name| checked_name(name));
                    Ok(Asked::All(names.collect::<Result<_, _>>()?))
                }
            };
        };
        let Settings { slots, once_per, .. } = &arguments.settings;
        match (arguments.names.first(), slots, once_per) {
            (Some(name), ..) => contradiction(ANY, &format!("NAME '{}'", checked_name(name)?)),
            (_, Some(slots), _) => contradiction(ANY, &format!("--slots {}", slots.value)),
            (_, _, Some(period)) if !period.value.is_zero() => {
                contradiction(ANY, &format!("--once-per {}", show(period.value)))
            }
            _ => AnyOf::parse(any).map(Asked::Any),
        }
    }

    /// Returns the names of the locks.
    ///
    /// # Errors
    /// There is no such pool (78).
    fn resolve(self, configuration: &Configuration) -> Result<(Wanted, Vec<LockName>), Failure> {
        Ok(match self {
            Asked::All(names) => (Wanted::All, names),
            Asked::Any(any_of) => (Wanted::Any, any_of.names(configuration)?),
        })
    }
}

/// Returns what is known of a run that cannot be planned: its locks in canonical order, and their store
/// without secrets.
pub fn known(
    arguments: &RunArguments,
    configuration: Option<&Configuration>,
) -> (Vec<LockName>, Option<String>) {
    // If no command was found, an apparent name may be part of it.
    let has_command =
        !arguments.shell.is_empty() || arguments.command.as_ref().is_some_and(|words| !words.is_empty());
    let names = match Asked::of(arguments).ok().filter(|_| has_command) {
        Some(Asked::All(names)) => names,
        Some(any) => configuration
            .and_then(|known| any.resolve(known).ok())
            .map(|(_, names)| names)
            .unwrap_or_default(),
        None => Vec::new(),
    };
    let names = in_order(names);
    let store = configuration.and_then(|configuration| {
        let settings = arguments.resolve(configuration, &names).ok()?;
        let backend = configuration.backend(settings.backend.as_ref()).ok()?;
        StoreTarget::new(&arguments.common, backend, &names).ok()
    });
    (names, store.map(|target| target.store.display().to_owned()))
}

/// Returns each name once, in the order of their bytes.
fn in_order(mut names: Vec<LockName>) -> Vec<LockName> {
    names.sort_by(|one, other| one.as_str().as_bytes().cmp(other.as_str().as_bytes()));
    names.dedup();
    names
}

fn refuse_two_modes(arguments: &RunArguments) -> Result<(), Failure> {
    let slots = arguments.settings.slots.as_ref().map(|slots| slots.value);
    match (arguments.exclusive, arguments.shared, slots) {
        (true, true, _) => contradiction("--exclusive", "--shared"),
        (_, true, Some(slots)) => contradiction(&format!("--slots {slots}"), "--shared"),
        (true, _, Some(slots)) if slots > 1 => contradiction(&format!("--slots {slots}"), "--exclusive"),
        _ => Ok(()),
    }
}

/// Returns why an option that is for one lock with one holder does not apply, and what it contradicts.
fn needs_exclusive<'a>(
    settings: &'a Settings,
    names: &[LockName],
    mode: Mode,
) -> Option<(String, &'a Source)> {
    let slots = settings.slots.as_ref().map_or(&Source::Default, |slots| &slots.source);
    let why = match (mode, slots) {
        (Mode::Exclusive, _) if names.len() > 1 => format!("takes one NAME, but {} were given", names.len()),
        (Mode::Exclusive, _) => return None,
        (Mode::Shared, _) => "needs an exclusive lock: not with --shared".to_owned(),
        (Mode::Slots(count), Source::Flag(_)) => format!("needs an exclusive lock: not with --slots {count}"),
        (Mode::Slots(count), elsewhere) => {
            return Some((format!("needs an exclusive lock, not {count} slots ({elsewhere})"), elsewhere));
        }
    };
    Some((why, &Source::Default))
}

/// Checks that `--once-per` is for one lock with one holder.
fn check_once_per(settings: &Settings, names: &[LockName], mode: Mode) -> Result<(), Failure> {
    let Some(Sourced { source, .. }) = &settings.once_per else { return Ok(()) };
    needs_exclusive(settings, names, mode).map_or(Ok(()), |(why, other)| Err(source.conflict(other, why)))
}

/// Checks that `--supersede` is for a run that waits for one lock with one holder.
fn check_supersede(
    settings: &Settings,
    wanted: Wanted,
    names: &[LockName],
    mode: Mode,
) -> Result<(), Failure> {
    let Some(Sourced { source, .. }) = &settings.supersede else { return Ok(()) };
    let (why, other) = match (needs_exclusive(settings, names, mode), &settings.once_per) {
        _ if wanted == Wanted::Any => (format!("not with {ANY}"), &Source::Default),
        (Some(needs), _) => needs,
        (None, Some(once_per)) => match &once_per.source {
            Source::Flag(flag) => (format!("does not go with {flag}"), &once_per.source),
            elsewhere => (format!("does not go with --once-per ({elsewhere})"), elsewhere),
        },
        (None, None) if settings.wait() == Wait::No => {
            ("needs --wait: a run that does not wait supersedes nothing".to_owned(), &Source::Default)
        }
        (None, None) => return Ok(()),
    };
    Err(source.conflict(other, why))
}

/// Checks that the settings of the locks do not contradict `--any`.
///
/// # Errors
/// They do (64, or 78 if they do not come from the command line).
fn check_any(settings: &Settings, mode: Mode) -> Result<(), Failure> {
    match (mode, &settings.slots, &settings.once_per) {
        (Mode::Slots(_), Some(slots), _) => Err(slots.source.failure(format!("not with {ANY}"))),
        (.., Some(once_per)) => Err(once_per.source.failure(format!("not with {ANY}"))),
        _ => Ok(()),
    }
}

fn find(command: &[OsString]) -> Result<Program, Failure> {
    Program::find(command, std::env::var_os("PATH").as_deref()).map_err(program_failure)
}

/// Returns the failure for a command that cannot be run.
pub fn program_failure(error: ProgramError) -> Failure {
    let kind = match error {
        ProgramError::NotFound { .. } => FailureKind::NotFound,
        ProgramError::NotExecutable { .. } => FailureKind::CannotExecute,
    };
    Failure::new(kind, error.to_string())
}
