//! `dlock completions` and `dlock man`: their options.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::CommonArguments;

/// `dlock completions`
#[derive(Debug, Default, Args)]
#[command(override_usage = "dlock completions [OPTIONS] SHELL", after_long_help = include_str!("help/completions.txt"))]
pub struct CompletionsArguments {
    /// Shell to complete in
    #[arg(value_name = "SHELL")]
    pub shell: Option<ShellArgument>,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

/// The supported shells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShellArgument {
    /// GNU Bash
    Bash,
    /// Z shell
    Zsh,
    /// fish
    Fish,
    /// PowerShell
    #[value(name = "powershell")]
    PowerShell,
    /// Elvish
    Elvish,
}

/// `dlock man`
#[derive(Debug, Default, Args)]
#[command(override_usage = "dlock man [OPTIONS] [DIR]", after_long_help = include_str!("help/man.txt"))]
pub struct ManArguments {
    /// Directory to write all pages to; created if it does not exist
    #[arg(value_name = "DIR")]
    pub directory: Option<OsString>,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}
