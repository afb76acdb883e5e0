//! `dlock completions` and `dlock man`, which generate `completions/` and `man/`.

use std::ffi::OsString;

use clap::{Args, ValueEnum};

use super::CommonArguments;

/// `dlock completions`
#[derive(Debug, Default, Args)]
#[command(override_usage = "dlock completions [OPTIONS] SHELL", after_long_help = COMPLETIONS_DETAILS)]
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
#[command(override_usage = "dlock man [OPTIONS] [DIR]", after_long_help = MAN_DETAILS)]
pub struct ManArguments {
    /// Directory to write all pages to; created if it does not exist
    #[arg(value_name = "DIR")]
    pub directory: Option<OsString>,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

const COMPLETIONS_DETAILS: &str = "\
Examples:
  dlock completions bash > ~/.local/share/bash-completion/completions/dlock
      for Bash with the package bash-completion
  echo 'source <(dlock completions bash)' >> ~/.bashrc
      for Bash without it
  dlock completions zsh > /usr/local/share/zsh/site-functions/_dlock
      for the Z shell: any directory of its $fpath
  dlock completions fish > ~/.config/fish/completions/dlock.fish
  dlock completions elvish >> ~/.config/elvish/rc.elv
  dlock completions powershell >> $PROFILE";

const MAN_DETAILS: &str = "\
Examples:
  dlock man | man -l -
      read the overview without installing anything
  dlock man pages && man ./pages/dlock-run.1
      write all pages, and read one of them";
