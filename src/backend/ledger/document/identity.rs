//! What identifies a holder in a gate, without its token.

use sha2::{Digest, Sha256};

use crate::lock::Token;

/// What identifies the holds with a token.
pub type Identity = (u64, u64);

/// Returns the identity of the holds with a token.
pub fn identity(token: &Token) -> Identity {
    digest(token.reveal())
}

/// Returns the first 16 bytes of the SHA-256 digest of a text, as two big-endian numbers.
pub fn digest(text: &str) -> (u64, u64) {
    let digest = Sha256::digest(text);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    (number(&digest[..8]), number(&digest[8..16]))
}
