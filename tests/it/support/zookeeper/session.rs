//! A client of ZooKeeper's protocol, which shares nothing with dlock's own.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The error codes of the protocol that tests distinguish.
pub const NO_NODE: i32 = -101;
pub const NODE_EXISTS: i32 = -110;
pub const NOT_EMPTY: i32 = -111;

/// The kinds of nodes, as numbers of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Persistent = 0,
    EphemeralSequential = 3,
}

/// What a server knows of a node besides its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    pub czxid: i64,
    pub mzxid: i64,
    pub version: i32,
    /// The session of an ephemeral node, else 0.
    pub owner: i64,
}

/// A session. It sends no heartbeats: when this is dropped or not used, it ends after its time-out.
#[derive(Debug)]
pub struct Session {
    stream: TcpStream,
    xid: i32,
    /// Its id.
    pub id: i64,
    /// The time-out that the server granted.
    pub timeout: Duration,
}

impl Session {
    /// Opens a session on the server with this address.
    ///
    /// # Errors
    /// No connection, or no reply to several requests within 20 s.
    pub fn open(address: SocketAddr, timeout: Duration) -> Result<Self> {
        let mut attempts = (0..4).map(|_| Self::connect(address, timeout, 0, Duration::from_secs(5)));
        // After a failover, a server may not answer until it gets another request.
        let is_answered = |opened: &Result<Self>| !opened.as_ref().is_err_and(|error| is_late(error.kind()));
        let late = || Err(ErrorKind::TimedOut.into());
        attempts.find(is_answered).unwrap_or_else(late)
    }

    /// The same, with this limit for the reply to the first request.
    ///
    /// # Errors
    /// No connection, or no reply.
    pub fn open_within(address: SocketAddr, timeout: Duration, patience: Duration) -> Result<Self> {
        Self::connect(address, timeout, 0, patience)
    }

    /// Ends the session of another client: the server considers it expired.
    ///
    /// Servers derive the password of a session from its id (`SessionTrackerImpl` and `ZooKeeperServer.generatePasswd`).
    ///
    /// # Errors
    /// No connection, or no such session.
    pub fn expire(address: SocketAddr, id: i64) -> Result<()> {
        let connect = || Self::connect(address, Duration::from_secs(60), id, Duration::from_secs(10));
        for attempt in 0..100 {
            let ended = connect().and_then(Self::close);
            match ended.as_ref().map_err(Error::kind) {
                // The client has taken its session back before it was ended.
                Err(ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
                // As in `open`.
                Err(kind) if is_late(kind) => {}
                Err(ErrorKind::NotFound) if attempt > 0 => return Ok(()),
                _ => return ended,
            }
        }
        Err(Error::other("the client takes its session back again and again"))
    }

    fn connect(address: SocketAddr, timeout: Duration, id: i64, patience: Duration) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_nodelay(true)?;
        let mut session = Self { stream, xid: 0, id, timeout };
        let milliseconds = i32::try_from(timeout.as_millis()).expect("a time-out");
        let password = if id == 0 { [0; 16] } else { password_of(id) };
        let request = Words::default().int(0).long(0).int(milliseconds).long(id).buffer(&password);
        session.send(&request.0)?;
        let mut reply = session.receive()?;
        reply.int();
        session.timeout = Duration::from_millis(u64::try_from(reply.int()).expect("a time-out"));
        session.id = reply.long();
        if session.id == 0 {
            return Err(Error::new(ErrorKind::NotFound, "no such session"));
        }
        session.stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(session)
    }

    /// Authenticates as `user:password` by the scheme `digest`.
    #[track_caller]
    pub fn authenticate(&mut self, user_and_password: &str) {
        let request = Words::default().int(0).text("digest").buffer(user_and_password.as_bytes());
        self.request(100, request).expect("an authenticated session");
    }

    /// Creates a node. Returns its path.
    pub fn create(&mut self, path: &str, data: &str, kind: Kind) -> Result<String> {
        const ALL_RIGHTS: i32 = 31;
        let request = Words::default().text(path).buffer(data.as_bytes());
        let request = request.int(1).int(ALL_RIGHTS).text("world").text("anyone").int(kind as i32);
        Ok(self.request(1, request)?.text())
    }

    /// Creates a persistent node and those above it, as far as they do not exist.
    #[track_caller]
    pub fn create_all(&mut self, path: &str) {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            match self.create(&path[..end], "", Kind::Persistent) {
                Err(error) if !is(&error, NODE_EXISTS) => panic!("{path}: {error}"),
                _ => {}
            }
        }
    }

    /// Creates empty nodes without waiting for one before the next.
    ///
    /// # Errors
    /// One was refused.
    pub fn create_many(&mut self, paths: &[String], kind: Kind) -> Result<()> {
        for paths in paths.chunks(500) {
            let mut bytes = Vec::new();
            for path in paths {
                self.xid += 1;
                let request = Words::default().int(self.xid).int(1).text(path).buffer(b"");
                let request = request.int(1).int(31).text("world").text("anyone").int(kind as i32);
                bytes.extend(Words::default().buffer(&request.0).0);
            }
            self.stream.write_all(&bytes)?;
            for _ in paths {
                let mut reply = self.receive()?;
                let (_, _, code) = (reply.int(), reply.long(), reply.int());
                if code != 0 {
                    return Err(Error::other(Refused(code)));
                }
            }
        }
        Ok(())
    }

    /// Sets the ACL of a node: all permissions for one identity.
    #[track_caller]
    pub fn set_acl(&mut self, path: &str, scheme: &str, id: &str) {
        let request = Words::default().text(path).int(1).int(31).text(scheme).text(id).int(-1);
        self.request(7, request).expect("an ACL that may be set");
    }

    /// Deletes a node, whatever its version.
    pub fn delete(&mut self, path: &str) -> Result<()> {
        self.request(2, Words::default().text(path).int(-1)).map(drop)
    }

    /// Deletes a node and all below it. Nodes that are gone already are no error.
    pub fn delete_all(&mut self, path: &str) -> Result<()> {
        for child in self.children(path)? {
            self.delete_all(&format!("{path}/{child}"))?;
        }
        match self.delete(path) {
            Err(error) if !is(&error, NO_NODE) => Err(error),
            _ => Ok(()),
        }
    }

    /// The data of a node, if it exists.
    #[track_caller]
    pub fn get(&mut self, path: &str) -> Option<(String, Stat)> {
        match self.request(4, Words::default().text(path).flag(false)) {
            Ok(mut reply) => Some((reply.text(), reply.stat())),
            Err(error) if is(&error, NO_NODE) => None,
            Err(error) => panic!("{path}: {error}"),
        }
    }

    /// Stores the data of a node, whatever its version.
    pub fn set(&mut self, path: &str, data: &str) -> Result<()> {
        self.request(5, Words::default().text(path).buffer(data.as_bytes()).int(-1)).map(drop)
    }

    /// The names of the nodes below a node, in no order; none if it does not exist.
    pub fn children(&mut self, path: &str) -> Result<Vec<String>> {
        match self.request(8, Words::default().text(path).flag(false)) {
            Ok(mut reply) => Ok((0..reply.int()).map(|_| reply.text()).collect()),
            Err(error) if is(&error, NO_NODE) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Ends the session, with its nodes.
    pub fn close(mut self) -> Result<()> {
        self.request(-11, Words::default()).map(drop)
    }

    fn request(&mut self, operation: i32, payload: Words) -> Result<Reader> {
        self.xid += 1;
        // Authentication has an id of its own.
        let xid = if operation == 100 { -4 } else { self.xid };
        let request = Words::default().int(xid).int(operation);
        self.send(&[request.0, payload.0].concat())?;
        let mut reply = self.receive()?;
        assert_eq!(reply.int(), xid, "a reply to another request");
        reply.long();
        match reply.int() {
            0 => Ok(reply),
            error => Err(Error::other(Refused(error))),
        }
    }

    fn send(&mut self, request: &[u8]) -> Result<()> {
        self.stream.write_all(&Words::default().buffer(request).0)
    }

    fn receive(&mut self) -> Result<Reader> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut bytes = vec![0; u32::from_be_bytes(length).try_into().expect("a length")];
        self.stream.read_exact(&mut bytes)?;
        Ok(Reader { bytes, at: 0 })
    }
}

/// A request was refused with this error code.
#[derive(Debug, thiserror::Error)]
#[error("ZooKeeper refuses: error {0}")]
struct Refused(i32);

/// Whether a request was refused with this error code.
pub fn is(error: &Error, code: i32) -> bool {
    error
        .get_ref()
        .and_then(|error| error.downcast_ref::<Refused>())
        .is_some_and(|Refused(found)| *found == code)
}

/// Whether there was no reply in time.
fn is_late(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// The first 16 bytes of `java.util.Random`.
fn password_of(id: i64) -> [u8; 16] {
    const SECRET: i64 = 0xB341_5C00;
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut seed = ((id ^ SECRET).cast_unsigned() ^ MULTIPLIER) & MASK;
    let mut password = [0; 16];
    for word in password.chunks_mut(4) {
        seed = (seed.wrapping_mul(MULTIPLIER) + 0xB) & MASK;
        word.copy_from_slice(&((seed >> 16) as u32).to_le_bytes());
    }
    password
}

/// What is sent, in the encoding of the protocol.
#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn int(mut self, value: i32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    fn flag(mut self, value: bool) -> Self {
        self.0.push(value.into());
        self
    }

    fn buffer(self, value: &[u8]) -> Self {
        let mut words = self.int(value.len().try_into().expect("a short value"));
        words.0.extend(value);
        words
    }

    fn text(self, value: &str) -> Self {
        self.buffer(value.as_bytes())
    }
}

/// What was received.
struct Reader {
    bytes: Vec<u8>,
    at: usize,
}

impl Reader {
    fn take<const COUNT: usize>(&mut self) -> [u8; COUNT] {
        let taken = self.bytes[self.at..][..COUNT].try_into().expect("as many bytes");
        self.at += COUNT;
        taken
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }

    fn text(&mut self) -> String {
        // No data has the length -1.
        let length = usize::try_from(self.int()).unwrap_or(0);
        self.at += length;
        String::from_utf8_lossy(&self.bytes[self.at - length..self.at]).into_owned()
    }

    fn stat(&mut self) -> Stat {
        let (czxid, mzxid) = (self.long(), self.long());
        let (_ctime, _mtime) = (self.long(), self.long());
        let (version, _, _) = (self.int(), self.int(), self.int());
        Stat { czxid, mzxid, version, owner: self.long() }
    }
}
