//! `dlock completions`: prints the completion script of a shell.

use crate::exit::{Exit, Failure};
use crate::report::Reporter;
use crate::settings::{CompletionsArguments, ShellArgument};

pub fn completions(arguments: &CompletionsArguments) -> Exit {
    let Some(shell) = arguments.shell else {
        let message = "no shell: did you mean: dlock completions bash (or zsh, fish, powershell, elvish)";
        return Reporter::of(&arguments.common).failure(&Failure::usage(message));
    };
    super::print(script(shell))
}

/// Returns the completion script of a shell. The script calls dlock for commands, options and names, so that
/// it does not change with them.
fn script(shell: ShellArgument) -> &'static str {
    match shell {
        ShellArgument::Bash => include_str!("../../completions/dlock.bash"),
        ShellArgument::Zsh => include_str!("../../completions/_dlock"),
        ShellArgument::Fish => include_str!("../../completions/dlock.fish"),
        ShellArgument::PowerShell => include_str!("../../completions/_dlock.ps1"),
        ShellArgument::Elvish => include_str!("../../completions/dlock.elv"),
    }
}
