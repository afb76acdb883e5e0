//! Opening a connection: over which stream, and with which handshake still to be performed.

use combine::stream::decoder::Decoder;

use super::handshake::Handshake;
use super::notifications::Switch;
use super::{Connection, MAX_REPLY_SIZE};
use crate::backend::StoreError;
use crate::backend::net::{self, Address, BoundedStream};
use crate::backend::redis::location::Location;
use crate::backend::redis::redirect::Asking;

impl Connection {
    /// Connects, with TLS if the URL says so; sends nothing yet. `old_protocol` is for servers that have rejected
    /// RESP3.
    pub async fn open(
        location: &Location,
        address: &Address,
        old_protocol: bool,
    ) -> Result<Connection, StoreError> {
        let password = location.security.credentials.password()?;
        let stream = net::open(address, location.security.tls.as_ref()).await?;
        let mut connection = Connection::begin(location, password, stream, old_protocol);
        if let Some(handshake) = &mut connection.handshake {
            handshake.verify_kind = Some(address.clone());
        }
        Ok(connection)
    }

    /// Connects to a sentinel, which has credentials of its own or none; sends nothing yet.
    pub async fn open_to_sentinel(location: &Location, address: &Address) -> Result<Connection, StoreError> {
        let credentials = &location.sentinel_credentials;
        let (username, password) = (credentials.username().map(str::to_owned), credentials.password()?);
        let stream = net::open(address, location.security.tls.as_ref()).await?;
        Ok(Connection::over(
            stream,
            Handshake { username, password, database: 0, hello: false, verify_kind: None },
        ))
    }

    /// Returns a connection over an open stream, to a server of any kind; sends nothing yet.
    pub fn begin(
        location: &Location,
        password: Option<String>,
        stream: BoundedStream,
        old_protocol: bool,
    ) -> Connection {
        let username = location.username().map(str::to_owned);
        let hello = location.resp3 && !old_protocol;
        let handshake =
            Handshake { username, password, database: location.database(), hello, verify_kind: None };
        let follows_redirects = location.is_cluster();
        Connection { follows_redirects, ..Connection::over(stream, handshake) }
    }

    /// The same with this handshake.
    pub(super) fn over(stream: BoundedStream, handshake: Handshake) -> Connection {
        Connection {
            stream,
            decoder: Decoder::new(),
            pushes: handshake.hello,
            handshake: Some(handshake),
            tracking: Switch::NotTried,
            channel: Switch::NotTried,
            usable: true,
            misrouted: false,
            no_reply_yet: true,
            resp2_required: false,
            role: None,
            lacks_key: false,
            follows_redirects: false,
            accepts_evalsha: true,
            asking: Asking::No,
            max_reply_size: MAX_REPLY_SIZE,
            lock: String::new(),
            reply_limit: None,
            last_push: None,
            pending_replies: 0,
        }
    }
}
