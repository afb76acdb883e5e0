//! A reader who looks for a variable, a file or an option of a URL finds it in the section for it.

use std::collections::BTreeSet;
use std::path::Path;

/// Words that look like variables and are none, and variables of other programs.
const NO_VARIABLES: &[&str] = &[
    "CONNECTION_ADMIN",
    "CRONLOCK_GRACE",
    "CRONLOCK_HOST",
    "CRONLOCK_KEY",
    "CRONLOCK_RELEASE",
    "DLOCK_SHA256",
    "ETCD_LOCK_REV",
    "GET_LOCK",
    "READ_ONLY",
    "UTC_TIMESTAMP",
    "WITH_ADVISORY_LOCK_PREFIX",
];
/// Variables without an underscore, and with another beginning than `PG`.
const SHORT_VARIABLES: &[&str] = &["CI", "HOME", "MANPAGER", "PAGER", "PATH", "TERM", "TZ"];
const DIRECTORIES_OF_DLOCK: &[&str] = &["~/", "/etc/dlock/", "/var/lib/dlock"];

/// The sections of a page, by their titles, without the marks of roff and without the placeholders.
fn sections(page: &str) -> Vec<(String, String)> {
    let mut sections: Vec<(String, String)> = Vec::new();
    let mut is_example = false;
    for line in page.lines() {
        match (line.strip_prefix(".SH "), sections.last_mut()) {
            (Some(title), _) => sections.push((title.trim_matches('"').to_owned(), String::new())),
            _ if line == ".nf" || line == ".fi" => is_example = line == ".nf",
            (None, Some((_, text))) => {
                // Placeholders are italic.
                for (index, part) in line.split("\\fI").enumerate() {
                    let part =
                        if index == 0 { part } else { part.split_once("\\fR").map_or("", |part| part.1) };
                    // The files of an example are not those of dlock.
                    let part = if is_example { part.replace('/', " ") } else { part.to_owned() };
                    text.push_str(&part.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-"));
                }
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    sections
}

fn words<'a>(text: &'a str, is_part: impl Fn(char) -> bool + 'a) -> impl Iterator<Item = &'a str> {
    text.split(move |c| !is_part(c)).filter(|word| !word.is_empty())
}

fn variables(text: &str) -> BTreeSet<&str> {
    let is_variable = |word: &&str| {
        let is_name = word.chars().all(|c| matches!(c, 'A'..='Z' | '0'..='9' | '_'))
            && word.starts_with(|first: char| first.is_ascii_uppercase());
        let is_long = word.contains('_') && !word.ends_with('_') || word.starts_with("PG") && word.len() > 4;
        is_name && (is_long || SHORT_VARIABLES.contains(word)) && !NO_VARIABLES.contains(word)
    };
    words(text, |c| c.is_ascii_alphanumeric() || c == '_').filter(is_variable).collect()
}

fn files(text: &str) -> BTreeSet<&str> {
    let is_ours = |word: &&str| {
        DIRECTORIES_OF_DLOCK.iter().any(|directory| word.starts_with(directory) && word != directory)
    };
    let words = words(text, |c| c.is_ascii_alphanumeric() || "~/._-".contains(c));
    words.map(|word| word.trim_end_matches(['.', '/'])).filter(is_ours).collect()
}

/// The pages of dlock, such as `dlock-run(1`.
fn pages(text: &str) -> BTreeSet<&str> {
    let words = words(text, |c| c.is_ascii_alphanumeric() || "-(".contains(c));
    words.filter(|word| word.starts_with("dlock") && word.contains('(')).collect()
}

type Named = fn(&str) -> BTreeSet<&str>;

/// The sections that are lists, and what they list.
const LISTS: [(&str, Named); 3] = [("ENVIRONMENT", variables), ("FILES", files), ("SEE ALSO", pages)];

#[test]
fn every_page_lists_the_variables_files_and_pages_that_it_names() {
    let mut missing = Vec::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man")).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_stem().unwrap().to_str().unwrap();
        let page = std::fs::read_to_string(&path).unwrap();
        let sections = sections(&page);
        for (list, named) in LISTS {
            // It names pages as examples of names.
            if (file, list) == ("dlock-man", "SEE ALSO") {
                continue;
            }
            let is_list = |title: &str| title == list || (title, list) == ("COMMANDS", "SEE ALSO");
            let (listed, text): (Vec<_>, Vec<_>) = sections.iter().partition(|(title, _)| is_list(title));
            let join = |sections: Vec<&(String, String)>| {
                sections.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().concat()
            };
            let (listed, text) = (join(listed), join(text));
            let (listed, named) = (named(&listed), named(&text));
            let is_own = |name: &str| name.split_once('(').is_some_and(|(name, _)| name == file);
            let lacking = named.difference(&listed).filter(|name| !is_own(name));
            missing.extend(lacking.map(|name| format!("{file}: {list}: {name}")));
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// The binary names the options that it knows in the error about an unknown one.
#[test]
fn the_page_of_a_store_lists_the_options_that_its_urls_have() {
    let place = crate::support::place::Place::new();
    for (page, urls) in [
        ("file", &["file:"][..]),
        ("redis", &["redis://h", "redis-sentinel://h/service", "redlock://h", "redis-cluster://h"]),
        ("etcd", &["etcd://h"]),
        ("zookeeper", &["zookeeper://h"]),
        ("postgres", &["postgres://h"]),
        ("mysql", &["mysql://h/db"]),
        ("memcached", &["memcached://h"]),
        ("consul", &["consul://h"]),
        ("s3", &["s3://b"]),
        ("dynamodb", &["dynamodb://abc"]),
        ("kubernetes", &["k8s://abc"]),
    ] {
        let errors = urls.iter().map(|url| {
            let url = format!("{url}?nonesuch=");
            place.bare().args(["run", "-b", &url, "x", "--", "true"]).output().stderr
        });
        let errors: Vec<String> = errors.collect();
        let lists = errors.iter().filter_map(|error| error.split_once("(known: ")?.1.strip_suffix(")\n"));
        let known: BTreeSet<&str> = lists.flat_map(|list| list.split(", ")).collect();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("man/dlock-{page}.7"));
        let sections = sections(&std::fs::read_to_string(path).unwrap());
        let (_, list) = sections.iter().find(|(title, _)| title == "OPTIONS OF THE URL").expect(page);
        let lines: Vec<&str> = list.lines().collect();
        let terms = lines.windows(2).filter(|pair| pair[0] == ".TP").flat_map(|pair| pair[1].split(", "));
        assert_eq!(terms.collect::<BTreeSet<_>>(), known, "{page}: {errors:?}");
    }
}
