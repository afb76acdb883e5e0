//! A lock that is ours: taken, entered, looked after, given back.

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

/// How long a program may take that looks whether a lock is free.
const A_LOOK: Duration = Duration::from_secs(1);

/// A lock that is ours.
pub(super) struct HeldFile {
    /// The lock file, if the lock is on this descriptor. One that entered a hold takes it over when its owner goes.
    pub(super) file: Arc<File>,
    pub(super) owns_flock: bool,
    /// Since when another program has it that should become ours.
    pub(super) contested: Option<Moment>,
    /// Holds the byte that says that we are there.
    pub(super) presence: Arc<File>,
    /// What is noted of us.
    pub(super) member: Member,
    pub(super) token: Token,
    pub(super) grant: Grant,
}

/// What is granted, before it is noted.
struct Hold {
    mode: Mode,
    /// That of the outer hold, if it was entered.
    family: Option<u64>,
    slot: Option<u32>,
    fencing: FencingToken,
}

impl LockDirectory {
    /// The open files that keep the lock, if it is ours.
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
            StoreError::Config(format!("{}: its fencing counter has come to its end (2^53)", path.display()))
        })?;
        content.fencing_token = fencing.number();
        // Who has the kernel's lock alone, for a moment at least, is alone.
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
            // Somebody has put another one there: what the outer one has locked is nobody's lock any more.
            return Ok(Attempt::Refused(Refusal::OuterLost));
        }
        let slot = match (claim.mode, outer.mode) {
            (Mode::Slots(_), Mode::Exclusive) => Some(Room::beside(&content.members).free_slot()),
            (Mode::Slots(_), _) => outer.slot,
            _ => None,
        };
        // The kernel's lock is that of whoever took it; when he goes before us, the next renewal makes it ours.
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
        if let Some(place) = &self.place {
            content.line.retain(|waiter| waiter.ticket != place.ticket);
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
            // A file system that does not answer has not lost the lock.
            Err(error) => {
                return Err(StoreError::unanswered(format!(
                    "cannot look at {}: {}",
                    path.display(),
                    io_text(&error)
                )));
            }
        }
        let mut revoked = None;
        if let Ok((mut sidecar, mut content)) = Sidecar::open(&sidecar_path) {
            let me = content.members.iter().find(|member| member.ticket == held.member.ticket);
            revoked = me.and_then(|me| me.revoked.clone());
            // What others have to know is noted anew if somebody has emptied or replaced the sidecar. If that cannot be
            // done now, the next renewal does it.
            let there = is_at(&held.presence, &sidecar_path);
            let ticket = held.member.ticket;
            if !there
                && announce(sidecar.file(), Role::Holding, ticket).is_ok()
                && let Ok(presence) = sidecar.file().try_clone()
            {
                held.presence = Arc::new(presence);
            }
            if !there || content.members.iter().all(|member| member.ticket != ticket) {
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
            let there = owner
                .is_some_and(|owner| is_there(sidecar.file(), Role::Holding, owner.ticket, &owner.identity));
            if !there {
                // Its owner is gone, and the lock is ours now, unless a foreign program was faster.
                match try_lock(&held.file, flock_of(held.member.mode)) {
                    Ok(true) => held.owns_flock = true,
                    // Perhaps somebody has only looked whether it is free.
                    Ok(false) if Moment::now() - *held.contested.get_or_insert_with(Moment::now) < A_LOOK => {
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
        if let Some(place) = self.place.take_if(|place| place.token == claim.token) {
            if let Ok((mut sidecar, mut content)) = Sidecar::open(&sidecar_path) {
                content.line.retain(|waiter| waiter.ticket != place.ticket);
                let _ = sidecar.write(&content);
            }
            withdraw(&place.presence, Role::Waiting, place.ticket);
        }
        let path = self.lock_path(claim);
        let Some(held) = self.held.as_ref().filter(|held| held.token == claim.token) else {
            return Ok(Release::NotHeld);
        };
        let release = if is_at(&held.file, &path) { Release::Released } else { Release::NotHeld };
        let (ticket, family, owns_flock) = (held.member.ticket, held.member.family, held.owns_flock);
        // What is noted of us is news for others; that the lock is free is what matters, so nothing here keeps it.
        let mut noted = Sidecar::open(&sidecar_path).ok();
        if let Some((sidecar, content)) = &mut noted {
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
                drop(noted);
                self.watch(claim, Role::Holding, inside);
                return Ok(Release::NotYet(Duration::from_secs(1)));
            }
            content.members.retain(|member| member.ticket != ticket);
            // Whoever comes next has its time from now on.
            let room = Room::beside(&content.members);
            let file = sidecar.file();
            let waits = |waiter: &Waiter| is_there(file, Role::Waiting, waiter.ticket, &waiter.identity);
            turn(&mut content.line, &room, None, claim.mode, now, &waits, &|_| true);
            let _ = sidecar.write(content);
        } else if !rest.is_zero() {
            return Ok(Release::NotYet(rest));
        }
        let Some(held) = self.held.take() else { return Ok(Release::NotHeld) };
        // Explicitly, because the guarding process may still have its duplicates open for a moment; and before anybody
        // can read that the lock is free.
        let unlocked = if held.owns_flock { held.file.unlock() } else { Ok(()) };
        drop(noted);
        withdraw(&held.presence, Role::Holding, ticket);
        unlocked.map(|()| release).map_err(|error| describe(&error, "unlock", &path))
    }
}
