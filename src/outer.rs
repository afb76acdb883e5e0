//! The holds that this process runs inside of, from `DLOCK_HELD`.

use serde::Deserialize;

use crate::identity;
use crate::input;
use crate::lock::{LockName, Token};

/// The holds of outer dlocks, outermost first.
#[derive(Debug, Default)]
pub struct OuterHolds {
    /// The entries in the form in which they are passed on.
    raw: Vec<serde_json::Value>,
    holds: Vec<OuterHold>,
}

/// A lock that an outer dlock holds, or held. Everything but the token may be wrong.
#[derive(Debug, Deserialize)]
pub struct OuterHold {
    pub name: String,
    token: String,
    /// The store, without secrets; empty if unknown.
    #[serde(default)]
    pub backend: String,
    #[serde(default)]
    pid: u32,
    #[serde(default)]
    start: u64,
    #[serde(default)]
    boot: String,
}

impl OuterHolds {
    /// Returns the holds of the environment; a malformed value counts as none.
    pub fn of_environment() -> OuterHolds {
        let text =
            input::variable("DLOCK_HELD").and_then(|value| value.into_string().ok()).unwrap_or_default();
        OuterHolds::parse(&text)
    }

    fn parse(text: &str) -> OuterHolds {
        // The usual case; serde_json would take some time to say where in the text it ends.
        if text.is_empty() {
            return OuterHolds::default();
        }
        let raw: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
        let holds: Option<Vec<OuterHold>> = raw
            .iter()
            .map(|entry| OuterHold::deserialize(entry).ok())
            .map(|hold| hold.filter(|hold| !hold.name.is_empty() && !hold.token.is_empty()))
            .collect();
        holds.map_or_else(OuterHolds::default, |holds| OuterHolds { raw, holds })
    }

    /// Returns the entries to pass on to the command.
    pub fn entries(&self) -> Vec<serde_json::Value> {
        self.raw.clone()
    }

    pub fn holds(&self) -> &[OuterHold] {
        &self.holds
    }

    /// Returns all tokens: only the store, which may have more than one URL, can tell which of them hold a lock.
    pub fn tokens(&self) -> Vec<Token> {
        self.holds.iter().map(OuterHold::token).collect()
    }

    /// Returns whether a live dlock claims to hold this lock on the store with this very name.
    pub fn claims(&self, name: &LockName, store: &str) -> bool {
        self.holds.iter().any(|hold| {
            hold.name == name.as_str()
                && hold.backend == store
                && identity::is_alive(hold.pid, hold.start, &hold.boot)
        })
    }
}

impl OuterHold {
    pub fn token(&self) -> Token {
        Token::from_text(self.token.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_counts_as_nothing() {
        for garbage in ["", "null", "{}", "[1]", r#"[{"name":"a"}]"#, r#"[{"name":"","token":"t"}]"#, "[[["] {
            let holds = OuterHolds::parse(garbage);
            assert!(holds.entries().is_empty() && holds.tokens().is_empty(), "{garbage}");
        }
    }
}
