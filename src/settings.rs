//! Resolves what dlock is to do: command line, environment and configuration files become one value for each
//! setting, with its source, and then a plan, with every cross-check, before any store is contacted. The command
//! line overrides the environment, which overrides the files.
//!
//! Called by `commands`, `report` and `lib`. What always holds: a plan that exists has passed every check that needs no
//! store.

mod acquire;
mod any;
mod backends;
mod break_lock;
mod command_line;
mod common_arguments;
mod configuration;
mod doctor;
mod document;
mod fleet;
mod freeze;
mod history;
mod output_files;
mod overdue;
mod pool;
mod rejected;
mod run;
mod selection;
mod show;
mod source;
mod status;
mod suggestion;
mod table;
mod target;
mod tokens;
mod toml_tables;
mod value;
mod when;

pub use self::acquire::{AcquireArguments, AcquirePlan};
pub use self::backends::{BackendSettings, Warning};
pub use self::break_lock::{BreakArguments, BreakPlan};
pub use self::command_line::{
    Command, CompletionsArguments, ManArguments, Request, ShellArgument, command,
    command_with_common_options, in_order, parse, partial_common_arguments, with_command_first,
};
pub use self::common_arguments::{CommonArguments, LogFormat};
pub use self::configuration::Configuration;
pub use self::doctor::{DoctorArguments, FloorPlan};
pub use self::fleet::FleetPlan;
pub use self::freeze::{FreezeArguments, FreezePlan, ThawArguments, ThawPlan, thaw_command};
pub use self::history::{HistoryArguments, HistoryPlan, HistoryStyle};
pub use self::output_files::OutputFiles;
pub use self::overdue::{OverduePlan, OverdueStyle};
pub use self::pool::MOST_NAMES;
pub use self::rejected::{file_of, format_of, is_for_nagios};
pub use self::run::{RunArguments, RunPlan, known, program_failure};
pub use self::selection::Selection;
pub use self::show::{ConfigArguments, ConfigCommand, Shown, ShownTable, ShownValue};
pub use self::source::{Source, Sourced};
pub use self::status::{StatusArguments, StatusPlan};
pub use self::table::Settings;
pub use self::target::StoreTarget;
pub use self::tokens::{
    Check, CheckArguments, CheckPlan, Condition, ReleaseArguments, RenewArguments, RenewPlan, TokenPlan,
    token_in,
};
pub use self::value::{OnLost, Supersede};
