//! Decides who may acquire the lock next. Pure: the contents of the sidecar in, decisions out.
//!
//! The kernel alone would let a later reader overtake a waiting writer, and knows no slots. So dlock processes record
//! in the sidecar which of them hold the lock and in which order the others wait; only those whose turn it is take the
//! `flock(2)`, which excludes everything else.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::CLAIM_WITHIN;
use crate::lock::{Identity, Mode, Revocation};

/// A holder of the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    /// A number that is unique among all past and present holders and waiters.
    pub(super) ticket: u64,
    /// The ticket of the holder that took the lock; for a nested holder, that of the outer hold.
    pub(super) family: u64,
    pub(super) token: String,
    /// The mode of the hold; nested holders share it.
    pub(super) mode: Mode,
    pub(super) slot: Option<u32>,
    pub(super) fencing_token: u64,
    /// Device and inode of the lock file that it has locked.
    pub(super) file: (u64, u64),
    /// In microseconds since 1970.
    pub(super) acquired_at: u64,
    /// When its command ended, if the lock is then kept by `--min-hold`; in microseconds since 1970.
    pub(super) ended_at: Option<u64>,
    /// The lock is kept until then even without its owner; time since boot.
    pub(super) kept_until: Option<Duration>,
    /// The request to end the hold, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revoked: Option<Revocation>,
    pub(super) identity: Identity,
}

/// A waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) mode: Mode,
    /// In microseconds since 1970.
    pub(super) since: u64,
    /// When its turn came; time since boot.
    pub(super) turn: Option<Duration>,
    pub(super) identity: Identity,
}

/// The modes and slots that are held, and so what may still be granted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    mode: Option<Mode>,
    slots: Vec<u32>,
    reserved: u32,
}

impl Room {
    /// Returns the room that these members leave.
    pub(super) fn beside(members: &[Member]) -> Room {
        let mut slots: Vec<u32> = members.iter().filter_map(|member| member.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        Room { mode: members.first().map(|member| member.mode), slots, reserved: 0 }
    }

    /// Returns whether one more holder can be added.
    pub(super) fn fits(&self, mode: Mode) -> bool {
        match (self.mode, mode) {
            (None, _) => true,
            (Some(Mode::Shared), Mode::Shared) => true,
            (Some(Mode::Slots(of)), Mode::Slots(wanted)) => {
                of == wanted && self.slots.len() as u64 + u64::from(self.reserved) < u64::from(of)
            }
            _ => false,
        }
    }

    /// Counts one more holder that is about to be added.
    pub(super) fn reserve(&mut self, mode: Mode) {
        self.mode = Some(mode);
        self.reserved += 1;
    }

    /// Returns the smallest free slot.
    pub(super) fn free_slot(&self) -> u32 {
        (0..)
            .zip(&self.slots)
            .find(|(number, slot)| number != *slot)
            .map_or(self.slots.len() as u32, |(n, _)| n)
    }
}

/// What the queue means for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may take the lock, if the kernel grants it.
    Ours,
    /// There is room, but waiters ahead come first; the time that those whose turn it is have left.
    Promised(Duration),
    /// There is no room.
    NotYet,
}

/// Walks the queue from its head, and removes the waiters that have died or missed their turn. `me` is the ticket of a
/// claim in the queue; without one, a claim of this mode comes after all waiters. `is_there` returns whether a waiter
/// is alive, `is_free` whether the kernel would grant the lock in a mode, that is, whether no foreign program holds it.
pub(super) fn turn(
    line: &mut Vec<Waiter>,
    room: &Room,
    me: Option<u64>,
    mode: Mode,
    now: Duration,
    is_there: &dyn Fn(&Waiter) -> bool,
    is_free: &dyn Fn(Mode) -> bool,
) -> Turn {
    let mut room_left = room.clone();
    let mut removed = Vec::new();
    let mut promised: Option<Duration> = None;
    let mut all_have_turns = true;
    for (index, waiter) in line.iter_mut().enumerate() {
        if Some(waiter.ticket) == me {
            break;
        }
        let is_late = waiter.turn.is_some_and(|turn| now >= turn + CLAIM_WITHIN);
        // A waiter that cannot take the lock because a foreign program holds it is not late.
        if is_late && !is_free(waiter.mode) {
            waiter.turn = None;
        } else if is_late || !is_there(waiter) {
            removed.push(index);
            continue;
        }
        if !room_left.fits(waiter.mode) {
            all_have_turns = false;
            break;
        }
        if waiter.turn.is_none() && is_free(waiter.mode) {
            waiter.turn = Some(now);
        }
        let Some(turn) = waiter.turn else {
            all_have_turns = false;
            break;
        };
        let left = (turn + CLAIM_WITHIN).saturating_sub(now);
        promised = Some(promised.map_or(left, |most| most.max(left)));
        room_left.reserve(waiter.mode);
    }
    // Remove all in one pass: there may be very many, and the sidecar is locked meanwhile.
    let mut removed = removed.into_iter().peekable();
    let mut index = 0;
    line.retain(|_| {
        index += 1;
        removed.next_if_eq(&(index - 1)).is_none()
    });
    if all_have_turns && room_left.fits(mode) {
        return Turn::Ours;
    }
    match promised {
        Some(left) if room.fits(mode) => Turn::Promised(left),
        _ => Turn::NotYet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(ticket: u64, mode: Mode) -> Waiter {
        Waiter { ticket, mode, since: 0, turn: None, identity: Identity::default() }
    }

    fn member(ticket: u64, mode: Mode, slot: Option<u32>) -> Member {
        Member {
            ticket,
            family: ticket,
            token: ticket.to_string(),
            mode,
            slot,
            fencing_token: ticket,
            file: (0, 0),
            acquired_at: 0,
            ended_at: None,
            kept_until: None,
            revoked: None,
            identity: Identity::default(),
        }
    }

    const NOW: Duration = Duration::from_secs(100);
    const X: Mode = Mode::Exclusive;
    const S: Mode = Mode::Shared;

    /// A queue of live waiters, without a foreign program.
    fn turn_of(line: &mut Vec<Waiter>, members: &[Member], me: Option<u64>, mode: Mode) -> Turn {
        turn(line, &Room::beside(members), me, mode, NOW, &|_| true, &|_| true)
    }

    #[test]
    fn first_come_first_served() {
        let mut line = vec![waiter(1, X), waiter(2, X)];
        assert_eq!(turn_of(&mut line, &[], Some(1), X), Turn::Ours);
        assert_eq!(turn_of(&mut line, &[], Some(2), X), Turn::Promised(CLAIM_WITHIN));
        assert_eq!(line[0].turn, Some(NOW));
        assert_eq!(turn_of(&mut line, &[], None, X), Turn::Promised(CLAIM_WITHIN), "no queue jumping");
        assert_eq!(turn_of(&mut line, &[member(9, X, None)], Some(1), X), Turn::NotYet);
    }

    #[test]
    fn a_waiting_writer_stops_later_readers() {
        let held = [member(9, S, None)];
        assert_eq!(turn_of(&mut vec![], &held, None, S), Turn::Ours);
        let mut line = vec![waiter(1, X), waiter(2, S)];
        assert_eq!(turn_of(&mut line, &held, None, S), Turn::NotYet);
        assert_eq!(turn_of(&mut line, &held, Some(2), S), Turn::NotYet);
        assert_eq!(turn_of(&mut line, &[], Some(2), S), Turn::Promised(CLAIM_WITHIN));
    }

    #[test]
    fn readers_at_the_head_go_together() {
        let mut line = vec![waiter(1, S), waiter(2, S), waiter(3, X), waiter(4, S)];
        assert_eq!(turn_of(&mut line, &[], Some(2), S), Turn::Ours);
        assert_eq!(turn_of(&mut line, &[], Some(4), S), Turn::Promised(CLAIM_WITHIN));
        assert_eq!(line[2].turn, None);
    }

    #[test]
    fn slots_are_limited() {
        let of = Mode::Slots(2);
        assert_eq!(turn_of(&mut vec![], &[member(9, of, Some(1))], None, of), Turn::Ours);
        assert_eq!(Room::beside(&[member(9, of, Some(1))]).free_slot(), 0);
        assert_eq!(Room::beside(&[member(9, of, Some(0))]).free_slot(), 1);
        let both = [member(9, of, Some(1)), member(8, of, Some(0))];
        assert_eq!(turn_of(&mut vec![], &both, None, of), Turn::NotYet);
        let mut line = vec![waiter(1, of), waiter(2, of)];
        assert_eq!(turn_of(&mut line, &both[..1], Some(1), of), Turn::Ours);
        assert_eq!(turn_of(&mut line, &both[..1], Some(2), of), Turn::Promised(CLAIM_WITHIN));
        let entered = [member(9, of, Some(0)), member(8, of, Some(0))];
        assert_eq!(turn_of(&mut vec![], &entered, None, of), Turn::Ours, "nested holders share one slot");
    }

    #[test]
    fn dead_and_late_waiters_lose_their_positions() {
        let mut line = vec![waiter(1, X), waiter(2, X)];
        let dead = |waiter: &Waiter| waiter.ticket != 1;
        assert_eq!(turn(&mut line, &Room::default(), Some(2), X, NOW, &dead, &|_| true), Turn::Ours);
        assert_eq!(line.len(), 1);
        let mut line = vec![waiter(1, X), waiter(2, X)];
        line[0].turn = Some(NOW - CLAIM_WITHIN);
        assert_eq!(turn_of(&mut line, &[], Some(2), X), Turn::Ours);
        assert_eq!(line.len(), 1);
        line[0].turn = Some(NOW - CLAIM_WITHIN);
        assert_eq!(turn_of(&mut line, &[], Some(2), X), Turn::Ours, "late, but no other waiter has come");
    }

    /// With a separate removal for each of them this would take minutes.
    #[test]
    fn a_million_dead_waiters_are_removed_in_one_pass() {
        const DEAD: u64 = 1_000_000;
        let mut line: Vec<Waiter> = (0..DEAD + 2).map(|ticket| waiter(ticket, X)).collect();
        let lives = |waiter: &Waiter| waiter.ticket >= DEAD;
        assert_eq!(turn(&mut line, &Room::default(), Some(DEAD), X, NOW, &lives, &|_| true), Turn::Ours);
        assert_eq!(line.iter().map(|waiter| waiter.ticket).collect::<Vec<_>>(), [DEAD, DEAD + 1]);
    }

    #[test]
    fn no_waiter_gets_its_turn_while_a_foreign_program_has_the_lock() {
        let mut line = vec![waiter(1, X), waiter(2, X)];
        assert_eq!(turn(&mut line, &Room::default(), Some(2), X, NOW, &|_| true, &|_| false), Turn::NotYet);
        assert_eq!(line[0].turn, None);
        assert_eq!(turn(&mut line, &Room::default(), Some(1), X, NOW, &|_| true, &|_| false), Turn::Ours);
        line[0].turn = Some(NOW - CLAIM_WITHIN);
        assert_eq!(turn(&mut line, &Room::default(), Some(2), X, NOW, &|_| true, &|_| false), Turn::NotYet);
        assert_eq!(
            (line.len(), line[0].turn),
            (2, None),
            "a waiter is not late while a foreign program has the lock"
        );
    }
}
