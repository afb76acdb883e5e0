//! The packets of the client/server protocol, and the fields in them
//! (<https://mariadb.com/docs/server/reference/clientserver-protocol>).

use crate::backend::StoreError;

/// The longest request; a longer packet would be a part of a message.
pub(super) const LONGEST: usize = (1 << 24) - 2;
/// How many bytes a reply may have in all its packets, ...
pub(super) const LONGEST_REPLY: usize = 6 << 20;
/// ... and all that a server sends before the first request.
pub(super) const LONGEST_LOGIN: usize = 64 << 10;
/// The length and the number of a packet stand before it.
pub(super) const HEADER: usize = 4;

/// The first byte of a reply.
pub(super) const OK: u8 = 0;
pub(super) const MORE_DATA: u8 = 1;
pub(super) const LOCAL_FILE: u8 = 0xfb;
pub(super) const END: u8 = 0xfe;
pub(super) const ERROR: u8 = 0xff;

const NULL: u8 = 0xfb;
/// Another result follows.
const MORE_RESULTS: u16 = 8;

/// Adds a packet to what is sent.
pub(super) fn write(number: u8, payload: &[u8], bytes: &mut Vec<u8>) {
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
    bytes.extend([length[0], length[1], length[2], number]);
    bytes.extend(payload);
}

/// Returns the length of a packet.
pub(super) fn length(header: [u8; HEADER]) -> usize {
    u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize
}

/// Reads the fields of a packet, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], StoreError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or_else(malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn byte(&mut self) -> Result<u8, StoreError> {
        Ok(self.bytes(1)?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, StoreError> {
        self.bytes(2).map(|bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn u32(&mut self) -> Result<u32, StoreError> {
        self.bytes(4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads up to a NUL byte, which may be missing at the end of a packet.
    pub(super) fn terminated(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        let (text, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        text
    }

    /// Reads a number that stands before a string, or alone; `None` is NULL.
    pub(super) fn number(&mut self) -> Result<Option<u64>, StoreError> {
        let size = match self.byte()? {
            NULL => return Ok(None),
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            0xff => return Err(malformed()),
            number => return Ok(Some(number.into())),
        };
        let mut number = [0; 8];
        number[..size].copy_from_slice(self.bytes(size)?);
        Ok(Some(u64::from_le_bytes(number)))
    }

    /// Reads a string with its length; `None` is NULL.
    pub(super) fn string(&mut self) -> Result<Option<&'a [u8]>, StoreError> {
        let Some(length) = self.number()? else { return Ok(None) };
        self.bytes(usize::try_from(length).map_err(|_| malformed())?).map(Some)
    }
}

/// What the server is asked for, and says of itself, in the first packets.
pub(super) mod capability {
    /// Counts the rows that a change applies to, and not those that it changes.
    pub(crate) const FOUND_ROWS: u32 = 1 << 1;
    pub(crate) const CONNECT_WITH_DB: u32 = 1 << 3;
    pub(crate) const PROTOCOL_41: u32 = 1 << 9;
    pub(crate) const SSL: u32 = 1 << 11;
    pub(crate) const SECURE_CONNECTION: u32 = 1 << 15;
    pub(crate) const MULTI_STATEMENTS: u32 = 1 << 16;
    pub(crate) const MULTI_RESULTS: u32 = 1 << 17;
    pub(crate) const PLUGIN_AUTH: u32 = 1 << 19;
}

/// utf8mb4_general_ci
const CHARACTER_SET: u8 = 45;

/// What a login begins with, and a request of TLS consists of.
pub(super) fn capabilities(has_tls: bool) -> Vec<u8> {
    let capabilities = capability::FOUND_ROWS
        | capability::CONNECT_WITH_DB
        | capability::PROTOCOL_41
        | capability::SECURE_CONNECTION
        | capability::MULTI_STATEMENTS
        | capability::MULTI_RESULTS
        | capability::PLUGIN_AUTH
        | if has_tls { capability::SSL } else { 0 };
    let longest = (LONGEST as u32).to_le_bytes();
    [&capabilities.to_le_bytes()[..], &longest, &[CHARACTER_SET], &[0; 23]].concat()
}

/// The first packet of a server.
pub(super) struct Greeting {
    pub(super) version: String,
    /// The connection, as the server calls it.
    pub(super) thread: u32,
    pub(super) capabilities: u32,
    /// Random bytes that a password is mixed with.
    pub(super) nonce: Vec<u8>,
    /// The method of authentication that the server expects.
    pub(super) method: String,
}

impl Greeting {
    pub(super) const PROTOCOL: u8 = 10;

    pub(super) fn parse(packet: &[u8]) -> Result<Greeting, StoreError> {
        let mut reader = Reader(packet);
        if reader.byte()? != Greeting::PROTOCOL {
            return Err(not_mysql());
        }
        let version = String::from_utf8_lossy(reader.terminated()).into_owned();
        let thread = reader.u32()?;
        let mut nonce = reader.bytes(8)?.to_vec();
        reader.byte()?;
        let low = reader.u16()?;
        let _character_set_and_status = reader.bytes(3)?;
        let capabilities = u32::from(low) | u32::from(reader.u16()?) << 16;
        let length = usize::from(reader.byte()?);
        reader.bytes(10)?;
        nonce.extend(reader.bytes(length.saturating_sub(8).max(13))?);
        // It ends with a NUL byte.
        nonce.pop();
        let method = String::from_utf8_lossy(reader.terminated()).into_owned();
        Ok(Greeting { version, thread, capabilities, nonce, method })
    }
}

/// The error that a server reports.
#[derive(Clone, Debug)]
pub(super) struct ServerError {
    pub(super) code: u16,
    /// Not trusted.
    pub(super) text: String,
}

impl ServerError {
    pub(super) fn parse(packet: &[u8]) -> Result<ServerError, StoreError> {
        let mut reader = Reader(packet);
        reader.byte()?;
        let code = reader.u16()?;
        // The state is missing before the client has said that it knows it.
        if reader.0.first() == Some(&b'#') {
            reader.bytes(6)?;
        }
        Ok(ServerError { code, text: String::from_utf8_lossy(reader.0).into_owned() })
    }
}

/// Returns the number of rows that a change applied to, and whether another result follows.
pub(super) fn parse_ok(packet: &[u8]) -> Result<(u64, bool), StoreError> {
    let mut reader = Reader(packet);
    reader.byte()?;
    let rows = reader.number()?.unwrap_or_default();
    reader.number()?;
    Ok((rows, reader.u16()? & MORE_RESULTS != 0))
}

/// Returns whether a packet ends a list, and if so, whether another result follows.
pub(super) fn parse_end(packet: &[u8]) -> Option<bool> {
    // A row may begin with the same byte, but is longer then.
    let fields = packet.strip_prefix(&[END]).filter(|fields| fields.len() < 8)?;
    let status = fields.get(2..4).map_or(0, |status| u16::from_le_bytes([status[0], status[1]]));
    Some(status & MORE_RESULTS != 0)
}

pub(super) fn malformed() -> StoreError {
    StoreError::unanswered("the server sent a packet that is not valid")
}

pub(super) fn too_long() -> StoreError {
    StoreError::unanswered("a reply is too long: does one lock have too many waiters?")
}

pub(super) fn not_mysql() -> StoreError {
    StoreError::Config("the server does not speak the protocol of MySQL and MariaDB".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Xorshift;

    #[test]
    fn a_greeting_of_mariadb_is_read() {
        let mut packet = b"\x0a5.5.5-10.11.6-MariaDB\0\x07\0\0\0".to_vec();
        packet.extend(b"12345678\0\xfe\xff\x2d\x02\0\xff\x81\x15\0\0\0\0\0\0\x0f\0\0\0");
        packet.extend(b"123456789012\0mysql_native_password\0");
        let greeting = Greeting::parse(&packet).expect("a greeting");
        assert_eq!(greeting.version, "5.5.5-10.11.6-MariaDB");
        assert_eq!(greeting.nonce, b"12345678123456789012");
        assert_eq!(greeting.method, "mysql_native_password");
        assert!(greeting.capabilities & capability::SSL != 0);
        assert!(greeting.capabilities & capability::PLUGIN_AUTH != 0);
    }

    #[test]
    fn numbers_and_strings_are_read() {
        let mut reader = Reader(b"\x05\xfc\x01\x02\xfd\x01\x02\x03\xfb\x02ab\xfb");
        assert_eq!(reader.number(), Ok(Some(5)));
        assert_eq!(reader.number(), Ok(Some(0x0201)));
        assert_eq!(reader.number(), Ok(Some(0x0003_0201)));
        assert_eq!(reader.number(), Ok(None));
        assert_eq!(reader.string(), Ok(Some(&b"ab"[..])));
        assert_eq!(reader.string(), Ok(None));
        assert!(Reader(b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff").string().is_err());
    }

    #[test]
    fn any_packet_is_read_or_rejected() {
        let mut random = Xorshift::new();
        for _ in 0..100_000 {
            let length = random.below(80);
            let mut packet: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
            if let Some(first) = packet.first_mut() {
                *first = [10, OK, END, ERROR][random.below(4)];
            }
            let _ = (Greeting::parse(&packet), ServerError::parse(&packet));
            let _ = (parse_ok(&packet), parse_end(&packet));
        }
    }
}
