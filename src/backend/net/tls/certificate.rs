//! The validity and the subject of a certificate, for messages; whether it is accepted is decided elsewhere.

use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};

/// Describes a certificate that has expired at this time since 1970: its subject, and the date. `None` for one that has
/// not, and for bytes that are not a certificate.
pub(super) fn expiry(der: &[u8], now: Duration) -> Option<String> {
    let end = not_after(der).filter(|end| *end < now)?;
    let name = common_name(der).map(|name| format!("of '{name}' ")).unwrap_or_default();
    Some(format!("the certificate {name}expired on {}", date(end)))
}

/// The day of a time since 1970.
pub(super) fn date(time: Duration) -> String {
    let time = DateTime::from_timestamp(time.as_secs().try_into().unwrap_or(0), 0).unwrap_or_default();
    time.format("%Y-%m-%d").to_string()
}

/// The end of its validity since 1970; `None` if the bytes are not a certificate.
pub(in super::super) fn not_after(der: &[u8]) -> Option<Duration> {
    validity(der).map(|(_, not_after)| not_after)
}

/// The start and the end of its validity since 1970; `None` if the bytes are not a certificate (RFC 5280, section 4.1).
pub(super) fn validity(der: &[u8]) -> Option<(Duration, Duration)> {
    let (validity, _subject) = validity_and_subject(der)?;
    let (not_before, rest) = time(validity)?;
    let (not_after, _) = time(rest)?;
    Some((not_before, not_after))
}

/// The time at the start of these bytes, since 1970 and not before, and the bytes after it.
fn time(der: &[u8]) -> Option<(Duration, &[u8])> {
    let (time, rest) = match element(der, UTC_TIME) {
        // Two digits of a year: from 1950 to 2049.
        Some((text, rest)) => {
            let text = std::str::from_utf8(text).ok()?;
            let century = if text < "50" { "20" } else { "19" };
            (moment(&format!("{century}{text}"))?, rest)
        }
        None => {
            let (text, rest) = element(der, GENERALIZED_TIME)?;
            (moment(std::str::from_utf8(text).ok()?)?, rest)
        }
    };
    Some((Duration::from_secs(time.timestamp().try_into().unwrap_or(0)), rest))
}

/// The common name of its subject, if it has one.
fn common_name(der: &[u8]) -> Option<String> {
    let (_validity, subject) = validity_and_subject(der)?;
    let (mut names, _) = element(subject, SEQUENCE)?;
    while let Some((name, rest)) = element(names, SET) {
        names = rest;
        let (pair, _) = element(name, SEQUENCE)?;
        let (kind, value) = element(pair, OBJECT_IDENTIFIER)?;
        if kind == COMMON_NAME {
            let texts = [UTF8_STRING, PRINTABLE_STRING].into_iter();
            let (text, _) = texts.filter_map(|kind| element(value, kind)).next()?;
            return String::from_utf8(text.to_vec()).ok();
        }
    }
    None
}

/// The content of the validity, and the bytes from the subject on.
fn validity_and_subject(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (body, _) = element(certificate, SEQUENCE)?;
    // The version may be missing.
    let rest = element(body, VERSION).map_or(body, |(_, rest)| rest);
    let (_serial_number, rest) = element(rest, INTEGER)?;
    let (_signature, rest) = element(rest, SEQUENCE)?;
    let (_issuer, rest) = element(rest, SEQUENCE)?;
    element(rest, SEQUENCE)
}

const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0C;
const PRINTABLE_STRING: u8 = 0x13;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xA0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The content of the first element, if it is of this kind, and the bytes after it (X.690, section 8.1).
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
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "an organisation");
        params.distinguished_name.push(rcgen::DnType::CommonName, "somebody");
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
    fn an_expired_certificate_is_described_with_its_subject() {
        let (expired, now) = (certificate(1999), Duration::from_secs(1_800_000_000));
        let expected = "the certificate of 'somebody' expired on 1999-03-04";
        assert_eq!(expiry(&expired, now).as_deref(), Some(expected));
        assert_eq!(expiry(&certificate(2060), now), None);
        assert_eq!(expiry(b"garbage", now), None);
    }

    #[test]
    fn any_bytes_are_read_or_rejected() {
        let (whole, mut random) = (certificate(2030), Xorshift::new());
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            bytes.truncate(random.below(whole.len()) + 1);
            let at = random.below(bytes.len().min(200));
            bytes[at] = random.below(256) as u8;
            let _ = (not_after(&bytes), common_name(&bytes));
        }
    }
}
