//! Holders and waiters: as a table for people, and as JSON for programs.
//!
//! Called by `commands/status`. What always holds: both show the same inspection.

use std::time::Duration;

use super::form::Form;
use super::table::{Cell, Colour, FENCING_TOKEN, Table};
use super::{broken_by, printable};
use crate::backend::admin::Inspection;
use crate::duration::show_distance;
use crate::lock::{Freeze, Holder, Identity, LockState, Mode, Phase, Waiter};

const STATUS_COLUMNS: &[&str] =
    &["LOCK", "STATE", "HOST", "PID", "USER", "COMMAND", "FOR", "LEASE", FENCING_TOKEN, "NOTE"];

/// Returns the locks as a table, with the store in the first line.
pub fn status_text(store: &str, seen: &Inspection, form: Form) -> String {
    let mut table = Table::new(STATUS_COLUMNS);
    for lock in &seen.locks {
        let mut name = Some(&lock.name);
        let mut row = |cells: Vec<Cell>| {
            let first = name.take().map_or(Cell::empty(), |name| Cell::new(name.as_str()));
            table.add([first].into_iter().chain(cells));
        };
        for holder in &lock.holders {
            row(holder_cells(lock, holder));
        }
        if let Some(unknown) = &lock.unknown {
            let mut cells = vec![Cell::new("unknown").coloured(Colour::Red)];
            cells.extend(["-"; 7].map(Cell::new));
            cells.push(Cell::new(unknown.why()));
            row(cells);
        } else if lock.holders.is_empty() && lock.freeze.is_none() {
            row(vec![Cell::new("free").coloured(Colour::Green)]);
        }
        if let Some(freeze) = &lock.freeze {
            row(freeze_cells(freeze, seen.now_ms));
        }
        for (index, waiter) in lock.waiters.iter().enumerate() {
            row(waiter_cells(index + 1, waiter));
        }
    }
    let mut text = format!("{}\n", printable(store));
    match table.is_empty() {
        true => text.push_str("no lock is held or awaited\n"),
        false => text.push_str(&table.to_text(form)),
    }
    text
}

fn holder_cells(lock: &LockState, holder: &Holder) -> Vec<Cell> {
    let (what, colour) = state(lock.mode, holder);
    let lease = holder.remaining.map(show_distance).or(holder.immortal.then(|| "for ever".to_owned()));
    let mut cells = vec![Cell::new(&what).coloured(colour)];
    cells.extend(who(holder.identity.as_ref()));
    cells.extend([
        Cell::known(holder.age.map(show_distance)),
        Cell::known(lease),
        Cell::known(holder.fencing),
    ]);
    cells.push(Cell::new(&remarks(holder)));
    cells
}

fn state(mode: Option<Mode>, holder: &Holder) -> (String, Colour) {
    // What is known of the mode of another program depends on the store: it is shown for none.
    let mode = mode.filter(|_| holder.identity.is_some());
    let held = match (mode, holder.slot) {
        (Some(Mode::Slots(of)), Some(slot)) => format!("slot {slot} of {of}"),
        (Some(mode), _) => mode.as_str().to_owned(),
        (None, _) => "held".to_owned(),
    };
    match holder.phase() {
        Phase::Running => (held, Colour::Yellow),
        // What it waits for has to fit beside it.
        Phase::Waiting if mode == Some(Mode::Exclusive) => ("waiting".to_owned(), Colour::Cyan),
        Phase::Waiting => (format!("{held}, waiting"), Colour::Cyan),
        Phase::Unknown if holder.immortal => (format!("{held}, immortal"), Colour::Red),
        Phase::Unknown => (format!("{held}, foreign"), Colour::Yellow),
        Phase::Revoking => (format!("{held}, revoking"), Colour::Red),
        phase => (format!("{held}, {}", phase.as_str()), Colour::Yellow),
    }
}

/// Its lease is what is left of it.
fn freeze_cells(freeze: &Freeze, now_ms: u64) -> Vec<Cell> {
    let (user, host) = freeze.by.rsplit_once('@').unwrap_or(("-", &freeze.by));
    let age = Duration::from_millis(now_ms.saturating_sub(freeze.since));
    let rest = match freeze.rest(now_ms) {
        Some(Duration::MAX) => "for ever".to_owned(),
        rest => show_distance(rest.unwrap_or_default()),
    };
    let mut cells = vec![Cell::new("frozen").coloured(Colour::Red)];
    cells.extend([host, "-", user, "-", &show_distance(age), &rest, "-"].map(Cell::new));
    cells.push(Cell::new(freeze.reason.as_deref().unwrap_or_default()));
    cells
}

fn waiter_cells(position: usize, waiter: &Waiter) -> Vec<Cell> {
    let wants = match waiter.mode {
        Mode::Exclusive => String::new(),
        mode => format!(", {}", mode.as_str()),
    };
    let mut cells = vec![Cell::new(&format!("waits #{position}{wants}")).coloured(Colour::Cyan)];
    cells.extend(who(waiter.identity.as_ref()));
    cells.extend([Cell::new(&show_distance(waiter.waiting)), Cell::new("-"), Cell::new("-")]);
    let note = waiter.identity.as_ref().map(|identity| note_and_job(identity).join("; ")).unwrap_or_default();
    cells.push(Cell::new(&note));
    cells
}

/// Returns host, process, user, command.
pub(super) fn who(identity: Option<&Identity>) -> [Cell; 4] {
    let Some(identity) = identity else { return ["-"; 4].map(Cell::new) };
    let pid = identity.pid.to_string();
    [&identity.host, &pid, &identity.user, &identity.command].map(|text| Cell::new(text))
}

fn remarks(holder: &Holder) -> String {
    let mut remarks: Vec<String> = holder.hint.iter().cloned().collect();
    if let Some(ended) = holder.ended {
        remarks.push(format!("ended {} ago", show_distance(ended)));
    }
    remarks.extend(holder.revoked.as_ref().map(broken_by));
    remarks.extend(holder.waits_for.as_ref().map(|lock| format!("waiting for {lock}")));
    remarks.extend(holder.identity.iter().flat_map(note_and_job));
    remarks.join("; ")
}

/// Returns the note and the CI job of a run.
pub(super) fn note_and_job(identity: &Identity) -> Vec<String> {
    identity.note.clone().into_iter().chain(identity.url.clone()).collect()
}
