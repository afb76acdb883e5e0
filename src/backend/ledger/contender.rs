//! A client of the locks in a store of ledgers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::store::{Decide, Decision, Done, Purpose, Shape, Store};
use super::{administer, decide, view};
use crate::backend::admin::{Frozen, Inspection, Listed, LockAdmin, Raised, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{
    Again, Attempt, Backend, Busy, Change, Ending, Hazard, Intent, Release, Renewal, Reply, StoreError,
    TryReply,
};
use crate::lock::{
    Claim, FencingToken, FreezeRequest, Grant, Holder, LockName, NotedRecord, Record, Revocation, Token,
};

/// Makes the decisions on the ledgers of a store. A claim is found by its token.
pub struct Contender<S: Store> {
    store: S,
    shape: S::Shape,
    /// The claim that is being released: without a reply, the release may still be on its way.
    releasing: Option<Token>,
}

impl<S: Store> Contender<S> {
    /// Creates a client; does not contact the store.
    pub fn new(store: S) -> Contender<S> {
        Contender { store, shape: S::Shape::default(), releasing: None }
    }
}

impl<S: Store> Backend for Contender<S> {
    fn connect(&mut self) -> TryReply<'_, ()> {
        self.store.connect()
    }

    fn try_acquire<'a>(&'a mut self, claim: &'a Claim, intent: Intent) -> TryReply<'a, Attempt> {
        Box::pin(async move {
            let ours = claim.clone();
            let is_releasing = self.releasing.as_ref() == Some(&claim.token);
            let decide = move |ledger: &mut _, observed: &dyn super::Observed| {
                let decision = decide::claim(ledger, observed, &ours, intent);
                if is_releasing {
                    ledger.renew_version(&ours);
                }
                decision
            };
            let done = self.change(&claim.name, Purpose::Claim(claim.clone()), decide).await?;
            let shares = self.store.shares_ledgers();
            Ok(match done.value {
                Attempt::Busy(mut busy) => {
                    self.hide_fencing_tokens(&mut busy.holders);
                    let position = busy.position.filter(|_| shares);
                    let again = if done.is_watched { busy.again } else { Again::Poll };
                    Attempt::Busy(Busy { position, again, ..busy })
                }
                Attempt::Granted(grant) => {
                    let is_shown = shares && self.store.has_fencing_tokens();
                    let fencing = done.fencing.or(grant.fencing).filter(|_| is_shown);
                    Attempt::Granted(Grant { fencing, lease: done.lease.or(grant.lease), ..grant })
                }
                attempt => attempt,
            })
        })
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> TryReply<'a, Renewal> {
        let ours = claim.clone();
        self.operate(&claim.name, Purpose::Renew(claim.clone()), move |ledger, observed| {
            decide::renew(ledger, observed, &ours, rest)
        })
    }

    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        ending: Ending<'a>,
    ) -> TryReply<'a, Release> {
        let (ours, record) = (claim.clone(), ending.record.cloned());
        let Ending { success, is_repeated, .. } = ending;
        let decide = move |ledger: &mut _, observed: &dyn super::Observed| {
            let ending = Ending { record: record.as_ref(), success, is_repeated };
            decide::release(ledger, observed, &ours, rest, ending)
        };
        Box::pin(async move {
            self.releasing = Some(claim.token.clone());
            let done = self.change(&claim.name, Purpose::Release(claim.clone()), decide).await?;
            self.releasing = None;
            Ok(match (done.value, done.unwritten) {
                (Release::Released | Release::Kept, Some(why)) if success.is_some() => {
                    Release::SuccessNotStored(why)
                }
                (release, _) => release,
            })
        })
    }

    fn add_record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> TryReply<'a, ()> {
        let record = record.clone();
        self.operate(name, Purpose::History, move |ledger, observed| {
            decide::add_record(ledger, observed, &record)
        })
    }

    fn hazard(&self) -> Option<Hazard> {
        self.store.hazard()
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        self.store.changed()
    }

    fn explained(&self, late: StoreError) -> StoreError {
        self.store.explained(late)
    }

    fn fails_over(&self) -> bool {
        self.store.fails_over()
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.store.kept_descriptors()
    }
}

impl<S: Store> LockAdmin for Contender<S> {
    fn list(&mut self, which: Listed) -> TryReply<'_, Vec<LockName>> {
        self.store.list(which)
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> TryReply<'a, Inspection> {
        let token = token.cloned();
        Box::pin(async move {
            let view = move |name: &LockName, ledger: &_, observed: &dyn super::Observed| {
                view::state(name, ledger, observed, token.as_ref())
            };
            let (now_ms, mut locks) = self.shape.read(&mut self.store, names, view).await?;
            locks.iter_mut().for_each(|lock| self.hide_fencing_tokens(&mut lock.holders));
            Ok(Inspection { now_ms, locks })
        })
    }

    fn last_fencing_token<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Option<FencingToken>> {
        self.operate(name, Purpose::Operate, |ledger, _| {
            Decision::reply(FencingToken::new(ledger.fencing_token))
        })
    }

    fn raise_fencing<'a>(&'a mut self, name: &'a LockName, floor: FencingToken) -> TryReply<'a, Raised> {
        self.operate(name, Purpose::Prepare, move |ledger, observed| {
            administer::raise_fencing(ledger, observed, floor)
        })
    }

    fn freeze<'a>(&'a mut self, name: &'a LockName, request: &'a FreezeRequest) -> TryReply<'a, Frozen> {
        let request = request.clone();
        self.operate(name, Purpose::Prepare, move |ledger, observed| {
            administer::freeze(ledger, observed, &request)
        })
    }

    fn thaw<'a>(&'a mut self, name: &'a LockName, id: &'a str) -> TryReply<'a, bool> {
        let id = id.to_owned();
        self.operate(name, Purpose::Operate, move |ledger, observed| administer::thaw(ledger, observed, &id))
    }

    fn unfrozen(&self) -> Option<&str> {
        self.store.unfrozen()
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> TryReply<'a, Vec<NotedRecord>> {
        Box::pin(self.shape.history(&mut self.store, name))
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
        revocation: &'a Revocation,
    ) -> TryReply<'a, Revoked> {
        let Some(fencing) = self.identified(holder).fencing else {
            return Box::pin(async { Ok(Revoked::Gone) });
        };
        let revocation = revocation.clone();
        self.operate(name, Purpose::Operate, move |ledger, observed| {
            administer::revoke(ledger, observed, fencing, &revocation)
        })
    }

    fn remove<'a>(&'a mut self, name: &'a LockName, holder: &'a Holder) -> TryReply<'a, Removal> {
        Box::pin(async move {
            if holder.identity.is_none() {
                let removal = self.store.end_foreign(name, holder).await?;
                if removal != Removal::Impossible {
                    return Ok(removal);
                }
            }
            let holder = self.identified(holder);
            let removal = self.operate(name, Purpose::Operate, move |ledger, observed| {
                administer::remove(ledger, observed, &holder)
            });
            removal.await
        })
    }

    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> TryReply<'a, ()> {
        self.store.examine(examination)
    }
}

impl<S: Store> Contender<S> {
    /// Where fencing tokens may be granted again after the store has forgotten the last one, they only identify the holds.
    fn hide_fencing_tokens(&self, holders: &mut [Holder]) {
        for holder in
            holders.iter_mut().filter(|holder| holder.fencing.is_some() && !self.store.has_fencing_tokens())
        {
            holder.digest = holder.fencing.take().map(|token| token.number().to_string());
        }
    }

    /// Returns a holder that was shown with the fencing token that was hidden.
    fn identified(&self, shown: &Holder) -> Holder {
        if self.store.has_fencing_tokens() || shown.identity.is_none() {
            return shown.clone();
        }
        let hidden = shown.digest.as_ref().and_then(|digest| FencingToken::new(digest.parse().ok()?));
        Holder { fencing: hidden, digest: None, ..shown.clone() }
    }

    fn operate<'a, T: Send + 'static>(
        &'a mut self,
        name: &'a LockName,
        purpose: Purpose,
        decide: impl Fn(&mut super::Ledger, &dyn super::Observed) -> Decision<T> + Send + 'static,
    ) -> TryReply<'a, T> {
        Box::pin(async move { Ok(self.change(name, purpose, decide).await?.value) })
    }

    /// Changes a ledger, see [`Shape::change`].
    ///
    /// # Errors
    /// As of [`Shape::change`].
    async fn change<T: Send + 'static>(
        &mut self,
        name: &LockName,
        purpose: Purpose,
        decide: impl Fn(&mut super::Ledger, &dyn super::Observed) -> Decision<T> + Send + 'static,
    ) -> Result<Done<T>, StoreError> {
        let decide: Decide = Box::new(move |ledger, observed| decide(ledger, observed).boxed());
        let done = self.shape.change(&mut self.store, name, purpose, decide).await?;
        Ok(done.map(|reply| *reply.downcast().expect("a driver returns what was decided")))
    }
}
