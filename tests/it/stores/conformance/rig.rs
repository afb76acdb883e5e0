//! The operations that the checks need of a store.

use super::disturbance::Disturbance;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use dlock::backend::Backend;
use dlock::backend::CLAIM_WITHIN;
use dlock::backend::Location;
use dlock::backend::admin::LockAdmin;
use dlock::backend::registry;
use dlock::backend::url::{Url, UrlError};
use dlock::lock::Mode;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// One store, with the means to disturb it.
pub trait Rig {
    /// The place of its runs.
    fn place(&self) -> &Place;

    /// The store, for one test only.
    fn url(&self) -> String;

    /// The same store as the argument of `-b`.
    fn backend(&self) -> String {
        self.url()
    }

    /// A new client of the store.
    fn open(&self) -> Box<dyn LockAdmin> {
        locate(&self.url()).unwrap().open()
    }

    /// The same store without prefix and suffix of the names.
    fn exact_url(&self) -> String;

    /// A URL of this kind of store with this secret in it, where it can have one; the server need not exist.
    fn url_with_secret(&self, secret: &str) -> Option<String>;

    /// Whether a lock expires by itself; otherwise it exists as long as its holder's descriptor or session.
    fn has_leases(&self) -> bool;

    /// The lease that a grant for this ttl reports: that of the lock, or of the session of its holder.
    fn lease(&self, ttl: Duration) -> Option<Duration> {
        self.has_leases().then_some(ttl)
    }

    /// The value of `--ttl` for a lease of this many seconds, or the shortest one that the store accepts.
    fn ttl(&self, seconds: u64) -> String {
        format!("{seconds}s")
    }

    /// How much longer than a lease the store keeps a lock.
    fn rounding(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether grants have fencing tokens.
    fn has_fencing_tokens(&self) -> bool {
        true
    }

    /// Whether locks can be listed; otherwise that is refused.
    fn has_list(&self) -> bool {
        true
    }

    /// A ttl whose end a check waits for.
    fn short(&self) -> Duration {
        Duration::from_millis(400)
    }

    /// How long after its last extension a lease for this ttl may last.
    fn end_of_lease(&self, ttl: Duration) -> Duration {
        ttl * 3 / 2
    }

    /// Whether a lock exists as long as the session of its holder, which is renewed while the holder's process lives.
    fn has_sessions(&self) -> bool {
        !self.has_leases() && self.lease(Duration::MAX).is_some()
    }

    /// Whether nothing of a lock outlives its holder's process, so that other programs can have it at once.
    fn ends_with_its_process(&self) -> bool {
        !self.has_leases() && !self.has_sessions()
    }

    /// Whether a store knows at once that a waiter is dead; otherwise the turn is passed on when its time has expired.
    fn detects_dead_waiters(&self) -> bool {
        true
    }

    /// Whether the turn of a waiter follows from the order of the entries alone: no other client can call it, or skip it
    /// while its lease lasts. Otherwise waiters are called, and lose a turn that they do not claim in time.
    fn has_turns_by_order(&self) -> bool {
        false
    }

    /// A waiter that is called has not lost its turn before this time, by any clock.
    fn turn_lasts(&self) -> Duration {
        Duration::from_millis(490)
    }

    /// A waiter that was called and did not claim the lock has lost its turn after this time, by any clock.
    fn turn_ends(&self) -> Duration {
        CLAIM_WITHIN + Duration::from_millis(100)
    }

    /// A turn that is not claimed is passed on to the next waiter, and noticed by it, within this time.
    fn turn_passes(&self) -> Duration {
        CLAIM_WITHIN
    }

    /// Whether a waiter that was called since may have lost its turn, as happens on a busy machine.
    fn may_have_passed(&self, called: Instant) -> bool {
        !self.has_turns_by_order() && called.elapsed() >= self.turn_lasts()
    }

    /// Waits until the store knows of no more than this number of connected waiters, where it knows them. A process that
    /// was just forked by another test has a copy of a closed connection until it calls exec.
    fn await_connected_waiters(&self, _: usize) {}

    /// After this time without a reply a server may count as down, although it is only slow.
    fn counts_as_down_after(&self) -> Option<Duration> {
        None
    }

    /// Whether some of its servers are down for the whole test. A thaw does not reach those, and says so.
    fn has_dead_servers(&self) -> bool {
        false
    }

    /// Whether there are slots; otherwise they are refused.
    fn has_slots(&self) -> bool {
        true
    }

    /// Whether a lock can be held in this mode. Every check of slots also proves that slots are refused where the store
    /// has none.
    fn has(&self, mode: Mode) -> bool {
        self.has_slots() || !matches!(mode, Mode::Slots(_))
    }

    /// Whether a lock can have this name; otherwise it is refused.
    fn has_name(&self, _: &str) -> bool {
        true
    }

    /// The disturbance of the store during the check, if any.
    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        None
    }

    /// Deletes a held lock without notifying its clients.
    fn delete(&mut self, name: &str);

    /// Ends a held lock for other programs as well, without notifying its clients, and leaves what dlock keeps beside it.
    fn cut(&mut self, name: &str) {
        self.delete(name);
    }

    /// Replaces a held lock with a foreign one.
    fn replace(&mut self, name: &str);

    /// Whether the foreign lock is unchanged.
    fn is_untouched(&self, name: &str) -> bool;

    /// Acquires the lock exclusively, as another program would, until its release or, where there
    /// are leases, for at most this time. False when the lock is held.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool;

    /// Releases the lock of another program.
    fn foreign_unlock(&mut self, name: &str);

    /// The number of waiters for the lock that the store has recorded.
    fn waiters(&self, name: &str) -> usize;

    /// What the store keeps of a lock besides its fencing counter: nothing when it has no holder and no waiter.
    fn traces(&self, name: &str) -> Vec<String>;

    /// Stops and starts the store, which may lose what it need not keep.
    fn restart(&mut self);

    /// Removes all data of the store.
    fn wipe(&mut self);

    /// While exactly these names are held by way of the exact URL: what dlock itself has stored besides, as
    /// names under the exact URL.
    fn own_items(&self, names: &[&str]) -> Vec<String>;

    /// Whether dlock stores something besides each lock.
    fn has_own_items(&self) -> bool {
        true
    }

    /// `dlock run` on the store.
    fn run(&self) -> Dlock {
        self.place().run().backend(self.backend())
    }

    /// Whether another program could acquire the lock exclusively now.
    fn is_free_to_others(&mut self, name: &str) -> bool {
        let free = self.foreign_lock(name, None);
        if free {
            self.foreign_unlock(name);
        }
        free
    }
}

/// A URL with one more option.
pub fn with(url: &str, option: &str) -> String {
    format!("{url}{}{option}", if url.contains('?') { '&' } else { '?' })
}

/// Parses a URL, with an empty environment.
pub fn locate(url: &str) -> Result<Rc<dyn Location>, UrlError> {
    registry::parse(&Url::parse(url)?, &|_| None)
}

/// The locks of a store as messages name them.
pub fn shown(rig: &dyn Rig) -> String {
    locate(&rig.url()).unwrap().display().to_owned()
}

/// Opens the store behind a URL.
#[track_caller]
pub fn open(url: &str) -> Box<dyn Backend> {
    locate(url).unwrap_or_else(|error| panic!("{url}: {error}")).open()
}

/// Runs clients on one thread, as dlock does.
pub fn on_one_thread<T>(clients: impl Future<Output = T>) -> T {
    run(Box::pin(clients))
}

/// The same. The runtime is compiled for this one type, not for each of some thousand tests.
fn run<T>(clients: Pin<Box<dyn Future<Output = T> + '_>>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, clients)
}

/// Runs a check on a rig on one thread.
pub fn prove<R: Rig>(mut rig: R, check: impl AsyncFnOnce(&mut dyn Rig)) {
    on_one_thread(check(&mut rig));
    let is_over = rig.disturbance().is_none_or(|disturbance| disturbance.is_over());
    assert!(is_over, "the check was over before anything happened to the store");
}

/// Runs a check of slots on a rig; where there are none, asserts instead that they are refused.
pub fn prove_slots<R: Rig>(rig: R, check: impl AsyncFnOnce(&mut dyn Rig)) {
    if rig.has_slots() {
        prove(rig, check);
    } else {
        prove(rig, super::suite::slots::slots_are_refused);
    }
}
