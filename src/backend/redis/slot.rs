//! The slots of a Redis Cluster.

pub(super) const SLOTS: u16 = 16384;

/// The part of a key that determines its slot: between the first `{` and the next `}`, unless it is empty (Redis
/// Cluster specification, "Hash tags").
pub(super) fn hash_tag(key: &str) -> Option<&str> {
    let rest = &key[key.find('{')? + 1..];
    let tag = &rest[..rest.find('}')?];
    (!tag.is_empty()).then_some(tag)
}

pub(super) fn slot_of_key(key: &str) -> u16 {
    slot_of(hash_tag(key).unwrap_or(key).as_bytes())
}

pub(super) fn slot_of(bytes: &[u8]) -> u16 {
    crc16(0, bytes) % SLOTS
}

/// CRC-16/XMODEM, as in the Redis Cluster specification, continued from `crc` over these bytes.
fn crc16(crc: u16, bytes: &[u8]) -> u16 {
    const TABLE: [u16; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let (mut crc, mut bit) = ((byte as u16) << 8, 0);
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    bytes.iter().fold(crc, |crc, byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)])
}

/// The smallest number whose decimal form is in the slot.
pub(super) fn number_in_slot(slot: u16) -> u32 {
    numbers_and_slots().find(|(_, of)| *of == slot).map_or(0, |(number, _)| number)
}

/// All numbers with the slots of their decimal forms. Some tens of thousands cover most slots, so each CRC is computed
/// from that of the number without its last digit.
pub(super) fn numbers_and_slots() -> impl Iterator<Item = (u32, u16)> {
    (0..u32::MAX / 10).flat_map(|tens| {
        let crc = if tens == 0 { 0 } else { crc16(0, tens.to_string().as_bytes()) };
        (0..10).map(move |digit| (tens * 10 + u32::from(digit), crc16(crc, &[b'0' + digit]) % SLOTS))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(slot_of_key("123456789"), 0x31C3 % SLOTS);
        assert_eq!(slot_of_key("{user1000}.following"), slot_of_key("{user1000}.followers"));
        assert_eq!(hash_tag("foo{}{bar}"), None);
        assert_eq!(hash_tag("foo{{bar}}zap"), Some("{bar"));
    }
}
