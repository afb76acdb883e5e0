//! Who holds a row: what dlock writes into `locked_by`, and reads from it.

use sha2::{Digest, Sha256};

use super::{Database, LONGEST_NAME};
use crate::hex;
use crate::lock::{Claim, Token};

/// The digits of a digest.
const DIGITS: usize = 32;

pub(super) type Identity = (u64, u64);

/// Returns the identity of the holds with a token.
pub(super) fn identity(token: &Token) -> Identity {
    let digest = Sha256::digest(token.reveal().as_bytes());
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    (number(&digest[..8]), number(&digest[8..16]))
}

/// Returns the identity in `locked_by`, if it can be that of a dlock.
pub(super) fn identity_in(locked_by: &str) -> Option<Identity> {
    let digits = locked_by.rsplit_once(':')?.1;
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let is_digest = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_digest.then_some(())?;
    Some((number(&digits[..16])?, number(&digits[16..])?))
}

fn suffix((high, low): Identity) -> String {
    format!(":{high:016x}{low:016x}")
}

/// Returns what distinguishes a hold from every other one of the lock.
pub(super) fn digest_of(locked_by: &str, locked_at: &str) -> String {
    let digest = Sha256::digest(format!("{locked_by} {locked_at}").as_bytes());
    hex::encode(&digest[..8])
}

/// Returns what dlock writes into `locked_by`.
pub(super) fn locked_by(claim: &Claim) -> String {
    let host: String = claim.identity.host.chars().take(LONGEST_NAME).collect();
    let pid = claim.identity.pid;
    format!("{host}:{pid}{}", suffix(identity(&claim.token)))
}

/// Returns the condition that a row is that of one of these holds.
pub(super) fn is_of<D: Database>(column: &str, identities: impl IntoIterator<Item = Identity>) -> String {
    let (right, equals) = (D::DIALECT.function("right"), D::DIALECT.operator("="));
    let end = format!("{right}({column}, {})", DIGITS + 1);
    let texts: Vec<String> =
        identities.into_iter().map(|one| format!("({end} {equals} '{}')", suffix(one))).collect();
    format!("({})", texts.join(" OR "))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::LockName;

    #[test]
    fn the_identity_follows_from_the_token_alone() {
        let claim = |token: &str| {
            Claim::new(LockName::new("x").expect("a name"), Token::from_text(token), Duration::from_secs(30))
        };
        let by = locked_by(&claim("secret"));
        assert!(!by.contains("secret"));
        assert_eq!(identity_in(&by), Some(identity(&Token::from_text("secret"))));
        assert_ne!(identity_in(&by), identity_in(&locked_by(&claim("other"))));
        for foreign in ["web-1", "web:1", "", ":", "a:0123456789abcdef", "a:é0123456789abcdef0123456789abcd"]
        {
            assert_eq!(identity_in(foreign), None, "{foreign}");
        }
    }
}
