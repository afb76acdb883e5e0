//! The locks of a run that takes several. It takes them one after another and keeps them while it waits for the next one:
//! each hold states which lock is next, so that a holder can be followed to the lock that it waits for.

use std::collections::{BTreeMap, BTreeSet};

use super::{Holder, LockName, LockState};

/// What a store shows of the waiters of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// All of them.
    Shown,
    /// None of them: a run without a lock that another client holds waits for it.
    Hidden,
}

/// What is known of the locks of a holder's run.
#[derive(Debug, PartialEq, Eq)]
enum RunState {
    /// The state of this lock tells more.
    Read(LockName),
    Waits(LockName),
    Runs,
}

/// The states of locks by their names.
pub type Known = BTreeMap<LockName, LockState>;

/// Returns the locks whose states are not `known` and tell what the holders of `locks` wait for.
pub fn unread(locks: &[LockState], known: &Known, queues: Queues) -> BTreeSet<LockName> {
    let holders = locks.iter().flat_map(|lock| lock.holders.iter().map(move |holder| (lock, holder)));
    let unread = holders.filter_map(|(lock, holder)| match follow(&lock.name, holder, known, queues) {
        RunState::Read(name) => Some(name),
        _ => None,
    });
    unread.collect()
}

/// Notes what the holders of `locks` wait for.
pub fn mark_waiting(locks: &mut [LockState], known: &Known, queues: Queues) {
    for lock in locks {
        for holder in &mut lock.holders {
            if let RunState::Waits(name) = follow(&lock.name, holder, known, queues) {
                holder.waits_for = Some(name);
            }
        }
    }
}

fn follow(name: &LockName, holder: &Holder, known: &Known, queues: Queues) -> RunState {
    let Some(run) = &holder.identity else { return RunState::Runs };
    let (mut name, mut next) = (name.clone(), run.next_lock.clone());
    loop {
        // Locks are taken in the order of their names: anything else was not stored by dlock, and could be a circle.
        let Some(following) = next.and_then(|next| LockName::new(&next).ok()).filter(|next| *next > name)
        else {
            return RunState::Runs;
        };
        name = following;
        let Some(lock) = known.get(&name) else { return RunState::Read(name) };
        let is_same_run = |other: &&super::Identity| other.is_same_run(run);
        if lock.waiters.iter().filter_map(|waiter| waiter.identity.as_ref()).any(|one| is_same_run(&one)) {
            return RunState::Waits(name);
        }
        let mut identities = lock.holders.iter().filter_map(|holder| holder.identity.as_ref());
        match identities.find(is_same_run) {
            Some(identity) => next = identity.next_lock.clone(),
            None if queues == Queues::Hidden && !lock.holders.is_empty() => return RunState::Waits(name),
            None => return RunState::Runs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::{Identity, Mode, Waiter};
    use std::time::Duration;

    fn name(text: &str) -> LockName {
        LockName::new(text).expect("a name")
    }

    fn identity(pid: u32, next: &str) -> Identity {
        let next_lock = (!next.is_empty()).then(|| next.to_owned());
        Identity { pid, next_lock, ..Identity::default() }
    }

    fn lock(text: &str, holder: (u32, &str), waiters: &[(u32, &str)]) -> LockState {
        let holder = Holder { identity: Some(identity(holder.0, holder.1)), ..Holder::default() };
        let waiter = |(pid, next): &(u32, &str)| Waiter {
            identity: Some(identity(*pid, next)),
            mode: Mode::Exclusive,
            waiting: Duration::ZERO,
        };
        let waiters = waiters.iter().map(waiter).collect();
        LockState { holders: vec![holder], waiters, ..LockState::free(name(text)) }
    }

    fn step(locks: &[LockState], queues: Queues) -> RunState {
        let known = locks.iter().map(|lock| (lock.name.clone(), lock.clone())).collect();
        follow(&locks[0].name, &locks[0].holders[0], &known, queues)
    }

    #[test]
    fn a_holder_is_followed_to_the_lock_that_its_run_waits_for() {
        let (a, b) = (lock("a", (1, "b"), &[]), lock("b", (1, "c"), &[]));
        let c = lock("c", (2, ""), &[(3, ""), (1, "")]);
        let read = |text: &str| RunState::Read(name(text));
        assert_eq!(step(std::slice::from_ref(&a), Queues::Shown), read("b"));
        assert_eq!(step(&[a.clone(), b.clone()], Queues::Shown), read("c"));
        assert_eq!(step(&[a.clone(), b.clone(), c], Queues::Shown), RunState::Waits(name("c")));
        let all = [a.clone(), b.clone(), lock("c", (1, ""), &[(3, "")])];
        assert_eq!(step(&all, Queues::Shown), RunState::Runs);
        // The run has lost the last lock to another one.
        let lost = [a, b, lock("c", (2, ""), &[])];
        assert_eq!(step(&lost, Queues::Shown), RunState::Runs);
        assert_eq!(step(&lost, Queues::Hidden), RunState::Waits(name("c")));
    }

    #[test]
    fn a_circle_of_locks_has_an_end() {
        let circle = [lock("b", (1, "c"), &[]), lock("c", (1, "b"), &[(1, "")])];
        assert_eq!(step(&circle[..1], Queues::Shown), RunState::Read(name("c")));
        assert_eq!(step(&[lock("b", (1, "a"), &[])], Queues::Shown), RunState::Runs);
        assert_eq!(step(&[lock("b", (1, "b"), &[])], Queues::Shown), RunState::Runs);
        assert_eq!(step(&[lock("b", (1, "."), &[])], Queues::Shown), RunState::Runs);
    }
}
