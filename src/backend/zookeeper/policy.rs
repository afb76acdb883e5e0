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
        None => "run this in zkCli.sh; without a user in the URL, every client may use the nodes".to_owned(),
        // The ACL of the root concerns all programs: a command that replaces it could lock them out.
        Some(user) if directory == "/" => format!(
            "the locks are in the root: {user} has to have the permissions c, d and r for it, see getAcl /; dlock creates all \
             other nodes, for this user only"
        ),
        Some(user) => {
            commands.insert(0, format!("addauth digest {user}:PASSWORD"));
            // Others who may list the directory see the names of the locks, and no tokens.
            commands.push(format!("setAcl {directory} auth:{user}:cdrwa"));
            format!(
                "run this in zkCli.sh, with the real password; dlock creates all other nodes, for this user only; setAcl \
                 replaces the whole list: if {directory} has other users, add their entries (getAcl {directory})"
            )
        }
    };
    Policy { commands, note }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::url::Url;

    fn of(url: &str) -> Policy {
        let location = Url::parse(url).and_then(|url| Location::from_url(&url, &|_| None));
        policy(&location.unwrap_or_else(|error| panic!("{url}: {error}")))
    }

    #[test]
    fn the_acl_of_the_root_is_not_replaced() {
        for url in ["zookeeper://me@h?prefix=/", "zookeeper://me@h?prefix=app-"] {
            let policy = of(url);
            assert_eq!(policy.commands, [""; 0], "{url}");
            assert!(policy.note.contains("me has to have the permissions c, d and r"), "{}", policy.note);
        }
    }

    #[test]
    fn a_directory_is_created_and_given_to_the_user() {
        let policy = of("zookeeper://me@h/jobs?prefix=/locks/");
        assert_eq!(
            policy.commands,
            [
                "addauth digest me:PASSWORD",
                "create /jobs",
                "create /jobs/locks",
                "setAcl /jobs/locks auth:me:cdrwa"
            ]
        );
        let found = "if /jobs/locks has other users, add their entries (getAcl /jobs/locks)";
        assert!(policy.note.contains(found), "{}", policy.note);
    }
}
