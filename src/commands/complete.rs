//! What the completion scripts ask for: `dlock __complete =CURRENT WORD...`, where CURRENT is what stands before the
//! cursor of the word that is being typed (behind an equals sign, so that no shell loses it when it is empty) and the
//! WORDs are those before it, `dlock` included.
//!
//! The answer is lines. The first says what is wanted: `values`, `files`, `directories`, or `command N` when the word is
//! part of a command that begins with word N. Behind `values` each line is a value, and behind a tab what it is.
//!
//! It is a word and no variable of the environment, so that no run of dlock can be mistaken for a question.

mod command_line;

use std::ffi::OsString;
use std::sync::mpsc;
use std::time::Duration;

use crate::cli::{self, CommonArguments};
use crate::exit::Exit;
use crate::plan::StoreTarget;
use crate::report::printable;

use self::command_line::Completion;

/// The word by which the scripts ask.
pub const QUESTION: &str = "__complete";

/// How long somebody who has pressed the tabulator key waits for the names of locks.
const PATIENCE: Duration = Duration::from_millis(500);

/// The words of a question, if this is one.
pub fn asked_for(arguments: &[OsString]) -> Option<&[OsString]> {
    arguments.get(1).filter(|word| *word == QUESTION).map(|_| &arguments[2..])
}

/// Answers a question on standard output: silent about every failure, and never longer than somebody would wait.
pub fn complete(words: &[OsString]) -> Exit {
    // Nothing may appear on the terminal in which somebody is typing.
    std::panic::set_hook(Box::new(|_| {}));
    let Some((current, before)) = words.split_first() else { return super::print("values\n") };
    let current = current.to_string_lossy();
    let current = current.strip_prefix('=').unwrap_or(&current);
    let before: Vec<String> = before.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let names = || lock_names(cli::common_so_far(&before.iter().map(OsString::from).collect::<Vec<_>>()));
    super::print(&text(&command_line::answer(&cli::command(), &before, current, &names)))
}

fn text(answer: &Completion) -> String {
    match answer {
        Completion::Command(first) => format!("command {first}\n"),
        Completion::Files => "files\n".into(),
        Completion::Directories => "directories\n".into(),
        Completion::Values(values) => {
            let lines = values.iter().map(|candidate| match candidate.help.as_str() {
                "" => format!("{}\n", candidate.value),
                help => format!("{}\t{help}\n", candidate.value),
            });
            std::iter::once("values\n".to_owned()).chain(lines).collect()
        }
    }
}

/// The names of the locks on the backend that is named on the line, in the environment or in the configuration. None
/// when that cannot be told in time: a file system may hang as well as a network.
fn lock_names(common: CommonArguments) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let asking = move || {
        // Nobody listens any more when it took too long.
        let _ = sender.send(names_on_backend(common).unwrap_or_default());
    };
    if std::thread::Builder::new().spawn(asking).is_err() {
        return Vec::new();
    }
    typable(receiver.recv_timeout(PATIENCE).unwrap_or_default())
}

/// Those of the names that can be put on a command line, each once.
fn typable(mut names: Vec<String>) -> Vec<String> {
    // What cannot be shown as it is cannot be typed either, and what begins with a dash would be read as an option.
    names.retain(|name| !name.is_empty() && !name.starts_with('-') && printable(name) == *name);
    names.sort();
    names.dedup();
    names
}

/// Asks the backend for the names of its locks.
fn names_on_backend(common: CommonArguments) -> Option<Vec<String>> {
    let access = StoreTarget::of(&common, &[]).ok()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let names = runtime.block_on(async { access.store.oversee().list().await }).ok()?;
    Some(names.into_iter().map(|name| name.as_str().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_be_options_or_disturb_a_terminal_are_not_offered() {
        let names =
            ["b", "-c rm", "a b", "", "\u{1b}[2J", "x\ny", "\u{202e}abc", "b", "\u{e4}"].map(str::to_owned);
        assert_eq!(typable(names.to_vec()), ["a b", "b", "\u{e4}"]);
    }
}
