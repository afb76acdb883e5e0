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
    /// ACLs are not inherited: a client that may change a directory needs no permission for the nodes in it.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn examine_directories(&mut self, diagnosis: &Diagnosis) -> Result<(), StoreError> {
        let Some(user) = self.location().security.credentials.username().map(str::to_owned) else {
            let found = "every client of the servers may use the locks: the URL has no user";
            diagnosis.found(Finding::ok("access", found));
            return Ok(());
        };
        diagnosis.begin("access");
        self.open(ADMIN_SESSION).await?;
        let paths = directories(&self.location().directory);
        let requests = paths.iter().map(|path| Request::GetAcl { path: path.clone() });
        let replies = self.client.exchange(&requests.collect::<Vec<_>>()).await?;
        let mut closed = Vec::new();
        for (path, reply) in paths.iter().zip(&replies) {
            let dangerous = match reply.code {
                Code::OK => dangerous(reply)?,
                // dlock creates it, for the user alone.
                Code::NO_NODE => continue,
                code => {
                    let found = format!("the ACL of {path} cannot be read: {}", code.error(path));
                    diagnosis.found(Finding::ok("access", found));
                    continue;
                }
            };
            match dangerous.is_empty() {
                true => closed.push(path.as_str()),
                false => diagnosis.found(open_directory(path, &dangerous, &user)),
            }
        }
        if !closed.is_empty() {
            let found = format!("not every client may create or delete nodes in {}", closed.join(", "));
            diagnosis.found(Finding::ok("access", found));
        }
        Ok(())
    }
}

impl ZooKeeperStore {
    /// Returns the directories of the locks that a lock would create, the outermost first.
    ///
    /// # Errors
    /// The store could not be queried.
    pub(super) async fn missing_directories(&mut self) -> Result<Vec<String>, StoreError> {
        self.open(ADMIN_SESSION).await?;
        let paths = directories(&self.location().directory);
        let requests: Vec<_> = paths.iter().map(|path| Request::Exists { path: path.clone() }).collect();
        let replies = self.client.exchange(&requests).await?;
        let missing = paths.into_iter().zip(replies).filter(|(_, reply)| reply.code == Code::NO_NODE);
        Ok(missing.map(|(path, _)| path).collect())
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
