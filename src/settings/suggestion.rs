//! What was probably meant by a command line, a name or a backend that is wrong.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

use clap::{Args, Command};

use super::CommonArguments;
use crate::backend::registry;

/// What other tools call a command.
const SYNONYMS: &[(&str, &str)] = &[
    ("ls", "dlock status"),
    ("list", "dlock status"),
    ("ps", "dlock status"),
    ("unlock", "dlock release, or dlock break"),
];

/// Returns the command line with the command first: options of every command may also stand before it, and `help` and
/// `version` mean `--help` and `--version`.
pub fn in_order(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let Some(at) = position_of_command(&arguments) else { return arguments };
    match arguments[at].to_str() {
        Some("help") => {
            arguments.remove(at);
            arguments.push("--help".into());
            return in_order(arguments);
        }
        Some("version") => arguments[at] = "--version".into(),
        _ => arguments[1..=at].rotate_right(1),
    }
    arguments
}

/// Returns the position of the first word that is neither an option of every command nor its value.
fn position_of_command(arguments: &[OsString]) -> Option<usize> {
    // Nearly always; parsing takes longer.
    if !arguments.get(1)?.as_encoded_bytes().starts_with(b"-") {
        return Some(1);
    }
    let options = CommonArguments::augment_args(Command::new("dlock")).allow_external_subcommands(true);
    let matches = options.try_get_matches_from(arguments).ok()?;
    let (_command, rest) = matches.subcommand()?;
    let rest = rest.get_many::<OsString>("").map_or(0, Iterator::count);
    Some(arguments.len() - 1 - rest)
}

/// Returns what is wrong with a first word that is not a command. `arguments` begin with the program's own name.
pub fn unknown_command(arguments: &[OsString], root: &Command) -> String {
    let words: Vec<_> = arguments.iter().skip(1).map(|word| shown(&word.to_string_lossy())).collect();
    let (word, rest) = words.split_first().map_or(("", &[][..]), |(word, rest)| (word.as_str(), rest));
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
    let meant = match SYNONYMS.iter().find(|(synonym, _)| *synonym == word) {
        Some((_, command)) => (*command).to_owned(),
        None => match nearest(word, commands) {
            Some(command) => format!("dlock {command}"),
            None => run(word, rest.iter().map(String::as_str)),
        },
    };
    format!("unknown command '{word}': did you mean: {meant}")
}

/// Returns the command line that runs these words under this lock; `before` is the lock, with options before it.
pub fn run<'a>(before: &str, words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<String> = words.skip_while(|word| *word == "--").map(shown).collect();
    let command = if words.is_empty() { "./backup.sh".into() } else { words.join(" ") };
    let before: Vec<String> = before.split(' ').map(shown).collect();
    format!("dlock run {} -- {command}", before.join(" "))
}

/// Returns a word as it may be repeated: a URL without secrets.
fn shown(word: &str) -> String {
    if word.contains("://") { registry::redacted(word) } else { word.to_owned() }
}

/// Returns what is wrong with a word that was probably not meant as the name of a lock.
pub fn name(text: &str) -> Option<String> {
    if text.contains("://") {
        return Some(format!("is a URL: did you mean -b {}", registry::redacted(text)));
    }
    let option = text.strip_prefix(['\u{2013}', '\u{2014}'])?;
    Some(format!("begins with a dash that is not a hyphen: did you mean --{option}"))
}

/// Returns what is wrong with the text of a backend that is neither an alias nor a URL, if its form shows what was
/// meant. Everything else may be a misplaced password, and is not repeated.
pub fn backend(text: &str) -> Option<String> {
    let is_host = |host: &str| {
        host == "localhost"
            || host.parse::<IpAddr>().is_ok()
            || host.split('.').filter(|part| !part.is_empty()).count() > 1
    };
    let has_port = |text: &str| {
        text.rsplit_once(':').is_some_and(|(host, port)| {
            port.parse::<u16>().is_ok() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
        })
    };
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./:[]".contains(c));
    let url = if text.starts_with('/') && plain {
        format!("file://{text}")
    } else if plain && (is_host(text) || text.parse::<SocketAddr>().is_ok() || has_port(text)) {
        format!("redis://{text}")
    } else {
        let (scheme, rest) = text.split_once("://")?;
        let near = nearest(scheme, registry::schemes())?;
        // The rest may contain a password.
        let rest = if rest.contains(['@', '?']) { "..." } else { rest };
        return Some(format!("unknown scheme '{scheme}': did you mean {near}://{rest}"));
    };
    Some(format!("'{text}' is not a backend URL: did you mean {url}"))
}

/// Returns the candidate that a word was probably meant to be: with few letters wrong, missing, added or exchanged.
fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let distances = candidates.map(|known| (strsim::osa_distance(word, known), known));
    let (distance, known) = distances.min()?;
    (distance <= known.len() / 3).then_some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(line: &str) -> String {
        let words = in_order(line.split(' ').map(OsString::from).collect());
        words.iter().map(|word| word.to_str().expect("text")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_command_comes_first() {
        for (typed, expected) in [
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
            ("dlock -q version", "dlock -q --version"),
            ("dlock run help", "dlock run help"),
        ] {
            assert_eq!(ordered(typed), expected);
        }
    }
}
