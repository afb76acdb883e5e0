//! Locks on this host: `flock(2)` on `DIRECTORY/NAME.lock`, so that `flock(1)` on the same file excludes dlock and is
//! excluded by it. The lock file's content is never touched. What dlocks have to agree on (fencing counter, holders,
//! the line, slots) is in a sidecar file beside it, under its own short lock.

mod examining;
mod foreign;
mod history;
mod holding;
mod line;
mod location;
mod lock_file;
mod looking;
mod presence;
mod sidecar;
mod trust;
mod waiting;

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use self::holding::Held;
use self::line::{Member, Room, Turn, Waiter, turn};
pub use self::location::Location;
pub(super) use self::location::OPTIONS;
use self::lock_file::{flock_of, is_at, try_flock, try_lock};
use self::presence::{Role, Watches, is_there, withdraw};
use self::sidecar::{Content, Sidecar, SidecarError};
use self::waiting::{Awaited, Place};
use super::{
    Again, Attempt, Backend, Busy, Change, Intent, Refusal, Release, Renewal, Reply, StoreError, io_text,
};
use crate::clock::{Moment, wall_micros};
use crate::lock::{Claim, Holder, LockName, Mode, Record};

/// The store.
pub struct FileStore {
    location: Location,
    held: Option<Held>,
    place: Option<Place>,
    watches: Watches,
    /// The lock file for which a thread waits, or whose lock it has got for us.
    awaited: Option<Awaited>,
    /// How long sidecars that are locked are waited for, all together, by one who looks at many.
    patient_until: Option<Moment>,
}

impl FileStore {
    /// Names the store; touches nothing.
    pub fn new(location: Location) -> FileStore {
        FileStore {
            location,
            held: None,
            place: None,
            watches: Watches::new(),
            awaited: None,
            patient_until: None,
        }
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

    fn note(&self, name: &LockName, record: &Record) -> Result<(), StoreError> {
        let path = self.location.history_path(name);
        let now = wall_micros() / 1000;
        history::append(&path, now, record).map_err(|error| describe(&error, "write", &path))
    }

    fn acquire_now(&mut self, claim: &Claim, intent: Intent) -> Result<Attempt, StoreError> {
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
        if claim.inside {
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

impl Backend for FileStore {
    fn display(&self) -> &str {
        self.location.display()
    }

    fn connect(&mut self) -> Reply<'_, Result<(), StoreError>> {
        self.patient_until = None;
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
    fn release<'a>(
        &'a mut self,
        claim: &'a Claim,
        rest: Duration,
        record: Option<&'a Record>,
    ) -> Reply<'a, Result<Release, StoreError>> {
        Box::pin(async move {
            let release = self.release_now(claim, rest)?;
            if let Some(record) = record.filter(|_| !matches!(release, Release::NotYet(_))) {
                // The lock is free, whatever becomes of the note.
                let _ = self.note(&claim.name, record);
            }
            Ok(release)
        })
    }

    fn record<'a>(&'a mut self, name: &'a LockName, record: &'a Record) -> Reply<'a, Result<(), StoreError>> {
        Box::pin(async move { self.note(name, record) })
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
    members.or_else(|| content.line.iter().find_map(|waiter| other(waiter.mode).filter(|_| waits(waiter))))
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
