//! A client of the locks in a store of ledgers.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::store::{LedgerStore, Purpose, Step};
use super::{decide, view};
use crate::backend::admin::{Inspection, LockAdmin, Raised, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::{
    Again, Attempt, Backend, Busy, Change, Ending, Hazard, Intent, Release, Renewal, Reply, StoreError,
};
use crate::lock::{Claim, FencingToken, Grant, Holder, LockName, NotedRecord, Record, Revocation, Token};

/// Makes the decisions on the ledgers of a store. It remembers nothing: a claim is found by its token.
pub struct Contender<S>(S);

impl<S: LedgerStore> Contender<S> {
    /// Creates a client; does not contact the store.
    pub fn new(store: S) -> Contender<S> {
        Contender(store)
    }
}

impl<S: LedgerStore> Backend for Contender<S> {
    fn display(&self) -> &str {
        self.0.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        self.0.connect()
    }

    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(async move {
            let ours = claim.clone();
            let decide = move |ledger: &mut _, observed: &dyn super::Observed| {
                decide::claim(ledger, observed, &ours, intent)
            };
            let done = self.0.change(&claim.name, Purpose::Claim(claim.clone()), decide).await?;
            let shares = self.0.shares_ledgers();
            Ok(match done.value {
                Attempt::Busy(busy) => {
                    let position = busy.position.filter(|_| shares);
                    let again = if done.is_watched { busy.again } else { Again::Poll };
                    Attempt::Busy(Busy { position, again, ..busy })
                }
                Attempt::Granted(grant) => {
                    let fencing = done.fencing.or(grant.fencing).filter(|_| shares);
                    Attempt::Granted(Grant { fencing, lease: done.lease.or(grant.lease), ..grant })
                }
                attempt => attempt,
            })
        })
    }

    fn renew<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> Reply<'a, Result<Renewal, StoreError>> {
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
    ) -> Reply<'a, Result<Release, StoreError>> {
        let (ours, record, success) = (claim.clone(), ending.record.cloned(), ending.success);
        let decide = move |ledger: &mut _, observed: &dyn super::Observed| {
            let ending = Ending { record: record.as_ref(), success };
            decide::release(ledger, observed, &ours, rest, ending)
        };
        Box::pin(async move {
            let done = self.0.change(&claim.name, Purpose::Release(claim.clone()), decide).await?;
            Ok(match (done.value, done.unwritten) {
                (Release::Released | Release::Kept, Some(why)) if success.is_some() => {
                    Release::Unrecorded(why)
                }
                (release, _) => release,
            })
        })
    }

    fn record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> Reply<'a, Result<(), StoreError>> {
        let record = record.clone();
        self.operate(name, Purpose::Record, move |ledger, observed| decide::record(ledger, observed, &record))
    }

    fn hazard(&self) -> Option<Hazard> {
        self.0.hazard()
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        self.0.changed()
    }

    fn fails_over(&self) -> bool {
        self.0.fails_over()
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.0.kept_descriptors()
    }
}

impl<S: LedgerStore> LockAdmin for Contender<S> {
    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        self.0.list()
    }

    fn list_recorded(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        self.0.list_recorded()
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> Reply<'a, Result<Inspection, StoreError>> {
        let token = token.cloned();
        Box::pin(async move {
            let view = move |name: &LockName, ledger: &_, observed: &dyn super::Observed| {
                view::state(name, ledger, observed, token.as_ref())
            };
            let (now_ms, locks) = self.0.read(names, view).await?;
            Ok(Inspection { now_ms, locks })
        })
    }

    fn last_fencing_token<'a>(
        &'a mut self,
        name: &'a LockName,
    ) -> Reply<'a, Result<Option<FencingToken>, StoreError>> {
        self.operate(name, Purpose::Operate, |ledger, _| Step::reply(FencingToken::new(ledger.fencing_token)))
    }

    fn raise_fencing<'a>(
        &'a mut self,
        name: &'a LockName,
        floor: FencingToken,
    ) -> Reply<'a, Result<Raised, StoreError>> {
        self.operate(name, Purpose::Prepare, move |ledger, observed| {
            decide::raise_fencing(ledger, observed, floor)
        })
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        self.0.history(name)
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
        revocation: &'a Revocation,
    ) -> Reply<'a, Result<Revoked, StoreError>> {
        let Some(fencing) = holder.fencing else { return Box::pin(async { Ok(Revoked::Gone) }) };
        let revocation = revocation.clone();
        self.operate(name, Purpose::Operate, move |ledger, observed| {
            decide::revoke(ledger, observed, fencing, &revocation)
        })
    }

    fn remove<'a>(
        &'a mut self,
        name: &'a LockName,
        holder: &'a Holder,
    ) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(async move {
            if holder.identity.is_none() {
                let removal = self.0.end_foreign(name, holder).await?;
                if removal != Removal::Impossible {
                    return Ok(removal);
                }
            }
            let holder = holder.clone();
            let removal = self.operate(name, Purpose::Operate, move |ledger, observed| {
                decide::remove(ledger, observed, &holder)
            });
            removal.await
        })
    }

    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        self.0.examine(examination)
    }

    fn init(&mut self) -> Reply<'_, Result<(), StoreError>> {
        self.0.init()
    }
}

impl<S: LedgerStore> Contender<S> {
    fn operate<'a, T: Send + 'static>(
        &'a mut self,
        name: &'a LockName,
        purpose: Purpose,
        decide: impl Fn(&mut super::Ledger, &dyn super::Observed) -> Step<T> + Send + 'static,
    ) -> Reply<'a, Result<T, StoreError>> {
        Box::pin(async move { Ok(self.0.change(name, purpose, decide).await?.value) })
    }
}
