//! Computes the completions of a partial command line from the description of the command line.

use clap::builder::StyledStr;
use clap::{Arg, ArgAction, Command};

use crate::backend::options::{self, UrlOption};
use crate::backend::registry;
use crate::child::signals::StopSignal;
use crate::commands::man;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// The shell's own completion of a command that begins with this word.
    Command(usize),
    Files,
    /// Each value, followed by a tab and its description if it has one.
    Values(Vec<String>),
}

/// What is looked up only if it is to be offered.
pub(super) struct Known<'a> {
    /// The locks of the backend.
    pub(super) locks: &'a dyn Fn() -> Vec<String>,
    /// The pools of the configuration.
    pub(super) pools: &'a dyn Fn() -> Vec<String>,
}

struct Typed<'a> {
    command: &'a Command,
    /// The command comes after `help`.
    wants_help: bool,
    /// The option whose value comes next.
    pending: Option<&'a Arg>,
    positionals: Vec<&'a str>,
    given: Vec<&'a Arg>,
}

/// Returns the completions for `current`, after the words `before`, which include the program's own name.
pub(super) fn completion(root: &Command, before: &[String], current: &str, known: &Known<'_>) -> Completion {
    let separator = before.iter().position(|word| word == "--");
    let mut typed = read(root, &before[..separator.unwrap_or(before.len())]);
    // Only `run` takes a command after the separator; for other commands only positional arguments follow.
    let runs = typed.command.get_name() == "run";
    if let Some(separator) = separator {
        if runs {
            return Completion::Command(separator + 1);
        }
        typed.positionals.extend(before[separator + 1..].iter().map(String::as_str));
        return positional(&typed, current, known);
    }
    if let Some(option) = typed.pending {
        return values(option, "", current, &[], known);
    }
    if let Some((option, value)) = current.split_once('=').filter(|_| current.starts_with("--")) {
        return match long(typed.command, option) {
            Some(argument) => values(argument, &format!("{option}="), value, &[], known),
            None => Completion::Values(Vec::new()),
        };
    }
    if current.starts_with('-') {
        return Completion::Values(options(&typed, current, runs));
    }
    let mut commands: Vec<String> = Vec::new();
    let is_root = typed.command.get_name() == root.get_name();
    if typed.positionals.is_empty() {
        let known = typed.command.get_subcommands().filter(|command| !command.is_hide_set());
        commands.extend(known.map(|command| candidate(command.get_name(), command.get_about())));
    }
    if is_root && typed.positionals.is_empty() {
        match typed.wants_help {
            true => commands.extend(topics(typed.command)),
            false => commands.push(format!("{HELP}\tPrint the help of a command, or the page of a topic")),
        }
    }
    commands.retain(|command| command.starts_with(current));
    if !commands.is_empty() || typed.wants_help {
        return Completion::Values(commands);
    }
    let mut found = positional(&typed, current, known);
    if let Completion::Values(values) = &mut found
        && runs
        && !typed.positionals.is_empty()
        && current.is_empty()
    {
        values.insert(0, SEPARATOR.to_owned());
    }
    found
}

fn positional(typed: &Typed<'_>, current: &str, known: &Known<'_>) -> Completion {
    // Without it, `doctor` takes no name.
    let requires_floor = typed.command.get_name() == "doctor";
    if requires_floor && !typed.given.iter().any(|given| given.get_id() == "fencing_floor") {
        return Completion::Values(Vec::new());
    }
    let next = typed.positionals.len();
    let argument = typed.command.get_positionals().enumerate().find(|(index, argument)| {
        *index == next || argument.get_num_args().is_some_and(|number| number.max_values() > 1)
    });
    match argument {
        Some((_, argument)) => values(argument, "", current, &typed.positionals, known),
        None => Completion::Values(Vec::new()),
    }
}

/// The word before the name of a command or topic.
const HELP: &str = "help";

/// Returns the names of the pages that are not about a command.
fn topics(root: &Command) -> impl Iterator<Item = String> {
    man::names()
        .filter(|name| root.find_subcommand(name).is_none())
        .map(|name| format!("{name}\tPage of the manual"))
}

const SEPARATOR: &str = "--\tthe command comes next";

/// Parses the words before the cursor; unknown ones are skipped.
fn read<'a>(root: &'a Command, words: &'a [String]) -> Typed<'a> {
    let mut typed =
        Typed { command: root, wants_help: false, pending: None, positionals: Vec::new(), given: Vec::new() };
    for word in words.iter().skip(1) {
        if typed.pending.take().is_some() {
            continue;
        }
        if word.starts_with("--") {
            let (name, value) =
                word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            if let Some(argument) = long(typed.command, name) {
                typed.given.push(argument);
                typed.pending = Some(argument).filter(|argument| takes_next(argument) && value.is_none());
            }
        } else if let Some(cluster) = word.strip_prefix('-').filter(|cluster| !cluster.is_empty()) {
            let mut letters = cluster.chars();
            while let Some(letter) = letters.next() {
                let Some(argument) = short(typed.command, letter) else { break };
                typed.given.push(argument);
                if takes_value(argument) {
                    typed.pending =
                        Some(argument).filter(|_| takes_next(argument) && letters.as_str().is_empty());
                    break;
                }
            }
        } else if typed.positionals.is_empty()
            && let Some(command) = typed.command.find_subcommand(word)
        {
            typed.command = command;
        } else if word == HELP && typed.command.get_name() == root.get_name() {
            typed.wants_help = true;
        } else {
            typed.positionals.push(word);
        }
    }
    typed
}

fn takes_value(argument: &Arg) -> bool {
    argument.get_num_args().is_some_and(|number| number.takes_values())
}

/// Whether the value of an option may be the next word.
fn takes_next(argument: &Arg) -> bool {
    takes_value(argument) && !argument.is_require_equals_set()
}

fn long<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let name = name.strip_prefix("--")?;
    let is_it =
        |argument: &&Arg| argument.get_long_and_visible_aliases().is_some_and(|names| names.contains(&name));
    command.get_arguments().find(is_it)
}

fn short(command: &Command, letter: char) -> Option<&Arg> {
    let is_it = |argument: &&Arg| {
        argument.get_short_and_visible_aliases().is_some_and(|letters| letters.contains(&letter))
    };
    command.get_arguments().find(is_it)
}

fn options(typed: &Typed<'_>, current: &str, runs: bool) -> Vec<String> {
    let mut found = Vec::new();
    if runs && !typed.positionals.is_empty() && (current == "-" || current == "--") {
        found.push(SEPARATOR.to_owned());
    }
    for argument in typed.command.get_arguments().filter(|argument| !argument.is_positional()) {
        let repeats = matches!(argument.get_action(), ArgAction::Count | ArgAction::Append);
        let is_there = typed.given.iter().any(|given| given.get_id() == argument.get_id());
        if argument.is_hide_set() || (is_there && !repeats) {
            continue;
        }
        let longs = argument.get_long_and_visible_aliases().unwrap_or_default();
        let names = longs.iter().map(|name| format!("--{name}"));
        // A short option is offered only if there is no long one.
        let shorts = argument.get_short_and_visible_aliases().unwrap_or_default();
        let shorts = shorts.into_iter().filter(|_| current == "-" && longs.is_empty());
        let all = names.chain(shorts.map(|letter| format!("-{letter}")));
        let fitting = all.filter(|name| name.starts_with(current));
        found.extend(fitting.map(|value| candidate(&value, argument.get_help())));
    }
    found
}

/// Returns the values of an argument that begin with `current`, each prefixed with `before`, the part of the word
/// that is already typed.
fn values(argument: &Arg, before: &str, current: &str, given: &[&str], known: &Known<'_>) -> Completion {
    let possible = argument.get_possible_values();
    // `DURATION|forever`: a lower-case name is a literal value.
    let kinds: Vec<&str> =
        argument.get_value_names().unwrap_or_default().iter().flat_map(|name| name.split('|')).collect();
    let mut found: Vec<String> = if !possible.is_empty() && takes_value(argument) {
        let shown = possible.iter().filter(|value| !value.is_hide_set());
        shown.map(|value| candidate(value.get_name(), value.get_help())).collect()
    } else if kinds.contains(&"FILE") {
        return Completion::Files;
    } else if kinds.contains(&"POOL") {
        pools_or_list(current, known)
    } else if kinds.contains(&"NAME") {
        let others = (known.locks)().into_iter().filter(|name| !given.contains(&name.as_str()));
        others.map(|name| format!("{name}\tlock")).collect()
    } else if kinds.contains(&"URL") {
        match current.split_once('?') {
            Some((address, typed)) => url_options(address, typed),
            None => registry::known().iter().map(|scheme| scheme.to_string()).collect(),
        }
    } else if kinds.contains(&"SIG") {
        // With `SIG`, which may be left out, only if it is being typed.
        let long = StopSignal::names().filter(|_| !current.is_empty()).map(|name| format!("SIG{name}"));
        StopSignal::names().chain(long).collect()
    } else if kinds.contains(&"PAGE") {
        man::names().filter(|_| given.is_empty()).map(str::to_owned).collect()
    } else {
        let literal = kinds.iter().filter(|kind| kind.starts_with(|first: char| first.is_ascii_lowercase()));
        literal.map(|kind| kind.to_string()).collect()
    };
    found.retain(|value| value.starts_with(current));
    Completion::Values(found.into_iter().map(|value| format!("{before}{value}")).collect())
}

/// Returns the URL with each option that may come next, or with each word that may be the value of the last one.
fn url_options(address: &str, typed: &str) -> Vec<String> {
    let scheme = address.split(':').next().unwrap_or_default().to_ascii_lowercase();
    let Some(table) = registry::table(&scheme) else { return Vec::new() };
    let last = typed.rsplit('&').next().unwrap_or_default();
    let before = &typed[..typed.len() - last.len()];
    let given: Vec<&str> = before.split('&').filter_map(|option| option.split('=').next()).collect();
    let with_values = |option: &UrlOption| {
        let begin = format!("{address}?{before}{}=", option.name);
        if last.contains('=') {
            return option.words().iter().map(|word| format!("{begin}{word}")).collect();
        }
        vec![format!("{begin}\t{}", option.summary())]
    };
    options::not_given(table, &given).flat_map(with_values).collect()
}

/// Returns the pools, and the lists of locks that are longer by one than what is typed.
fn pools_or_list(current: &str, known: &Known<'_>) -> Vec<String> {
    let typed = current.rfind(',').map_or("", |comma| &current[..=comma]);
    let pools = match typed {
        "" => (known.pools)(),
        _ => Vec::new(),
    };
    let is_new = |name: &String| !name.contains(',') && !typed.split(',').any(|given| given == name);
    let locks = (known.locks)().into_iter().filter(is_new).map(|name| format!("{typed}{name}\tlock"));
    pools.into_iter().map(|pool| format!("{pool}\tpool")).chain(locks).collect()
}

fn candidate(value: &str, help: Option<&StyledStr>) -> String {
    let help = help.map(ToString::to_string).unwrap_or_default();
    help.lines().next().map_or(value.to_owned(), |line| format!("{value}\t{line}"))
}
