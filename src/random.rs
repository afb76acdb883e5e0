//! Random ids and pauses; for tests, pseudo-random numbers.

use std::time::Duration;

use crate::hex;

/// Returns an id that nothing else has: 128 random bits, in 32 hex digits.
pub fn id() -> String {
    hex::encode(&bytes::<16>())
}

/// Returns a random number below 2^62: the ids of leases in etcd are signed.
pub fn number() -> u64 {
    u64::from_ne_bytes(bytes()) >> 2
}

fn bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    getrandom::fill(&mut bytes).expect("Linux has getrandom(2)");
    bytes
}

/// Returns a random part of a duration, for pauses between attempts ("full jitter"): clients that failed together do
/// not return together.
pub fn jitter(most: Duration) -> Duration {
    let random = number() as u32;
    most.mul_f64(f64::from(random) / f64::from(u32::MAX))
}

/// Marsaglia's xorshift64, for tests that try many inputs: the same sequence in every run.
#[cfg(test)]
pub(crate) struct Xorshift(u64);

#[cfg(test)]
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
