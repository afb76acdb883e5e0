//! The texts of the man pages, and tables of the sentences that several pages share.

use std::collections::HashMap;

use clap::Command;
use dlock::Settings;
use dlock::backend::options::{UrlOption, Value};
use dlock::backend::registry;

/// A page that does not describe a command.
pub struct Topic {
    pub name: &'static str,
    pub section: &'static str,
    pub what: &'static str,
}

pub const TOPICS: &[Topic] = &[
    Topic { name: "dlock-config", section: "5", what: "configuration files" },
    Topic { name: "dlock-backends", section: "7", what: "where locks live: guarantees and limits" },
    Topic { name: "dlock-ci", section: "7", what: "locks in CI pipelines" },
    Topic { name: "dlock-file", section: "7", what: "locks on this host, shared with flock(1)" },
    Topic { name: "dlock-redis", section: "7", what: "locks on Redis and Valkey" },
    Topic { name: "dlock-etcd", section: "7", what: "locks in etcd" },
    Topic { name: "dlock-zookeeper", section: "7", what: "locks in ZooKeeper" },
    Topic { name: "dlock-postgres", section: "7", what: "locks in PostgreSQL" },
    Topic { name: "dlock-mysql", section: "7", what: "locks in MySQL and MariaDB" },
    Topic { name: "dlock-memcached", section: "7", what: "locks in Memcached, for efficiency only" },
    Topic { name: "dlock-consul", section: "7", what: "locks in Consul" },
    Topic { name: "dlock-s3", section: "7", what: "locks in S3" },
    Topic { name: "dlock-dynamodb", section: "7", what: "locks in DynamoDB" },
    Topic { name: "dlock-kubernetes", section: "7", what: "locks in Kubernetes" },
    Topic { name: "dlock-recipes", section: "7", what: "locks shared with other programs" },
    Topic { name: "dlock-fencing", section: "7", what: "how to reject a late writer" },
    Topic {
        name: "dlock-migration",
        section: "7",
        what: "lines of other tools, and those that replace them",
    },
];

/// Returns the text of a page: `run` of a command, `redis.7` of a topic.
pub fn of(page: &str) -> String {
    let path = format!("{}/packaging/manual/pages/{page}.md", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The data that a text is completed from.
pub struct Facts<'a> {
    /// The command that the page describes; `None` for a topic.
    pub command: Option<&'a Command>,
    /// All pages of dlock, such as `dlock-run(1)`.
    pub titles: &'a [String],
}

/// A sentence that several pages share: its key, its text, and an option; without that option, a command's
/// page omits the sentence.
type Sentence = (&'static str, &'static str, Option<&'static str>);

const STATUSES: &[Sentence] = &[
    ("0", "Success.", None),
    (
        "64",
        "The command line is wrong: an unknown option, a bad name, durations that contradict each other.",
        None,
    ),
    (
        "69",
        "The store is unavailable: it cannot be reached, does not reply in time, or is out of memory.",
        None,
    ),
    ("70", "dlock itself failed.", None),
    ("76", "The token no longer owns the lock. Nothing was changed.", None),
    ("77", "The store denied access: password or permission.", None),
    ("78", "The backend URL, an environment variable or the configuration is wrong.", None),
];

const VARIABLES: &[Sentence] = &[
    ("DLOCK_BACKEND", "Where the lock lives, when `-b` is not given. It must not be empty (78).", None),
    (
        "DLOCK_CONFIG",
        "The configuration file, when `--config` is not given: it is read instead of those of the system and of the user.",
        Some("config"),
    ),
    ("DLOCK_TTL", "The lease, when `--ttl` is not given.", None),
    ("DLOCK_WAIT", "How long to wait, when neither `--wait` nor `--no-wait` is given.", None),
    (
        "DLOCK_TOKEN",
        "The token that `dlock acquire` has printed. It is never passed on a command line.",
        None,
    ),
    ("DLOCK_HELD", "The locks that the calling command runs under, set by `dlock run`.", None),
    ("PGPASSWORD", "The password of PostgreSQL, when neither the URL nor `password_file` has one.", None),
    (
        "PGPASSFILE",
        "The password file of PostgreSQL, instead of ~/.pgpass, where no password is given otherwise.",
        None,
    ),
    (
        "SSL_CERT_FILE",
        "A file of certificate authorities that replace those of the system; `SSL_CERT_DIR` names directories of them.",
        None,
    ),
    ("ETCDCTL_USER", "The user of etcd, and the password after a colon, where the URL has none.", None),
    (
        "MYSQL_PWD",
        "The password of MySQL and MariaDB, when neither the URL nor `password_file` has one.",
        None,
    ),
    ("REDISCLI_AUTH", "The Redis password, when neither the URL nor a file has one.", None),
    (
        "GITHUB_RUN_ID",
        "With `GITHUB_SERVER_URL` and `GITHUB_REPOSITORY`: the page of the CI job, which `dlock status` shows.",
        None,
    ),
    ("CI_JOB_URL", "The same for GitLab.", None),
    ("BUILDKITE_BUILD_URL", "The same for Buildkite.", None),
    ("BUILD_URL", "The same for Jenkins.", None),
    ("NO_COLOR", "If set, output is not coloured.", None),
    ("TERM", "With `dumb`, nothing is coloured or redrawn in place.", None),
    ("TZ", "The time zone of the times that are shown.", None),
    ("CI", "If set, dlock reports that it waits, as on a terminal and with `-v`.", None),
    (
        "HOME",
        "The home directory, which contains the configuration of the user and, except for root, the locks of `file:`. If it \
         is not set, the user database is used.",
        None,
    ),
];

const FILES: &[Sentence] = &[
    (
        "~/.config/dlock/config.toml",
        "Configuration of the user. It overrides that of the host, key by key.",
        Some("config"),
    ),
    ("/etc/dlock/config.toml", "Configuration of the host.", Some("config")),
    ("~/.pgpass", "Passwords of PostgreSQL, if none is given otherwise; see `dlock-postgres`(7).", None),
    ("~/.my.cnf", "User and password of MySQL, if none is given otherwise; see `dlock-mysql`(7).", None),
    ("~/.local/state/dlock/", "The locks of `file:`, for every user but root.", None),
    ("/var/lib/dlock/", "The locks of `file:` for root.", None),
];

/// Returns the text with its directives expanded: `!status`, `!environment` and `!files` with the keys of
/// sentences, `!see` with pages, `!keys` to the settings of a lock, `!url-options` to the options of URLs with a scheme.
/// Pages of dlock that do not exist in this build are left out.
pub fn complete(text: &str, facts: &Facts<'_>) -> String {
    let mut found = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let (key, words) = line.split_once(' ').unwrap_or((line, ""));
        let table = match key {
            "!status" => STATUSES,
            "!environment" => VARIABLES,
            "!files" => FILES,
            "!keys" => {
                let keys: Vec<String> = Settings::KEYS.iter().map(|key| format!("`{key}`")).collect();
                found.push_str(&format!("  {}.\n", keys.join(", ")));
                continue;
            }
            "!url-options" => {
                found.push_str(&options(words, &mut lines));
                continue;
            }
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
                .unwrap_or_else(|| panic!("no sentence for {word}"));
            let has = |option: &str| {
                facts.command.is_none_or(|command| {
                    command.get_arguments().any(|argument| argument.get_long() == Some(option))
                })
            };
            if option.is_none_or(has) {
                found.push_str(&format!("`{word}`\n: {sentence}\n"));
            }
        }
    }
    found
}

/// Returns the list of the options of URLs with this scheme, from their table. The next lines of the text, up to an empty one,
/// add to the description of some of them.
fn options<'a>(scheme: &str, lines: &mut impl Iterator<Item = &'a str>) -> String {
    let (mut added, mut name) = (HashMap::new(), "");
    for line in lines.take_while(|line| !line.is_empty()) {
        match line.strip_prefix(": ").or(line.strip_prefix("  ")) {
            Some(text) => added.entry(name).or_insert_with(String::new).extend([" ", text]),
            None => name = line.trim_matches('`'),
        }
    }
    let table = registry::table(scheme).unwrap_or_else(|| panic!("no store {scheme}"));
    let all = || table.iter().copied().flatten();
    let mut found = String::new();
    for UrlOption { name, value, meaning, .. } in all() {
        let is_synonym = |other: &&UrlOption| matches!(other.value, Value::Synonym(of) if of == *name);
        let names = std::iter::once(*name).chain(all().filter(is_synonym).map(|other| other.name));
        let values = match value {
            Value::Synonym(_) => continue,
            Value::Text("") | Value::File => String::new(),
            Value::Text(default) | Value::Number(default, _) => format!(" The default is `{default}`."),
            Value::Word(default, words) => values(words, default),
            Value::Only(words, _) => values(words, ""),
            Value::Switch => values(&["yes", "no"], "no"),
            Value::Either => values(&["yes", "no"], ""),
        };
        let (names, added) = (names.map(marked).collect::<Vec<_>>(), added.remove(name).unwrap_or_default());
        found.push_str(&format!("{}\n: {meaning}{values}{added}\n", names.join(", ")));
    }
    assert!(added.is_empty(), "{scheme} has no such options: {added:?}");
    found + "\n"
}

fn values(words: &[&str], default: &str) -> String {
    let word = |word: &&str| marked(word) + if *word == default { " (the default)" } else { "" };
    let (last, others) = words.split_last().expect("words");
    let others = others.iter().map(word).collect::<Vec<_>>().join(", ");
    format!(" The values are {others} and {}.", word(last))
}

fn marked(text: &str) -> String {
    format!("`{text}`")
}

/// Returns `dlock-run(1) flock(1)` as a line of the text, with the names marked.
fn see(words: &str, titles: &[String]) -> String {
    let is_there = |page: &&str| !page.starts_with("dlock") || titles.iter().any(|title| title == page);
    let marked = |page: &str| format!("`{}", page.replacen('(', "`(", 1));
    words.split_whitespace().filter(is_there).map(marked).collect::<Vec<_>>().join(", ")
}
