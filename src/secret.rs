//! The secrets that this process knows, so that foreign text that repeats them can be printed and stored without them:
//! a server or a proxy that quotes dlock's command in an error quotes the password or the token in it.
//!
//! Text is scrubbed where it enters: in the errors of a server, and in what other clients store about themselves
//! ([`Identity`](crate::lock::Identity), [`Record`](crate::lock::Record), [`Revocation`](crate::lock::Revocation)).
//! dlock's own words are not scrubbed: `***` in place of one of them would reveal the password.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer};

struct Known {
    secrets: BTreeSet<String>,
    /// The first bytes of those that are long enough.
    beginnings: BTreeSet<[u8; MIN_HIDDEN]>,
    /// The others.
    short: Vec<String>,
}

impl Known {
    const NOTHING: Known = Known { secrets: BTreeSet::new(), beginnings: BTreeSet::new(), short: Vec::new() };

    /// Returns whether a text may contain a secret. Texts are many, and so may be secrets.
    fn may_be_in(&self, text: &str) -> bool {
        let is_beginning =
            |part: &[u8]| part.first_chunk().is_some_and(|part| self.beginnings.contains(part));
        text.as_bytes().windows(MIN_HIDDEN).any(is_beginning)
            || self.short.iter().any(|secret| text.contains(secret))
    }

    fn add(&mut self, secret: &str) {
        match secret.as_bytes().first_chunk() {
            Some(first) => {
                self.beginnings.insert(*first);
            }
            None => self.short.push(secret.to_owned()),
        }
        self.secrets.insert(secret.to_owned());
    }
}

#[cfg(not(test))]
fn with_known<T>(act: impl FnOnce(&mut Known) -> T) -> T {
    static KNOWN: Mutex<Known> = Mutex::new(Known::NOTHING);
    act(&mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A unit test does not know the secrets of others, which run in other threads: one letter may be a password of theirs.
#[cfg(test)]
fn with_known<T>(act: impl FnOnce(&mut Known) -> T) -> T {
    thread_local! {
        static KNOWN: Mutex<Known> = const { Mutex::new(Known::NOTHING) };
    }
    KNOWN.with(|known| act(&mut known.lock().unwrap_or_else(PoisonError::into_inner)))
}

/// The replacement for a secret.
pub const HIDDEN: &str = "***";
/// The length from which the beginning of a secret is hidden as well, in case a text was cut off. A shorter secret is
/// hidden only where it stands alone: it may be a part of any word.
const MIN_HIDDEN: usize = 8;

/// Registers a secret until the process ends.
pub fn keep(secret: &str) {
    // As Redis quotes it (`sdscatrepr`), and JSON.
    let escaped = secret.escape_default().to_string().replace("\\'", "'");
    with_known(|known| {
        for form in [secret, &escaped] {
            if !form.is_empty() && !known.secrets.contains(form) {
                known.add(form);
            }
        }
    });
}

/// Returns a foreign text without the secrets that this process knows.
pub fn scrubbed(text: &str) -> Cow<'_, str> {
    with_known(|known| match known.may_be_in(text) {
        true => without(&known.secrets, text).into(),
        false => text.into(),
    })
}

/// Deserializes a foreign text without the secrets that this process knows.
///
/// # Errors
/// The value is not a string.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    Ok(scrubbed(&text).into_owned())
}

/// The same for an optional text.
///
/// # Errors
/// The value is not a string.
pub fn optional_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.map(|text| scrubbed(&text).into_owned()))
}

/// Returns the part of a secret that is hidden even if the rest is missing.
fn beginning(secret: &str) -> &str {
    &secret[..secret.ceil_char_boundary(MIN_HIDDEN)]
}

fn without(known: &BTreeSet<String>, text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let before = text[..text.len() - rest.len()].chars().next_back();
        let hidden = known.iter().map(|secret| hidden(secret, before, rest)).max().unwrap_or(0);
        if hidden > 0 {
            safe.push_str(HIDDEN);
            rest = &rest[hidden..];
        } else {
            safe.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    safe
}

/// Returns how many bytes of the text, which follows `before`, are this secret or the beginning of it.
fn hidden(secret: &str, before: Option<char>, text: &str) -> usize {
    if secret.len() >= MIN_HIDDEN {
        let same = secret.chars().zip(text.chars()).take_while(|(one, other)| one == other);
        let length = same.map(|(c, _)| c.len_utf8()).sum();
        return if length >= beginning(secret).len() { length } else { 0 };
    }
    let Some(following) = text.strip_prefix(secret) else { return 0 };
    let stands_alone = |next: Option<char>| !next.is_some_and(char::is_alphanumeric);
    match stands_alone(before) && stands_alone(following.chars().next()) {
        true => secret.len(),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(secrets: &[&str], text: &str) -> String {
        without(&secrets.iter().map(|secret| (*secret).to_owned()).collect(), text)
    }

    #[test]
    fn secrets_are_hidden_wherever_they_stand() {
        let secrets = ["hunter2-s3cret", "0123456789abcdef", "pw"];
        for (text, expected) in [
            ("AUTH me hunter2-s3cret", "AUTH me ***"),
            ("'hunter2-s3cret'hunter2-s3cret", "'***'***"),
            ("me:hunter2-s3cret@h", "me:***@h"),
            // Cut off, and followed by other text.
            ("AUTH hunter2-s3", "AUTH ***"),
            ("xhunter2-s3cretx", "x***x"),
            ("token 0123456789abcdef, and pw", "token ***, and ***"),
            // A short one is a part of other words.
            ("spawn pwd pw:pw", "spawn pwd ***:***"),
            ("hunter", "hunter"),
            ("größe 🔒", "größe 🔒"),
        ] {
            assert_eq!(shown(&secrets, text), expected);
        }
        assert_eq!(shown(&["pässwörter🔒"], "a pässwörter🔒b pässwörter"), "a ***b ***");
        assert_eq!(shown(&[], "a"), "a");
    }

    #[test]
    fn what_is_kept_is_hidden_in_each_form() {
        keep("quoted\"back\\slash");
        assert_eq!(scrubbed("AUTH quoted\"back\\slash"), "AUTH ***");
        assert_eq!(scrubbed("AUTH \"quoted\\\"back\\\\slash\""), "AUTH \"***\"");
        assert_eq!(scrubbed("nothing"), "nothing");
    }
}
