//! The locks that a command shows: names, patterns, or all of the store.

use std::ffi::OsString;

use super::target::checked_name;
use super::{CommonArguments, Configuration, StoreTarget};
use crate::backend::location::Demand;
use crate::exit::Failure;
use crate::glob::Pattern;
use crate::lock::LockName;

/// The selected locks, and their store.
pub struct Selection {
    pub target: StoreTarget,
    /// The locks that were named, each once; shown whatever is known of them, including foreign ones.
    pub names: Vec<LockName>,
    /// The patterns for the others.
    patterns: Vec<Pattern>,
    /// Their texts.
    globs: Vec<String>,
}

impl Selection {
    /// Resolves names and patterns, and the store that has them.
    ///
    /// # Errors
    /// Bad names, or a list that the store does not have (64); bad environment or URL (78).
    pub(super) fn new(given: &[OsString], common: &CommonArguments) -> Result<Selection, Failure> {
        let mut names: Vec<LockName> = Vec::new();
        let mut patterns = Vec::new();
        let mut globs = Vec::new();
        for given in given {
            let pattern = given.to_str().map(Pattern::new);
            match pattern.as_ref().map(|pattern| (pattern, pattern.literal())) {
                Some((pattern, None)) => {
                    patterns.push(pattern.clone());
                    globs.extend(given.to_str());
                }
                literal => {
                    let text = literal.and_then(|(_, literal)| literal);
                    let name = checked_name(text.as_ref().map_or(given.as_os_str(), |text| text.as_ref()))?;
                    if !names.contains(&name) {
                        names.push(name);
                    }
                }
            }
        }
        let configuration = Configuration::read(common)?;
        let backend = configuration.resolve(common, &names)?;
        let others = match globs.is_empty() && !names.is_empty() {
            true => Vec::new(),
            false => configuration.others(&backend, &globs)?,
        };
        let mut target = StoreTarget::new(common, backend, &names)?;
        if !others.is_empty() {
            target.notices.push(format!(
                "queried only {}, but the configuration has locks on {} too: see -b {}",
                target.store.display(),
                others.join(", "),
                others.join(" or -b ")
            ));
        }
        let globs = globs.into_iter().map(str::to_owned).collect();
        Ok(Selection { target, names, patterns, globs })
    }

    /// Checks that the store can list its locks, if that is needed.
    ///
    /// # Errors
    /// It cannot (64).
    pub(super) fn check_list(&self) -> Result<(), Failure> {
        match self.target.store.refuses(Demand::List).filter(|_| self.needs_list()) {
            Some(why) => Err(Failure::usage(format!("{}: {why}", self.target.store.display()))),
            None => Ok(()),
        }
    }

    /// Whether the list of locks is needed from the store.
    pub fn needs_list(&self) -> bool {
        !self.patterns.is_empty() || self.names.is_empty()
    }

    /// Returns the patterns, as they were given, that match none of these locks.
    pub fn unmatched(&self, locks: &[&LockName]) -> Vec<String> {
        let has_match = |pattern: &Pattern| locks.iter().any(|name| pattern.matches(name.as_str()));
        let pairs = self.patterns.iter().zip(&self.globs);
        pairs.filter(|(pattern, _)| !has_match(pattern)).map(|(_, glob)| glob.clone()).collect()
    }

    /// Whether a listed lock matches the arguments.
    pub fn matches(&self, name: &LockName) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(name.as_str()))
    }
}
