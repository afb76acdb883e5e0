//! Measures the memory that the messages of a server take, which is more than their bytes: a bound on those alone would
//! admit too many tiny rows.

use std::io;

/// What the replies to one request may take: a ledger of thousands of waiters, or the names of tens of thousands of locks.
pub(super) const BUDGET: usize = 14 << 20;

/// Each byte is in the buffer, which grows by doubling, in a text, and in what that is parsed to.
const COPIES: usize = 4;
/// Any other message, as far as it is kept, such as a notification.
const MESSAGE: usize = 256;
/// A row, ...
const ROW: usize = 192;
/// ... and each field of it.
const FIELD: usize = 48;
/// A description of rows, of which a request has one, and with types that the client does not know more of them, one
/// within the other; ...
const DESCRIPTION: usize = 64 << 10;
/// ... and each of its columns.
const COLUMN: usize = 128;

/// Follows the messages of a server: each is a letter, a length in 4 bytes, and its content.
#[derive(Default)]
pub(super) struct Meter {
    /// The beginning of a message, up to the number of its columns.
    begin: Vec<u8>,
    /// How much of the content is left.
    skip: usize,
    /// The number of columns that were announced.
    columns: usize,
}

impl Meter {
    /// Takes the next bytes, and returns how much memory they take.
    ///
    /// # Errors
    /// They are not a message, or a row does not have the columns that were announced.
    pub(super) fn read(&mut self, mut bytes: &[u8]) -> io::Result<usize> {
        const HEADER: usize = 5;
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
        let mut taken = bytes.len() * COPIES;
        while let Some((first, rest)) = bytes.split_first() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                (self.skip, bytes) = (self.skip - skipped, &bytes[skipped..]);
                continue;
            }
            self.begin.push(*first);
            bytes = rest;
            let Some(length) = self.begin.get(1..HEADER) else { continue };
            let content = (number(length).checked_sub(4)).ok_or_else(|| invalid("not a message"))?;
            let has_columns = matches!(self.begin[0], b'T' | b'D') && content >= 2;
            let end = if has_columns { HEADER + 2 } else { HEADER };
            if self.begin.len() < end {
                continue;
            }
            let columns = number(&self.begin[HEADER..]);
            match self.begin[0] {
                b'D' if columns != self.columns => {
                    return Err(invalid("a row has other columns than were announced"));
                }
                b'D' => taken += ROW + columns * FIELD,
                b'T' => (self.columns, taken) = (columns, taken + DESCRIPTION + columns * COLUMN),
                // No rows.
                b'n' => (self.columns, taken) = (0, taken + MESSAGE),
                _ => taken += MESSAGE,
            }
            self.skip = content - (end - HEADER);
            self.begin.clear();
        }
        Ok(taken)
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two columns, two rows, and the end.
    const REPLY: &[u8] = b"T\0\0\0\x0a\0\x02colsD\0\0\0\x07\0\x02-D\0\0\0\x06\0\x02Z\0\0\0\x05I";

    #[test]
    fn rows_are_counted_in_any_parts_of_a_reply() {
        let whole = Meter::default().read(REPLY).expect("a reply");
        assert!(whole > DESCRIPTION + 2 * (ROW + 2 * FIELD) + MESSAGE);
        for size in 1..REPLY.len() {
            let mut meter = Meter::default();
            let taken = REPLY.chunks(size).map(|part| meter.read(part).expect("a part"));
            assert_eq!(taken.sum::<usize>(), whole, "{size}");
        }
    }

    #[test]
    fn a_row_has_the_columns_that_were_announced() {
        for wrong in [
            &b"D\0\0\0\x06\0\x01"[..],
            b"T\0\0\0\x06\0\x02D\0\0\0\x06\0\x01",
            b"n\0\0\0\x04D\0\0\0\x06\0\x01",
        ] {
            assert!(Meter::default().read(wrong).is_err(), "{wrong:?}");
        }
        assert!(Meter::default().read(b"Z\0\0\0\x03").is_err());
    }
}
