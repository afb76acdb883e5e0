//! The recipes: what keeps a lock besides its row.

use super::key::Rule;
use crate::backend::sql;

/// The limits of locks if the role may neither use nor create the table.
pub(super) const GATE_ALONE: &str =
    "exclusive only, without a queue, slots, nested runs, tokens, --once-per, break and history";

/// What keeps a lock: that of a session is an advisory lock with a key by this rule.
pub(super) type Recipe = sql::Recipe<Rule>;
