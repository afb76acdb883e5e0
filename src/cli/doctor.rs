//! `dlock doctor`: its options and its help.

use clap::Args;

use super::CommonArguments;

/// `dlock doctor`
#[derive(Debug, Default, Args)]
#[command(after_help = "With --help: examples, environment and exit status.", after_long_help = DETAILS)]
pub struct DoctorArguments {
    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArguments,
}

const DETAILS: &str = "\
Checks the store in the way dlock run would use it, and this host: whether locks can be taken, whether they last, and
what would be lost with the store. Tests that need a lock use a temporary one, dlock-doctor-..., which is removed
afterwards. Each finding is ok, a warning or a problem, with its consequence and a remedy (->).
Each step may take up to --connect-timeout.

Examples:
  dlock doctor
      the locks of this user on this host
  dlock doctor -b redis://10.0.0.5/0
      the locks on a server
  dlock doctor -b redis://10.0.0.5/0 --json | jq '.findings[] | select(.level != \"ok\")'
      the findings for a program
  dlock doctor -b redis://10.0.0.5/0 >/dev/null || echo 'not fit to hold locks'

Environment:
  DLOCK_BACKEND   default of --backend
  DLOCK_CONFIG    default of --config
  REDISCLI_AUTH   the Redis password, when the URL has none
  NO_COLOR        when set, no colours on a terminal either

Exit status:
  0    no problems; there may be warnings
  1    problems, also when the store cannot be reached or denies access
  64   wrong usage
  70   internal error
  78   configuration or URL wrong";
