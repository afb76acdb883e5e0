//! `dlock man`: prints a man page of `man/`, which `packaging/generate.sh` makes.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::exit::{Exit, Failure};
use crate::report::{Form, Reporter};
use crate::settings::ManArguments;

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
    "dlock-man.1"
    "dlock-release.1"
    "dlock-renew.1"
    "dlock-run.1"
    "dlock-status.1"
    "dlock-backends.7"
    "dlock-ci.7"
    "dlock-config.5"
    "dlock-etcd.7"
    "dlock-fencing.7"
    "dlock-file.7"
    "dlock-memcached.7"
    "dlock-migration.7"
    "dlock-mysql.7"
    "dlock-postgres.7"
    "dlock-recipes.7"
    "dlock-redis.7"
    "dlock-zookeeper.7"
};

/// Prints a page, that of dlock itself or the named one; on a terminal, shows it as `man` does.
pub fn man(arguments: &ManArguments) -> Exit {
    let name = arguments.page.as_deref().unwrap_or("dlock");
    match PAGES.iter().find(|(file, _)| is_named(file, name)) {
        Some((_, text)) if Form::of_stdout().shows_pages() => show(text),
        Some((_, text)) => super::print(text),
        None => {
            let message =
                format!("no man page {name:?}: there are {}", names().collect::<Vec<_>>().join(", "));
            Reporter::of(&arguments.common).failure(&Failure::usage(message))
        }
    }
}

/// Becomes `man`, which formats a page and shows it in the user's pager; prints the page as it is if there is no `man`.
fn show(text: &str) -> Exit {
    let shown = page_as_file(text).map(|page| {
        // Returns only if it fails.
        Command::new("man").args(["-l", "-"]).stdin(page).exec()
    });
    drop(shown);
    super::print(text)
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
