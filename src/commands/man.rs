//! `dlock man`: prints or writes the man pages of `man/`, which `packaging/generate.sh` makes.

use std::path::Path;

use anyhow::{Context, Result};

use crate::exit::{Exit, Failure};
use crate::report::{Reporter, reason};
use crate::settings::ManArguments;

/// Expands to the file names of man pages, each with the content of the page.
macro_rules! pages {
    ($($file:literal)*) => {
        &[$(($file, include_str!(concat!("../../man/", $file)))),*]
    };
}

/// The page of dlock itself, one of each command, and one of each topic.
const PAGES: &[(&str, &str)] = pages! {
    "dlock.1"
    "dlock-acquire.1"
    "dlock-backends.7"
    "dlock-break.1"
    "dlock-check.1"
    "dlock-completions.1"
    "dlock-config.1"
    "dlock-doctor.1"
    "dlock-man.1"
    "dlock-recipes.7"
    "dlock-release.1"
    "dlock-renew.1"
    "dlock-run.1"
    "dlock-status.1"
};

/// Prints the page of dlock itself, or writes all pages into a directory.
pub fn man(arguments: &ManArguments) -> Exit {
    match &arguments.directory {
        None => super::print(PAGES[0].1),
        Some(directory) => match write(Path::new(directory)) {
            Ok(()) => Exit::SUCCESS,
            Err(error) => Reporter::of(&arguments.common).failure(&Failure::usage(reason(&error))),
        },
    }
}

fn write(directory: &Path) -> Result<()> {
    let cannot = |path: &Path| format!("cannot write {}", path.display());
    std::fs::create_dir_all(directory).with_context(|| cannot(directory))?;
    for (file, text) in PAGES {
        let path = directory.join(file);
        std::fs::write(&path, text).with_context(|| cannot(&path))?;
    }
    Ok(())
}
