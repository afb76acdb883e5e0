//! Who holds a row.

use super::Database;
use crate::backend::ledger::document::digest;
use crate::backend::ledger::document::leased_gate::{Identity, suffix};

/// Returns what distinguishes a hold from every other one of the lock.
pub(super) fn digest_of(locked_by: &str, locked_at: &str) -> String {
    format!("{:016x}", digest(&format!("{locked_by} {locked_at}")).0)
}

/// Returns the condition that a row is that of one of these holds.
pub(super) fn is_of<D: Database>(column: &str, identities: &[Identity]) -> String {
    let (right, equals) = (D::DIALECT.function("right"), D::DIALECT.operator("="));
    let texts: Vec<String> = identities
        .iter()
        .map(|one| {
            let end = suffix(*one);
            format!("({right}({column}, {}) {equals} '{end}')", end.len())
        })
        .collect();
    format!("({})", texts.join(" OR "))
}
