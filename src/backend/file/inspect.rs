//! Lists locks, holders and waiters, reads the history, and ends a hold on behalf of an operator.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::directory::LockDirectory;
use super::presence::{Role, is_there};
use super::queue::Member;
use super::sidecar::{PATIENCE, Sidecar, SidecarError};
use super::{FileStore, describe, foreign, history, lock_file, sidecar_failure};
use crate::backend::admin::{Inspection, LockAdmin, Removal, Revoked};
use crate::backend::diagnosis::Diagnosis;
use crate::backend::thread::in_thread;
use crate::backend::{Reply, StoreError, io_text};
use crate::clock::{Moment, boot_id, wall_micros};
use crate::lock::{
    FencingToken, Holder, LockName, LockState, Mode, NotedRecord, Revocation, Token, Unknown, Waiter,
};

impl LockDirectory {
    fn names(&self) -> Result<Vec<LockName>, StoreError> {
        let directory = self.location.directory();
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.location.is_default() => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(describe(&error, "read the directory", directory)),
        };
        let mut names: Vec<LockName> =
            entries.flatten().filter_map(|entry| self.name_of(&entry.path())).collect();
        names.sort_by(|one, other| one.as_str().cmp(other.as_str()));
        Ok(names)
    }

    /// A directory that the user named and that does not exist is a mistake, not a store in which every lock is free.
    fn check_directory(&self) -> Result<(), StoreError> {
        let directory = self.location.directory();
        match fs::metadata(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.location.is_default() => Ok(()),
            Ok(metadata) if !metadata.is_dir() => {
                Err(describe(&io::ErrorKind::NotADirectory.into(), "read the directory", directory))
            }
            result => result.map(drop).map_err(|error| describe(&error, "read the directory", directory)),
        }
    }

    /// Returns the lock that a sidecar file belongs to. A file that is named by a digest contains the name.
    fn name_of(&self, path: &Path) -> Option<LockName> {
        let file = path.file_name()?.to_str()?;
        if let Some(name) = self.location.name_of(file) {
            return Some(name);
        }
        let is_digest = self.location.is_digest(file);
        let (_, content) =
            is_digest.then(|| Sidecar::open_existing(path, Duration::from_millis(5)).ok()).flatten()??;
        let name = LockName::new(content.name.as_deref()?).ok()?;
        (self.location.sidecar_path(&name) == path).then_some(name)
    }

    fn state_of(&self, name: &LockName, token: Option<&Token>, at: u64, patience: Duration) -> LockState {
        let path = self.location.sidecar_path(name);
        let mut state = LockState::free(name.clone());
        let opened = match Sidecar::open_existing(&path, patience) {
            Ok(opened) => opened,
            Err(error) => {
                let failure = match error {
                    SidecarError::Io(error) => describe(&error, "read", &path),
                    error => sidecar_failure(error, &path),
                };
                let unknown = match failure {
                    StoreError::Denied(why) => Unknown::Denied(why),
                    StoreError::Config(why) => Unknown::Unreadable(why),
                    StoreError::Unavailable { reason, .. } => Unknown::Unanswered(reason),
                };
                return LockState { unknown: Some(unknown), ..state };
            }
        };
        if let Some((sidecar, content)) = &opened {
            let now = Moment::now().since_boot();
            let lock_path = self.location.lock_path(name);
            for member in &content.members {
                let is_present = is_there(sidecar.file(), Role::Holding, member.ticket, &member.identity);
                let kept =
                    member.kept_until.filter(|until| now < *until && member.identity.boot == boot_id());
                if is_present || kept.is_some() {
                    state.mode = Some(member.mode);
                    let mut holder = holder(member, is_present, kept.map(|until| until - now), token, at);
                    // A holder whose lock file was removed or replaced has lost the lock, even if it does not know yet.
                    holder.ours &= lock_file::number_at(&lock_path) == Some(member.file);
                    state.holders.push(holder);
                }
            }
            for waiter in &content.line {
                if is_there(sidecar.file(), Role::Waiting, waiter.ticket, &waiter.identity) {
                    state.waiters.push(Waiter {
                        identity: Some(waiter.identity.clone()),
                        mode: waiter.mode,
                        waiting: between(waiter.since, at),
                    });
                }
            }
        }
        drop(opened);
        if state.holders.is_empty() {
            let path = self.location.lock_path(name);
            if let Some((mode, holder)) = foreign::holder_of(&path) {
                state.mode = Some(mode);
                state.holders.push(holder);
            }
        }
        state
    }

    fn revoke_now(
        &self,
        name: &LockName,
        fencing: FencingToken,
        revocation: &Revocation,
    ) -> Result<Revoked, StoreError> {
        let path = self.location.sidecar_path(name);
        let opened =
            Sidecar::open_existing(&path, PATIENCE).map_err(|error| sidecar_failure(error, &path))?;
        let Some((mut sidecar, mut content)) = opened else { return Ok(Revoked::Gone) };
        let is_meant = |member: &Member| member.fencing_token == fencing.number();
        let before = content.members.len();
        let file = sidecar.file();
        // A hold without an owner exists only in the sidecar.
        content.members.retain(|member| {
            !is_meant(member) || is_there(file, Role::Holding, member.ticket, &member.identity)
        });
        let ended = before - content.members.len();
        let mut notified = 0;
        for member in content.members.iter_mut().filter(|member| is_meant(member)) {
            member.revoked = Some(revocation.clone());
            notified += 1;
        }
        if ended + notified > 0 {
            sidecar.write(&content).map_err(|error| sidecar_failure(error, &path))?;
        }
        Ok(match (notified, ended) {
            (0, 0) => Revoked::Gone,
            (0, _) => Revoked::Ended,
            (notified, _) => Revoked::Told(notified),
        })
    }
}

fn holder(
    member: &Member,
    is_present: bool,
    rest: Option<Duration>,
    token: Option<&Token>,
    at: u64,
) -> Holder {
    // A hold whose owner is gone can only have ended.
    let ended =
        member.ended_at.map(|then| between(then, at)).or_else(|| (!is_present).then_some(Duration::ZERO));
    Holder {
        identity: Some(member.identity.clone()),
        age: Some(between(member.acquired_at, at)),
        remaining: rest.filter(|_| ended.is_some()),
        ended,
        fencing: FencingToken::new(member.fencing_token),
        slot: member.slot.filter(|_| matches!(member.mode, Mode::Slots(_))),
        revoked: member.revoked.clone(),
        ours: token.is_some_and(|token| token.reveal() == member.token),
        ..Holder::default()
    }
}

/// Takes microseconds; returns whole milliseconds, so that times computed back from them are always the same.
fn between(then: u64, now: u64) -> Duration {
    Duration::from_millis((now / 1000).saturating_sub(then / 1000))
}

impl LockDirectory {
    fn inspect_now(
        &mut self,
        names: &[LockName],
        token: Option<&Token>,
        is_new: bool,
    ) -> Result<Inspection, StoreError> {
        self.check_directory()?;
        let at = wall_micros();
        self.patient_until = self.patient_until.filter(|_| !is_new);
        // Many sidecars that stay locked may cost no more in total than one.
        let until = match names {
            [_] => Moment::now() + PATIENCE,
            _ => *self.patient_until.get_or_insert_with(|| Moment::now() + PATIENCE),
        };
        let state_of = |name: &LockName| self.state_of(name, token, at, until - Moment::now());
        let locks = names.iter().map(state_of).collect();
        Ok(Inspection { now_ms: at / 1000, locks })
    }

    fn history_now(&self, name: &LockName) -> Result<Vec<NotedRecord>, StoreError> {
        self.check_directory()?;
        let path = self.location.history_path(name);
        history::read(&path).map_err(|error| describe(&error, "read", &path))
    }
}

impl LockAdmin for FileStore {
    fn list(&mut self) -> Reply<'_, Result<Vec<LockName>, StoreError>> {
        Box::pin(self.work(|directory| directory.names()))
    }

    fn inspect<'a>(
        &'a mut self,
        names: &'a [LockName],
        token: Option<&'a Token>,
    ) -> Reply<'a, Result<Inspection, StoreError>> {
        let (names, token) = (names.to_vec(), token.cloned());
        let is_new = std::mem::take(&mut self.is_new_inspection);
        Box::pin(self.work(move |directory| directory.inspect_now(&names, token.as_ref(), is_new)))
    }

    fn history<'a>(&'a mut self, name: &'a LockName) -> Reply<'a, Result<Vec<NotedRecord>, StoreError>> {
        let name = name.clone();
        Box::pin(self.work(move |directory| directory.history_now(&name)))
    }

    fn revoke<'a>(
        &'a mut self,
        name: &'a LockName,
        fencing: FencingToken,
        revocation: &'a Revocation,
    ) -> Reply<'a, Result<Revoked, StoreError>> {
        let (name, revocation) = (name.clone(), revocation.clone());
        Box::pin(self.work(move |directory| {
            directory.check_directory()?;
            directory.revoke_now(&name, fencing, &revocation)
        }))
    }

    /// The lock ends only when its owner closes the descriptor.
    fn remove<'a>(&'a mut self, _: &'a LockName, _: &'a Holder) -> Reply<'a, Result<Removal, StoreError>> {
        Box::pin(async { Ok(Removal::Impossible) })
    }

    /// Runs in a thread: a file system may hang.
    fn examine<'a>(&'a mut self, examination: &'a Diagnosis) -> Reply<'a, Result<(), StoreError>> {
        let (location, examination) = (self.location.clone(), examination.clone());
        Box::pin(async move {
            let examine = move || super::doctor::examine(&location, &examination);
            in_thread("examine", examine).await.map_err(|error| StoreError::unreachable(io_text(&error)))
        })
    }
}
