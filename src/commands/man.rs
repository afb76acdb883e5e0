//! `dlock man`: prints a man page of `man/`, which `packaging/generate.sh` makes.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::backend::{io_text, registry};
use crate::exit::{Exit, Failure, FailureKind};
use crate::report::{Form, Pages, Reporter};
use crate::settings::{self, ManArguments};

/// Expands to the file names of man pages, each with the content of the page.
macro_rules! pages {
    ($($file:literal)*) => {
        &[$(($file, include_str!(concat!("../../man/", $file)))),*]
    };
}

/// The page of dlock itself, one of each command, and one of each topic. Of two pages with the same name, that of the
/// command stands first.
const PAGES: &[(&str, &str)] = pages! {
    "dlock.1"
    "dlock-acquire.1"
    "dlock-break.1"
    "dlock-check.1"
    "dlock-completions.1"
    "dlock-config.1"
    "dlock-doctor.1"
    "dlock-freeze.1"
    "dlock-history.1"
    "dlock-man.1"
    "dlock-release.1"
    "dlock-renew.1"
    "dlock-run.1"
    "dlock-status.1"
    "dlock-thaw.1"
    "dlock-backends.7"
    "dlock-ci.7"
    "dlock-config.5"
    "dlock-consul.7"
    "dlock-dynamodb.7"
    "dlock-etcd.7"
    "dlock-fencing.7"
    "dlock-file.7"
    "dlock-kubernetes.7"
    "dlock-memcached.7"
    "dlock-migration.7"
    "dlock-mysql.7"
    "dlock-postgres.7"
    "dlock-recipes.7"
    "dlock-redis.7"
    "dlock-s3.7"
    "dlock-zookeeper.7"
};

/// Prints a page, that of dlock itself or the named one; on a terminal, shows it as `man` does, on a dumb one without a
/// pager.
pub fn man(arguments: &ManArguments) -> Exit {
    let reporter = Reporter::of(&arguments.common);
    match find(&arguments.page) {
        Some((file, text)) => match Form::of_stdout().pages() {
            Pages::Unformatted => super::print(text),
            Pages::Plain => match formatted(text) {
                Ok(formatted) => super::print(&formatted),
                Err(error) => reporter.failure(&not_shown(file, &error)),
            },
            Pages::InPager => reporter.failure(&not_shown(file, &show(text))),
        },
        None => {
            let words: Vec<String> = arguments.page.iter().map(|word| registry::repeatable(word)).collect();
            let (name, known) = (words.join(" "), names().collect::<Vec<_>>().join(", "));
            reporter.failure(&Failure::usage(format!("no man page {name:?}: there are {known}")))
        }
    }
}

/// Returns the page with this name, or that of the command whose subcommand it is: `config show` is in that of `config`.
fn find(words: &[String]) -> Option<(&'static str, &'static str)> {
    let named = |name: &str| PAGES.iter().find(|(file, _)| is_named(file, name)).copied();
    let Some((first, deeper)) = words.split_first() else { return named("dlock") };
    let mut command = settings::command();
    for word in words {
        match command.find_subcommand(word) {
            Some(subcommand) => command = subcommand.clone(),
            None if deeper.is_empty() => break,
            None => return None,
        }
    }
    named(first)
}

/// Becomes `man`, which formats a page and shows it in the user's pager. Returns only if that fails.
fn show(text: &str) -> io::Error {
    match page_as_file(text) {
        Ok(page) => man_of(page).exec(),
        Err(error) => error,
    }
}

/// Returns a page as `man` formats it where there is no terminal, without the overstrikes (`X`, backspace, `X`) of some
/// versions.
fn formatted(text: &str) -> io::Result<String> {
    let output = man_of(page_as_file(text)?).stderr(Stdio::inherit()).output()?;
    let mut plain = String::new();
    for c in String::from_utf8_lossy(&output.stdout).chars() {
        match c {
            '\u{8}' => drop(plain.pop()),
            c => plain.push(c),
        }
    }
    if plain.is_empty() { Err(io::Error::other("it printed nothing")) } else { Ok(plain) }
}

fn man_of(page: File) -> Command {
    let mut man = Command::new("man");
    man.args(["-l", "-"]).stdin(page);
    man
}

/// Returns the failure to show a page, with what to do instead.
fn not_shown(file: &str, error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::NotFound => "man: command not found".to_owned(),
        _ => format!("cannot run man: {}", io_text(error)),
    };
    let page = file.strip_prefix("dlock-").unwrap_or(file);
    Failure::new(
        FailureKind::Internal,
        format!(
            "{why}: install man-db or mandoc, or print the page itself with dlock man {page} | cat; dlock --help needs \
             neither"
        ),
    )
}

/// Returns a file with this content that has no name.
fn page_as_file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"dlock man", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Returns whether the file is the page `run`, `dlock-run`, `run.1` or `dlock-run.1`.
fn is_named(file: &str, name: &str) -> bool {
    let (page, _section) = file.rsplit_once('.').unwrap_or((file, ""));
    [page, file].iter().any(|known| name == *known || known.strip_prefix("dlock-") == Some(name))
}

/// Returns the short names of the pages: `run` for `dlock-run.1`, `config.5` for the second page of a name.
pub fn names() -> impl Iterator<Item = &'static str> {
    PAGES.iter().filter_map(|(file, _)| {
        let name = file.strip_prefix("dlock-")?;
        let short = name.rsplit_once('.').map_or(name, |(short, _)| short);
        let is_first = PAGES.iter().find(|(page, _)| is_named(page, short))?.0 == *file;
        Some(if is_first { short } else { name })
    })
}
