//! What `dlock check` is to ask, and whom.

use std::path::PathBuf;
use std::time::Duration;

use super::token::{NO_TOKEN, ONE_NAME, token};
use super::{StoreTarget, checked_name};
use crate::backend::locator::Locator;
use crate::backend::url::Url;
use crate::cli::{CheckArguments, CommonArguments, RunArguments};
use crate::config::{self, Configuration, Source, Sourced};
use crate::exit::Failure;
use crate::lock::{LockName, Token};
use crate::outer::{OuterHold, OuterHolds};

/// What `dlock check` is to ask.
pub struct CheckPlan {
    /// All of these have to be ours.
    pub proofs: Vec<Proof>,
    /// How long a store may take for an answer.
    pub connect_timeout: Duration,
    /// To be said once, before anything is contacted.
    pub notices: Vec<String>,
}

/// A lock, and what is to prove that it is ours.
pub struct Proof {
    /// Which lock.
    pub name: LockName,
    /// What is to prove it.
    pub token: Token,
    /// Where it is.
    pub store: Locator,
    /// What is missing in the way to the store, which nobody but `DLOCK_HELD` has named.
    pub help: &'static str,
}

/// `DLOCK_HELD` names stores without secrets, and without what else a URL may say of the way there.
const NAME_THE_STORE: &str =
    "; DLOCK_HELD tells no passwords and certificates: name the store by DLOCK_BACKEND or -b";

impl CheckPlan {
    /// Finds what there is to be asked: what the option names, else the holds that we run inside of, else the token of
    /// the environment.
    ///
    /// # Errors
    /// A bad option, name or token, or nothing to be asked (64); bad environment or URL (78).
    pub fn new(arguments: &CheckArguments) -> Result<CheckPlan, Failure> {
        let name = match arguments.token.names.as_slice() {
            [] => None,
            [name] => Some(checked_name(name)?),
            _ => return Err(Failure::usage(ONE_NAME)),
        };
        let common = &arguments.token.common;
        let outer = OuterHolds::of_environment();
        let is_meant = |hold: &&OuterHold| name.as_ref().is_none_or(|name| name.as_str() == hold.name);
        let inside: Vec<&OuterHold> = match &arguments.token.token_file {
            None => outer.holds().iter().filter(is_meant).collect(),
            Some(_) => Vec::new(),
        };
        if inside.is_empty() {
            return CheckPlan::of_token(arguments, name, &arguments.token.token_file);
        }
        // Nobody has to name a store that the holds name; and none is guessed.
        let configuration = Configuration::read(common)?;
        let backend = configuration.settings(&only_backend(common), name.as_slice())?.backend;
        let named = match &backend {
            Some(_) => Some(StoreTarget::new(common, configuration.backend(backend.as_ref())?, &[])?),
            None => None,
        };
        let by_option = matches!(backend, Some(Sourced { source: Source::Flag(_), .. }));
        let mut proofs = Vec::new();
        for hold in inside {
            let name = checked_name(hold.name.as_ref())?;
            let (store, help) = match &named {
                Some(access) if by_option || access.store.display() == hold.backend => {
                    (access.store.clone(), "")
                }
                _ => (store_of(hold)?, NAME_THE_STORE),
            };
            proofs.push(Proof { name, token: hold.token(), store, help });
        }
        let connect_timeout = super::connect_timeout(common)?;
        Ok(CheckPlan {
            proofs,
            connect_timeout,
            notices: named.map_or_else(Vec::new, |access| access.notices),
        })
    }

    fn of_token(
        arguments: &CheckArguments,
        name: Option<LockName>,
        file: &Option<PathBuf>,
    ) -> Result<CheckPlan, Failure> {
        let name = name.ok_or_else(|| {
            Failure::usage(
                "no lock name, and no DLOCK_HELD to find it in: run this under dlock run, or did you mean: dlock check \
                 nightly",
            )
        })?;
        let access = StoreTarget::of(&arguments.token.common, std::slice::from_ref(&name))?;
        let token = token(file)?.ok_or_else(|| Failure::usage(NO_TOKEN))?;
        let StoreTarget { store, connect_timeout, notices, .. } = access;
        Ok(CheckPlan { proofs: vec![Proof { name, token, store, help: "" }], connect_timeout, notices })
    }
}

/// What asks for no setting but where the locks live.
fn only_backend(common: &CommonArguments) -> RunArguments {
    let ttl = Some(Duration::ZERO);
    RunArguments { ttl, no_wait: true, common: common.clone(), ..RunArguments::default() }
}

/// The store of a hold, as far as `DLOCK_HELD` tells.
fn store_of(hold: &OuterHold) -> Result<Locator, Failure> {
    let wrong = |why: String| Failure::config(format!("DLOCK_HELD: {why}{NAME_THE_STORE}"));
    // It is written there as messages have it: decoded.
    let value = hold.backend.replace('%', "%25").replace(' ', "%20").replace('#', "%23");
    let environment = |name: &str| config::variable(name).and_then(|value| value.into_string().ok());
    let store = Url::parse(&value).and_then(|url| Locator::new(&url, &environment));
    let store = store.map_err(|error| wrong(error.to_string()))?;
    match store.display() == hold.backend {
        true => Ok(store),
        false => Err(wrong(format!("'{}' cannot be read back", hold.backend))),
    }
}
