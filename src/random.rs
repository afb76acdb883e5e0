//! Pseudo-random numbers for tests that try many inputs: the same sequence in every run.

/// Marsaglia's xorshift64.
pub(crate) struct Xorshift(u64);

impl Xorshift {
    /// Starts the sequence.
    pub(crate) fn new() -> Xorshift {
        Xorshift(0x9E37_79B9_7F4A_7C15)
    }

    /// Returns the next number, from 0 to `limit` - 1.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    /// Returns a text of up to `length` characters of the alphabet.
    pub(crate) fn text(&mut self, alphabet: &[char], length: usize) -> String {
        (0..self.below(length + 1)).map(|_| alphabet[self.below(alphabet.len())]).collect()
    }
}
