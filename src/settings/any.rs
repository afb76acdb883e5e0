//! `--any`: several locks, of which the first that becomes free is taken.

use super::pool::add;
use super::suggestion;
use super::target::checked_name;
use super::{Configuration, Source};
use crate::backend::registry;
use crate::exit::Failure;
use crate::lock::LockName;

/// What the option is called in messages.
pub(super) const ANY: &str = "--any";

/// The value of `--any`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnyOf<'a> {
    /// `NAME,NAME...`
    Names(Vec<LockName>),
    /// The name of a pool.
    Pool(&'a str),
}

impl AnyOf<'_> {
    /// Parses the value: one word is the name of a pool, and commas separate names of locks.
    ///
    /// # Errors
    /// It is neither (64).
    pub(super) fn parse(text: &str) -> Result<AnyOf<'_>, Failure> {
        let wrong = |why: String| Source::Flag(ANY).failure(why);
        if !text.contains(',') {
            return match suggestion::name(text) {
                Some(why) => Err(wrong(format!("'{}' {why}", registry::redacted(text)))),
                None => Ok(AnyOf::Pool(text)),
            };
        }
        let mut names = Vec::new();
        for part in text.split(',') {
            // Without this, the space after a comma would lead to a lock that nobody else takes.
            if !part.is_empty() && part.trim() != part {
                return Err(wrong(format!(
                    "the name '{part}' begins or ends with a space: leave the space out, or name the lock in a pool"
                )));
            }
            let name = checked_name(part.as_ref()).map_err(|failure| wrong(failure.message))?;
            add(&mut names, name).map_err(wrong)?;
        }
        Ok(AnyOf::Names(names))
    }

    /// Returns the names of the locks, at least one.
    ///
    /// # Errors
    /// There is no such pool (78).
    pub(super) fn names(self, configuration: &Configuration) -> Result<Vec<LockName>, Failure> {
        let name = match self {
            AnyOf::Names(names) => return Ok(names),
            AnyOf::Pool(name) => name,
        };
        let pools = &configuration.tables.pools;
        if let Some(pool) = pools.iter().find(|pool| pool.name == name) {
            return Ok(pool.names.value.clone());
        }
        let known: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let known = match known.as_slice() {
            [] => "no configuration file has any".to_owned(),
            known => format!("known are {}", known.join(", ")),
        };
        let remedy = "names of locks are separated by commas, and a single one is given as NAME";
        Err(Failure::config(format!("{ANY}: no pool is called '{name}': {known}; {remedy}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_pool_and_commas_separate_names() {
        let names = |names: &[&str]| {
            let name = |name: &&str| LockName::new(name).expect("a name");
            AnyOf::Names(names.iter().map(name).collect())
        };
        for (text, expected) in [
            ("phones", AnyOf::Pool("phones")),
            ("a b", AnyOf::Pool("a b")),
            ("b,a", names(&["b", "a"])),
            ("a b,c", names(&["a b", "c"])),
        ] {
            assert_eq!(AnyOf::parse(text).map_err(|failure| failure.message), Ok(expected), "{text}");
        }
        let many = (0..65).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        for (text, why) in [
            ("a,", "NAME '': a lock name may not be empty"),
            (",", "NAME '': a lock name may not be empty"),
            ("a,a", "'a' is named twice"),
            ("a,..", "NAME '..': '.' and '..' are not lock names"),
            ("redis://u:secret@h", "'redis://u:***@h' is a URL: did you mean -b redis://u:***@h"),
            (
                "a, b",
                "the name ' b' begins or ends with a space: leave the space out, or name the lock in a pool",
            ),
            (many.as_str(), "at most 64 names"),
        ] {
            let failure = AnyOf::parse(text).map_err(|failure| failure.message);
            assert_eq!(failure, Err(format!("--any: {why}")));
        }
    }
}
