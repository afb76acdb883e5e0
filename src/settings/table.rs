//! The table of settings: each row is an option of `dlock run`, its environment variable, its key in a
//! configuration file, its default and its limits. The command line, the files, `dlock config show` and the
//! completions are derived from it.
//!
//! Used by the plans of this folder. What always holds: a value passes the same check, whichever source it
//! comes from.

mod lock_table;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use serde_json::Value;
use toml::de::DeValue;

pub(super) use self::lock_table::{LockTable, ranked};
use super::value::{OnLost, Setting, Supersede, described, of_environment, of_flag};
use super::{Source, Sourced};
use crate::child::signals::StopSignal;
use crate::child::stop::{Orphans, StopOptions};
use crate::duration::show;
use crate::exit::{CONTENDED, Failure};
use crate::lease::acquire::{Patience, Wait};
use crate::lease::validity::{LONGEST_TTL, SHORTEST_TTL, Terms};
use crate::lock::{DEFAULT_TTL, LockName};

/// Each row: the help text; the key, the type and the flag; for an option of the table the heading in the help and
/// what else clap has to know; the environment variable; the default; the check of the value.
macro_rules! settings {
    ($(
        #[doc = $help:literal]
        $key:ident: $type:ty, $flag:literal
        $(, option($heading:literal $(, $method:ident($argument:expr))*))?
        $(, variable($variable:literal))?
        $(, default($default:expr))?
        $(, check($check:expr))?;
    )*) => {
        /// The settings of a run, each with its source; `None` if no source sets it.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Settings { $(#[doc = $help] pub $key: Option<Sourced<$type>>,)* }

        impl Settings {
            /// The keys in a file, in display order.
            pub const KEYS: &[&str] = &[$(stringify!($key)),*];

            /// Returns the option of a key, unless it is one of every command.
            pub(super) fn option(key: &str) -> Option<Arg> {
                match key {
                    $($(stringify!($key) => {
                        let option = Arg::new(stringify!($key)).long(&$flag[2..]).help_heading($heading);
                        Some(described::<$type>(option$(.$method($argument))*, $help, Settings::default_of(key)))
                    })?)*
                    _ => None,
                }
            }

            /// Returns the default of a key.
            fn default_of(key: &str) -> Option<Value> {
                match key {
                    $($(stringify!($key) => Some(<$type as Setting>::shown(&$default)),)?)*
                    _ => None,
                }
            }

            /// Returns these settings, completed by those below.
            #[must_use]
            pub fn over(self, below: Settings) -> Settings {
                Settings { $($key: self.$key.or(below.$key)),* }
            }

            /// Returns these settings, completed by those of the environment. A variable that a flag overrides is not
            /// read.
            ///
            /// # Errors
            /// A variable has an invalid value (78).
            pub(super) fn over_environment(self) -> Result<Settings, Failure> {
                Ok(Settings { $($key: match self.$key {
                    $(None => of_environment($variable)?,)?
                    known => known,
                }),* })
            }

            /// Returns these settings, completed by the defaults.
            #[must_use]
            pub(super) fn over_defaults(self) -> Settings {
                self.over(Settings {
                    $($($key: Some(Sourced { value: $default, source: Source::Default }),)?)*
                    ..Settings::default()
                })
            }

            /// Sets the value of this key from a file; `None` if there is no such key.
            pub(super) fn set(&mut self, key: &str, value: &DeValue<'_>, source: Source) -> Option<Result<(), String>> {
                match key {
                    $(stringify!($key) => Some(Setting::read(value).map(|value| {
                        self.$key = Some(Sourced { value, source });
                    })),)*
                    _ => None,
                }
            }

            /// Returns the settings of a lock in these tables, in order of rank, restricted to the keys that are `wanted`.
            ///
            /// # Errors
            /// Two tables of the same rank set a key (78).
            pub(super) fn ranked(
                tables: &[&LockTable],
                name: &LockName,
                wanted: impl Fn(&str) -> bool,
            ) -> Result<Settings, Failure> {
                Ok(Settings { $($key: match wanted(stringify!($key)) {
                    true => ranked(tables, name, stringify!($key), |table| table.$key.as_ref())?.cloned(),
                    false => None,
                }),* })
            }

            /// Merges the settings of two tables that both apply.
            ///
            /// # Errors
            /// They differ in a setting that nothing above them overrides (78).
            pub(super) fn together(self, other: Settings, above: &Settings) -> Result<Settings, Failure> {
                Ok(Settings { $($key: agreed(self.$key, other.$key, above.$key.is_some(), $flag)?),* })
            }

            /// Checks the limits of each value that is set.
            ///
            /// # Errors
            /// A value is out of range (64, or 78 if it does not come from the command line).
            pub(super) fn check(&self) -> Result<(), Failure> {
                $($(check(&self.$key, $check)?;)?)*
                Ok(())
            }

            /// Returns each key, and its value with its source if it is set.
            pub(super) fn shown(&self) -> Vec<(&'static str, Option<Sourced<Value>>)> {
                vec![$((
                    stringify!($key),
                    self.$key.as_ref().map(|Sourced { value, source }| {
                        Sourced { value: value.shown(), source: source.clone() }
                    }),
                )),*]
            }

            $($(
                #[doc = concat!("Returns the value of `", stringify!($key), "`, or its default.")]
                pub fn $key(&self) -> $type {
                    self.$key.as_ref().map_or($default, |known| known.value)
                }
            )?)*
        }

        impl FromArgMatches for Settings {
            fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
                Ok(Settings {
                    $($key: of_flag(matches, stringify!($key), $flag)),*
                })
            }

            fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
                *self = Settings::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}

settings! {
    /// The alias or the URL of the backend
    backend: String, "--backend", variable("DLOCK_BACKEND");
    /// Wait up to this long, or forever
    wait: Wait, "--wait", option("Lock", short('w'), visible_alias("timeout")), variable("DLOCK_WAIT"),
        default(Wait::No);
    /// Try for this long to reach a store that is down, also with --no-wait
    retry: Duration, "--retry", option("Lock"), default(Duration::ZERO);
    /// Lease: how long a crashed host blocks the others
    ttl: Duration, "--ttl", option("Lock"), variable("DLOCK_TTL"), default(DEFAULT_TTL), check(check_ttl);
    /// Signal that stops the command; SIGKILL follows after the grace
    stop_signal: StopSignal, "--stop-signal", option("Command"), default(StopSignal::TERM);
    /// Time from that signal to SIGKILL [default: ttl/5, at most 5s]
    grace: Duration, "--grace", option("Command");
    /// Stop the command after this long and exit 124; 0: never
    max_runtime: Duration, "--max-runtime", option("Command"), default(Duration::ZERO);
    /// Keep the lock at least this long, up to 24h, whenever the command ends
    min_hold: Duration, "--min-hold", option("Lock"), default(Duration::ZERO), check(check_min_hold);
    /// Skip the command if a run with this option that began less than this long ago succeeded; 0: never
    once_per: Duration, "--once-per", option("Lock"), check(check_once_per);
    /// Make older waiters with this option leave (75); running: the holder, too (76). Needs --wait
    supersede: Supersede, "--supersede",
        option("Lock", num_args(0..=1), require_equals(true), default_missing_value("waiting"));
    /// Leave background processes of the command running, wait for them, or kill them
    orphans: Orphans, "--orphans", option("Command"), default(Orphans::Leave);
    /// When the lock is lost: kill the command and exit 76, or warn and let it run
    on_lost: OnLost, "--on-lost", option("Command"), default(OnLost::Kill);
    /// Let up to N runs hold the lock at a time
    slots: u32, "--slots", option("Lock"), default(1);
    /// Exit status when another client holds the lock
    conflict_exit_code: u8, "--conflict-exit-code", option("Output", short('E')), default(CONTENDED);
    /// Text that dlock status shows while the lock is held or awaited
    note: String, "--note", option("Lock"), check(|note: &String| check_note(note));
    /// Suppress contention messages, notices and warnings
    quiet: bool, "--quiet", default(false);
    /// Reject a lock that would be for this host only
    require_server: bool, "--require-server", option("Lock"), default(false);
    /// Write the outcome as JSON to this file; - is standard error
    report: PathBuf, "--report", option("Output");
    /// Count the outcome in this file, for the textfile collector of node_exporter
    metrics_file: PathBuf, "--metrics-file", option("Output");
}

/// The options of `dlock run`.
impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(Settings::KEYS.iter().filter_map(|key| Settings::option(key)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}

/// Merges one setting of two tables that both apply.
fn agreed<T: PartialEq>(
    one: Option<Sourced<T>>,
    other: Option<Sourced<T>>,
    is_overridden: bool,
    flag: &str,
) -> Result<Option<Sourced<T>>, Failure> {
    match (&one, &other) {
        (Some(first), Some(second)) if first.value != second.value && !is_overridden => {
            // The values are not repeated: a backend may have a password in it.
            Err(first.source.failure(format!(
                "{} sets a different value for another lock of this run: use {flag}",
                second.source
            )))
        }
        _ => Ok(one.or(other)),
    }
}

impl Settings {
    /// Returns how long to wait and retry.
    pub fn patience(&self) -> Patience {
        Patience { wait: self.wait(), retry: self.retry() }
    }

    /// Returns how the command is stopped, with this grace.
    pub fn stop_options(&self, grace: Duration) -> StopOptions {
        StopOptions { orphans: self.orphans(), signal: self.stop_signal(), grace }
    }

    /// Returns the note, if there is one.
    pub fn note(&self) -> Option<String> {
        self.note.as_ref().map(|note| note.value.clone())
    }

    /// Returns these settings, with `--no-wait` as a wait of 0 if it was given.
    #[must_use]
    pub(super) fn with_no_wait(self, no_wait: bool) -> Settings {
        let none = no_wait.then_some(Sourced { value: Wait::No, source: Source::Flag("--no-wait") });
        Settings { wait: self.wait.or(none), ..self }
    }

    /// Checks these settings as far as possible before a store is known, and returns lease, grace and timeouts.
    ///
    /// # Errors
    /// A value is out of range, or two contradict each other (64, or 78 if they do not come from the command line).
    pub(super) fn terms(&self, connect_timeout: Duration) -> Result<Terms, Failure> {
        self.check()?;
        let ttl = self.ttl();
        let Some(Sourced { value: grace, source }) = self.grace.clone() else {
            return Ok(Terms { ttl, grace: Terms::default_grace(ttl), connect_timeout });
        };
        let most = Terms::longest_grace(ttl);
        if grace <= most {
            return Ok(Terms { ttl, grace, connect_timeout });
        }
        let ttl_source = self.ttl.as_ref().map_or(&Source::Default, |ttl| &ttl.source);
        let ttl_named = match ttl_source {
            Source::Flag(_) | Source::Default => String::new(),
            elsewhere => format!(" ({elsewhere})"),
        };
        let longer = match ttl_source {
            Source::Environment(name) => *name,
            _ => "--ttl",
        };
        let why = format!(
            "{} is too long for a ttl of {}{ttl_named}: the maximum is {}, because SIGTERM must not come before half of the \
             lease has elapsed",
            show(grace),
            show(ttl),
            show(most)
        );
        Err(match source {
            Source::Flag(flag) => {
                let why = format!("{flag} {why}; shorten {flag} or lengthen {longer}");
                // Only two flags contradict each other.
                if ttl_source.is_configuration() { Failure::config(why) } else { Failure::usage(why) }
            }
            source => source.failure(format!("{why}; shorten it or lengthen {longer}")),
        })
    }
}

/// The longest `--min-hold`: longer periods are for `--once-per`, which does not keep the lock.
const LONGEST_MIN_HOLD: Duration = Duration::from_secs(24 * 3600);
/// The limits of `--once-per`: a success is kept for longer ([`Success::KEPT`](crate::lock::Success)).
const SHORTEST_ONCE_PER: Duration = Duration::from_secs(1);
const LONGEST_ONCE_PER: Duration = Duration::from_secs(30 * 24 * 3600);
/// The limit of `--note` and `--reason`, which are stored with the lock.
const LONGEST_NOTE: usize = 1000;

/// Checks the value of a setting, if it is set.
///
/// # Errors
/// It is out of range (64, or 78 if it does not come from the command line).
pub(super) fn check<T>(
    setting: &Option<Sourced<T>>,
    limit: impl FnOnce(&T) -> Result<(), String>,
) -> Result<(), Failure> {
    match setting {
        Some(Sourced { value, source }) => limit(value).map_err(|error| source.failure(error)),
        None => Ok(()),
    }
}

pub(super) fn check_ttl(ttl: &Duration) -> Result<(), String> {
    match (SHORTEST_TTL..=LONGEST_TTL).contains(ttl) {
        true => Ok(()),
        false => Err(format!("{} is not between 1s and 24h", show(*ttl))),
    }
}

fn check_min_hold(min_hold: &Duration) -> Result<(), String> {
    match *min_hold > LONGEST_MIN_HOLD {
        true => Err(format!("{} is longer than 24h: use --once-per", show(*min_hold))),
        false => Ok(()),
    }
}

/// Zero is off.
fn check_once_per(period: &Duration) -> Result<(), String> {
    match period.is_zero() || (SHORTEST_ONCE_PER..=LONGEST_ONCE_PER).contains(period) {
        true => Ok(()),
        false => Err(format!("{} is not between 1s and 30d", show(*period))),
    }
}

pub(super) fn check_note(note: &str) -> Result<(), String> {
    match note.len() > LONGEST_NOTE {
        true => Err(format!("{} bytes are too many, at most {LONGEST_NOTE}", note.len())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_an_option_of_run() {
        let command = super::super::command();
        let run = command.find_subcommand("run").expect("a command");
        for key in Settings::KEYS {
            let name = key.replace('_', "-");
            let option = run.get_arguments().find(|option| option.get_long() == Some(&name));
            assert_eq!(option.map(|option| option.get_id().as_str()), Some(*key));
        }
    }
}
