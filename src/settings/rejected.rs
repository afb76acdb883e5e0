//! A command line that is not valid: what is wrong with it, and which of its options can still be read.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::LogFormat;
use crate::backend::registry;

/// Returns the argument that clap rejects.
pub(super) fn argument_of(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// Returns the message format requested by a command line that may not be valid.
pub fn format_of(arguments: &[OsString]) -> LogFormat {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    let words: Vec<&str> = own.filter_map(|argument| argument.to_str()).collect();
    let json =
        words.contains(&"--log-format=json") || words.windows(2).any(|pair| pair == ["--log-format", "json"]);
    if json { LogFormat::Json } else { LogFormat::Text }
}

/// Returns whether a command line that may not be valid asks for the line of a plug-in of Nagios.
pub fn is_for_nagios(arguments: &[OsString]) -> bool {
    let mut own = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    own.next().is_some_and(|subcommand| subcommand == "status") && own.any(|argument| argument == "--nagios")
}

/// Returns the file of `--report` or `--metrics-file` in a command line that may not be valid.
pub fn file_of(option: &str, arguments: &[OsString]) -> Option<PathBuf> {
    if arguments.get(1).is_none_or(|subcommand| subcommand != "run") {
        return None;
    }
    let own: Vec<&OsString> = arguments.iter().skip(2).take_while(|argument| *argument != "--").collect();
    let found = own.iter().enumerate().rev().find_map(|(at, argument)| {
        match argument.as_bytes().strip_prefix(option.as_bytes())? {
            [] => own.get(at + 1).map(|value| value.as_os_str()),
            [b'=', value @ ..] => Some(OsStr::from_bytes(value)),
            _ => None,
        }
    });
    found.filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Formats clap's error as one line: what is wrong, and what may have been meant.
pub(super) fn one_line(error: &clap::Error, arguments: &[OsString]) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        return not_text(arguments);
    }
    let is_config = arguments.get(1).is_some_and(|argument| argument == "config");
    // The options of `dlock config show` come after both words.
    let is_before_show =
        is_config && arguments.get(2).is_some_and(|argument| argument.as_bytes().starts_with(b"-"));
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
        || (error.kind() == ErrorKind::UnknownArgument && is_before_show)
    {
        return match is_config {
            true => "no subcommand: try dlock config show".into(),
            false => "no subcommand: try dlock run nightly -- ./backup.sh, or dlock --help".into(),
        };
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let is_value = matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation);
    let mut line = match (context(ContextKind::InvalidValue), context(ContextKind::InvalidArg)) {
        // The value unchanged, including line breaks: it is escaped when it is printed.
        (Some(value), Some(argument)) if is_value && !value.is_empty() => {
            let why =
                std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
            format!("invalid value '{}' for '{argument}'{why}", registry::repeatable(value))
        }
        _ => first_line(error),
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

/// Returns the first line of clap's own message. Words of the command line that it repeats have no secrets.
fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let line = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    let repeated = error.context().filter_map(|(_, value)| match value {
        ContextValue::String(word) if !word.is_empty() => Some(word),
        _ => None,
    });
    repeated.fold(line, |line, word| line.replace(word.as_str(), &registry::repeatable(word)))
}

/// Names the first argument that is not UTF-8, with its option.
fn not_text(arguments: &[OsString]) -> String {
    let mut before = "";
    for argument in arguments {
        let Some(text) = argument.to_str() else {
            let shown = registry::repeatable(&argument.to_string_lossy());
            let option = shown.split_once('=').map_or(before, |(option, _)| option);
            let option = if option.starts_with('-') { format!("{option}: ") } else { String::new() };
            return format!("{option}'{shown}' is not valid UTF-8");
        };
        before = text;
    }
    "an argument is not valid UTF-8".into()
}
