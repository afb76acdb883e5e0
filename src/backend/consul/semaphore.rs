//! The semaphores of `consul lock -n` and `api.Semaphore`.
//!
//! Each client that holds or awaits one has locked a key of its own, below the prefix, by a session that deletes the key when
//! it ends. A document has the sessions of the holders; one whose session has no key any more does not count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What marks the keys of a semaphore (`SemaphoreFlagValue` in `api/semaphore.go` of Consul).
pub(super) const SEMAPHORE_FLAGS: u64 = 0xe0f6_9a2b_aa41_4de0;

/// The document of the holders (`semaphoreLock` there).
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Document {
    /// How many holders there may be, as all agree that use the semaphore; 0 if nobody has decided that.
    pub limit: u32,
    /// The sessions of the holders, each with `true`.
    #[serde(default)]
    pub holders: Option<BTreeMap<String, bool>>,
}

impl Document {
    /// Reads one; `None` if it is something else.
    pub fn parse(value: &[u8]) -> Option<Document> {
        if value.is_empty() {
            return Some(Document::default());
        }
        serde_json::from_slice(value).ok()
    }

    /// Returns the document of a semaphore with these holders.
    pub fn of(limit: u32, sessions: &[String]) -> Document {
        let holders = sessions.iter().map(|session| (session.clone(), true)).collect();
        Document { limit, holders: Some(holders) }
    }

    /// Returns it as it is stored.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Go's `encoding/json` writes it.
    #[test]
    fn the_document_is_that_of_consul() {
        let (empty, text) = (r#"{"Limit":2,"Holders":{}}"#, r#"{"Limit":2,"Holders":{"a":true,"b":true}}"#);
        assert_eq!(Document::of(2, &[]).to_json(), empty.as_bytes());
        let both = Document::of(2, &["b".to_owned(), "a".to_owned()]);
        assert_eq!(both.to_json(), text.as_bytes());
        assert_eq!(Document::parse(text.as_bytes()), Some(both));
        assert_eq!(Document::parse(b""), Some(Document::default()));
        let null = Document::parse(br#"{"Limit":3,"Holders":null}"#);
        assert_eq!(null, Some(Document { limit: 3, holders: None }));
        for other in [&b"x"[..], b"{}", br#"{"Limit":-1,"Holders":{}}"#, br#"{"Limit":2,"Holders":[]}"#] {
            assert_eq!(Document::parse(other), None);
        }
    }
}
