//! `dlock renew`, `release` and `check`: their options and plans, and the sources of a token.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use clap::Args;

use super::table::{check, check_ttl};
use super::target::{checked_name, contradiction, one_name, refuse_unverified};
use super::value::{checked, parse_fencing_token};
use super::{CommonArguments, Configuration, Source, Sourced, StoreTarget};
use crate::backend::location::Demand;
use crate::backend::url::Url;
use crate::backend::{Location, io_text, registry};
use crate::duration;
use crate::exit::Failure;
use crate::input;
use crate::lock::{FencingToken, LockName, Token};
use crate::outer::{OuterHold, OuterHolds};

/// Arguments of the commands that take a token.
#[derive(Debug, Default, Args)]
pub struct TokenArguments {
    /// Name of the lock
    #[arg(value_name = "NAME", num_args = 0.., hide = true)]
    pub names: Vec<OsString>,

    /// Read the token from this file instead of DLOCK_TOKEN
    #[arg(long, value_name = "FILE", help_heading = "Lock")]
    pub token_file: Option<PathBuf>,

    #[command(flatten)]
    pub common: CommonArguments,
}

/// `dlock renew`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock renew [OPTIONS] NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/renew.txt")
)]
pub struct RenewArguments {
    #[command(flatten)]
    pub token: TokenArguments,

    /// Length of the lease from now on, from 1s to 24h [default: the length it was acquired with]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = checked(duration::parse), help_heading = "Lock")]
    pub ttl: Option<Duration>,

    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// `dlock release`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock release [OPTIONS] NAME",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/release.txt")
)]
pub struct ReleaseArguments {
    #[command(flatten)]
    pub token: TokenArguments,
}

/// `dlock check`
#[derive(Debug, Default, Args)]
#[command(
    override_usage = "dlock check [OPTIONS] [NAME]",
    after_help = "With --help: examples, environment and exit status.",
    after_long_help = include_str!("help/check.txt")
)]
pub struct CheckArguments {
    #[command(flatten)]
    pub token: TokenArguments,

    /// Check instead that no later fencing token than N has been granted for NAME
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = checked(parse_fencing_token), help_heading = "Lock")]
    pub fencing_token: Option<FencingToken>,
}

/// A lock, and the token that owns it.
pub struct TokenPlan {
    pub name: LockName,
    pub target: StoreTarget,
    pub token: Token,
}

pub struct RenewPlan {
    pub hold: TokenPlan,
    /// The new lease; `None` means the length that it was taken with.
    pub ttl: Option<Duration>,
    /// Print when it ends, as JSON.
    pub json: bool,
}

/// The maximum length of a token.
const LONGEST_TOKEN: u64 = 256;
/// The maximum number of bytes that are read.
const LONGEST_CONTENT: u64 = 64 << 10;
/// The time limit for the writer of a pipe.
const PIPE_WITHIN: Duration = Duration::from_secs(5);

const NO_TOKEN: &str =
    "no token: set DLOCK_TOKEN to what dlock acquire has printed, or give the file with --token-file";
const ONE_NAME: &str = "one NAME, and no token: every user of this host can read a command line; use \
                        DLOCK_TOKEN or --token-file";

impl TokenPlan {
    /// Checks all arguments and reads the token.
    ///
    /// # Errors
    /// A bad option, name or token, or none (64); bad environment or URL (78).
    pub fn new(arguments: &TokenArguments, command: &str) -> Result<TokenPlan, Failure> {
        let name = one_name(&arguments.names, ONE_NAME, &format!("{command} nightly"))?;
        TokenPlan::of_name(arguments, name)
    }

    /// Returns the plan for this lock.
    ///
    /// # Errors
    /// A bad token, or none (64); bad environment or URL (78).
    fn of_name(arguments: &TokenArguments, name: LockName) -> Result<TokenPlan, Failure> {
        let target = StoreTarget::of(&arguments.common, std::slice::from_ref(&name))?;
        let token = token(&arguments.token_file)?.ok_or_else(|| Failure::usage(NO_TOKEN))?;
        Ok(TokenPlan { name, target, token })
    }
}

impl RenewPlan {
    /// Checks all arguments and reads the token.
    ///
    /// # Errors
    /// A bad option, name or token, or none (64); bad environment or URL (78).
    pub fn new(arguments: &RenewArguments) -> Result<RenewPlan, Failure> {
        let ttl = arguments.ttl.map(|value| Sourced { value, source: Source::Flag("--ttl") });
        check(&ttl, check_ttl)?;
        let hold = TokenPlan::new(&arguments.token, "renew")?;
        if let Some(Sourced { value, source }) = &ttl {
            hold.target.check(Demand::Lease(*value), source)?;
        }
        Ok(RenewPlan { hold, ttl: arguments.ttl, json: arguments.json })
    }
}

/// Returns the token that was given, if any: from the file, else from the environment.
fn token(file: &Option<PathBuf>) -> Result<Option<Token>, Failure> {
    let found = match file {
        Some(path) => Some(Sourced { value: read(path), source: Source::Flag("--token-file") }),
        None => input::variable("DLOCK_TOKEN").map(|value| Sourced {
            value: token_of(value.as_encoded_bytes()).map_err(|error| format!("the token {error}")),
            source: Source::Environment("DLOCK_TOKEN"),
        }),
    };
    found.map(|Sourced { value, source }| value.map_err(|error| source.failure(error))).transpose()
}

fn read(path: &Path) -> Result<Token, String> {
    content(path)
        .map_err(|error| format!("cannot read '{}': {}", named(path), io_text(&error)))
        .and_then(|content| token_of(&content).map_err(|error| format!("'{}' {error}", named(path))))
}

/// Returns the name of a token file for a message. A token that was given in place of it is not repeated.
fn named(path: &Path) -> String {
    let name = path.to_string_lossy();
    let is_token = name.len() >= 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_token { "TOKEN".to_owned() } else { registry::repeatable(&name) }
}

/// Returns the token in a file, if there is such a file and it may contain one.
///
/// # Errors
/// The file cannot be read.
pub fn token_in(path: &Path) -> io::Result<Option<Token>> {
    match content(path) {
        Ok(content) => Ok(token_of(&content).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the content of a file without the line break at its end.
fn content(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = input::read_file_or_pipe(path, LONGEST_CONTENT, PIPE_WITHIN)?;
    content.pop_if(|last| *last == b'\n');
    Ok(content)
}

/// Checks that a text can be a token: one line of limited length. The store decides whether it is one.
fn token_of(text: &[u8]) -> Result<Token, String> {
    if text.is_empty() {
        return Err("is empty".into());
    }
    if text.len() as u64 > LONGEST_TOKEN {
        return Err(format!("has more than {LONGEST_TOKEN} bytes: this is not a token"));
    }
    let text = std::str::from_utf8(text).map_err(|_| "is not UTF-8: this is not a token")?;
    match text.chars().any(char::is_control) {
        true => Err("has line breaks or control characters: a token is one line".into()),
        false => Ok(Token::from_text(text)),
    }
}

pub struct CheckPlan {
    /// They must all succeed.
    pub checks: Vec<Check>,
    pub connect_timeout: Duration,
    /// Notices to print once, before a store is contacted.
    pub notices: Vec<String>,
}

/// A lock, and what must be true of it.
pub struct Check {
    pub name: LockName,
    pub condition: Condition,
    pub store: Rc<dyn Location>,
    /// The hint for a store that is named only by `DLOCK_HELD`, without its secrets.
    pub help: &'static str,
}

pub enum Condition {
    /// This token owns it.
    OwnedBy(Token),
    /// No later fencing token has been granted.
    NoTokenAfter(FencingToken),
}

/// `DLOCK_HELD` names stores without secrets, and without the connection options of a URL.
const NAME_THE_STORE: &str =
    "; DLOCK_HELD contains no passwords and certificates: name the store with DLOCK_BACKEND or -b";

impl CheckPlan {
    /// Finds the locks to check: the one of the token option, else the holds that this process runs under,
    /// else the one of the token in the environment. A fencing token is checked at the store of the innermost hold of
    /// that name, if there is one.
    ///
    /// # Errors
    /// A bad option, name or token, or no lock to check (64); bad environment or URL (78).
    pub fn new(arguments: &CheckArguments) -> Result<CheckPlan, Failure> {
        let name = match arguments.token.names.as_slice() {
            [] => None,
            [name] => Some(checked_name(name)?),
            _ => return Err(Failure::usage(ONE_NAME)),
        };
        if arguments.fencing_token.is_some() && arguments.token.token_file.is_some() {
            return contradiction("--fencing-token", "--token-file");
        }
        let common = &arguments.token.common;
        let outer = OuterHolds::of_environment();
        let is_meant = |hold: &&OuterHold| name.as_ref().is_none_or(|name| name.as_str() == hold.name);
        let inside: Vec<&OuterHold> = match &arguments.token.token_file {
            None => outer.holds().iter().filter(is_meant).collect(),
            Some(_) => Vec::new(),
        };
        let inside = match (arguments.fencing_token, &name) {
            (Some(_), None) => {
                return Err(Failure::usage(
                    "--fencing-token: of which lock? dlock check --fencing-token N nightly",
                ));
            }
            (Some(_), Some(_)) => inside.into_iter().last().into_iter().collect(),
            (None, _) => inside,
        };
        if inside.is_empty() {
            return CheckPlan::of_token(arguments, name);
        }
        // A store that the holds name need not be configured, and no default is assumed.
        let configuration = Configuration::read(common)?;
        let backend = configuration.named_backend(common, name.as_slice())?;
        let named = match &backend {
            Some(_) => Some(StoreTarget::new(common, configuration.backend(backend.as_ref())?, &[])?),
            None => None,
        };
        let by_option = matches!(backend, Some(Sourced { source: Source::Flag(_), .. }));
        let mut checks = Vec::new();
        for hold in inside {
            let name = checked_name(hold.name.as_ref())?;
            let (store, help) = match &named {
                Some(target) if by_option || target.store.display() == hold.backend => {
                    (target.store.clone(), "")
                }
                _ => {
                    let store = store_of(hold)?;
                    refuse_unverified(&*store, configuration.requires_verified_tls())?;
                    (store, NAME_THE_STORE)
                }
            };
            let condition = arguments
                .fencing_token
                .map_or_else(|| Condition::OwnedBy(hold.token()), Condition::NoTokenAfter);
            checks.push(Check { name, condition, store, help });
        }
        let connect_timeout = common.connect_timeout()?;
        Ok(CheckPlan {
            checks,
            connect_timeout,
            notices: named.map_or_else(Vec::new, |target| target.notices),
        })
    }

    fn of_token(arguments: &CheckArguments, name: Option<LockName>) -> Result<CheckPlan, Failure> {
        let name = name.ok_or_else(|| {
            Failure::usage(
                "no lock name, and no DLOCK_HELD to find it in: run this under dlock run, or did you mean: dlock check \
                 nightly",
            )
        })?;
        let (target, condition) = match arguments.fencing_token {
            Some(token) => {
                let target = StoreTarget::of(&arguments.token.common, std::slice::from_ref(&name))?;
                (target, Condition::NoTokenAfter(token))
            }
            None => {
                let TokenPlan { target, token, .. } = TokenPlan::of_name(&arguments.token, name.clone())?;
                (target, Condition::OwnedBy(token))
            }
        };
        let StoreTarget { store, connect_timeout, notices, .. } = target;
        Ok(CheckPlan { checks: vec![Check { name, condition, store, help: "" }], connect_timeout, notices })
    }
}

/// Returns the store of a hold from its entry in `DLOCK_HELD`.
fn store_of(hold: &OuterHold) -> Result<Rc<dyn Location>, Failure> {
    let wrong = |why: String| Failure::config(format!("DLOCK_HELD: {why}{NAME_THE_STORE}"));
    let environment = |name: &str| input::variable(name).and_then(|value| value.into_string().ok());
    let store = Url::parse(&hold.backend).and_then(|url| registry::parse(&url, &environment));
    let store = store.map_err(|error| wrong(error.to_string()))?;
    match store.display() == hold.backend {
        true => Ok(store),
        false => Err(wrong(format!("'{}' cannot be read back", hold.backend))),
    }
}
