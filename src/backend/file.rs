//! Locks on this host: `flock(2)` on `DIRECTORY/NAME.lock`, so that `flock(1)` on the same file excludes dlock and is
//! excluded by it. The lock file's content is never touched. What dlocks have to agree on (fencing counter, holders,
//! the line, slots) is in a sidecar file beside it, under its own short lock.

mod line;
mod location;
mod lock_file;
mod presence;
mod sidecar;

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::line::{Member, Room, Turn, Waiter, turn};
pub use self::location::Location;
use self::lock_file::is_at;
use self::presence::{Flock, Role, Target, Watches, announce, is_there, withdraw};
use self::sidecar::{Content, Sidecar, SidecarError};
use super::{
    Again, Attempt, Backend, Busy, Change, Intent, Loss, Refusal, Release, Renewal, Reply, StoreError,
    io_text,
};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Claim, FencingToken, Grant, Holder, Mode, Token};

/// The store.
pub struct FileStore {
    location: Location,
    held: Option<Held>,
    place: Option<Place>,
    watches: Watches,
    /// The lock file for which a thread waits, or whose lock it has got for us.
    awaited: Option<Awaited>,
}

/// A lock that is ours.
struct Held {
    /// The lock file, if the lock is on this descriptor. One that entered a hold takes it over when its owner goes.
    file: File,
    owns_flock: bool,
    /// Holds the byte that says that we are there.
    presence: File,
    ticket: u64,
    family: u64,
    token: Token,
    grant: Grant,
}

/// What is granted, before it is noted.
struct Hold {
    mode: Mode,
    /// That of the outer hold, if it was entered.
    family: Option<u64>,
    slot: Option<u32>,
    fencing: FencingToken,
}

/// Our place in the line.
struct Place {
    presence: File,
    ticket: u64,
    token: Token,
}

/// A lock file on its way to us.
struct Awaited {
    file: File,
    mode: Flock,
    arrived: bool,
}

/// The second in line looks after the first so often, the third half as often, and so on: a dlock that was stopped
/// tells nobody.
const LOOK_AFTER_THE_FIRST: Duration = Duration::from_millis(250);
const LONGEST_LOOK: Duration = Duration::from_secs(60);

impl FileStore {
    /// Names the store; touches nothing.
    pub fn new(location: Location) -> FileStore {
        FileStore { location, held: None, place: None, watches: Watches::new(), awaited: None }
    }

    fn prepare(&self) -> Result<(), StoreError> {
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

    fn lock_path(&self, claim: &Claim) -> PathBuf {
        self.location.lock_path(&claim.name)
    }

    fn sidecar_path(&self, claim: &Claim) -> PathBuf {
        self.location.sidecar_path(&claim.name)
    }

    fn acquire_now(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
        let path = self.lock_path(claim);
        if let Some(held) =
            self.held.as_ref().filter(|held| held.token == claim.token && is_at(&held.file, &path))
        {
            return Ok(Attempt::Granted(held.grant));
        }
        // Before anything of ours is written: the lock file must be one.
        drop(lock_file::open(&path).map_err(|error| describe(&error, "open", &path))?);
        let sidecar_path = self.sidecar_path(claim);
        let failed = |error| sidecar_failure(error, &sidecar_path);
        let (mut sidecar, mut content) = match Sidecar::open(&sidecar_path) {
            Ok(opened) => opened,
            // Not ours to read: all there is to be seen is whether the lock is free.
            Err(SidecarError::Io(_)) if matches!(try_flock(&path, flock_of(claim.mode)), Ok(None)) => {
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
        let answer = self.decide(claim, intent, &sidecar, &mut content);
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
        sidecar: &Sidecar,
        content: &mut Content,
    ) -> Result<Attempt, StoreError> {
        let now = Moment::now().since_boot();
        content.members.retain(|member| is_member(member, sidecar.file(), claim, now));
        if let Some(outer) = outer_of(claim, &content.members) {
            let outer = outer.clone();
            return self.enter(claim, &outer, sidecar, content);
        }
        if claim.inside {
            return Ok(Attempt::Refused(Refusal::OuterLost));
        }
        if let Some(slots) = other_slots(claim.mode, content, |waiter| self.waits(waiter, sidecar.file())) {
            return Ok(Attempt::Refused(Refusal::Slots(slots)));
        }
        if intent == Intent::WaitInLine {
            self.join_line(claim, content)?;
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
            && let Some(file) = self.take_flock(claim, &path)?
        {
            return self.grant(claim, &room, file, sidecar, content);
        }
        Ok(Attempt::Busy(self.busy(claim, intent, decision, sidecar.file(), content)))
    }

    /// Takes a place in the line, or keeps the one we have.
    fn join_line(&mut self, claim: &Claim, content: &mut Content) -> Result<(), StoreError> {
        let path = self.sidecar_path(claim);
        if let Some(place) = &self.place {
            let in_line = content.line.iter().any(|waiter| waiter.ticket == place.ticket);
            if in_line && place.token == claim.token && is_at(&place.presence, &path) {
                return Ok(());
            }
            withdraw(&place.presence, Role::Waiting, place.ticket);
            self.place = None;
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
        self.place = Some(Place { presence, ticket, token: claim.token.clone() });
        Ok(())
    }

    /// The lock of the kernel, if no foreign program has it.
    fn take_flock(&mut self, claim: &Claim, path: &Path) -> Result<Option<File>, StoreError> {
        let mode = flock_of(claim.mode);
        while let Some(target) = self.watches.ready() {
            self.arrived(target);
        }
        if let Some(awaited) = self.awaited.take_if(|awaited| awaited.arrived)
            && awaited.mode == mode
            && is_at(&awaited.file, path)
            // Ours already, unless the thread has failed.
            && try_lock(&awaited.file, mode).unwrap_or(false)
        {
            return Ok(Some(awaited.file));
        }
        if self.awaited.is_some() {
            return Ok(None);
        }
        try_flock(path, mode).map_err(|error| describe(&error, "lock", path))
    }

    fn grant(
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
        let slot = matches!(claim.mode, Mode::Slots(_)).then(|| room.free_slot());
        let hold = Hold { mode: claim.mode, family: None, slot, fencing };
        self.become_member(claim, hold, file, sidecar, content)
    }

    /// Enters the hold of an outer dlock.
    fn enter(
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
        let slot = match (claim.mode, outer.mode) {
            (Mode::Slots(_), Mode::Exclusive) => Some(Room::beside(&content.members).free_slot()),
            (Mode::Slots(_), _) => outer.slot,
            _ => None,
        };
        // The kernel's lock is the outer one's; when that goes before us, it becomes ours.
        self.watches.flock(&file, flock_of(outer.mode));
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
        announce(sidecar.file(), Role::Holding, ticket).map_err(failed)?;
        let presence = sidecar.file().try_clone().map_err(failed)?;
        if let Some(place) = &self.place {
            content.line.retain(|waiter| waiter.ticket != place.ticket);
        }
        let kept = Some(claim.min_hold).filter(|hold| !hold.is_zero());
        content.members.push(Member {
            ticket,
            family,
            token: claim.token.reveal().to_owned(),
            mode,
            slot,
            fencing_token: fencing.number(),
            acquired_at: wall_micros(),
            ended_at: None,
            kept_until: kept.map(|hold| Moment::now().since_boot() + hold),
            identity: claim.identity.clone(),
        });
        let grant = Grant { fencing: Some(fencing), lease: None, slot };
        self.held =
            Some(Held { file, owns_flock, presence, ticket, family, token: claim.token.clone(), grant });
        Ok(Attempt::Granted(grant))
    }

    /// What there is to say to one who does not get it, and what to wait for.
    fn busy(
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
                hint: None,
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
            Some(0) => watched = self.watch_holders(claim, decision, sidecar, content),
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
    fn watch_holders(&mut self, claim: &Claim, decision: Turn, sidecar: &File, content: &Content) -> bool {
        if decision == Turn::Ours {
            return self.await_flock(claim);
        }
        let mut all = true;
        for member in &content.members {
            // One whose owner is gone is only a note, and has its time.
            if is_there(sidecar, Role::Holding, member.ticket, &member.identity) {
                all &= self.watch(claim, Role::Holding, member.ticket);
            }
        }
        all
    }

    fn await_flock(&mut self, claim: &Claim) -> bool {
        if self.awaited.is_some() {
            return true;
        }
        let mode = flock_of(claim.mode);
        let Ok(file) = lock_file::open(&self.lock_path(claim)) else { return false };
        if !self.watches.flock(&file, mode) {
            return false;
        }
        self.awaited = Some(Awaited { file, mode, arrived: false });
        true
    }

    fn watch(&mut self, claim: &Claim, role: Role, ticket: u64) -> bool {
        self.watches.has(Target::Gone(role, ticket))
            || sidecar::open(&self.sidecar_path(claim))
                .is_ok_and(|file| self.watches.gone(file, role, ticket))
    }

    fn waits(&self, waiter: &Waiter, sidecar: &File) -> bool {
        self.place.as_ref().is_none_or(|place| place.ticket != waiter.ticket)
            && is_there(sidecar, Role::Waiting, waiter.ticket, &waiter.identity)
    }

    /// Notes what a thread of ours has waited for.
    fn arrived(&mut self, target: Target) {
        if target == Target::Flock {
            match (&mut self.held, &mut self.awaited) {
                // Checked by the next renewal.
                (Some(held), _) if !held.owns_flock => {}
                (_, Some(awaited)) => awaited.arrived = true,
                _ => {}
            }
        }
    }

    fn renew_now(&mut self, claim: &Claim) -> Result<Renewal, StoreError> {
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
        if !held.owns_flock {
            let (sidecar, content) =
                Sidecar::open(&sidecar_path).map_err(|error| sidecar_failure(error, &sidecar_path))?;
            let owner = content.members.iter().find(|member| member.ticket == held.family);
            let there = owner
                .is_some_and(|owner| is_there(sidecar.file(), Role::Holding, owner.ticket, &owner.identity));
            let mode = content.members.iter().find(|member| member.ticket == held.ticket);
            let mode = mode.map_or(Mode::Exclusive, |member| member.mode);
            if !there {
                // Its owner is gone, and the lock is ours now, unless a foreign program was faster.
                match try_lock(&held.file, flock_of(mode)) {
                    Ok(true) => held.owns_flock = true,
                    Ok(false) => return Ok(Renewal::Lost(Loss::Taken)),
                    Err(error) => return Err(describe(&error, "lock", &path)),
                }
            }
        }
        Ok(Renewal::Held(None))
    }

    fn release_now(&mut self, claim: &Claim, rest: Duration) -> Result<Release, StoreError> {
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
        let (ticket, family, owns_flock) = (held.ticket, held.family, held.owns_flock);
        // What is noted of us is news for others; that the lock is free is what matters, so nothing here keeps it.
        let mut noted = Sidecar::open(&sidecar_path).ok();
        if let Some((sidecar, content)) = &mut noted {
            let now = Moment::now().since_boot();
            let me = content.members.iter_mut().find(|member| member.ticket == ticket);
            if let Some(me) = me.filter(|_| !rest.is_zero()) {
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

impl Backend for FileStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        Box::pin(async { self.prepare() })
    }

    fn try_acquire<'a>(
        &'a mut self,
        claim: &'a Claim,
        intent: Intent,
    ) -> Reply<'a, Result<Attempt, StoreError>> {
        Box::pin(async move { self.acquire_now(claim, intent) })
    }

    /// There is no lease; the lock is lost when its file was unlinked or replaced, because others lock the new one.
    fn renew<'a>(&'a mut self, claim: &'a Claim, _: Duration) -> Reply<'a, Result<Renewal, StoreError>> {
        Box::pin(async { self.renew_now(claim) })
    }

    /// A descriptor cannot keep a lock without its process: whoever asks for a rest has to stay. Other dlocks keep to
    /// the rest even so.
    fn release<'a>(&'a mut self, claim: &'a Claim, rest: Duration) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(async move { self.release_now(claim, rest) })
    }

    fn changed(&mut self) -> Reply<'_, Change> {
        Box::pin(async {
            let target = self.watches.next().await;
            self.arrived(target);
            Change::OurTurn
        })
    }

    fn kept_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.held.iter().flat_map(|held| [held.file.as_fd(), held.presence.as_fd()]).collect()
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
    members.or_else(|| {
        let waiters = content.line.iter();
        waiters
            .filter(|waiter| other(waiter.mode).is_some() && waits(waiter))
            .find_map(|waiter| other(waiter.mode))
    })
}

/// Those who share a lock among themselves keep a foreign exclusive program out together.
fn flock_of(mode: Mode) -> Flock {
    match mode {
        Mode::Exclusive => Flock::Exclusive,
        Mode::Shared | Mode::Slots(_) => Flock::Shared,
    }
}

/// Takes the kernel's lock on the file that is there, if nobody has it.
fn try_flock(path: &Path, mode: Flock) -> io::Result<Option<File>> {
    for _ in 0..100 {
        let file = lock_file::open(path)?;
        if !try_lock(&file, mode)? {
            return Ok(None);
        }
        // Somebody may have replaced the file between open and lock: what we hold then is nobody's lock.
        if is_at(&file, path) {
            return Ok(Some(file));
        }
    }
    Err(io::Error::other("it is replaced again and again"))
}

/// On every Unix that dlock runs on the standard library's file lock is `flock(2)`.
fn try_lock(file: &File, mode: Flock) -> io::Result<bool> {
    let locked = match mode {
        Flock::Exclusive => file.try_lock(),
        Flock::Shared => file.try_lock_shared(),
    };
    match locked {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn since(micros: u64) -> Duration {
    Duration::from_micros(wall_micros().saturating_sub(micros))
}

fn sidecar_failure(error: SidecarError, path: &Path) -> StoreError {
    match error {
        SidecarError::Io(error) => describe(&error, "use", path),
        SidecarError::Unknown(what) => StoreError::Config(format!("{}: {what}", path.display())),
    }
}

fn describe(error: &io::Error, what: &str, path: &Path) -> StoreError {
    let text = match error.raw_os_error() {
        Some(libc::ELOOP) => "it is a symbolic link, which dlock does not follow".to_owned(),
        _ => io_text(error),
    };
    let message = format!("cannot {what} {}: {text}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied => StoreError::Denied(message),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => StoreError::Config(message),
        _ if error.raw_os_error() == Some(libc::ELOOP) => StoreError::Denied(message),
        _ => StoreError::unreachable(message),
    }
}
