//! A command line that must be refused before it has any effect.

use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use std::path::{Path, PathBuf};

/// Runs `dlock` with these arguments where `DLOCK_BACKEND` names a directory, and again where it names a server, and
/// asserts that the result was the same both times, that one line on standard error was the only output, that no server
/// was contacted, and that no file was created.
#[track_caller]
pub fn refused(args: &[&str]) -> Output {
    refused_with(|run| run.args(args))
}

/// The same with additional settings by `set`.
#[track_caller]
pub fn refused_with(set: impl Fn(Dlock) -> Dlock) -> Output {
    let place = Place::new();
    let output = refused_in(&place, set(place.bare().env("DLOCK_BACKEND", place.url())));
    {
        let server = Fake::silent();
        let url = format!("redis://127.0.0.1:{}/0", server.port());
        let elsewhere = refused_in(&place, set(place.bare().env("DLOCK_BACKEND", url)));
        assert_eq!((elsewhere.exit, &elsewhere.stderr), (output.exit, &output.stderr));
        assert_eq!(server.connections(), 0, "contacted in spite of: {}", output.stderr);
    }
    output
}

/// Asserts that each of these arguments of `dlock` is refused (64) with this message after `dlock: `.
#[track_caller]
pub fn assert_usage<'a>(cases: impl IntoIterator<Item = (&'a [&'a str], &'a str)>) {
    let mut wrong = Vec::new();
    for (args, line) in cases {
        let output = refused(args);
        if output.outcome() != (Exit::Code(64), "", &format!("dlock: {line}\n")) {
            wrong.push(format!("{args:?}: {:?} {}", output.exit, output.stderr));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs it in a place, and asserts that it prints one line and creates no file.
#[track_caller]
pub fn refused_in(place: &Place, run: Dlock) -> Output {
    let output = run.output();
    assert_eq!(output.stdout, "", "{}", output.stderr);
    let (line, rest) = output.stderr.split_once('\n').unwrap_or((&output.stderr, "no line break"));
    assert!(line.starts_with("dlock: ") && rest.is_empty(), "one line: {}", output.stderr);
    assert!(!line.chars().any(char::is_control), "{line:?}");
    assert_eq!(left_behind(place), Vec::<PathBuf>::new(), "in spite of: {line}");
    output
}

/// Every file in the place that does not belong to the tests.
pub fn left_behind(place: &Place) -> Vec<PathBuf> {
    let mut found = Vec::new();
    walk(&place.path("."), &mut found);
    found.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        !name.starts_with("stdout.") && !name.starts_with("stderr.")
    });
    found
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}
