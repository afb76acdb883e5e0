//! Who may create and delete nodes in the directories above the locks.

use super::connection::Reply;
use super::errors::Code;
use super::message::Request;
use super::store::{ADMIN_SESSION, ZooKeeperStore};
use crate::backend::StoreError;
use crate::backend::diagnosis::{Diagnosis, Finding};

/// The permissions that let a client remove a node below the one that has them, or put its own in its place, with their
/// bits in an ACL (`ZooDefs.Perms`).
const DANGEROUS: [(i32, &str); 3] =
    [(4, "create nodes in it"), (8, "delete nodes in it"), (16, "change its ACL")];

impl ZooKeeperStore {
    /// Reports the directories, from the root to the one of the locks, in which any client may create or delete nodes.
    /// ACLs are not inherited: a client that may change a directory needs no permission for the nodes in it. Returns those
    /// that do not exist, the outermost first: a lock would create them, for its user alone.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn examine_directories(
        &mut self,
        diagnosis: &Diagnosis,
    ) -> Result<Vec<String>, StoreError> {
        let user = self.location().security.credentials.username().map(str::to_owned);
        match user {
            Some(_) => diagnosis.begin("access"),
            None => {
                let found = "every client of the servers may use the locks: the URL has no user";
                diagnosis.found(Finding::ok("access", found));
            }
        }
        self.open(ADMIN_SESSION).await?;
        let paths = directories(&self.location().directory);
        let replies = self.exchange_for(&paths, |path| Request::GetAcl { path }).await?;
        let (mut closed, mut missing) = (Vec::new(), Vec::new());
        for (path, reply) in paths.into_iter().zip(&replies) {
            match (reply.code, &user) {
                (Code::NO_NODE, _) => missing.push(path),
                (_, None) => {}
                (Code::OK, Some(user)) => match dangerous(reply)?.as_slice() {
                    [] => closed.push(path),
                    dangerous => diagnosis.found(open_directory(&path, dangerous, user)),
                },
                (code, Some(_)) => {
                    let found = format!("the ACL of {path} cannot be read: {}", code.error(&path));
                    diagnosis.found(Finding::ok("access", found));
                }
            }
        }
        if !closed.is_empty() {
            let found = format!("not every client may create or delete nodes in {}", closed.join(", "));
            diagnosis.found(Finding::ok("access", found));
        }
        Ok(missing)
    }
}

/// Returns a directory and those above it, from the root on.
fn directories(directory: &str) -> Vec<String> {
    let ends = directory.match_indices('/').map(|(end, _)| &directory[..end]);
    ends.map(|path| if path.is_empty() { "/".to_owned() } else { path.to_owned() }).collect()
}

/// Returns what any client may do by the ACL in a reply.
fn dangerous(reply: &Reply) -> Result<Vec<&'static str>, StoreError> {
    let mut reader = reply.reader();
    let mut permissions = 0;
    for _ in 0..reader.int()? {
        let (granted, scheme, id) = (reader.int()?, reader.text()?, reader.text()?);
        if (scheme.as_str(), id.as_str()) == ("world", "anyone") {
            permissions |= granted;
        }
    }
    Ok(DANGEROUS.iter().filter(|(bit, _)| permissions & bit != 0).map(|(_, what)| *what).collect())
}

fn open_directory(path: &str, dangerous: &[&str], user: &str) -> Finding {
    let found = format!("{path}: any client may {}", dangerous.join(", "));
    let consequence = "any client can remove the nodes of locks, or put its own in their place, once they have no children: \
                       locks that two hold, or that nobody can take";
    let remedy = format!("setAcl {path} auth:{user}:cdrwa, and what other users of {path} need");
    Finding::warning("access", found, consequence, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_begin_at_the_root() {
        assert_eq!(directories("/"), ["/"]);
        assert_eq!(directories("/dlock/"), ["/", "/dlock"]);
        assert_eq!(directories("/jobs/a/dlock/"), ["/", "/jobs", "/jobs/a", "/jobs/a/dlock"]);
    }
}
