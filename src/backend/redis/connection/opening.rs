//! How a connection begins: over which stream, and with which greeting still to be said.

use combine::stream::decoder::Decoder;

use super::Connection;
use super::handshake::Greeting;
use super::options::Switch;
use crate::backend::StoreError;
use crate::backend::redis::location::{Address, Location};
use crate::backend::redis::stream::{self, Bounded, LARGEST_ANSWER, Stream};

impl Connection {
    /// Connects, with TLS if so located; says nothing yet. `old_protocol` is for servers that have refused RESP3.
    pub(in crate::backend::redis) async fn open(
        location: &Location,
        address: &Address,
        old_protocol: bool,
    ) -> Result<Connection, StoreError> {
        let password = location.password()?;
        let stream = stream::open(location, address).await?;
        let mut connection = Connection::begin(location, password, stream, old_protocol);
        if let Some(greeting) = &mut connection.greeting {
            greeting.of_kind = Some(address.clone());
        }
        Ok(connection)
    }

    /// Connects to a sentinel, to which we are somebody else than to its master, or nobody; says nothing yet.
    pub(in crate::backend::redis) async fn open_to_sentinel(
        location: &Location,
        address: &Address,
    ) -> Result<Connection, StoreError> {
        let (username, password) = location.sentinel_credentials()?;
        let stream = stream::open(location, address).await?;
        Ok(Connection::over(
            stream,
            Greeting { username, password, database: 0, hello: false, of_kind: None },
        ))
    }

    /// Over a stream that has been opened, to a server of whatever kind; says nothing yet.
    pub(in crate::backend::redis) fn begin(
        location: &Location,
        password: Option<String>,
        stream: Bounded<Box<dyn Stream>>,
        old_protocol: bool,
    ) -> Connection {
        let username = location.username().map(str::to_owned);
        let hello = location.resp3() && !old_protocol;
        let greeting = Greeting { username, password, database: location.database(), hello, of_kind: None };
        let sends_elsewhere = location.is_cluster();
        Connection { sends_elsewhere, ..Connection::over(stream, greeting) }
    }

    /// The same, greeting as is said.
    pub(super) fn over(stream: Bounded<Box<dyn Stream>>, greeting: Greeting) -> Connection {
        Connection {
            stream,
            decoder: Decoder::new(),
            pushes: greeting.hello,
            greeting: Some(greeting),
            tracking: Switch::NotTried,
            channel: Switch::NotTried,
            usable: true,
            misrouted: false,
            silent: true,
            outdated: false,
            sends_elsewhere: false,
            takes_digests: true,
            asks: false,
            longest: LARGEST_ANSWER,
            lock: String::new(),
            patience: None,
            heard: None,
            pending_replies: 0,
        }
    }
}
