//! The rights that dlock needs, as the commands that grant them to a user.

use super::keys::{LAST, METADATA};
use super::location::Location;
use crate::backend::location::Policy;

/// The user of a location without one.
const USER: &str = "dlock";

/// Returns the commands that give the user of this location exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let prefix = &location.prefix;
    let prefixes = match prefix.is_empty() {
        true => vec![String::new()],
        false => vec![prefix.clone(), format!("{METADATA}{prefix}"), format!("{LAST}{prefix}")],
    };
    let user = location.security.credentials.username().unwrap_or(USER);
    // A role of its own: another user must not get the rights to its locks with those to other ones.
    let role = quoted(&format!("dlock-{user}"));
    let user = quoted(user);
    let grant = |prefix: String| {
        format!("etcdctl role grant-permission {role} readwrite --prefix=true {}", quoted(&prefix))
    };
    let mut commands = vec![format!("etcdctl role add {role}")];
    commands.extend(prefixes.into_iter().map(grant));
    commands.push(format!("etcdctl user add {user}"));
    commands.push(format!("etcdctl user grant-role {user} {role}"));
    let note = "run this as the root user of the cluster: etcdctl asks for the password of the new user; permissions take \
                effect with etcdctl auth enable"
        .to_owned();
    Policy { commands, note }
}

/// Quotes an argument for a shell where that is needed.
fn quoted(argument: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:".contains(c);
    match !argument.is_empty() && argument.chars().all(is_plain) {
        true => argument.to_owned(),
        false => format!("'{}'", argument.replace('\'', r"'\''")),
    }
}
