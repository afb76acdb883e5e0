//! Who may have the lock next. Pure: what is noted in the sidecar goes in, decisions come out.
//!
//! The kernel alone would let a reader that comes later pass a writer that waits, and knows no slots. So dlocks agree in
//! the sidecar on who holds the lock and in which order the others wait; only those whose turn it is take the
//! `flock(2)`, which keeps everybody else out.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::CLAIM_WITHIN;
use crate::lock::{Identity, Mode, Revocation};

/// One who holds the lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member {
    /// Its number among all that have ever held or waited.
    pub(super) ticket: u64,
    /// The ticket of whoever took the lock; that of an outer hold for one who entered it.
    pub(super) family: u64,
    pub(super) token: String,
    /// The mode of the hold, which whoever enters it shares.
    pub(super) mode: Mode,
    pub(super) slot: Option<u32>,
    pub(super) fencing_token: u64,
    /// Device and number of the lock file that it has locked.
    pub(super) file: (u64, u64),
    /// Microseconds since 1970.
    pub(super) acquired_at: u64,
    /// The same, when its command had ended and the lock was kept by `--min-hold`.
    pub(super) ended_at: Option<u64>,
    /// Kept until then even without its owner: since boot.
    pub(super) kept_until: Option<Duration>,
    /// Somebody wants it to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) revoked: Option<Revocation>,
    pub(super) identity: Identity,
}

/// One who waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiter {
    pub(super) ticket: u64,
    pub(super) mode: Mode,
    /// Microseconds since 1970.
    pub(super) since: u64,
    /// Its turn came then, since boot.
    pub(super) turn: Option<Duration>,
    pub(super) identity: Identity,
}

/// What is held, and so what still fits beside it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    mode: Option<Mode>,
    slots: Vec<u32>,
    reserved: u32,
}

impl Room {
    /// What these members leave.
    pub(super) fn beside(members: &[Member]) -> Room {
        let mut slots: Vec<u32> = members.iter().filter_map(|member| member.slot).collect();
        slots.sort_unstable();
        slots.dedup();
        Room { mode: members.first().map(|member| member.mode), slots, reserved: 0 }
    }

    /// Whether one more can be added.
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

    /// Somebody is about to be added.
    pub(super) fn reserve(&mut self, mode: Mode) {
        self.mode = Some(mode);
        self.reserved += 1;
    }

    /// The smallest slot that nobody has.
    pub(super) fn free_slot(&self) -> u32 {
        (0..)
            .zip(&self.slots)
            .find(|(number, slot)| number != *slot)
            .map_or(self.slots.len() as u32, |(n, _)| n)
    }
}

/// What the line means for one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may take the lock, if the kernel lets it.
    Ours,
    /// There is room, but others come first; who is called has so much time left.
    Promised(Duration),
    /// There is no room.
    NotYet,
}

/// Looks at the line from its head, and removes those who have died or let their turn pass. `me` is the ticket of a claim
/// that waits; without one a claim of this mode comes after everybody else. `is_there` tells whether a waiter lives,
/// `is_free` whether the kernel would grant the lock in a mode, that is, whether no foreign program has it.
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
    let mut gone = Vec::new();
    let mut promised: Option<Duration> = None;
    let mut all_called = true;
    for (place, waiter) in line.iter_mut().enumerate() {
        if Some(waiter.ticket) == me {
            break;
        }
        let passed = waiter.turn.is_some_and(|turn| now >= turn + CLAIM_WITHIN);
        // One that cannot have the lock because a foreign program has it is not late.
        if passed && !is_free(waiter.mode) {
            waiter.turn = None;
        } else if passed || !is_there(waiter) {
            gone.push(place);
            continue;
        }
        if !room_left.fits(waiter.mode) {
            all_called = false;
            break;
        }
        if waiter.turn.is_none() && is_free(waiter.mode) {
            waiter.turn = Some(now);
        }
        let Some(turn) = waiter.turn else {
            all_called = false;
            break;
        };
        let left = (turn + CLAIM_WITHIN).saturating_sub(now);
        promised = Some(promised.map_or(left, |most| most.max(left)));
        room_left.reserve(waiter.mode);
    }
    // All at once: there may be very many, and the sidecar is locked meanwhile.
    let mut gone = gone.into_iter().peekable();
    let mut place = 0;
    line.retain(|_| {
        place += 1;
        gone.next_if_eq(&(place - 1)).is_none()
    });
    if all_called && room_left.fits(mode) {
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

    /// A living line, nothing foreign.
    fn ask(line: &mut Vec<Waiter>, members: &[Member], me: Option<u64>, mode: Mode) -> Turn {
        turn(line, &Room::beside(members), me, mode, NOW, &|_| true, &|_| true)
    }

    #[test]
    fn first_come_first_served() {
        let mut line = vec![waiter(1, X), waiter(2, X)];
        assert_eq!(ask(&mut line, &[], Some(1), X), Turn::Ours);
        assert_eq!(ask(&mut line, &[], Some(2), X), Turn::Promised(CLAIM_WITHIN));
        assert_eq!(line[0].turn, Some(NOW));
        assert_eq!(ask(&mut line, &[], None, X), Turn::Promised(CLAIM_WITHIN), "nobody barges");
        assert_eq!(ask(&mut line, &[member(9, X, None)], Some(1), X), Turn::NotYet);
    }

    #[test]
    fn a_waiting_writer_stops_later_readers() {
        let held = [member(9, S, None)];
        assert_eq!(ask(&mut vec![], &held, None, S), Turn::Ours);
        let mut line = vec![waiter(1, X), waiter(2, S)];
        assert_eq!(ask(&mut line, &held, None, S), Turn::NotYet);
        assert_eq!(ask(&mut line, &held, Some(2), S), Turn::NotYet);
        assert_eq!(ask(&mut line, &[], Some(2), S), Turn::Promised(CLAIM_WITHIN));
    }

    #[test]
    fn readers_at_the_head_go_together() {
        let mut line = vec![waiter(1, S), waiter(2, S), waiter(3, X), waiter(4, S)];
        assert_eq!(ask(&mut line, &[], Some(2), S), Turn::Ours);
        assert_eq!(ask(&mut line, &[], Some(4), S), Turn::Promised(CLAIM_WITHIN));
        assert_eq!(line[2].turn, None);
    }

    #[test]
    fn there_are_as_many_slots_as_there_are() {
        let of = Mode::Slots(2);
        assert_eq!(ask(&mut vec![], &[member(9, of, Some(1))], None, of), Turn::Ours);
        assert_eq!(Room::beside(&[member(9, of, Some(1))]).free_slot(), 0);
        assert_eq!(Room::beside(&[member(9, of, Some(0))]).free_slot(), 1);
        let both = [member(9, of, Some(1)), member(8, of, Some(0))];
        assert_eq!(ask(&mut vec![], &both, None, of), Turn::NotYet);
        let mut line = vec![waiter(1, of), waiter(2, of)];
        assert_eq!(ask(&mut line, &both[..1], Some(1), of), Turn::Ours);
        assert_eq!(ask(&mut line, &both[..1], Some(2), of), Turn::Promised(CLAIM_WITHIN));
        let entered = [member(9, of, Some(0)), member(8, of, Some(0))];
        assert_eq!(ask(&mut vec![], &entered, None, of), Turn::Ours, "who entered a slot takes no other");
    }

    #[test]
    fn the_dead_and_the_late_lose_their_places() {
        let mut line = vec![waiter(1, X), waiter(2, X)];
        let dead = |waiter: &Waiter| waiter.ticket != 1;
        assert_eq!(turn(&mut line, &Room::default(), Some(2), X, NOW, &dead, &|_| true), Turn::Ours);
        assert_eq!(line.len(), 1);
        let mut line = vec![waiter(1, X), waiter(2, X)];
        line[0].turn = Some(NOW - CLAIM_WITHIN);
        assert_eq!(ask(&mut line, &[], Some(2), X), Turn::Ours);
        assert_eq!(line.len(), 1);
        line[0].turn = Some(NOW - CLAIM_WITHIN);
        assert_eq!(ask(&mut line, &[], Some(2), X), Turn::Ours, "late, but nobody else has come");
    }

    /// With one removal for each of them this would take minutes.
    #[test]
    fn a_million_dead_waiters_are_removed_in_one_pass() {
        const DEAD: u64 = 1_000_000;
        let mut line: Vec<Waiter> = (0..DEAD + 2).map(|ticket| waiter(ticket, X)).collect();
        let lives = |waiter: &Waiter| waiter.ticket >= DEAD;
        assert_eq!(turn(&mut line, &Room::default(), Some(DEAD), X, NOW, &lives, &|_| true), Turn::Ours);
        assert_eq!(line.iter().map(|waiter| waiter.ticket).collect::<Vec<_>>(), [DEAD, DEAD + 1]);
    }

    #[test]
    fn nobody_is_called_while_a_foreign_program_has_the_lock() {
        let mut line = vec![waiter(1, X), waiter(2, X)];
        assert_eq!(turn(&mut line, &Room::default(), Some(2), X, NOW, &|_| true, &|_| false), Turn::NotYet);
        assert_eq!(line[0].turn, None);
        assert_eq!(turn(&mut line, &Room::default(), Some(1), X, NOW, &|_| true, &|_| false), Turn::Ours);
        line[0].turn = Some(NOW - CLAIM_WITHIN);
        assert_eq!(turn(&mut line, &Room::default(), Some(2), X, NOW, &|_| true, &|_| false), Turn::NotYet);
        assert_eq!((line.len(), line[0].turn), (2, None), "nobody is late for what a foreign program has");
    }
}
