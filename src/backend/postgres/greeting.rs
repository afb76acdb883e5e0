//! What a server sends before a connection is ready: it shows that the server speaks the protocol of PostgreSQL, and
//! which authentication it asks for.

use super::authentication::{Method, Methods};
use crate::backend::{Outlook, StoreError};

/// The longest message before the connection is ready.
const LONGEST_GREETING: usize = 1 << 16;

/// How the role may prove its identity on a connection.
pub(super) struct Permission {
    pub(super) methods: Methods,
    pub(super) is_private: bool,
}

/// Reads the messages before a connection is ready: each is a letter, a length in 4 bytes, and its content.
#[derive(Default)]
pub(super) struct Greeting {
    read: Vec<u8>,
    /// How much of the content of a message is left.
    skip: usize,
    /// The process and its secret.
    pub(super) key: Option<(u32, u32)>,
    has_begun: bool,
    /// The first message has a plausible type and length.
    pub(super) is_recognized: bool,
    has_authenticated: bool,
    is_over: bool,
}

impl Greeting {
    /// Takes the next bytes from the server.
    ///
    /// # Errors
    /// The server does not speak this protocol, or asks for an authentication that is not permitted.
    pub(super) fn read(&mut self, bytes: &[u8], permission: &Permission) -> Result<(), StoreError> {
        /// AuthenticationXXX, ErrorResponse, NoticeResponse, NegotiateProtocolVersion.
        const FIRST: &[u8] = b"RENv";
        const AUTHENTICATION: u8 = b'R';
        const KEY: u8 = b'K';
        const READY: u8 = b'Z';
        const HEADER: usize = 5;
        for byte in bytes {
            if self.is_over {
                break;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            self.read.push(*byte);
            let first = self.read[0];
            if !self.has_begun && !FIRST.contains(&first) {
                return Err(not_postgres());
            }
            self.has_begun = true;
            let content = self.read.get(1..HEADER).map(number);
            let Some(content) = content.map(|length| (length as usize).wrapping_sub(4)) else { continue };
            if content > LONGEST_GREETING {
                return Err(not_postgres());
            }
            self.is_recognized = true;
            let needed = match first {
                KEY => content.min(8),
                AUTHENTICATION => content.min(4),
                _ => 0,
            };
            if self.read.len() < HEADER + needed {
                continue;
            }
            if first == AUTHENTICATION {
                let code = self.read.get(HEADER..).map_or(0, number);
                let is_first = !std::mem::replace(&mut self.has_authenticated, true);
                if let Some(method) = Method::begun_by(code, is_first) {
                    permission.methods.check(method, permission.is_private)?;
                }
            }
            if first == KEY {
                let number = |at| self.read.get(HEADER + at..).map(number);
                self.key = number(0).zip(number(4));
            }
            self.skip = content.saturating_sub(self.read.len() - HEADER);
            self.is_over = first == READY;
            self.read.clear();
        }
        Ok(())
    }
}

fn not_postgres() -> StoreError {
    StoreError::Unavailable {
        reason: "the server does not speak the protocol of PostgreSQL: is this its port?".into(),
        maybe_applied: false,
        outlook: Outlook::Permanent,
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().take(4).fold(0, |number, byte| number << 8 | u32::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission() -> Permission {
        Permission { methods: Methods::default(), is_private: false }
    }

    /// An authentication, a parameter, the key, and the end.
    const GREETING: &[u8] = b"R\0\0\0\x08\0\0\0\0S\0\0\0\x08a\0b\0K\0\0\0\x0c\0\x01\x02\x03keys\
                              Z\0\0\0\x05IK\0\0\0\x0c\xff\xff\xff\xff";

    #[test]
    fn the_process_is_read_from_any_parts_of_the_greeting() {
        for size in 1..GREETING.len() {
            let mut greeting = Greeting::default();
            for part in GREETING.chunks(size) {
                assert_eq!(greeting.read(part, &permission()), Ok(()));
            }
            assert_eq!(greeting.key, Some((0x10203, 0x6b65_7973)));
        }
    }

    #[test]
    fn another_protocol_is_recognised() {
        for first in ["HTTP/1.1 400", "-ERR unknown", "SSH-2.0", "RTSP/1.0 400", "\0\0\x12\x04", "J\0\0\0"] {
            let read = Greeting::default().read(first.as_bytes(), &permission());
            assert_eq!(read, Err(not_postgres()), "{first:?}");
        }
    }
}
