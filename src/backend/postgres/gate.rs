//! The recipes: what keeps a lock besides its row.

use super::key::Rule;
use crate::backend::sql;

/// What the locks of a role are that may not have the table.
pub(super) const GATE_ALONE: &str =
    "exclusive only, without a queue, slots, nested runs, tokens, --once-per, break and history";

/// What keeps a lock: that of a session is an advisory lock with a key by this rule.
pub(super) type Recipe = sql::Recipe<Rule>;

impl Recipe {
    /// Returns the rule for the keys of advisory locks, if it takes them.
    pub(super) fn rule(&self) -> Option<Rule> {
        self.session().copied()
    }
}

/// Returns the options of a URL that name advisory locks by this rule, without default values.
pub(super) fn options(rule: Rule) -> String {
    let mut options = "recipe=advisory".to_owned();
    if rule != Rule::default() {
        options.push_str(&format!("&key={}", rule.name()));
    }
    if let Rule::Rails(prefix @ (..=-1 | 1..)) = rule {
        options.push_str(&format!("&prefix={prefix}"));
    }
    options
}
