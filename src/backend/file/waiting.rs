//! A place in the line: taken, and what to wait for.

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

/// Our place in the line.
pub(super) struct QueueEntry {
    pub(super) presence: File,
    pub(super) ticket: u64,
    pub(super) token: Token,
}

/// A lock file on its way to us.
pub(super) struct Awaited {
    file: File,
    mode: Flock,
    arrived: bool,
}

/// The second in line looks after the first so often, the third half as often, and so on: a dlock that was stopped
/// tells nobody.
const LOOK_AFTER_THE_FIRST: Duration = Duration::from_millis(250);
const LONGEST_LOOK: Duration = Duration::from_secs(60);
/// A note whose owner is gone may be taken back by somebody (`dlock break`), of which nobody hears.
const A_NOTE_MAY_GO: Duration = Duration::from_secs(1);

impl LockDirectory {
    /// Takes a place in the line, or keeps the one we have.
    pub(super) fn join_line(
        &mut self,
        claim: &Claim,
        sidecar: &Sidecar,
        content: &mut Content,
    ) -> Result<(), StoreError> {
        let path = self.sidecar_path(claim);
        if let Some(place) = &self.place {
            let in_line = content.line.iter().any(|waiter| waiter.ticket == place.ticket);
            if in_line && place.token == claim.token && is_at(&place.presence, &path) {
                return Ok(());
            }
            withdraw(&place.presence, Role::Waiting, place.ticket);
            self.place = None;
        }
        if sidecar.is_nearly_full() {
            let file = sidecar.file();
            content.line.retain(|waiter| is_there(file, Role::Waiting, waiter.ticket, &waiter.identity));
        }
        // A descriptor of its own: that of the sidecar is closed after each use.
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
        self.place = Some(QueueEntry { presence, ticket, token: claim.token.clone() });
        Ok(())
    }

    /// The lock of the kernel, if no foreign program has it.
    pub(super) fn take_flock(
        &mut self,
        file: File,
        mode: Flock,
        path: &Path,
    ) -> Result<Option<File>, StoreError> {
        self.hear();
        if let Some(awaited) = self.awaited.take_if(|awaited| awaited.arrived)
            && awaited.mode == mode
            && is_at(&awaited.file, path)
            // Ours already, unless the thread has failed.
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

    /// What there is to say to one who does not get it, and what to wait for.
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
        let mine = self.place.as_ref().filter(|_| intent == Intent::WaitInLine).map(|place| place.ticket);
        let index = mine.and_then(|mine| content.line.iter().position(|waiter| waiter.ticket == mine));
        let mut again = match decision {
            Turn::Promised(left) => left + Duration::from_millis(1),
            _ => LONGEST_LOOK,
        };
        // Kept by nobody but the note.
        let ends = content.members.iter().filter_map(rest).min();
        again = again.min(ends.map_or(LONGEST_LOOK, |rest| rest + Duration::from_millis(1)));
        let mut watched = true;
        match index {
            Some(0) => {
                watched = self.watch_holders(claim, decision, sidecar, content);
                if content.members.iter().any(|member| is_only_noted(member, sidecar)) {
                    again = again.min(A_NOTE_MAY_GO);
                }
            }
            Some(index) => {
                let before = content.line[index - 1].ticket;
                watched = self.watch(claim, Role::Waiting, before);
                let often = LOOK_AFTER_THE_FIRST.saturating_mul(index.try_into().unwrap_or(u32::MAX));
                again = again.min(often.min(LONGEST_LOOK));
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

    /// The head of the line waits for the kernel's lock, or for a member to go.
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
            // One whose owner is gone has its time.
            if !is_only_noted(member, sidecar) {
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

    pub(super) fn waits(&self, waiter: &Waiter, sidecar: &File) -> bool {
        self.place.as_ref().is_none_or(|place| place.ticket != waiter.ticket)
            && is_there(sidecar, Role::Waiting, waiter.ticket, &waiter.identity)
    }

    /// Notes what threads of ours have waited for.
    pub(super) fn hear(&mut self) {
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

/// Whether the lock is kept for a member though its owner is gone.
fn is_only_noted(member: &Member, sidecar: &File) -> bool {
    !is_there(sidecar, Role::Holding, member.ticket, &member.identity)
}

fn since(micros: u64) -> Duration {
    Duration::from_micros(wall_micros().saturating_sub(micros))
}
