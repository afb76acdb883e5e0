//! What one dlock has in a directory of locks: its hold, its place in the line, what it waits for; and the attempt to
//! get a lock.

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

/// What one dlock has in a directory of locks. Every method blocks as long as the file system does.
pub(super) struct LockDirectory {
    pub(super) location: Location,
    pub(super) held: Option<HeldFile>,
    pub(super) place: Option<QueueEntry>,
    pub(super) watches: Watches,
    /// The lock file for which a thread waits, or whose lock it has got for us.
    pub(super) awaited: Option<Awaited>,
    /// How long sidecars that are locked are waited for, all together, by one who looks at many.
    pub(super) patient_until: Option<Moment>,
}

impl LockDirectory {
    /// Names the directory; touches nothing. What the watches report arrives at `changes` too.
    pub(super) fn new(location: Location, changes: Changes) -> LockDirectory {
        let watches = Watches::new(changes);
        LockDirectory { location, held: None, place: None, watches, awaited: None, patient_until: None }
    }

    pub(super) fn prepare(&self) -> Result<(), StoreError> {
        if let Some(directory) = self.location.directory_to_make()
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
        // Before anything of ours is written: the lock file must be one.
        let file = lock_file::open(&path).map_err(|error| describe(&error, "open", &path))?;
        let sidecar_path = self.sidecar_path(claim);
        let failed = |error| sidecar_failure(error, &sidecar_path);
        // Not found out only when the run has ended.
        let history_path = self.location.history_path(&claim.name);
        trust::check_path(&history_path).map_err(|error| describe(&error, "use", &history_path))?;
        let (mut sidecar, mut content) = match Sidecar::open(&sidecar_path) {
            Ok(opened) => opened,
            // Not ours to read: all there is to be seen is whether the lock is free; unless it is ourselves who have it.
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
        content.name = self.location.noted_name(&claim.name);
        let answer = self.decide(claim, intent, file, &sidecar, &mut content);
        if content != before
            && let Err(error) = sidecar.write(&content)
        {
            // What others cannot read is not ours.
            self.held = None;
            return Err(failed(error));
        }
        if matches!(answer, Ok(Attempt::Granted(_)))
            && let Some(place) = self.place.take_if(|place| place.token == claim.token)
        {
            // Only now: whoever comes next reads that we hold it.
            withdraw(&place.presence, Role::Waiting, place.ticket);
        }
        answer
    }

    /// One look at who holds and who waits, with the sidecar locked.
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
        if let Some(slots) = other_slots(claim.mode, content, |waiter| self.waits(waiter, sidecar.file())) {
            return Ok(Attempt::Refused(Refusal::Slots(slots)));
        }
        if intent == Intent::WaitInLine {
            self.join_line(claim, sidecar, content)?;
        }
        let me = self.place.as_ref().filter(|place| place.token == claim.token).map(|place| place.ticket);
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

/// Whether what is noted of a member still counts: it is there, it is us, or the lock is kept for it.
fn is_member(member: &Member, sidecar: &File, claim: &Claim, now: Duration) -> bool {
    let kept =
        member.kept_until.is_some_and(|until| now < until) && member.identity.boot == claim.identity.boot;
    kept || is_there(sidecar, Role::Holding, member.ticket, &member.identity)
}

/// The member whose hold we run inside of.
fn outer_of<'a>(claim: &Claim, members: &'a [Member]) -> Option<&'a Member> {
    members.iter().find(|member| claim.outer.iter().any(|token| token.reveal() == member.token))
}

/// Another number of slots that living users of the lock have agreed on.
fn other_slots(mode: Mode, content: &Content, waits: impl Fn(&Waiter) -> bool) -> Option<u32> {
    let Mode::Slots(wanted) = mode else { return None };
    let other = |mode: Mode| match mode {
        Mode::Slots(slots) if slots != wanted => Some(slots),
        _ => None,
    };
    let members = content.members.iter().find_map(|member| other(member.mode));
    members.or_else(|| content.line.iter().find_map(|waiter| other(waiter.mode).filter(|_| waits(waiter))))
}
