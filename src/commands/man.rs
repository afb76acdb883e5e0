//! `dlock completions` and `dlock man`.

pub mod man;
mod markup;
mod pages;

use std::path::Path;

use crate::backend::io_text;
use crate::exit::{Exit, Failure};
use crate::report::Reporter;
use crate::settings::{CompletionsArguments, ManArguments, ShellArgument};

/// Prints the completion script of a shell.
pub fn completions(arguments: &CompletionsArguments) -> Exit {
    let Some(shell) = arguments.shell else {
        let message = "no shell: did you mean: dlock completions bash (or zsh, fish, powershell, elvish)";
        return Reporter::of(&arguments.common).failure(&Failure::usage(message));
    };
    super::print(script(shell))
}

/// Returns the completion script of a shell. The script calls dlock for commands, options and names, so that
/// it does not change with them.
pub fn script(shell: ShellArgument) -> &'static str {
    match shell {
        ShellArgument::Bash => include_str!("../../completions/dlock.bash"),
        ShellArgument::Zsh => include_str!("../../completions/_dlock"),
        ShellArgument::Fish => include_str!("../../completions/dlock.fish"),
        ShellArgument::PowerShell => include_str!("../../completions/_dlock.ps1"),
        ShellArgument::Elvish => include_str!("../../completions/dlock.elv"),
    }
}

/// Prints the man page of dlock, or writes all pages into a directory.
pub fn man(arguments: &ManArguments) -> Exit {
    let pages = man::pages(&crate::settings::command());
    match &arguments.directory {
        None => super::print(&pages[0].text),
        Some(directory) => match write(Path::new(directory), &pages) {
            Ok(()) => Exit::SUCCESS,
            Err(failure) => Reporter::of(&arguments.common).failure(&failure),
        },
    }
}

fn write(directory: &Path, pages: &[man::Page]) -> Result<(), Failure> {
    let failed =
        |path: &Path, error| Failure::usage(format!("cannot write {}: {}", path.display(), io_text(&error)));
    std::fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
    for page in pages {
        let path = directory.join(&page.file);
        std::fs::write(&path, &page.text).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}
