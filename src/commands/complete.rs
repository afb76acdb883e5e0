//! The completion requests of the shell scripts: `dlock __complete =CURRENT WORD...`, where CURRENT is the
//! part of the current word before the cursor (after an equals sign, so that no shell drops it when it is
//! empty) and the WORDs are the words before it, including `dlock`.
//!
//! The reply is a list of lines. The first names the kind: `values`, `files`, or `command N` when the word is
//! part of a command that begins with word N. After `values` each line is a value, followed by a tab and its
//! description.
//!
//! The request is an argument and not an environment variable, so that no run of dlock can be mistaken for
//! one.
//!
//! Called by `lib` before anything else. What always holds: whatever is wrong, it prints no message: it completes less.

mod command_line;

use std::ffi::OsString;
use std::sync::mpsc;
use std::time::Duration;

use crate::backend::StoreError;
use crate::backend::admin::Listed;
use crate::exit::{Exit, FailureKind};
use crate::glob::Pattern;
use crate::lock::LockState;
use crate::report::printable;
use crate::settings::{self, CommonArguments, Configuration, StoreTarget};

use self::command_line::{Completion, Known};

/// The argument that marks a completion request.
pub const REQUEST: &str = "__complete";

/// The time limit for the names of locks.
const PATIENCE: Duration = Duration::from_millis(500);

/// The commands to which the characters of a pattern in a name are special.
const WITH_PATTERNS: &[&str] = &["break", "freeze", "history", "status", "thaw"];

/// Which locks are offered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// Those of which the store keeps anything: a holder, waiters or a history.
    All,
    Held,
    /// Those that are frozen.
    Frozen,
    /// Those with a history.
    WithHistory,
}

/// Returns the words of a completion request, if this is one.
pub fn asked_for(arguments: &[OsString]) -> Option<&[OsString]> {
    arguments.get(1).filter(|word| *word == REQUEST).map(|_| &arguments[2..])
}

/// Prints the reply to a completion request; reports no failures, and is bounded in time.
pub fn complete(words: &[OsString]) -> Exit {
    // No message may appear on the terminal while the user is typing.
    std::panic::set_hook(Box::new(|_| super::leave(FailureKind::Internal.into())));
    let Some((current, before)) = words.split_first() else { return super::print("values\n") };
    let current = current.to_string_lossy();
    let current = current.strip_prefix('=').unwrap_or(&current);
    let before: Vec<String> = before.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    // The options of every command may stand before the command.
    let typed = settings::in_order(before.iter().map(OsString::from).collect());
    let has = |option: &str| typed.iter().take_while(|word| *word != "--").any(|word| word == option);
    let command = typed.get(1).and_then(|command| command.to_str());
    let which = match command {
        Some("break") => Which::Held,
        Some("thaw") => Which::Frozen,
        Some("history") => Which::WithHistory,
        Some("status") if has("--history") => Which::WithHistory,
        _ => Which::All,
    };
    let common = || settings::partial_common_arguments(&typed);
    let locks = || {
        let common = common();
        let names = typable(in_time(move || names_on_backend(&common, which)));
        match command.is_some_and(|command| WITH_PATTERNS.contains(&command)) {
            true => names.iter().map(|name| Pattern::escaped(name)).collect(),
            false => names,
        }
    };
    let pools = || {
        let common = common();
        typable(in_time(move || Some(Configuration::read(&common).ok()?.pools())))
    };
    super::print(&text(&command_line::completion(
        &settings::command_with_common_options(),
        &before,
        current,
        &Known { locks: &locks, pools: &pools },
    )))
}

fn text(completion: &Completion) -> String {
    match completion {
        Completion::Command(first) => format!("command {first}\n"),
        Completion::Files => "files\n".into(),
        Completion::Values(values) => {
            let lines = values.iter().map(|value| format!("{value}\n"));
            std::iter::once("values\n".to_owned()).chain(lines).collect()
        }
    }
}

/// Returns these names; none if they are not available in time: a file system may hang as well as a network.
fn in_time(names: impl FnOnce() -> Option<Vec<String>> + Send + 'static) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let query = move || {
        // The receiver is gone after the time limit.
        let _ = sender.send(names().unwrap_or_default());
    };
    if std::thread::Builder::new().spawn(query).is_err() {
        return Vec::new();
    }
    receiver.recv_timeout(PATIENCE).unwrap_or_default()
}

/// Returns the names that can be put on a command line, without duplicates.
fn typable(mut names: Vec<String>) -> Vec<String> {
    // Names with unprintable characters cannot be typed, and a leading dash would be read as an option.
    names.retain(|name| !name.is_empty() && !name.starts_with('-') && printable(name) == *name);
    names.sort();
    names.dedup();
    names
}

/// Returns the names of the locks on the backend that is named on the command line, in the environment or in
/// the configuration.
fn names_on_backend(common: &CommonArguments, which: Which) -> Option<Vec<String>> {
    let target = StoreTarget::of(common, &[]).ok()?;
    let runtime = super::event_loop().ok()?;
    let names = runtime.block_on(async {
        let mut store = target.store.open();
        let names = match which {
            Which::All => return store.list(Listed::InUse).await,
            Which::WithHistory => return store.list(Listed::WithHistory).await,
            Which::Held | Which::Frozen => store.list(Listed::InUse).await?,
        };
        let locks = store.inspect(&names, None).await?.locks.into_iter();
        let is_meant = |lock: &LockState| match which {
            Which::Frozen => lock.freeze.is_some(),
            _ => !lock.holders.is_empty() || lock.freeze.is_some(),
        };
        Ok::<_, StoreError>(locks.filter(is_meant).map(|lock| lock.name).collect())
    });
    Some(names.ok()?.into_iter().map(|name| name.as_str().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_options_or_unprintable_are_not_offered() {
        let names =
            ["b", "-c rm", "a b", "", "\u{1b}[2J", "x\ny", "\u{202e}abc", "b", "\u{e4}"].map(str::to_owned);
        assert_eq!(typable(names.to_vec()), ["a b", "b", "\u{e4}"]);
    }
}
