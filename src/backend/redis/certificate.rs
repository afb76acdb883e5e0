//! Until when a certificate is valid: the one thing of it that is told apart from whether it is accepted.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};

/// The end of its validity since 1970; `None` for what is no certificate (RFC 5280, section 4.1).
pub(super) fn not_after(der: &[u8]) -> Option<Duration> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (body, _) = element(certificate, SEQUENCE)?;
    // The version may be missing.
    let rest = element(body, VERSION).map_or(body, |(_, rest)| rest);
    let (_serial_number, rest) = element(rest, INTEGER)?;
    let (_signature, rest) = element(rest, SEQUENCE)?;
    let (_issuer, rest) = element(rest, SEQUENCE)?;
    let (validity, _) = element(rest, SEQUENCE)?;
    let (_not_before, rest) = element(validity, UTC_TIME).or_else(|| element(validity, GENERALIZED_TIME))?;
    let time = match element(rest, UTC_TIME) {
        // Two digits of a year: from 1950 to 2049.
        Some((text, _)) => {
            let text = std::str::from_utf8(text).ok()?;
            let century = if text < "50" { "20" } else { "19" };
            moment(&format!("{century}{text}"))?
        }
        None => moment(std::str::from_utf8(element(rest, GENERALIZED_TIME)?.0).ok()?)?,
    };
    Some(Duration::from_secs(time.timestamp().try_into().unwrap_or(0)))
}

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xA0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The content of the first element, if it is of this kind, and what comes behind it (X.690, section 8.1).
fn element(der: &[u8], kind: u8) -> Option<(&[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7F => (usize::from(first), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x0F))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    (tag == kind).then(|| rest.split_at_checked(length)).flatten()
}

fn moment(text: &str) -> Option<DateTime<Utc>> {
    Some(NaiveDateTime::parse_from_str(text, "%Y%m%d%H%M%SZ").ok()?.and_utc())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Xorshift;

    fn certificate(year: i32) -> Vec<u8> {
        let mut params = rcgen::CertificateParams::new(vec!["h".to_owned()]).expect("parameters");
        params.not_before = rcgen::date_time_ymd(1990, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 3, 4);
        let key = rcgen::KeyPair::generate().expect("a key");
        params.self_signed(&key).expect("a certificate").der().to_vec()
    }

    #[test]
    fn the_end_of_a_certificate_is_read() {
        for (year, seconds) in [(1999, 920_505_600), (2030, 1_898_812_800), (2060, 2_845_584_000)] {
            assert_eq!(not_after(&certificate(year)), Some(Duration::from_secs(seconds)), "{year}");
        }
    }

    #[test]
    fn any_bytes_are_read_or_not() {
        let (whole, mut random) = (certificate(2030), Xorshift::new());
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            bytes.truncate(random.below(whole.len()) + 1);
            let at = random.below(bytes.len().min(200));
            bytes[at] = random.below(256) as u8;
            let _ = not_after(&bytes);
        }
    }
}
