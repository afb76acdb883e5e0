//! What operators ask of a store, beside the locking itself: who holds what, who waits, what has been, and to end a hold.

use super::diagnosis::Diagnosis;
use super::{Backend, Reply, StoreError};
use crate::lock::{FencingToken, Holder, LockName, LockState, NotedRecord, Revocation, Token, Unknown};

/// A store of locks for those who look after them.
///
/// Each method may be dropped halfway, as those of [`Backend`]; only [`LockAdmin::revoke`] and [`LockAdmin::remove`] change
/// a lock.
pub trait LockAdmin: Backend {
    /// The locks that there may be: at least those that a dlock holds or waits for. What this costs is in proportion to
    /// them, not to what else there is in the store.
    ///
    /// # Errors
    /// The store could not be asked, or refused.
    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>>;

    /// Looks at these locks; with a `token`, also for the hold that it proves. From then on
    /// [`changed`](Backend::changed) tells of what happens to the last one, where the store can tell.
    ///
    /// # Errors
    /// The store could not be asked, or refused.
    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> Reply<'a, Result<Inspection, StoreError>>;

    /// The last outcomes of a lock, the latest first.
    ///
    /// # Errors
    /// The store could not be asked, or refused.
    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>>;

    /// Tells everybody who is inside the hold with this fencing token to end it. A hold that nothing runs under any more
    /// (`--min-hold`) ends at once.
    ///
    /// # Errors
    /// The store could not be asked, or refused.
    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        fencing: FencingToken,
        revocation: &'a Revocation,
    ) -> Reply<'a, Result<Revoked, StoreError>>;

    /// Takes a hold away without its owner's consent, if it is still the one that was seen. Whoever waits may go on at
    /// once, whatever still runs.
    ///
    /// # Errors
    /// The store could not be asked, or refused.
    fn remove<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>>;

    /// Finds out whether the store is fit to hold locks, and tells what it finds as it finds it. Tries what dlock needs on
    /// a scratch lock of its own, which is gone afterwards, or ends by itself soon after this was dropped halfway.
    ///
    /// # Errors
    /// What was configured cannot be used at all ([`StoreError::Config`]), so the store was not contacted. Whatever is
    /// wrong with the store itself is no error here, but found.
    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>>;
}

/// What is said of a holder whose dlock notes things in another way than this one: nothing is guessed of it.
pub const OTHER_FORMAT: &str = "stored by another dlock";

/// What was seen at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// When, in ms since 1970 by the store's clock.
    pub now_ms: u64,
    /// One for each name, in their order.
    pub locks: Vec<LockState>,
}

impl Inspection {
    /// For those who need to know: what is unknown of a lock is an error.
    ///
    /// # Errors
    /// A lock could not be looked at.
    pub fn whole(self) -> Result<Inspection, StoreError> {
        match self.locks.iter().find_map(|lock| lock.unknown.clone()) {
            None => Ok(self),
            Some(Unknown::Denied(why)) => Err(StoreError::Denied(why)),
            Some(Unknown::Unanswered(why)) => Err(StoreError::unreachable(why)),
            Some(Unknown::Unreadable(why)) => Err(StoreError::Config(why)),
        }
    }
}

/// The answer to [`LockAdmin::revoke`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// So many know or will know.
    Told(usize),
    /// The hold has ended.
    Ended,
    /// There is no such hold any more.
    Gone,
}

/// The answer to [`LockAdmin::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is gone.
    Removed,
    /// It was not there any more, or is somebody else's now.
    Changed,
    /// It lives in a session or descriptor, which only its owner can close.
    Impossible,
}
