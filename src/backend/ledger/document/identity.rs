//! What identifies a holder in a gate, without its token.

use sha2::{Digest, Sha256};

use crate::lock::Token;

/// What identifies the holds with a token.
pub type Identity = (u64, u64);

/// Returns the identity of the holds with a token.
pub fn identity(token: &Token) -> Identity {
    let digest = Sha256::digest(token.reveal().as_bytes());
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    (number(&digest[..8]), number(&digest[8..16]))
}
