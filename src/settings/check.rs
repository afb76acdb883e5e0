//! The plan of `dlock check`: which locks to check, and at which stores.

use std::rc::Rc;
use std::time::Duration;

use super::target::checked_name;
use super::tokens::{ONE_NAME, TokenArguments, TokenPlan};
use super::{CheckArguments, Configuration, Source, Sourced, StoreTarget};
use crate::backend::Location;
use crate::backend::registry;
use crate::backend::url::Url;
use crate::exit::Failure;
use crate::input;
use crate::lock::{LockName, Token};
use crate::outer::{OuterHold, OuterHolds};

pub struct CheckPlan {
    /// The locks that must all still be held.
    pub proofs: Vec<Proof>,
    pub connect_timeout: Duration,
    /// Notices to print once, before a store is contacted.
    pub notices: Vec<String>,
}

/// A lock, and the token that must own it.
pub struct Proof {
    pub name: LockName,
    pub token: Token,
    pub store: Rc<dyn Location>,
    /// The hint for a store that is named only by `DLOCK_HELD`, without its secrets.
    pub help: &'static str,
}

/// `DLOCK_HELD` names stores without secrets, and without the connection options of a URL.
const NAME_THE_STORE: &str =
    "; DLOCK_HELD contains no passwords and certificates: name the store with DLOCK_BACKEND or -b";

impl CheckPlan {
    /// Finds the locks to check: the one of the token option, else the holds that this process runs under,
    /// else the one of the token in the environment.
    ///
    /// # Errors
    /// A bad option, name or token, or no lock to check (64); bad environment or URL (78).
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
            return CheckPlan::of_token(&arguments.token, name);
        }
        // A store that the holds name need not be configured, and no default is assumed.
        let configuration = Configuration::read(common)?;
        let backend = configuration.named_backend(common, name.as_slice())?;
        let named = match &backend {
            Some(_) => Some(StoreTarget::new(common, configuration.backend(backend.as_ref())?, &[])?),
            None => None,
        };
        let by_option = matches!(backend, Some(Sourced { source: Source::Flag(_), .. }));
        let mut proofs = Vec::new();
        for hold in inside {
            let name = checked_name(hold.name.as_ref())?;
            let (store, help) = match &named {
                Some(target) if by_option || target.store.display() == hold.backend => {
                    (target.store.clone(), "")
                }
                _ => (store_of(hold)?, NAME_THE_STORE),
            };
            proofs.push(Proof { name, token: hold.token(), store, help });
        }
        let connect_timeout = common.connect_timeout()?;
        Ok(CheckPlan {
            proofs,
            connect_timeout,
            notices: named.map_or_else(Vec::new, |target| target.notices),
        })
    }

    fn of_token(arguments: &TokenArguments, name: Option<LockName>) -> Result<CheckPlan, Failure> {
        let name = name.ok_or_else(|| {
            Failure::usage(
                "no lock name, and no DLOCK_HELD to find it in: run this under dlock run, or did you mean: dlock check \
                 nightly",
            )
        })?;
        let TokenPlan { name, target, token } = TokenPlan::of_name(arguments, name)?;
        let StoreTarget { store, connect_timeout, notices, .. } = target;
        Ok(CheckPlan { proofs: vec![Proof { name, token, store, help: "" }], connect_timeout, notices })
    }
}

/// Returns the store of a hold from its entry in `DLOCK_HELD`.
fn store_of(hold: &OuterHold) -> Result<Rc<dyn Location>, Failure> {
    let wrong = |why: String| Failure::config(format!("DLOCK_HELD: {why}{NAME_THE_STORE}"));
    // The entry has the URL in its decoded form, as in messages.
    let value = hold.backend.replace('%', "%25").replace(' ', "%20").replace('#', "%23");
    let environment = |name: &str| input::variable(name).and_then(|value| value.into_string().ok());
    let store = Url::parse(&value).and_then(|url| registry::parse(&url, &environment));
    let store = store.map_err(|error| wrong(error.to_string()))?;
    match store.display() == hold.backend {
        true => Ok(store),
        false => Err(wrong(format!("'{}' cannot be read back", hold.backend))),
    }
}
