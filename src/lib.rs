//! dlock runs a command under a distributed lock, and no command outlives its lock.
//!
//! The layers, from the top; a module imports only from layers below its own, and from its own folder:
//!
//! | layer | purpose |
//! |---|---|
//! | `commands` | the subcommands, from arguments to exit |
//! | `report` | every word that dlock prints |
//! | `settings` | arguments, environment and files become one resolved, checked value |
//! | `outer` | the locks of the dlocks that this one runs in |
//! | [`identity`] | who dlock says that it is, and whether another dlock is alive |
//! | [`lease`], [`child`] | keeping the lock; running the command. They do not know each other |
//! | [`backend`] and its stores | acquire, renew, release; only [`backend::registry`] names the concrete ones |
//! | [`lock`] [`clock`] [`exit`] `duration` `glob` `input` `readiness` [`name_services`] `priority` `process_limit` `random` `secret` `signal_mask` `thread` | values, time, files named by users, and the exit |

#[cfg(not(target_os = "linux"))]
compile_error!("dlock needs Linux: elsewhere it could not find every process of a command to stop it");

pub mod backend;
pub mod child;
pub mod clock;
mod commands;
mod duration;
pub mod exit;
mod glob;
mod hex;
pub mod identity;
mod input;
pub mod lease;
pub mod lock;
pub mod name_services;
mod outer;
mod priority;
mod process_limit;
mod random;
mod readiness;
mod report;
mod secret;
mod settings;
mod signal_mask;
mod thread;

pub use crate::commands::leave;
pub use crate::settings::{Settings, command};

use std::ffi::OsString;

use crate::child::{BeginError, Inherited, fork_guard};
use crate::exit::{Exit, Failure};
use crate::report::{Form, Reporter};
use crate::settings::{Command, LogFormat, OutputFiles, Request};

/// Reports why dlock cannot start.
pub fn cannot_begin(error: &BeginError) -> Exit {
    Reporter::new(false, 0, LogFormat::Text).failure(&Failure::internal(error.to_string()))
}

/// Runs the whole program: arguments in, exit out. `inherited` is the state of the process before anything changed it.
pub fn program(arguments: Vec<OsString>, inherited: Inherited) -> Exit {
    if let Some(words) = commands::complete::asked_for(&arguments) {
        return commands::complete::complete(words);
    }
    let inherited = inherited.naming_descriptors(&arguments);
    let guard = commands::run::is_obvious(&arguments).then(|| fork_guard(&inherited));
    let arguments = settings::in_order(arguments);
    match settings::parse(&arguments) {
        Ok(Request::Help(text)) => commands::print(&Form::of_stdout().fit(&text)),
        Ok(Request::Command(Command::Run(arguments))) => {
            commands::run::run(arguments, guard.unwrap_or_else(|| fork_guard(&inherited)))
        }
        Ok(Request::Command(Command::Break(arguments))) => commands::break_lock::break_lock(&arguments),
        Ok(Request::Command(Command::Freeze(arguments))) => commands::freeze::freeze(&arguments),
        Ok(Request::Command(Command::Thaw(arguments))) => commands::thaw::thaw(&arguments),
        Ok(Request::Command(Command::Status(arguments))) => commands::status::status(&arguments),
        Ok(Request::Command(Command::History(arguments))) => commands::history::history(&arguments),
        Ok(Request::Command(Command::Config(arguments))) => commands::config::config(&arguments),
        Ok(Request::Command(Command::Doctor(arguments))) => commands::doctor::doctor(&arguments),
        Ok(Request::Command(Command::Completions(arguments))) => {
            commands::completions::completions(&arguments)
        }
        Ok(Request::Command(Command::Man(arguments))) => commands::man::man(&arguments),
        Ok(Request::Command(Command::Acquire(arguments))) => commands::acquire::acquire(&arguments),
        Ok(Request::Command(Command::Renew(arguments))) => commands::renew::renew(&arguments),
        Ok(Request::Command(Command::Release(arguments))) => commands::release::release(&arguments),
        Ok(Request::Command(Command::Check(arguments))) => commands::check::check(&arguments),
        Err(failure) => {
            // The wrong option may stand before the command.
            let words = settings::with_command_first(&arguments).unwrap_or(arguments);
            if settings::is_for_nagios(&words) {
                return commands::overdue::unknown(&failure);
            }
            let reporter = Reporter::new(false, 0, settings::format_of(&words));
            commands::report_invalid_command_line(&failure, &OutputFiles::seen_in(&words), &reporter)
        }
    }
}
