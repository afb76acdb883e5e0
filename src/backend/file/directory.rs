//! The state of one dlock in a directory of locks: its hold, its queue position, what it waits for; and the attempt to
//! acquire a lock.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use super::holding::HeldFile;
use super::lock_file::{flock_of, is_at, try_flock, try_lock};
use super::presence::{Changes, Role, Watches, is_there, withdraw};
use super::queue::{Member, Room, Turn, Waiter, turn};
use super::sidecar::{Content, Sidecar, SidecarError};
use super::waiting::{Awaited, QueueEntry};
use super::{Location, describe, history, lock_file, sidecar_failure, trust};
use crate::backend::{Again, Attempt, Busy, Intent, Refusal, StoreError};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Claim, Holder, LockName, Mode, Record};

/// The state of one dlock in a directory of locks. Every method blocks as long as the file system does.
pub(super) struct LockDirectory {
    pub(super) location: Location,
    pub(super) held: Option<HeldFile>,
    pub(super) entry: Option<QueueEntry>,
    pub(super) watches: Watches,
    /// The lock file whose lock a thread waits for, or has taken.
    pub(super) awaited: Option<Awaited>,
    /// Until when an inspection of many locks waits for locked sidecars, in total.
    pub(super) patient_until: Option<Moment>,
}

impl LockDirectory {
    /// Creates the state without touching the file system. The watches also report their events to `changes`.
    pub(super) fn new(location: Location, changes: Changes) -> LockDirectory {
        let watches = Watches::new(changes);
        LockDirectory { location, held: None, entry: None, watches, awaited: None, patient_until: None }
    }

    pub(super) fn prepare(&self) -> Result<(), StoreError> {
        if let Some(directory) = self.location.directory_to_create()
            && !directory.exists()
        {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(directory)
                .map_err(|error| describe(&error, "make the directory", directory))?;
        }
        Ok(())
    }

    pub(super) fn lock_path(&self, claim: &Claim) -> PathBuf {
        self.location.lock_path(&claim.name)
    }

    pub(super) fn sidecar_path(&self, claim: &Claim) -> PathBuf {
        self.location.sidecar_path(&claim.name)
    }

    pub(super) fn note(&self, name: &LockName, record: &Record) -> Result<(), StoreError> {
        self.prepare()?;
        let path = self.location.history_path(name);
        let now = wall_micros() / 1000;
        history::append(&path, now, record).map_err(|error| describe(&error, "write", &path))
    }

    pub(super) fn acquire_now(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        self.prepare()?;
        let path = self.lock_path(claim);
        if let Some(held) =
            self.held.as_ref().filter(|held| held.token == claim.token && is_at(&held.file, &path))
        {
            return Ok(Attempt::Granted(held.grant));
        }
        // Before anything is written: check that the lock file is usable.
        let file = lock_file::open(&path).map_err(|error| describe(&error, "open", &path))?;
        let sidecar_path = self.sidecar_path(claim);
        let failed = |error| sidecar_failure(error, &sidecar_path);
        // Check now, not only when the run has ended.
        let history_path = self.location.history_path(&claim.name);
        trust::check_path(&history_path).map_err(|error| describe(&error, "use", &history_path))?;
        let (mut sidecar, mut content) = match Sidecar::open(&sidecar_path) {
            Ok(opened) => opened,
            // The sidecar is not readable for this user: only whether the lock is free can be seen, unless this process
            // holds it.
            Err(SidecarError::Io(error))
                if !trust::is_untrusted(&error)
                    && self.awaited.take().is_none()
                    && matches!(try_flock(&path, flock_of(claim.mode)), Ok(None)) =>
            {
                return Ok(Attempt::Busy(Busy {
                    holders: vec![Holder::default()],
                    more: 0,
                    position: None,
                    promised: false,
                    again: Again::Poll,
                }));
            }
            Err(error) => return Err(failed(error)),
        };
        let before = content.clone();
        content.name = self.location.recorded_name(&claim.name);
        let attempt = self.decide(claim, intent, file, &sidecar, &mut content);
        if content != before
            && let Err(error) = sidecar.write(&content)
        {
            // A hold that others cannot read does not count.
            self.held = None;
            return Err(failed(error));
        }
        if matches!(attempt, Ok(Attempt::Granted(_)))
            && let Some(entry) = self.entry.take_if(|entry| entry.token == claim.token)
        {
            // Only now: the next waiter must read that the lock is held.
            withdraw(&entry.presence, Role::Waiting, entry.ticket);
        }
        attempt
    }

    /// Makes one decision, with the sidecar locked.
    fn decide(
        &mut self,
        claim: &Claim,
        intent: Intent,
        file: File,
        sidecar: &Sidecar,
        content: &mut Content,
    ) -> Result<Attempt, StoreError> {
        let now = Moment::now().since_boot();
        content.members.retain(|member| is_member(member, sidecar.file(), claim, now));
        if let Some(outer) = outer_of(claim, &content.members) {
            let outer = outer.clone();
            return self.enter(claim, &outer, sidecar, content);
        }
        if claim.requires_outer_hold {
            return Ok(Attempt::Refused(Refusal::OuterLost));
        }
        if let Some(slots) =
            other_slots(claim.mode, content, |waiter| self.is_waiting(waiter, sidecar.file()))
        {
            return Ok(Attempt::Refused(Refusal::Slots(slots)));
        }
        if intent == Intent::WaitInLine {
            self.join_queue(claim, sidecar, content)?;
        }
        let me = self.entry.as_ref().filter(|entry| entry.token == claim.token).map(|entry| entry.ticket);
        let room = Room::beside(&content.members);
        let path = self.lock_path(claim);
        let decision = turn(
            &mut content.line,
            &room,
            me,
            claim.mode,
            now,
            &|waiter| is_there(sidecar.file(), Role::Waiting, waiter.ticket, &waiter.identity),
            &|mode| try_flock(&path, flock_of(mode)).is_ok_and(|file| file.is_some()),
        );
        if decision == Turn::Ours
            && let Some(file) = self.take_flock(file, content.flock_for(claim.mode), &path)?
            && try_lock(&file, flock_of(claim.mode)).map_err(|error| describe(&error, "lock", &path))?
        {
            return self.grant(claim, &room, file, sidecar, content);
        }
        Ok(Attempt::Busy(self.busy(claim, intent, decision, sidecar.file(), content)))
    }
}

/// Returns whether a recorded member still counts: its owner is alive, or the lock is kept for it.
fn is_member(member: &Member, sidecar: &File, claim: &Claim, now: Duration) -> bool {
    let kept =
        member.kept_until.is_some_and(|until| now < until) && member.identity.boot == claim.identity.boot;
    kept || is_there(sidecar, Role::Holding, member.ticket, &member.identity)
}

/// Returns the member whose hold this process runs in.
fn outer_of<'a>(claim: &Claim, members: &'a [Member]) -> Option<&'a Member> {
    members.iter().find(|member| claim.outer.iter().any(|token| token.reveal() == member.token))
}

/// Returns another number of slots that live users of the lock have agreed on.
fn other_slots(mode: Mode, content: &Content, is_waiting: impl Fn(&Waiter) -> bool) -> Option<u32> {
    let Mode::Slots(wanted) = mode else { return None };
    let other = |mode: Mode| match mode {
        Mode::Slots(slots) if slots != wanted => Some(slots),
        _ => None,
    };
    let members = content.members.iter().find_map(|member| other(member.mode));
    members
        .or_else(|| content.line.iter().find_map(|waiter| other(waiter.mode).filter(|_| is_waiting(waiter))))
}
