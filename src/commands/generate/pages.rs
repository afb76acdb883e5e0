//! The texts of the man pages, and what several of them say: each sentence of that stands once, in a table.

use clap::Command;

/// A page that is about no command.
pub(super) struct Topic {
    pub(super) name: &'static str,
    pub(super) section: &'static str,
    pub(super) what: &'static str,
    pub(super) text: &'static str,
}

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        name: "dlock-backends",
        section: "7",
        what: "where locks live, what is promised there, and what is not",
        text: include_str!("pages/backends.md"),
    },
    Topic {
        name: "dlock-recipes",
        section: "7",
        what: "locks shared with other programs, and how to refuse a late writer",
        text: include_str!("pages/recipes.md"),
    },
];

pub(super) const OVERVIEW: &str = include_str!("pages/dlock.md");

/// The text of a command.
pub(super) fn text_of(command: &str) -> Option<&'static str> {
    Some(match command {
        "run" => include_str!("pages/run.md"),
        "status" => include_str!("pages/status.md"),
        "acquire" => include_str!("pages/acquire.md"),
        "renew" => include_str!("pages/renew.md"),
        "release" => include_str!("pages/release.md"),
        "check" => include_str!("pages/check.md"),
        "break" => include_str!("pages/break.md"),
        "doctor" => include_str!("pages/doctor.md"),
        "config" => include_str!("pages/config.md"),
        "completions" => include_str!("pages/completions.md"),
        "man" => include_str!("pages/man.md"),
        _ => return None,
    })
}

/// What a text is completed from.
pub(super) struct Facts<'a> {
    /// Whose page it is.
    pub(super) command: &'a Command,
    /// All pages there are, as `dlock-run(1)`.
    pub(super) titles: &'a [String],
}

/// A sentence that several pages have. It stands only where the command has the option that is named last, if any.
type Sentence = (&'static str, &'static str, Option<&'static str>);

const STATUSES: &[Sentence] = &[
    ("0", "It was done.", None),
    (
        "64",
        "The command line is wrong: an unknown option, a bad name, durations that contradict each other.",
        None,
    ),
    (
        "69",
        "The store could not be asked: it cannot be reached, does not answer in time, or is out of memory.",
        None,
    ),
    ("70", "dlock itself failed.", None),
    ("76", "The token does not own the lock any more. Nothing was changed.", None),
    ("77", "The store refused us: password or permission.", None),
    ("78", "The backend URL, a variable of the environment or the configuration is wrong.", None),
];

const VARIABLES: &[Sentence] = &[
    ("DLOCK_BACKEND", "Where the lock lives, when `-b` is not given.", None),
    (
        "DLOCK_CONFIG",
        "The configuration file that is read in place of the two below, when `--config` is not given.",
        Some("config"),
    ),
    ("DLOCK_TTL", "The lease, when `--ttl` is not given.", None),
    ("DLOCK_WAIT", "How long to wait, when neither `--wait` nor `--no-wait` is given.", None),
    ("DLOCK_TOKEN", "The token that `dlock acquire` has printed. It never stands on a command line.", None),
    ("DLOCK_HELD", "The locks of the command that we run in, as `dlock run` has set it.", None),
    ("REDISCLI_AUTH", "The password of Redis, when neither the URL nor a file has it.", None),
    (
        "GITHUB_RUN_ID",
        "With `GITHUB_SERVER_URL` and `GITHUB_REPOSITORY`: the page of the CI job, which `dlock status` shows.",
        None,
    ),
    ("CI_JOB_URL", "The same, of GitLab.", None),
    ("BUILDKITE_BUILD_URL", "The same, of Buildkite.", None),
    ("BUILD_URL", "The same, of Jenkins.", None),
    ("NO_COLOR", "When it is set, nothing is coloured.", None),
    (
        "HOME",
        "Below it are the locks of `file:` for every user but root. When it is not set, the user database tells.",
        None,
    ),
];

const FILES: &[Sentence] = &[
    (
        "~/.config/dlock/config.toml",
        "Configuration of the user. It goes before that of the host, key by key.",
        Some("config"),
    ),
    ("/etc/dlock/config.toml", "Configuration of the host.", Some("config")),
    ("~/.local/state/dlock/", "The locks of `file:`, for every user but root.", None),
    ("/var/lib/dlock/", "The locks of `file:` for root.", None),
];

/// A text with its lines that begin with an exclamation mark written out: `!status`, `!environment` and `!files` with
/// the keys of sentences, `!see` with pages, of which those of ours that do not exist are left out.
pub(super) fn complete(text: &str, facts: &Facts<'_>) -> String {
    let mut found = String::new();
    for line in text.lines() {
        let (key, words) = line.split_once(' ').unwrap_or((line, ""));
        let table = match key {
            "!status" => STATUSES,
            "!environment" => VARIABLES,
            "!files" => FILES,
            "!see" => {
                found.push_str(&see(words, facts.titles));
                found.push('\n');
                continue;
            }
            _ => {
                found.push_str(line);
                found.push('\n');
                continue;
            }
        };
        for word in words.split_whitespace() {
            let (_, sentence, option) = table
                .iter()
                .find(|(key, ..)| *key == word)
                .expect("a sentence for each word: every text is completed by a test");
            let has = |option: &str| {
                facts.command.get_arguments().any(|argument| argument.get_long() == Some(option))
            };
            if option.is_none_or(has) {
                found.push_str(&format!("`{word}`\n: {sentence}\n"));
            }
        }
    }
    found
}

/// `dlock-run(1) flock(1)` as a line of the text, each with its name marked.
fn see(words: &str, titles: &[String]) -> String {
    let is_there = |page: &&str| !page.starts_with("dlock") || titles.iter().any(|title| title == page);
    let marked = |page: &str| format!("`{}", page.replacen('(', "`(", 1));
    words.split_whitespace().filter(is_there).map(marked).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of commands that this build lacks are checked as well.
    #[test]
    fn every_text_can_be_completed() {
        let command = crate::cli::command();
        for name in "run status acquire renew release check break doctor config completions man".split(' ') {
            let text = text_of(name).expect("a text");
            let whole = complete(text, &Facts { command: &command, titles: &[] });
            assert!(whole.starts_with("# DESCRIPTION\n"), "{name}");
            assert!(!whole.lines().any(|line| line.starts_with('!')), "{name}");
        }
    }
}
