//! A queue position: taking it, and what to wait for.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use super::directory::LockDirectory;
use super::lock_file::{Flock, is_at, try_flock_of, try_lock};
use super::presence::{Role, Target, announce, is_there, withdraw};
use super::queue::{Member, Turn, Waiter};
use super::sidecar::{Content, Sidecar};
use super::{describe, lock_file, sidecar};
use crate::backend::{Again, Busy, Intent, StoreError};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Claim, FencingToken, Holder, Token};

/// The queue position of this process.
pub(super) struct QueueEntry {
    pub(super) presence: File,
    pub(super) ticket: u64,
    pub(super) token: Token,
}

/// A lock file whose lock a thread waits for.
pub(super) struct Awaited {
    file: File,
    mode: Flock,
    arrived: bool,
}

/// The second waiter checks the first this often, the third checks the second half as often, and so on: a stopped dlock
/// notifies no other.
const FIRST_CHECK_INTERVAL: Duration = Duration::from_millis(250);
const LONGEST_CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// A recorded hold without an owner may be revoked (`dlock break`), which causes no notification.
const RECORDED_HOLD_INTERVAL: Duration = Duration::from_secs(1);

impl LockDirectory {
    /// Takes a queue position, or keeps the one that this process has.
    pub(super) fn join_queue(
        &mut self,
        claim: &Claim,
        sidecar: &Sidecar,
        content: &mut Content,
    ) -> Result<(), StoreError> {
        let path = self.sidecar_path(claim);
        if let Some(entry) = &self.entry {
            let is_queued = content.line.iter().any(|waiter| waiter.ticket == entry.ticket);
            if is_queued && entry.token == claim.token && is_at(&entry.presence, &path) {
                return Ok(());
            }
            withdraw(&entry.presence, Role::Waiting, entry.ticket);
            self.entry = None;
        }
        if sidecar.is_nearly_full() {
            let file = sidecar.file();
            content.line.retain(|waiter| is_there(file, Role::Waiting, waiter.ticket, &waiter.identity));
        }
        // A separate descriptor: that of the sidecar is closed after each use.
        let presence = sidecar::open(&path).map_err(|error| describe(&error, "open", &path))?;
        let ticket = content.next_ticket();
        announce(&presence, Role::Waiting, ticket).map_err(|error| describe(&error, "lock", &path))?;
        content.line.push(Waiter {
            ticket,
            mode: claim.mode,
            since: wall_micros(),
            turn: None,
            identity: claim.identity.clone(),
        });
        self.entry = Some(QueueEntry { presence, ticket, token: claim.token.clone() });
        Ok(())
    }

    /// Takes the kernel's lock, if no foreign program has it.
    pub(super) fn take_flock(
        &mut self,
        file: File,
        mode: Flock,
        path: &Path,
    ) -> Result<Option<File>, StoreError> {
        self.take_events();
        if let Some(awaited) = self.awaited.take_if(|awaited| awaited.arrived)
            && awaited.mode == mode
            && is_at(&awaited.file, path)
            // Held already, unless the thread has failed.
            && try_lock(&awaited.file, mode).unwrap_or(false)
        {
            return Ok(Some(awaited.file));
        }
        if self.awaited.as_ref().is_some_and(|awaited| awaited.mode == mode) {
            return Ok(None);
        }
        self.awaited = None;
        try_flock_of(file, path, mode).map_err(|error| describe(&error, "lock", path))
    }

    /// Returns the reply to a claim that is not granted, and starts to watch what it waits for.
    pub(super) fn busy(
        &mut self,
        claim: &Claim,
        intent: Intent,
        decision: Turn,
        sidecar: &File,
        content: &Content,
    ) -> Busy {
        let now = Moment::now().since_boot();
        let rest = |member: &Member| member.kept_until.map(|until| until.saturating_sub(now));
        let members = content.members.iter();
        let mut holders: Vec<Holder> = members
            .take(16)
            .map(|member| Holder {
                identity: Some(member.identity.clone()),
                age: Some(since(member.acquired_at)),
                remaining: rest(member).filter(|_| member.ended_at.is_some()),
                ended: member.ended_at.map(since),
                fencing: FencingToken::new(member.fencing_token),
                slot: member.slot,
                revoked: member.revoked.clone(),
                ..Holder::default()
            })
            .collect();
        let more = content.members.len() - holders.len();
        let promised = matches!(decision, Turn::Promised(_));
        if holders.is_empty() && !promised {
            holders.push(Holder::default());
        }
        let mine = self.entry.as_ref().filter(|_| intent == Intent::WaitInLine).map(|entry| entry.ticket);
        let index = mine.and_then(|mine| content.line.iter().position(|waiter| waiter.ticket == mine));
        let mut again = match decision {
            Turn::Promised(left) => left + Duration::from_millis(1),
            _ => LONGEST_CHECK_INTERVAL,
        };
        // A hold without an owner ends by time alone.
        let ends = content.members.iter().filter_map(rest).min();
        again = again.min(ends.map_or(LONGEST_CHECK_INTERVAL, |rest| rest + Duration::from_millis(1)));
        let mut watched = true;
        match index {
            Some(0) => {
                watched = self.watch_holders(claim, decision, sidecar, content);
                if content.members.iter().any(|member| is_ownerless(member, sidecar)) {
                    again = again.min(RECORDED_HOLD_INTERVAL);
                }
            }
            Some(index) => {
                let predecessor = content.line[index - 1].ticket;
                watched = self.watch(claim, Role::Waiting, predecessor);
                let interval = FIRST_CHECK_INTERVAL.saturating_mul(index.try_into().unwrap_or(u32::MAX));
                again = again.min(interval.min(LONGEST_CHECK_INTERVAL));
            }
            None => {}
        }
        Busy {
            holders,
            more,
            position: index.and_then(|index| u32::try_from(index + 1).ok()),
            promised,
            again: if watched { Again::Within(again) } else { Again::Poll },
        }
    }

    /// The head of the queue waits for the kernel's lock, or for the end of a hold.
    pub(super) fn watch_holders(
        &mut self,
        claim: &Claim,
        decision: Turn,
        sidecar: &File,
        content: &Content,
    ) -> bool {
        if decision == Turn::Ours {
            return self.await_flock(claim, content.flock_for(claim.mode));
        }
        let mut all = true;
        for member in &content.members {
            // A hold without an owner ends by time alone.
            if !is_ownerless(member, sidecar) {
                all &= self.watch(claim, Role::Holding, member.ticket);
            }
        }
        all
    }

    fn await_flock(&mut self, claim: &Claim, mode: Flock) -> bool {
        if self.awaited.is_some() {
            return true;
        }
        let Ok(file) = lock_file::open(&self.lock_path(claim)) else { return false };
        if !self.watches.flock(&file, mode) {
            return false;
        }
        self.awaited = Some(Awaited { file, mode, arrived: false });
        true
    }

    pub(super) fn watch(&mut self, claim: &Claim, role: Role, ticket: u64) -> bool {
        self.watches.has(Target::Gone(role, ticket))
            || sidecar::open(&self.sidecar_path(claim))
                .is_ok_and(|file| self.watches.gone(file, role, ticket))
    }

    pub(super) fn is_waiting(&self, waiter: &Waiter, sidecar: &File) -> bool {
        self.entry.as_ref().is_none_or(|entry| entry.ticket != waiter.ticket)
            && is_there(sidecar, Role::Waiting, waiter.ticket, &waiter.identity)
    }

    /// Handles the events of this process's watching threads.
    pub(super) fn take_events(&mut self) {
        while let Some(target) = self.watches.ready() {
            self.arrived(target);
        }
    }

    fn arrived(&mut self, target: Target) {
        if let Target::Flock(mode) = target
            && let Some(awaited) = self.awaited.as_mut().filter(|awaited| awaited.mode == mode)
        {
            awaited.arrived = true;
        }
    }
}

/// Returns whether the lock is kept for a member whose owner is gone.
fn is_ownerless(member: &Member, sidecar: &File) -> bool {
    !is_there(sidecar, Role::Holding, member.ticket, &member.identity)
}

fn since(micros: u64) -> Duration {
    Duration::from_micros(wall_micros().saturating_sub(micros))
}
