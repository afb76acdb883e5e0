//! One request to the server of the current connection.

use redis::Value;

use super::connection::{CommandReply, Connection, RequestOptions};
use super::rights::user;
use super::script::{By, ScriptRequest};
use super::store::RedisStore;
use crate::backend::StoreError;

impl RedisStore {
    /// Sends one request and waits for its reply: one round trip, or two if the server has to be sent the script.
    ///
    /// The connection is put back only after the reply has been read in full. So a dropped future, a time-out or an
    /// error leaves no connection whose next reply might belong to an earlier request.
    pub(super) async fn request_here(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        let run = async |connection: &mut Connection, options: RequestOptions<'_>| {
            connection.run_script(request, options).await
        };
        let reply = self.with_connection(run, options).await;
        self.examined |= matches!(reply, Ok(CommandReply::Value(Value::BulkString(_))));
        let lacks_key = self.connection.as_ref().is_some_and(|connection| connection.lacks_key);
        reply.map_err(|error| match lacks_key {
            // Servers do not name the key. A script declares only that of the lock.
            true => {
                let (user, prefix) = (user(&self.location), self.location.prefix());
                error.map_text(|text| format!("{user} has no access to {prefix}*: {text}"))
            }
            false => error,
        })
    }

    /// Sends a request over the connection, which is put back if it can be used again. Sends it over another connection,
    /// without options, if the server turns out not to support RESP3.
    pub(super) async fn with_connection<T>(
        &mut self,
        request: impl AsyncFn(&mut Connection, RequestOptions<'_>) -> Result<T, StoreError>,
        options: RequestOptions<'_>,
    ) -> Result<T, StoreError> {
        let mut connection = self.take_connection()?;
        self.route.verify_server(&self.location);
        let mut reply = self.route.unless_replaced(request(&mut connection, options)).await;
        if connection.resp2_required {
            self.old_protocol = true;
            connection = self.route.open(&self.location, true).await?;
            reply = request(&mut connection, RequestOptions::default()).await;
        }
        self.pubsub_denied |= !connection.can_listen();
        if connection.usable && !self.route.must_reconnect(&reply) {
            self.connection = Some(connection);
        } else if connection.misrouted {
            self.misrouted = Some(connection);
        }
        reply
    }

    /// Takes the connection out, so that it is closed unless it is put back.
    pub(super) fn take_connection(&mut self) -> Result<Connection, StoreError> {
        self.connection.take().ok_or_else(|| StoreError::unreachable("not connected"))
    }
}

impl Connection {
    /// Runs the script by its digest, and in a second round trip by its text if the server does not have it cached or
    /// this user may not use digests (no right to EVALSHA). A request that is rejected in this way has changed nothing.
    ///
    /// The text is larger than the initial window of TCP, so it costs an additional round trip on a new connection, and
    /// it is larger than what a server accepts from a client that has not authenticated yet. So it is never sent with
    /// the handshake.
    pub(super) async fn run_script(
        &mut self,
        request: &ScriptRequest<'_>,
        options: RequestOptions<'_>,
    ) -> Result<CommandReply, StoreError> {
        let (lock, asking) = (&request.keys.lock, self.asking);
        if self.accepts_evalsha {
            let reply_limit = self.reply_limit.clone();
            match self.request(lock, &request.command(By::Digest, asking), options).await? {
                CommandReply::NoScript => {}
                reply => return Ok(reply),
            }
            // Without it a time-out would leave a claim behind with no release sent after it.
            self.reply_limit = reply_limit;
        }
        self.request(lock, &request.command(By::Text, asking), options).await
    }
}
