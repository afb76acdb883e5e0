//! The command line: names, help text, and nothing else. Checks that need more than one option are in [`crate::plan`].

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::duration;
use crate::exit::Failure;
use crate::lock::Mode;

/// Run a command under a distributed lock.
#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Take the lock, run the command, release the lock
    Run(Box<RunArguments>),
}

/// What the user asked for.
#[derive(Debug)]
pub enum Request {
    /// To be printed on standard output.
    Help(String),
    /// `dlock run`
    Run(Box<RunArguments>),
}

/// `dlock run`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock run [OPTIONS] NAME... -- COMMAND [ARG]...\n       dlock run [OPTIONS] NAME... -c 'SHELL TEXT'",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = RUN_DETAILS
)]
pub struct RunArguments {
    /// Names of the locks, taken all or none
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Where the lock lives: file:, file:///dir, redis://host:port/db, rediss://...
    #[arg(short, long, value_name = "URL", help_heading = "Lock")]
    pub backend: Option<OsString>,

    /// Give up at once when somebody else holds the lock (the default)
    #[arg(short, long, visible_aliases = ["nb", "nonblock"], help_heading = "Lock")]
    pub no_wait: bool,

    /// Wait at most so long for the lock, or forever
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION|forever", allow_hyphen_values = true, value_parser = checked(parse_wait), help_heading = "Lock")]
    pub wait: Option<WaitArgument>,

    /// Keep trying a store that cannot be reached, also with --no-wait
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub retry: Option<Duration>,

    /// Take the lock for ourselves alone (the default)
    #[arg(short = 'x', long, visible_short_alias = 'e', help_heading = "Lock")]
    pub exclusive: bool,

    /// Share the lock with others who ask for it shared
    #[arg(short, long, help_heading = "Lock")]
    pub shared: bool,

    /// A semaphore: share the lock with others, at most N at a time [default: 1]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = checked(parse_slots), help_heading = "Lock")]
    pub slots: Option<u32>,

    /// Keep the lock at least so long, even if the command ends sooner [default: 0]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub min_hold: Option<Duration>,

    /// Length of the lease: how long a crashed host blocks the others [default: 30s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub ttl: Option<Duration>,

    /// One attempt to reach the store [default: 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub connect_timeout: Option<Duration>,

    /// Shown to others while we hold the lock
    #[arg(long, value_name = "TEXT", help_heading = "Lock")]
    pub note: Option<String>,

    /// Run this text by /bin/sh -c
    #[arg(short = 'c', value_name = "SHELL TEXT", help_heading = "Command")]
    pub shell: Option<OsString>,

    /// Between SIGTERM and SIGKILL when the command must be stopped [default: a fifth of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Command")]
    pub grace: Option<Duration>,

    /// Stop the command after so long and exit 124; 0 is never [default: 0]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Command")]
    pub max_runtime: Option<Duration>,

    /// Background processes left when the command has ended by itself [default: leave]
    #[arg(long, value_name = "WHAT", help_heading = "Command")]
    pub orphans: Option<OrphansArgument>,

    /// When the lock is lost: stop the command, or warn and let it go on [default: kill]
    #[arg(long, value_name = "WHAT", help_heading = "Command")]
    pub on_lost: Option<OnLostArgument>,

    /// Exit with this status instead of 75 when somebody else holds the lock
    #[arg(short = 'E', long, value_name = "N", allow_hyphen_values = true, value_parser = clap::value_parser!(u8), help_heading = "Output")]
    pub conflict_exit_code: Option<u8>,

    /// Say nothing of contention, and no notices or warnings
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Say more; repeat for more still
    #[arg(short, long, action = ArgAction::Count, help_heading = "Output")]
    pub verbose: u8,

    /// How to write messages on standard error [default: text]
    #[arg(long, value_name = "FORMAT", help_heading = "Output")]
    pub log_format: Option<LogFormat>,

    /// flock's -o
    #[arg(short = 'o', long = "close", hide = true)]
    pub flock_close: bool,

    /// flock's -u
    #[arg(short = 'u', long = "unlock", hide = true)]
    pub flock_unlock: bool,

    /// flock's -F
    #[arg(short = 'F', long = "no-fork", hide = true)]
    pub flock_no_fork: bool,

    /// Everything behind the first `--`; `None` when there is none.
    #[arg(skip)]
    pub command: Option<Vec<OsString>>,
}

/// `--wait`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitArgument {
    /// At most so long.
    For(Duration),
    /// `forever`
    Forever,
}

/// `--orphans`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrphansArgument {
    /// Leave them running without the lock
    Leave,
    /// Hold the lock until they have ended
    Wait,
    /// Kill them, then release the lock
    Kill,
}

/// `--on-lost`
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnLostArgument {
    /// Stop the command and exit 76
    Kill,
    /// Warn and let it go on
    Warn,
}

/// `--log-format`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// dlock: text
    #[default]
    Text,
    /// One JSON object a line
    Json,
}

const RUN_DETAILS: &str = "\
Examples:
  dlock run nightly-job -- ./backup.sh
      skip it when it is still running on this host
  dlock run -b redis://10.0.0.5/0 nightly-job -- ./backup.sh
      the same on many hosts
  dlock run --wait 10m deploy -- ./deploy.sh production
      wait for the other one to end
  dlock run --slots 3 --wait forever render -- ./render.sh
      three at a time, each with its own number in DLOCK_SLOT
  dlock run --min-hold 50s minutely -- ./poll.sh
      once a minute, even if the clocks of two hosts differ by seconds
  dlock run --max-runtime 2h --wait forever import -c 'cat *.csv | ./load'

Durations:
  250ms, 90s, 5m, 1h 30m, 1d, 1.5m; a bare number is seconds.

Environment:
  DLOCK_BACKEND, DLOCK_TTL, DLOCK_WAIT   defaults of --backend, --ttl, --wait
  REDISCLI_AUTH                          password of Redis, when the URL has none
  The command finds DLOCK_NAME, DLOCK_TOKEN, DLOCK_FENCING_TOKEN, DLOCK_HELD, and DLOCK_SLOT with --slots.

Exit status:
  the command's, when it ran; and dlock dies of the signal that killed the command
  64   wrong usage                      77   the store refused us
  69   the store could not be asked     78   configuration or URL wrong
  70   internal error                   124  --max-runtime reached
  75   somebody else holds the lock     126  the command cannot be executed
  76   the lock was lost                127  the command was not found";

/// Understands the arguments, the program's own name included.
///
/// # Errors
/// One line that names the option and the value (64).
pub fn parse(arguments: Vec<OsString>) -> Result<Request, Failure> {
    let separator = arguments.iter().position(|argument| argument == "--");
    let (ours, command) = match separator {
        Some(at) => (&arguments[..at], Some(arguments[at + 1..].to_vec())),
        None => (&arguments[..], None),
    };
    let parsed =
        Cli::command().try_get_matches_from(ours).and_then(|matches| Cli::from_arg_matches(&matches));
    match parsed {
        Ok(Cli { command: Command::Run(mut run) }) => {
            run.command = command;
            Ok(Request::Run(run))
        }
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(Request::Help(error.render().to_string()))
        }
        Err(error) => Err(Failure::usage(one_line(&error, ours))),
    }
}

/// The form of messages that was asked for, as far as that can be seen in a command line that cannot be understood.
pub fn format_of(arguments: &[OsString]) -> LogFormat {
    let ours = arguments.iter().take_while(|argument| *argument != "--");
    let words: Vec<&str> = ours.filter_map(|argument| argument.to_str()).collect();
    let json =
        words.contains(&"--log-format=json") || words.windows(2).any(|pair| pair == ["--log-format", "json"]);
    if json { LogFormat::Json } else { LogFormat::Text }
}

/// clap's error as one line: what is wrong, and what may have been meant.
fn one_line(error: &clap::Error, arguments: &[OsString]) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return not_text(arguments);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        return "no subcommand: try dlock run nightly -- ./backup.sh, or dlock --help".into();
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let is_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
    let mut line = match (context(ContextKind::InvalidValue), context(ContextKind::InvalidArg)) {
        // The value as it is, line breaks and all: whoever prints it escapes it.
        (Some(value), Some(argument)) if is_value && !value.is_empty() => {
            let why =
                std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
            format!("invalid value '{value}' for '{argument}'{why}")
        }
        _ => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default();
            first.strip_prefix("error: ").unwrap_or(first).to_owned()
        }
    };
    let choices = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(", "),
        _ => String::new(),
    };
    for (kind, intro) in [
        (ContextKind::ValidValue, "; possible: "),
        (ContextKind::SuggestedArg, "; did you mean "),
        (ContextKind::SuggestedSubcommand, "; did you mean "),
    ] {
        let choices = choices(kind);
        if !choices.is_empty() {
            line.push_str(intro);
            line.push_str(&choices);
        }
    }
    line
}

/// Names the first argument that is no text, with the option it belongs to.
fn not_text(arguments: &[OsString]) -> String {
    let mut before = "";
    for argument in arguments {
        let Some(text) = argument.to_str() else {
            let shown = argument.to_string_lossy();
            let option = shown.split_once('=').map_or(before, |(option, _)| option);
            let option = if option.starts_with('-') { format!("{option}: ") } else { String::new() };
            return format!("{option}'{shown}' is not valid UTF-8");
        };
        before = text;
    }
    "an argument is not valid UTF-8".into()
}

/// A value parser from a function; a value that is no UTF-8 is shown as well as it can be.
fn checked<T, F>(parse: F) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
    F: Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static,
{
    clap::builder::NonEmptyStringValueParser::new().try_map(move |text: String| parse(&text))
}

/// `--wait`: a duration or `forever`.
///
/// # Errors
/// Neither.
pub fn parse_wait(text: &str) -> Result<WaitArgument, String> {
    match text {
        "forever" => Ok(WaitArgument::Forever),
        _ => duration::parse(text).map(WaitArgument::For).map_err(|error| format!("{error}, or forever")),
    }
}

/// `--slots`: 1 to as many as a lock can have.
///
/// # Errors
/// Not such a number.
pub fn parse_slots(text: &str) -> Result<u32, String> {
    let most = Mode::MOST_SLOTS;
    text.parse()
        .ok()
        .filter(|slots| (1..=most).contains(slots))
        .ok_or_else(|| format!("expected a number from 1 to {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    fn run(arguments: &[&str]) -> Result<Box<RunArguments>, String> {
        match parse(["dlock", "run"].iter().chain(arguments).map(OsString::from).collect()) {
            Ok(Request::Run(run)) => Ok(run),
            Ok(Request::Help(text)) => panic!("{text}"),
            Err(failure) => Err(failure.message),
        }
    }

    #[test]
    fn everything_behind_the_first_separator_is_the_command() {
        let parsed = run(&["x", "-w", "5", "--", "echo", "--", "-n"]).expect("good arguments");
        assert_eq!(parsed.names, ["x"]);
        assert_eq!(parsed.command, Some(vec!["echo".into(), "--".into(), "-n".into()]));
        assert!(!parsed.no_wait);
        assert_eq!(run(&["x"]).expect("good arguments").command, None);
    }

    #[test]
    fn errors_are_one_line_with_flag_and_value() {
        for (arguments, expected) in [
            (
                &["--ttl", "5M", "x"][..],
                "invalid value '5M' for '--ttl <DURATION>': unknown unit 'M': known are ms, s, m, h, d",
            ),
            (
                &["-E", "256", "x"],
                "invalid value '256' for '--conflict-exit-code <N>': 256 is not in 0..=255",
            ),
            (
                &["--orphans", "eat", "x"],
                "invalid value 'eat' for '--orphans <WHAT>'; possible: leave, wait, kill",
            ),
            (&["--tll", "5", "x"], "unexpected argument '--tll' found; did you mean --ttl"),
        ] {
            assert_eq!(run(arguments).map(|_| ()), Err(expected.to_owned()));
        }
    }
}
