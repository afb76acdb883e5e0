//! The messages of ZooKeeper's protocol, as far as dlock uses them (`zookeeper.jute` in its sources): numbers are in
//! big-endian order, texts and lists begin with their length.

use crate::backend::StoreError;

/// The number of an event that a server sends by itself; of a ping; of a request for authentication.
pub(super) const EVENT: i32 = -1;
pub(super) const PING: i32 = -2;
pub(super) const AUTH: i32 = -4;
/// The kind of a part of the reply to a [`Request::Multi`] that was not carried out.
pub(super) const FAILED_PART: i32 = -1;

/// Which kind of node is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Persistent = 0,
    /// Ends with the session that creates it.
    Ephemeral = 1,
    /// Likewise; the server adds a number to its name.
    EphemeralSequential = 3,
    /// The server removes it some time after its last child.
    Container = 4,
}

/// What the server is asked for.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Create { path: String, data: Vec<u8>, kind: Kind },
    Delete { path: String, version: i32 },
    Exists { path: String },
    GetAcl { path: String },
    Get { path: String, watch: bool },
    Set { path: String, data: Vec<u8>, version: i32 },
    Children { path: String, watch: bool },
    Sync { path: String },
    Check { path: String },
    Multi(Vec<Request>),
    Authenticate { credentials: Vec<u8> },
    Ping,
    CloseSession,
}

/// Who may use the nodes that are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Everyone,
    /// The user that the session has authenticated as.
    Creator,
}

impl Request {
    /// Returns the number of the kind of the request.
    pub(super) fn code(&self) -> i32 {
        match self {
            Request::Delete { .. } => 2,
            Request::Exists { .. } => 3,
            Request::Get { .. } => 4,
            Request::Set { .. } => 5,
            Request::GetAcl { .. } => 6,
            Request::Sync { .. } => 9,
            Request::Check { .. } => 13,
            Request::Ping => 11,
            Request::Children { .. } => 12,
            Request::Multi(_) => 14,
            // `create2` and `createContainer`, which both return the status of the new node.
            Request::Create { kind: Kind::Container, .. } => 19,
            Request::Create { .. } => 15,
            Request::Authenticate { .. } => 100,
            Request::CloseSession => -11,
        }
    }

    /// Appends the request, with this number, to what is sent.
    pub(super) fn write(&self, number: i32, access: Access, out: &mut Vec<u8>) {
        frame(out, |out| {
            out.extend(number.to_be_bytes());
            out.extend(self.code().to_be_bytes());
            self.write_body(access, out);
        });
    }

    fn write_body(&self, access: Access, out: &mut Vec<u8>) {
        match self {
            Request::Create { path, data, kind } => {
                write_bytes(path.as_bytes(), out);
                write_bytes(data, out);
                let (scheme, user) = match access {
                    Access::Everyone => ("world", "anyone"),
                    Access::Creator => ("auth", ""),
                };
                const ALL_PERMISSIONS: i32 = 31;
                out.extend(1i32.to_be_bytes());
                out.extend(ALL_PERMISSIONS.to_be_bytes());
                write_bytes(scheme.as_bytes(), out);
                write_bytes(user.as_bytes(), out);
                out.extend((*kind as i32).to_be_bytes());
            }
            Request::Delete { path, version } => {
                write_bytes(path.as_bytes(), out);
                out.extend(version.to_be_bytes());
            }
            Request::Exists { path } => {
                write_bytes(path.as_bytes(), out);
                out.push(0);
            }
            Request::Get { path, watch } | Request::Children { path, watch } => {
                write_bytes(path.as_bytes(), out);
                out.push(u8::from(*watch));
            }
            Request::Set { path, data, version } => {
                write_bytes(path.as_bytes(), out);
                write_bytes(data, out);
                out.extend(version.to_be_bytes());
            }
            Request::Sync { path } | Request::GetAcl { path } => write_bytes(path.as_bytes(), out),
            Request::Check { path } => {
                write_bytes(path.as_bytes(), out);
                // Whatever its version.
                out.extend((-1i32).to_be_bytes());
            }
            Request::Multi(requests) => {
                for request in requests {
                    write_part(request.code(), false, out);
                    request.write_body(access, out);
                }
                write_part(-1, true, out);
            }
            Request::Authenticate { credentials } => {
                out.extend(0i32.to_be_bytes());
                write_bytes(b"digest", out);
                write_bytes(credentials, out);
            }
            Request::Ping | Request::CloseSession => {}
        }
    }
}

/// Appends the header of a part of a [`Request::Multi`].
fn write_part(code: i32, is_end: bool, out: &mut Vec<u8>) {
    out.extend(code.to_be_bytes());
    out.push(u8::from(is_end));
    out.extend((-1i32).to_be_bytes());
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend((bytes.len() as i32).to_be_bytes());
    out.extend(bytes);
}

/// Appends a message with its length before it.
fn frame(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend([0; 4]);
    write(out);
    let length = (out.len() - begin - 4) as i32;
    out[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends the request to begin a session, or to continue one on this connection.
pub(super) fn write_connect(
    timeout_ms: i32,
    last_zxid: i64,
    session: i64,
    password: &[u8],
    out: &mut Vec<u8>,
) {
    frame(out, |out| {
        out.extend(0i32.to_be_bytes());
        out.extend(last_zxid.to_be_bytes());
        out.extend(timeout_ms.to_be_bytes());
        out.extend(session.to_be_bytes());
        write_bytes(password, out);
        // A server without a quorum, which could only read, is to refuse the session.
        out.push(0);
    });
}

/// The status of a node, as far as dlock uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stat {
    /// The transaction that has created the node.
    pub(super) czxid: i64,
    /// The transaction that has written its data last.
    pub(super) mzxid: i64,
    /// In ms since 1970, by the clock of the leader.
    pub(super) ctime: i64,
    /// How often the data was written.
    pub(super) version: i32,
    /// The session that the node ends with; 0 if it is not ephemeral.
    pub(super) owner: i64,
    pub(super) children: i32,
}

/// The rest of a message that is read.
#[derive(Clone, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

/// The message ends too early, or has an impossible length in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

impl From<Malformed> for StoreError {
    fn from(_: Malformed) -> StoreError {
        StoreError::unanswered("the server sent a malformed reply")
    }
}

type Read<T> = Result<T, Malformed>;

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(super) fn int(&mut self) -> Read<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Read<i64> {
        self.array().map(i64::from_be_bytes)
    }

    /// Reads bytes with their length before them; a negative length is that of none.
    pub(super) fn bytes(&mut self) -> Read<&'a [u8]> {
        let length = self.int()?.max(0);
        self.take(length as usize)
    }

    pub(super) fn text(&mut self) -> Read<String> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed)
    }

    pub(super) fn texts(&mut self) -> Read<Vec<String>> {
        (0..self.int()?).map(|_| self.text()).collect()
    }

    pub(super) fn stat(&mut self) -> Read<Stat> {
        let (czxid, mzxid) = (self.long()?, self.long()?);
        let (ctime, _mtime) = (self.long()?, self.long()?);
        let (version, _children_version, _access_version) = (self.int()?, self.int()?, self.int()?);
        let (owner, _length, children) = (self.long()?, self.int()?, self.int()?);
        self.long()?;
        Ok(Stat { czxid, mzxid, ctime, version, owner, children })
    }

    /// Reads the header of a part of the reply to a [`Request::Multi`]; `None` at its end.
    pub(super) fn part(&mut self) -> Read<Option<i32>> {
        let (code, [is_end], _) = (self.int()?, self.array()?, self.int()?);
        Ok((is_end == 0).then_some(code))
    }
}
