//! The modes and slots that are held, and so what may still be granted.

use super::value::HolderEntry;
use crate::lock::Mode;

/// The room that the holders of a lock leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Room {
    mode: Option<Mode>,
    slots: Vec<u32>,
    reserved: u32,
}

impl Room {
    /// Returns the room that these holders leave.
    pub(super) fn left_by<'a>(holders: impl IntoIterator<Item = &'a HolderEntry>) -> Room {
        let mut room = Room::default();
        for holder in holders {
            room.mode = room.mode.or(Some(holder.mode));
            room.slots.extend(holder.slot);
        }
        room.slots.sort_unstable();
        room.slots.dedup();
        room
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
