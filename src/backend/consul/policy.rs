//! The rights that dlock needs, as the command that grants them to a token.

use super::location::Location;
use crate::backend::location::Policy;

/// Returns the commands that make a token with exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let keys = serde_json::Value::from(location.prefix.as_str());
    let commands = vec![
        "consul acl policy create -name dlock -rules - <<'END'".to_owned(),
        format!("key_prefix {keys} {{ policy = \"write\" }}"),
        "session_prefix \"\" { policy = \"write\" }".to_owned(),
        "agent_prefix \"\" { policy = \"read\" }".to_owned(),
        "END".to_owned(),
        "consul acl token create -policy-name dlock -description dlock".to_owned(),
    ];
    let note = "run this with a token that may manage ACLs: the last command prints the new token (SecretID); agent_prefix is \
                for dlock doctor alone";
    Policy { commands, note: note.to_owned() }
}
