//! The rights that dlock needs, as the commands of ZooKeeper's own client that grant them.

use super::location::Location;
use crate::backend::location::Policy;

/// Returns the commands that give the user of this location its rights. ACLs are not inherited: nodes that dlock
/// creates below the directory are its own.
pub(super) fn policy(location: &Location) -> Policy {
    let directory = match location.directory.trim_end_matches('/') {
        "" => "/",
        directory => directory,
    };
    let mut commands = Vec::new();
    let mut path = String::new();
    for part in directory.split('/').filter(|part| !part.is_empty()) {
        path = format!("{path}/{part}");
        commands.push(format!("create {path}"));
    }
    let note = match location.security.credentials.username() {
        None => "run this in zkCli.sh; without a user in the URL, every client may use the nodes",
        Some(user) => {
            commands.insert(0, format!("addauth digest {user}:PASSWORD"));
            // Others who may list the directory see the names of the locks, and no tokens.
            commands.push(format!("setAcl {directory} auth:{user}:cdrwa"));
            "run this in zkCli.sh, with the real password; dlock creates all other nodes, for this user only"
        }
    };
    Policy { commands, note: note.to_owned() }
}
