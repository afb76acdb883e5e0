//! What operators request of a store besides locking: list holders and waiters, read the history, end a hold.

use super::diagnosis::Diagnosis;
use super::{Backend, StoreError, TryReply};
use crate::lock::{
    FencingToken, Freeze, FreezeRequest, Holder, LockName, LockState, NotedRecord, Revocation, Token, Unknown,
};

/// The locks that are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Those that may be in use: at least those that a dlock holds or waits for.
    InUse,
    /// Those of which the store keeps a history.
    WithHistory,
}

/// A store of locks, as seen by its operators.
///
/// Each method may be dropped halfway, like those of [`Backend`]; only [`LockAdmin::revoke`], [`LockAdmin::remove`],
/// [`LockAdmin::raise_fencing`], [`LockAdmin::freeze`] and [`LockAdmin::thaw`] change a lock.
pub trait LockAdmin: Backend {
    /// Lists these locks. The cost is proportional to their number, not to the other contents of the store.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>>;

    /// Reads the state of these locks; with a `token`, also of the hold that it proves. From then on
    /// [`changed`](Backend::changed) reports changes of the last one, if the store can notify.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn inspect<'a>(&'a mut self, names: &'a [LockName], token: Option<&'a Token>)
    -> TryReply<'a, Inspection>;

    /// Returns the last fencing token that was granted for this lock; `None` if the store knows none. It may
    /// be too large if a later claim failed halfway.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn last_fencing_token<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Option<FencingToken>>;

    /// Sees to it that every later fencing token of a lock that nobody holds is larger than `floor`. Never lowers the
    /// counter. A claim that is decided on at the same moment may still get a smaller token.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn raise_fencing<'a>(&'a mut self, name: &'a LockName, floor: FencingToken) -> TryReply<'a, Raised>;

    /// Freezes a lock: from then on, nobody is granted it who does not run inside a hold of it. Those who hold it keep it.
    /// May be repeated with the same request.
    ///
    /// # Errors
    /// The store could not be queried, or refused. After [`StoreError::Unavailable`] with `maybe_applied` the lock may be
    /// frozen, or be frozen soon: [thaw](LockAdmin::thaw) it, or try again.
    fn freeze<'a>(&'a mut self, name: &'a LockName, request: &'a FreezeRequest) -> TryReply<'a, Frozen>;

    /// Ends the freeze with this id. Returns whether there was one.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn thaw<'a>(&'a mut self, name: &'a LockName, id: &'a str) -> TryReply<'a, bool>;

    /// Returns which other programs may still take a lock that is frozen, if there are any.
    fn unfrozen(&self) -> Option<&str> {
        None
    }

    /// Returns the history of a lock, the latest record first.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn history<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Vec<NotedRecord>>;

    /// Returns the histories of as many of these locks, from the first on, as the store reads in one step: at least one.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn histories<'a>(&'a mut self, names: &'a [LockName]) -> TryReply<'a, Vec<Vec<NotedRecord>>> {
        Box::pin(async move {
            match names.first() {
                Some(name) => Ok(vec![self.history(name).await?]),
                None => Ok(Vec::new()),
            }
        })
    }

    /// Notifies every process inside a hold that was seen to end it. A hold that no process runs under any more
    /// (`--min-hold`) ends at once.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
        revocation: &'a Revocation,
    ) -> TryReply<'a, Revoked>;

    /// Removes a hold without its owner's consent, if it is still the one that was seen. Waiters may proceed at once,
    /// whatever still runs.
    ///
    /// # Errors
    /// The store could not be queried, or refused.
    fn remove<'a>(&'a mut self, name: &'a LockName, holder: &'a Holder) -> TryReply<'a, Removal>;

    /// Checks whether the store is fit to hold locks, and reports each finding as soon as it is known. Tries what dlock
    /// needs on a scratch lock, which is removed afterwards, or expires soon after this future was dropped halfway.
    ///
    /// # Errors
    /// The configuration cannot be used at all ([`StoreError::Config`]), so the store was not contacted. A fault of the
    /// store itself is not an error here but a finding.
    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> TryReply<'a, ()>;
}

/// What is shown for a holder whose entry is in a format that this dlock does not know: nothing in it is guessed.
pub const OTHER_FORMAT: &str = "stored by another dlock";

/// The state of some locks at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The time of the inspection, in ms since 1970 by the store's clock.
    pub now_ms: u64,
    /// One for each name, in the order of the names.
    pub locks: Vec<LockState>,
}

impl Inspection {
    /// Returns an error if the state of any lock is unknown.
    ///
    /// # Errors
    /// A lock could not be inspected.
    pub fn whole(self) -> Result<Inspection, StoreError> {
        match self.locks.iter().find_map(|lock| lock.unknown.clone()) {
            None => Ok(self),
            Some(Unknown::Denied(why)) => Err(StoreError::Denied(why)),
            Some(Unknown::Unanswered(why)) => Err(StoreError::unreachable(why)),
            Some(Unknown::Unreadable(why)) => Err(StoreError::Config(why)),
        }
    }
}

impl From<StoreError> for Unknown {
    fn from(error: StoreError) -> Unknown {
        match error {
            StoreError::Denied(why) => Unknown::Denied(why),
            StoreError::Config(why) => Unknown::Unreadable(why),
            error @ StoreError::OtherServer { .. } => Unknown::Unreadable(error.to_string()),
            StoreError::Unavailable { reason, .. } => Unknown::Unanswered(reason),
        }
    }
}

/// The result of [`LockAdmin::raise_fencing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Raised {
    /// Every later token is larger.
    Done,
    /// The lock is held; nothing was changed.
    Held,
    /// This larger token has been granted; nothing was changed.
    Above(FencingToken),
    /// These locks have no fencing tokens, and why.
    Unsupported(String),
}

/// The result of [`LockAdmin::freeze`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frozen {
    /// It is frozen by this request, and was not before.
    Done(Freeze),
    /// It was frozen by an earlier attempt of this request, and still is.
    Kept(Freeze),
    /// It is frozen by another request; nothing was changed.
    Already(Freeze),
    /// These locks cannot be frozen, and why.
    Unsupported(String),
}

/// The result of [`LockAdmin::revoke`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The number of processes that have been or will be notified.
    Notified(usize),
    /// The hold has ended.
    Ended,
    /// There is no such hold (any more).
    Gone,
}

/// The result of [`LockAdmin::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The hold was removed.
    Removed,
    /// The hold was gone already, or another client holds the lock now.
    Changed,
    /// The hold depends on a session or descriptor that only its owner can close.
    Impossible,
}
