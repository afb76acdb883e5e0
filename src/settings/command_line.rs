//! The command line: names and help text only. Checks that involve more than one option are in the plans.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::builder::Resettable;
use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use super::common_arguments::position_of_command;
use super::rejected::{argument_of, one_line};
use super::suggestion::{self, line};
use super::{
    AcquireArguments, BreakArguments, CheckArguments, CommonArguments, ConfigArguments, DoctorArguments,
    FreezeArguments, HistoryArguments, ReleaseArguments, RenewArguments, RunArguments, StatusArguments,
    ThawArguments,
};
use crate::exit::Failure;

/// Run a command under a distributed lock.
#[derive(Debug, Parser)]
#[command(
    name = "dlock",
    version,
    propagate_version = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
struct Cli<C: Subcommand = Command> {
    #[command(subcommand)]
    command: C,
}

/// Describes `run` alone, because describing all commands takes longer than parsing a run.
#[derive(Debug, Subcommand)]
enum RunCommand {
    /// Take the lock, run the command, release the lock
    Run(Box<RunArguments>),
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take the lock, run the command, release the lock
    Run(Box<RunArguments>),
    /// Show the holders and waiters of each lock
    Status(Box<StatusArguments>),
    /// Show what happened: the last outcomes of each lock, as a table or a picture
    History(Box<HistoryArguments>),
    /// Revoke a lock: its holder stops its command
    Break(Box<BreakArguments>),
    /// Let nobody start under these names
    Freeze(Box<FreezeArguments>),
    /// End a freeze
    Thaw(Box<ThawArguments>),
    /// Check whether the store is fit to hold locks
    Doctor(DoctorArguments),
    /// Show the configuration
    Config(ConfigArguments),
    /// Print the completion script of a shell
    Completions(Box<CompletionsArguments>),
    /// Print a man page
    Man(Box<ManArguments>),
    /// Take a lease without a process, and print its token
    Acquire(Box<AcquireArguments>),
    /// Renew the lease that a token owns
    Renew(Box<RenewArguments>),
    /// Release the lock that a token owns
    Release(Box<ReleaseArguments>),
    /// Check whether the lock is still held: 0 yes, 76 no
    Check(Box<CheckArguments>),
}

#[derive(Debug, Default, Args)]
#[command(override_usage = "dlock completions [OPTIONS] SHELL", after_long_help = include_str!("help/completions.txt"))]
pub struct CompletionsArguments {
    /// Shell to complete in
    #[arg(value_name = "SHELL")]
    pub shell: Option<ShellArgument>,

    #[command(flatten)]
    pub common: CommonArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShellArgument {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
    /// PowerShell
    #[value(name = "powershell")]
    PowerShell,
    /// Elvish
    Elvish,
}

#[derive(Debug, Default, Args)]
#[command(override_usage = "dlock man [OPTIONS] [PAGE]", after_long_help = include_str!("help/man.txt"))]
pub struct ManArguments {
    /// Command or topic, such as run or redis; without it, the page of dlock itself
    #[arg(value_name = "PAGE", num_args = 0..)]
    pub page: Vec<String>,

    #[command(flatten)]
    pub common: CommonArguments,
}

/// A parsed command line.
#[derive(Debug)]
pub enum Request {
    /// A text to print on standard output.
    Help(String),
    Command(Command),
}

/// Parses the arguments, which include the program's own name.
///
/// # Errors
/// One line that names the option and the value (64).
pub fn parse(arguments: &[OsString]) -> Result<Request, Failure> {
    let separator = arguments.iter().position(|argument| argument == "--");
    let (own, command) = match separator {
        Some(at) => (&arguments[..at], Some(arguments[at + 1..].to_vec())),
        None => (arguments, None),
    };
    let parse = |arguments: &[OsString]| {
        let is_run = arguments.get(1).is_some_and(|word| word == "run");
        let known = if is_run { Cli::<RunCommand>::command() } else { <Cli>::command() };
        // `--version` prints the version of dlock for every subcommand.
        let is_long = own.iter().any(|argument| argument == "--help");
        let known = last_wins(known).mut_subcommands(|command| {
            let command = command.display_name("dlock");
            if is_long { with_short_options(command) } else { command }
        });
        <Cli>::from_arg_matches_mut(&mut known.try_get_matches_from(arguments)?)
    };
    match parse(own) {
        Ok(Cli { command: Command::Run(mut run) }) => {
            let has_command =
                !run.shell.is_empty() || command.as_ref().is_some_and(|words| !words.is_empty());
            if run.names.is_empty() || !has_command {
                run.meant = run_completed(own, &run, command.as_deref());
            }
            run.command = command;
            Ok(Request::Command(Command::Run(run)))
        }
        // For other commands, a separator has its usual meaning: the arguments after it are not options.
        Ok(_) if command.is_some() => match parse(arguments) {
            Ok(Cli { command }) => Ok(Request::Command(command)),
            Err(error) => Err(Failure::usage(one_line(&error, arguments))),
        },
        Ok(Cli { command }) => Ok(Request::Command(command)),
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            Ok(Request::Help(error.render().to_string()))
        }
        Err(error) => {
            let meant = match is_command(own) {
                true if error.kind() == ErrorKind::UnknownArgument => {
                    run_meant(arguments, parse).map(|meant| format!("no command: did you mean: {meant}"))
                }
                true => None,
                false if arguments.len() < 2 => None,
                false => with_command_first(arguments)
                    .filter(|words| parse(up_to_separator(words)).is_ok())
                    .map(|words| {
                        format!("no subcommand: did you mean: {}", suggestion::line(&["dlock"], &words[1..]))
                    })
                    .or_else(|| {
                        suggestion::unknown_command(arguments, &<Cli>::command(), |run| run_meant(run, parse))
                    })
                    .or_else(|| bad_value_before_command(arguments, parse)),
            };
            Err(Failure::usage(meant.unwrap_or_else(|| one_line(&error, own))))
        }
    }
}

/// Lets the last of several occurrences of an option apply, so that the options of a shell alias can be overridden.
fn last_wins(command: clap::Command) -> clap::Command {
    command.args_override_self(true)
}

/// Describes each option in the long help as in the short one: on as few lines as possible.
fn with_short_options(command: clap::Command) -> clap::Command {
    let text = command.get_after_long_help().or(command.get_after_help()).cloned().unwrap_or_default();
    let command = command.after_help(text).after_long_help(Resettable::Reset);
    // Their help would be a list below the option; the text of the option names them.
    let command = command.mut_args(|argument| match argument.get_action() {
        ArgAction::Set if !argument.is_positional() => argument.hide_possible_values(true),
        _ => argument,
    });
    command.mut_subcommands(with_short_options)
}

/// Returns the command line with the command first: options of every command may also stand before it, and `help` and
/// `version` mean `--help` and `--version`. The help of a word that is not a command is its man page.
pub fn in_order(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(at) = position_of_command(&arguments) else { return arguments };
    let is_command = |word: &OsString| word.to_str().is_some_and(Command::has_subcommand);
    match arguments[at].to_str() {
        Some("help") => {
            arguments.remove(at);
            match position_of_command(&arguments) {
                Some(at) if !is_command(&arguments[at]) => arguments.insert(at, "man".into()),
                Some(_) => arguments.push("--help".into()),
                None => return vec![arguments.swap_remove(0), "--help".into()],
            }
            return in_order(arguments);
        }
        Some("version") => {
            arguments.drain(1..at);
            arguments[1] = "--version".into();
        }
        Some("config") => {
            let words = position_of_command(&arguments[at..]).map_or(1, |show| {
                arguments[at + 1..=at + show].rotate_right(1);
                2
            });
            arguments[1..at + words].rotate_right(words);
        }
        // Other words are repeated in the order in which they were typed.
        _ if is_command(&arguments[at]) => arguments[1..=at].rotate_right(1),
        _ => {}
    }
    arguments
}

/// Whether the first word is a command.
fn is_command(own: &[OsString]) -> bool {
    own.get(1).and_then(|word| word.to_str()).is_some_and(Command::has_subcommand)
}

/// Returns what is wrong with the value of an option that stands before the command.
fn bad_value_before_command(
    arguments: &[OsString],
    parse: impl Fn(&[OsString]) -> Result<Cli, clap::Error>,
) -> Option<String> {
    let words = with_command_first(arguments)?;
    let own = up_to_separator(&words);
    let error = parse(own).err()?;
    let is_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
    is_value.then(|| one_line(&error, own))
}

/// Returns the command line with the first of its words that is a command at the beginning. Without such a word there is
/// none.
pub fn with_command_first(arguments: &[OsString]) -> Option<Vec<OsString>> {
    let is_command = |word: &OsString| word.to_str().is_some_and(Command::has_subcommand);
    let at = up_to_separator(arguments).iter().position(is_command)?;
    let mut words = arguments.to_vec();
    words[1..=at].rotate_right(1);
    Some(words)
}

/// Returns the words before the first separator.
fn up_to_separator(words: &[OsString]) -> &[OsString] {
    &words[..words.iter().position(|word| word == "--").unwrap_or(words.len())]
}

/// Returns the run that a command line was probably meant to be, in which options of the command may stand without a
/// separator before them. It begins with `dlock run`.
fn run_meant(
    arguments: &[OsString],
    parse: impl Fn(&[OsString]) -> Result<Cli, clap::Error>,
) -> Option<String> {
    let separator = arguments.iter().position(|argument| argument == "--");
    let own = up_to_separator(arguments);
    let command = separator.map(|at| &arguments[at + 1..]);
    let (run, is_cut) = match parse(own) {
        Ok(Cli { command: Command::Run(run) }) => (run, false),
        Err(error) if error.kind() == ErrorKind::UnknownArgument && separator.is_none() => {
            let unknown = argument_of(&error)?;
            let is_unknown = |word: &OsString| word.as_bytes().starts_with(unknown.as_bytes());
            let before = own.iter().position(is_unknown)?;
            match parse(&own[..before]) {
                Ok(Cli { command: Command::Run(run) }) => (run, true),
                _ => return None,
            }
        }
        _ => return None,
    };
    // An unknown option is one of the command only if it comes after the command's first word.
    let command_begins = if run.any.is_some() { 1 } else { 2 };
    if is_cut && (run.names.len() < command_begins || !run.shell.is_empty()) {
        return None;
    }
    Some(run_completed(own, &run, command))
}

/// What takes the place of a command that was not typed.
const SOME_COMMAND: &str = "./backup.sh";

/// Returns the complete command line of a run that lacks a name, a command or the separator before it; `own` are the words
/// before the separator.
fn run_completed(own: &[OsString], run: &RunArguments, command: Option<&[OsString]>) -> String {
    let (has_text, has_any) = (!run.shell.is_empty(), run.any.is_some());
    let position = |word: &OsString, after: usize| {
        own[after..].iter().position(|own| own == word).map_or(own.len(), |at| after + at)
    };
    let (own, command) = match (&run.names[..], command) {
        // Without a separator, the command begins with the second name.
        ([first, ..], None) if !has_text && has_any => own.split_at(position(first, 2)),
        ([name, second, ..], None) if !has_text => own.split_at(position(second, position(name, 2) + 1)),
        (_, command) => (own, command.unwrap_or_default()),
    };
    let mut words: Vec<String> = vec![line(&["dlock", "run"], &own[2..])];
    if run.names.is_empty() && !has_any {
        words.push("nightly".to_owned());
    }
    if !has_text {
        words.push("--".to_owned());
        words.push(if command.is_empty() { SOME_COMMAND.to_owned() } else { line(&[], command) });
    }
    words.join(" ")
}

/// Returns the description of all commands and options, from which completions and man pages are generated.
pub fn command() -> clap::Command {
    let mut command = <Cli>::command();
    command.build();
    command
}

/// Returns the same with the options of every command also before it.
pub fn command_with_common_options() -> clap::Command {
    let mut command = CommonArguments::augment_args(<Cli>::command());
    command.build();
    command
}

/// Returns the common options of a command line that is still being typed.
pub fn partial_common_arguments(arguments: &[OsString]) -> CommonArguments {
    let matches = last_wins(<Cli>::command()).ignore_errors(true).try_get_matches_from(arguments);
    let mut innermost = matches.as_ref().ok();
    while let Some((_, deeper)) = innermost.and_then(clap::ArgMatches::subcommand) {
        innermost = Some(deeper);
    }
    innermost
        .filter(|matches| matches.try_contains_id("backend").is_ok())
        .and_then(|matches| CommonArguments::from_arg_matches(matches).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_described_once() {
        let of = |all: clap::Command| {
            all.find_subcommand("run").expect("a command").clone().render_long_help().to_string()
        };
        assert_eq!(of(Cli::<RunCommand>::command()), of(<Cli>::command()));
    }

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli>::command().debug_assert();
    }

    fn ordered(line: &str) -> String {
        let words = in_order(line.split(' ').map(OsString::from).collect());
        words.iter().map(|word| word.to_str().expect("text")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_command_comes_first() {
        for (typed, expected) in [
            ("dlock -b file: config show x", "dlock config show -b file: x"),
            ("dlock -b file: -b a config -q show x", "dlock config show -b file: -b a -q x"),
            ("dlock config show -q", "dlock config show -q"),
            ("dlock -q config", "dlock config -q"),
            ("dlock -q nightly ./b", "dlock -q nightly ./b"),
            ("dlock help redis", "dlock man redis"),
            ("dlock -b file: run x -- true", "dlock run -b file: x -- true"),
            (
                "dlock -qb file: --log-format=json run x -- -b",
                "dlock run -qb file: --log-format=json x -- -b",
            ),
            ("dlock --config c status", "dlock status --config c"),
            ("dlock -vv", "dlock -vv"),
            ("dlock --wait 5 run x", "dlock --wait 5 run x"),
            ("dlock help", "dlock --help"),
            ("dlock help config show", "dlock config show --help"),
            ("dlock -q version", "dlock --version"),
            ("dlock -qb file: help", "dlock --help"),
            ("dlock run help", "dlock run help"),
        ] {
            assert_eq!(ordered(typed), expected);
        }
    }
}
