//! What was probably meant by a command line, a name or a backend that is wrong.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};

use clap::Command;

use super::common_arguments::position_of_command;
use crate::backend::registry;

/// What other tools call a command: the words to type instead, separated by spaces.
const SYNONYMS: &[(&str, &[&str])] = &[
    ("ls", &["status"]),
    ("list", &["status"]),
    ("ps", &["status"]),
    ("top", &["status"]),
    ("log", &["history"]),
    ("timeline", &["history --timeline"]),
    ("kill", &["break"]),
    ("force-unlock", &["break"]),
    ("unlock", &["release", "break"]),
    ("lock", &["run"]),
];

/// Returns what is wrong with a command line that does not begin with a command, and what was probably meant.
/// `arguments` begin with the program's own name; `as_run` completes the words of a run.
pub fn unknown_command(
    arguments: &[OsString],
    commands: &Command,
    as_run: impl Fn(&[OsString]) -> Option<String>,
) -> Option<String> {
    let run = |words: &[OsString]| as_run(&[&["dlock".into(), "run".into()], words].concat());
    let own = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let Some(at) = position_of_command(arguments).filter(|at| *at < own) else {
        let meant = run(&arguments[1..])?;
        return Some(format!("no subcommand: did you mean: {meant}"));
    };
    let (before, word, rest) = (&arguments[1..at], arguments[at].to_string_lossy(), &arguments[at + 1..]);
    let typed = [before, rest].concat();
    let names = commands.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
    let synonym =
        SYNONYMS.iter().find(|(synonym, _)| *synonym == word).map(|(_, commands)| commands.to_vec());
    let meant = match synonym.or_else(|| nearest(&word, names).map(|name| vec![name])).as_deref() {
        Some(["run"]) => run(&typed),
        Some(commands) => {
            let lines = commands.iter().map(|command| line(&["dlock", command], &typed));
            Some(lines.collect::<Vec<_>>().join(", or "))
        }
        None => run(&arguments[1..]),
    };
    let meant = meant.unwrap_or_else(|| line(&["dlock run"], &arguments[1..]));
    Some(format!("unknown command '{}': did you mean: {meant}", registry::repeatable(&word)))
}

/// Returns the words as they may be typed, without secrets.
pub fn line(beginning: &[&str], words: &[OsString]) -> String {
    let words = words.iter().map(|word| quoted(&registry::repeatable(&word.to_string_lossy())));
    beginning.iter().map(|word| (*word).to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns a word in quotes if a shell would split or interpret it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| !c.is_whitespace() && !"'\"\\$`;&|<>()#".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
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
