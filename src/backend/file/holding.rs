//! A lock that is held: taken, entered, renewed, released.

use std::fs::{self, File};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::directory::LockDirectory;
use super::lock_file::{Flock, flock_of, is_at, number_of, try_lock};
use super::presence::{Role, announce, is_there, withdraw};
use super::queue::{Member, Room, Waiter, turn};
use super::sidecar::{Content, Sidecar};
use super::{describe, lock_file, sidecar_failure};
use crate::backend::{Attempt, Loss, Refusal, Release, Renewal, StoreError, io_text};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Claim, FencingToken, Grant, Mode, Token};

/// How long a program may take that tests whether a lock is free.
const TEST_LIMIT: Duration = Duration::from_secs(1);

/// A lock that is held by this process.
pub(super) struct HeldFile {
    /// The lock file. A nested holder takes the kernel's lock over when its owner goes.
    pub(super) file: Arc<File>,
    pub(super) owns_flock: bool,
    /// Since when another program has the kernel's lock that should pass to this process.
    pub(super) contested: Option<Moment>,
    /// Holds the byte that marks this process as present.
    pub(super) presence: Arc<File>,
    /// What the sidecar records about this hold.
    pub(super) member: Member,
    pub(super) token: Token,
    pub(super) grant: Grant,
}

/// What is granted, before it is recorded.
struct Hold {
    mode: Mode,
    /// The family of the outer hold, if it was entered.
    family: Option<u64>,
    slot: Option<u32>,
    fencing: FencingToken,
}

impl LockDirectory {
    /// Returns the open files that keep the lock, if it is held.
    pub(super) fn kept(&self) -> Option<[Arc<File>; 2]> {
        self.held.as_ref().map(|held| [held.file.clone(), held.presence.clone()])
    }

    pub(super) fn grant(
        &mut self,
        claim: &Claim,
        room: &Room,
        file: File,
        sidecar: &Sidecar,
        content: &mut Content,
    ) -> Result<Attempt, StoreError> {
        let fencing = FencingToken::new(wall_micros().max(content.fencing_token.saturating_add(1)));
        let fencing = fencing.ok_or_else(|| {
            let path = self.sidecar_path(claim);
            StoreError::Config(format!("{}: its fencing counter is exhausted (2^53)", path.display()))
        })?;
        content.fencing_token = fencing.number();
        // A holder that has the kernel's lock exclusively, even if only for a moment, is the only one.
        content.lost &= content.flock_for(claim.mode) == Flock::Shared;
        let slot = matches!(claim.mode, Mode::Slots(_)).then(|| room.free_slot());
        let hold = Hold { mode: claim.mode, family: None, slot, fencing };
        self.become_member(claim, hold, file, sidecar, content)
    }

    /// Enters the hold of an outer dlock.
    pub(super) fn enter(
        &mut self,
        claim: &Claim,
        outer: &Member,
        sidecar: &Sidecar,
        content: &mut Content,
    ) -> Result<Attempt, StoreError> {
        if !claim.mode.fits_inside(outer.mode) {
            return Ok(Attempt::Refused(match (claim.mode, outer.mode) {
                (Mode::Slots(_), Mode::Slots(of)) => Refusal::Slots(of),
                _ => Refusal::Inside(outer.mode),
            }));
        }
        let Some(fencing) = FencingToken::new(outer.fencing_token) else {
            return Ok(Attempt::Refused(Refusal::OuterLost));
        };
        let path = self.lock_path(claim);
        let file = lock_file::open(&path).map_err(|error| describe(&error, "open", &path))?;
        if number_of(&file).ok() != Some(outer.file) {
            // The lock file has been replaced: the file that the outer dlock has locked is not the lock any more.
            return Ok(Attempt::Refused(Refusal::OuterLost));
        }
        let slot = match (claim.mode, outer.mode) {
            (Mode::Slots(_), Mode::Exclusive) => Some(Room::beside(&content.members).free_slot()),
            (Mode::Slots(_), _) => outer.slot,
            _ => None,
        };
        // The kernel's lock belongs to the process that took it; if that ends first, the next renewal takes it over.
        self.watch(claim, Role::Holding, outer.family);
        let hold = Hold { mode: outer.mode, family: Some(outer.family), slot, fencing };
        self.become_member(claim, hold, file, sidecar, content)
    }

    fn become_member(
        &mut self,
        claim: &Claim,
        hold: Hold,
        file: File,
        sidecar: &Sidecar,
        content: &mut Content,
    ) -> Result<Attempt, StoreError> {
        let path = self.sidecar_path(claim);
        let failed = |error: io::Error| describe(&error, "lock", &path);
        let Hold { mode, family, slot, fencing } = hold;
        let owns_flock = family.is_none();
        let ticket = content.next_ticket();
        let family = family.unwrap_or(ticket);
        let number = number_of(&file).map_err(failed)?;
        announce(sidecar.file(), Role::Holding, ticket).map_err(failed)?;
        let presence = sidecar.file().try_clone().map_err(failed)?;
        if let Some(entry) = &self.entry {
            content.line.retain(|waiter| waiter.ticket != entry.ticket);
        }
        let kept = Some(claim.min_hold).filter(|hold| !hold.is_zero());
        let member = Member {
            ticket,
            family,
            token: claim.token.reveal().to_owned(),
            mode,
            slot,
            fencing_token: fencing.number(),
            file: number,
            acquired_at: wall_micros(),
            ended_at: None,
            kept_until: kept.map(|hold| Moment::now().since_boot() + hold),
            revoked: None,
            identity: claim.identity.clone(),
        };
        content.members.push(member.clone());
        let grant = Grant { fencing: Some(fencing), lease: None, slot };
        self.held = Some(HeldFile {
            file: Arc::new(file),
            owns_flock,
            contested: None,
            presence: Arc::new(presence),
            member,
            token: claim.token.clone(),
            grant,
        });
        Ok(Attempt::Granted(grant))
    }

    pub(super) fn renew_now(&mut self, claim: &Claim) -> Result<Renewal, StoreError> {
        let path = self.lock_path(claim);
        let sidecar_path = self.sidecar_path(claim);
        let Some(held) = self.held.as_mut().filter(|held| held.token == claim.token) else {
            return Ok(Renewal::Lost(Loss::Taken));
        };
        match fs::symlink_metadata(&path) {
            Ok(_) if is_at(&held.file, &path) => {}
            Ok(_) => return Ok(Renewal::Lost(Loss::Taken)),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(Renewal::Lost(Loss::Gone));
            }
            // A file system that does not reply has not lost the lock.
            Err(error) => {
                return Err(StoreError::unanswered(format!(
                    "cannot inspect {}: {}",
                    path.display(),
                    io_text(&error)
                )));
            }
        }
        let mut revoked = None;
        if let Ok((mut sidecar, mut content)) = Sidecar::open(&sidecar_path) {
            let me = content.members.iter().find(|member| member.ticket == held.member.ticket);
            revoked = me.and_then(|me| me.revoked.clone());
            // The hold is recorded again if the sidecar has been emptied or replaced. If that is impossible now, the
            // next renewal does it.
            let is_present = is_at(&held.presence, &sidecar_path);
            let ticket = held.member.ticket;
            if !is_present
                && announce(sidecar.file(), Role::Holding, ticket).is_ok()
                && let Ok(presence) = sidecar.file().try_clone()
            {
                held.presence = Arc::new(presence);
            }
            if !is_present || content.members.iter().all(|member| member.ticket != ticket) {
                content.members.retain(|member| member.ticket != ticket);
                content.members.push(held.member.clone());
                content.lost = true;
                content.fencing_token = content.fencing_token.max(held.member.fencing_token);
                let _ = sidecar.write(&content);
            }
        }
        if !held.owns_flock {
            let (sidecar, content) =
                Sidecar::open(&sidecar_path).map_err(|error| sidecar_failure(error, &sidecar_path))?;
            let owner = content.members.iter().find(|member| member.ticket == held.member.family);
            let is_present = owner
                .is_some_and(|owner| is_there(sidecar.file(), Role::Holding, owner.ticket, &owner.identity));
            if !is_present {
                // Its owner is gone, and the lock passes to this process, unless a foreign program was faster.
                match try_lock(&held.file, flock_of(held.member.mode)) {
                    Ok(true) => held.owns_flock = true,
                    // Another program may only have tested whether it is free.
                    Ok(false)
                        if Moment::now() - *held.contested.get_or_insert_with(Moment::now) < TEST_LIMIT =>
                    {
                        return Err(StoreError::unanswered("another program has the lock for a moment"));
                    }
                    Ok(false) => return Ok(Renewal::Lost(Loss::Taken)),
                    Err(error) => return Err(describe(&error, "lock", &path)),
                }
            }
        }
        Ok(Renewal::Held { lease: None, revoked })
    }

    pub(super) fn release_now(&mut self, claim: &Claim, rest: Duration) -> Result<Release, StoreError> {
        self.awaited = None;
        let sidecar_path = self.sidecar_path(claim);
        if let Some(entry) = self.entry.take_if(|entry| entry.token == claim.token) {
            if let Ok((mut sidecar, mut content)) = Sidecar::open(&sidecar_path) {
                content.line.retain(|waiter| waiter.ticket != entry.ticket);
                let _ = sidecar.write(&content);
            }
            withdraw(&entry.presence, Role::Waiting, entry.ticket);
        }
        let path = self.lock_path(claim);
        let Some(held) = self.held.as_ref().filter(|held| held.token == claim.token) else {
            return Ok(Release::NotHeld);
        };
        let release = if is_at(&held.file, &path) { Release::Released } else { Release::NotHeld };
        let (ticket, family, owns_flock) = (held.member.ticket, held.member.family, held.owns_flock);
        // What the sidecar records is information for others; what matters is that the lock becomes free, so no failure
        // here prevents that.
        let mut recorded = Sidecar::open(&sidecar_path).ok();
        if let Some((sidecar, content)) = &mut recorded {
            let now = Moment::now().since_boot();
            let me = content.members.iter_mut().find(|member| member.ticket == ticket);
            if let Some(me) = me.filter(|me| !rest.is_zero() && me.revoked.is_none()) {
                me.ended_at.get_or_insert_with(wall_micros);
                me.kept_until = Some(now + rest);
                let _ = sidecar.write(content);
                return Ok(Release::NotYet(rest));
            }
            let inside = content.members.iter().find(|member| {
                member.family == family
                    && member.ticket != ticket
                    && is_there(sidecar.file(), Role::Holding, member.ticket, &member.identity)
            });
            let inside = inside.map(|member| member.ticket);
            if let Some(inside) = inside.filter(|_| owns_flock) {
                drop(recorded);
                self.watch(claim, Role::Holding, inside);
                return Ok(Release::NotYet(Duration::from_secs(1)));
            }
            content.members.retain(|member| member.ticket != ticket);
            // The next waiter's turn begins now.
            let room = Room::beside(&content.members);
            let file = sidecar.file();
            let is_waiting = |waiter: &Waiter| is_there(file, Role::Waiting, waiter.ticket, &waiter.identity);
            turn(&mut content.line, &room, None, claim.mode, now, &is_waiting, &|_| true);
            let _ = sidecar.write(content);
        } else if !rest.is_zero() {
            return Ok(Release::NotYet(rest));
        }
        let Some(held) = self.held.take() else { return Ok(Release::NotHeld) };
        // Explicitly, because the guard may still have its duplicates open for a moment; and before other processes can
        // read that the lock is free.
        let unlocked = if held.owns_flock { held.file.unlock() } else { Ok(()) };
        drop(recorded);
        withdraw(&held.presence, Role::Holding, ticket);
        unlocked.map(|()| release).map_err(|error| describe(&error, "unlock", &path))
    }
}
