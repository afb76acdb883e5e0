//! What a store has to be able to do to be checked.

use super::disturbance::Disturbance;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use dlock::backend::Backend;
use dlock::backend::locator::Locator;
use dlock::backend::url::{Url, UrlError};
use dlock::lock::Mode;
use std::rc::Rc;
use std::time::Duration;

/// One store, with the means to do to it what happens to stores.
pub trait Rig {
    /// Where runs take place.
    fn place(&self) -> &Place;

    /// The store, for one test alone.
    fn url(&self) -> String;

    /// The same store with nothing put before or behind a name.
    fn exact_url(&self) -> String;

    /// A URL of this kind of store with this secret in it, where it can have one; nobody need be there.
    fn url_with_secret(&self, secret: &str) -> Option<String>;

    /// Whether a lock ends by itself; otherwise it lives as long as its holder's descriptor or session.
    fn has_leases(&self) -> bool;

    /// Whether a store knows at once that one who waits in line is dead; otherwise the turn passes him when it is over.
    fn knows_the_dead(&self) -> bool {
        true
    }

    /// Whether there are slots; otherwise they are refused.
    fn has_slots(&self) -> bool {
        true
    }

    /// Whether a lock can be held in this mode. That slots are refused where there are none is proved by every check that
    /// is about them.
    fn has(&self, mode: Mode) -> bool {
        self.has_slots() || !matches!(mode, Mode::Slots(_))
    }

    /// What happens to the store in the midst of the check, if anything.
    fn disturbance(&self) -> Option<Rc<Disturbance>> {
        None
    }

    /// Deletes a held lock behind everybody's back.
    fn delete(&mut self, name: &str);

    /// Puts somebody else's lock in the place of a held one.
    fn replace(&mut self, name: &str);

    /// Whether somebody else's lock is as it was put there.
    fn is_untouched(&self, name: &str) -> bool;

    /// Takes the lock as another program does that wants it for itself alone, until it gives it back or, where there are
    /// leases, at most for so long. False when somebody has it.
    fn foreign_lock(&mut self, name: &str, lease: Option<Duration>) -> bool;

    /// Gives back what another program has taken.
    fn foreign_unlock(&mut self, name: &str);

    /// How many the store knows to wait for the lock.
    fn waiters(&self, name: &str) -> usize;

    /// What the store has of a lock besides its fencing counter: nothing when nobody holds it or waits for it.
    fn traces(&self, name: &str) -> Vec<String>;

    /// Stops and starts the store, which forgets what it may forget.
    fn restart(&mut self);

    /// Empties the store of everything.
    fn wipe(&mut self);

    /// While these names, and no others, are held by way of the exact URL: what dlock itself has stored besides, as
    /// names under the exact URL.
    fn own_items(&self, names: &[&str]) -> Vec<String>;

    /// `dlock run` on the store.
    fn run(&self) -> Dlock {
        self.place().run().backend(self.url())
    }

    /// Whether another program could have the lock for itself alone now.
    fn is_free_to_others(&mut self, name: &str) -> bool {
        let free = self.foreign_lock(name, None);
        if free {
            self.foreign_unlock(name);
        }
        free
    }
}

/// Understands a URL, with an empty environment.
pub fn locate(url: &str) -> Result<Locator, UrlError> {
    Locator::new(&Url::parse(url)?, &|_| None)
}

/// Opens the store behind a URL.
#[track_caller]
pub fn open(url: &str) -> Box<dyn Backend> {
    locate(url).unwrap_or_else(|error| panic!("{url}: {error}")).open()
}

/// Runs a check on a rig, as dlock runs a store: on one thread.
pub fn prove<R: Rig>(mut rig: R, check: impl AsyncFnOnce(&mut dyn Rig)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, check(&mut rig));
    let is_over = rig.disturbance().is_none_or(|disturbance| disturbance.is_over());
    assert!(is_over, "the check was over before anything happened to the store");
}

/// Runs a check of slots on a rig; where there are none, they must be refused instead.
pub fn prove_slots<R: Rig>(rig: R, check: impl AsyncFnOnce(&mut dyn Rig)) {
    if rig.has_slots() {
        prove(rig, check);
    } else {
        prove(rig, super::suite::slots::slots_are_refused);
    }
}
