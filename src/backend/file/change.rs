//! The change of a ledger in one step, with its sidecar locked.

use std::fs::File;
use std::path::PathBuf;

use super::directory::{LockDirectory, is_holder};
use super::errors::describe;
use super::hold::{HeldFile, QueuePosition};
use super::lock_file::number_of;
use super::observation::Observation;
use super::sidecar::Sidecar;
use crate::backend::ledger::{
    AnyReply, Decide, Decision, Done, EXHAUSTED, Effect, Gate, GateMode, Ledger, Purpose, Watch,
};
use crate::backend::{Loss, StoreError};
use crate::lock::LockName;

/// A change that has begun.
struct SidecarChange<'a> {
    name: &'a LockName,
    purpose: &'a Purpose,
    lock_path: PathBuf,
    sidecar_path: PathBuf,
    /// Of a claim, until it has the lock.
    lock_file: Option<File>,
    /// How the lock of this process was lost.
    loss: Option<Loss>,
    /// The lock file, with the lock that the claim has taken, until it belongs to a hold. If the change fails, it is
    /// unlocked before the sidecar: whoever reads that next must not find a lock without a holder.
    taken: Option<File>,
    /// Locked; `None` if there is none, or none that can be used.
    sidecar: Option<Sidecar>,
    before: Ledger,
}

/// What was decided.
struct Decided {
    ledger: Ledger,
    value: AnyReply,
    effect: Effect,
    watch: Vec<Watch>,
}

impl LockDirectory {
    /// Changes the ledger of a lock in one step, with its sidecar locked.
    pub(super) fn change(
        &mut self,
        name: &LockName,
        purpose: &Purpose,
        decide: &Decide,
    ) -> Result<Done<AnyReply>, StoreError> {
        self.take_events();
        let mut change = self.begin(name, purpose)?;
        let Decided { mut ledger, value, effect, watch } = self.decided(&mut change, decide)?;
        // They are in a file of their own.
        let records = std::mem::take(&mut ledger.history);
        self.announce(&mut change, effect, &ledger)?;
        let unwritten = self.write(&mut change, &ledger)?;
        self.take_effect(change, effect)?;
        for (at, record) in records {
            let added = self.add_record(name, at, &record);
            // A lock that is released is free, even if its history cannot be written.
            if matches!(purpose, Purpose::History) {
                added?;
            }
        }
        if matches!(purpose, Purpose::Claim(_)) && !watch.iter().any(|event| matches!(event, Watch::Gate(_)))
        {
            // Another one is next, or the lock is frozen: this process must not keep the gate then.
            self.awaited = None;
        }
        let mut is_watched = true;
        for event in watch {
            is_watched &= self.watch(name, event);
        }
        Ok(Done { value, is_watched, fencing: None, lease: None, unwritten })
    }

    fn begin<'a>(
        &mut self,
        name: &'a LockName,
        purpose: &'a Purpose,
    ) -> Result<SidecarChange<'a>, StoreError> {
        let lock_file = match purpose {
            Purpose::Claim(_) => Some(self.open_lock_file(name)?),
            Purpose::Prepare => {
                self.location.prepare()?;
                None
            }
            _ => None,
        };
        let loss = self.loss(purpose, name)?;
        let (sidecar, before) = self.open(name, purpose)?;
        let (lock_path, sidecar_path) = (self.location.lock_path(name), self.location.sidecar_path(name));
        Ok(SidecarChange {
            name,
            purpose,
            lock_path,
            sidecar_path,
            lock_file,
            loss,
            sidecar,
            before,
            taken: None,
        })
    }

    /// Decides, and passes the gate as often as that requires it.
    fn decided(&mut self, change: &mut SidecarChange<'_>, decide: &Decide) -> Result<Decided, StoreError> {
        let purpose = change.purpose;
        let is_ours = |held: &&HeldFile| is_holder(held, purpose);
        let mut gate = match self.held.as_ref().filter(is_ours) {
            Some(held) if held.owns_flock => Gate::Passed(held.entry.gate),
            // What cannot be read is not ours.
            None if change.sidecar.is_none() => Gate::Closed,
            _ => Gate::Untried,
        };
        loop {
            let mut ledger = change.before.clone();
            if matches!(purpose, Purpose::Claim(_) | Purpose::Prepare) {
                ledger.name = self.location.name_in_sidecar(change.name);
            }
            let sidecar = change.sidecar.as_ref();
            let observation = Observation {
                gate,
                loss: change.loss,
                proven: self.held.as_ref().filter(is_ours).map(|held| &held.entry),
                is_nearly_full: sidecar.is_some_and(Sidecar::is_nearly_full),
                ..Observation::new(&change.lock_path, sidecar.map(Sidecar::file))
            };
            match decide(&mut ledger, &observation) {
                Decision::Done { value, effect, watch } => {
                    return Ok(Decided { ledger, value, effect, watch });
                }
                Decision::Exhausted => {
                    let path = change.sidecar_path.display();
                    return Err(StoreError::Config(format!("{path}: {EXHAUSTED}")));
                }
                Decision::PassGate(mode) => gate = self.pass_gate(change, mode)?,
            }
        }
    }

    /// Takes the lock of the lock file, for the claim or for the hold.
    fn pass_gate(&mut self, change: &mut SidecarChange<'_>, mode: GateMode) -> Result<Gate, StoreError> {
        let path = &change.lock_path;
        let number = match (change.purpose, change.lock_file.take()) {
            (Purpose::Claim(claim), Some(file)) => {
                change.taken = self.take_flock(claim, file, mode)?;
                change.taken.as_ref().map(number_of)
            }
            _ => match &mut self.held {
                Some(held) => held.take_over(mode, path)?.then(|| number_of(&held.file)),
                None => None,
            },
        };
        let number = number.transpose().map_err(|error| describe(&error, "lock", path))?;
        Ok(number.map_or(Gate::Closed, |number| Gate::Passed(Some(number))))
    }

    /// Announces a new hold or a new queue position of this process in the sidecar, before the ledger tells of it.
    fn announce(
        &mut self,
        change: &mut SidecarChange<'_>,
        effect: Effect,
        ledger: &Ledger,
    ) -> Result<(), StoreError> {
        let path = &change.sidecar_path;
        match (effect, change.purpose, &change.sidecar) {
            (Effect::Hold(ticket), Purpose::Claim(_), Some(sidecar))
                if self.held.as_ref().is_none_or(|held| held.entry.ticket != ticket) =>
            {
                let owns_flock = change.taken.is_some();
                let entry = ledger.holders.iter().find(|entry| entry.ticket == ticket);
                let file = change.taken.take().or_else(|| change.lock_file.take());
                if let Some((file, entry)) = file.zip(entry) {
                    let held = HeldFile::announce(entry.clone(), file, owns_flock, sidecar);
                    self.held = Some(held.map_err(|error| describe(&error, "lock", path))?);
                }
            }
            (Effect::Wait(ticket), Purpose::Claim(claim), _)
                if self.position.as_ref().is_none_or(|position| position.ticket != ticket) =>
            {
                self.position = None;
                self.position = Some(QueuePosition::announce(ticket, claim, path)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Stores the ledger in the sidecar. Returns why that failed, if the change succeeds nevertheless.
    fn write(
        &mut self,
        change: &mut SidecarChange<'_>,
        ledger: &Ledger,
    ) -> Result<Option<String>, StoreError> {
        let path = &change.sidecar_path;
        let written = match &mut change.sidecar {
            Some(sidecar) if *ledger != change.before => {
                sidecar.write(ledger).map_err(|error| describe(&error, "use", path))
            }
            _ => Ok(()),
        };
        match change.purpose {
            Purpose::Claim(_) if written.is_err() => {
                // A hold that others cannot read does not count.
                self.held = None;
                written.clone()?;
            }
            // What the sidecar records about a hold is information for others; what keeps it is the descriptors.
            Purpose::Claim(_) | Purpose::Renew(_) | Purpose::Release(_) => {}
            Purpose::Operate | Purpose::Prepare | Purpose::History => written.clone()?,
        }
        Ok(match &change.sidecar {
            None => Some(format!("{} cannot be used", path.display())),
            Some(_) => written.err().map(|error| error.to_string()),
        })
    }

    /// Applies the effect to this process, and unlocks the sidecar.
    fn take_effect(&mut self, change: SidecarChange<'_>, effect: Effect) -> Result<(), StoreError> {
        // Before the next waiter is notified: a claim that is not due must leave the gate that it has passed.
        if let Some(file) = change.taken {
            let _ = file.unlock();
        }
        // Only now: the next waiter must read that the lock is held, or that the queue has moved.
        if matches!(effect, Effect::Hold(_) | Effect::Leave | Effect::Free) {
            self.position = None;
        }
        let held = self.held.take_if(|_| effect == Effect::Free);
        held.map_or(Ok(()), |held| held.free(change.sidecar))
            .map_err(|error| describe(&error, "unlock", &change.lock_path))
    }
}
