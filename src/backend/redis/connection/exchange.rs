//! One round trip: a write, and the replies to it as received, bounded in size and time.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, PushKind, Value, parse_redis_value_async};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Connection, MAX_LONG_REPLY_SIZE, MAX_REPLY_SIZE, has_name, server_error};
use crate::backend::net::{self, CLOSED, Protocol};
use crate::backend::redis::errors::shortened;
use crate::backend::redis::redirect::Asking;
use crate::backend::{StoreError, io_text};

/// How long writing the command that follows a time-out may take.
const UNDO_WRITE_LIMIT: Duration = Duration::from_millis(50);

/// Ends the wait for a reply.
pub type Cancel = Arc<Notify>;

/// How long to wait for a reply. The command that is sent after a time-out is executed after the request, however late
/// that is: another connection could not guarantee this.
#[derive(Clone)]
pub struct ReplyLimit {
    pub limit: Duration,
    pub cancel: Cancel,
    pub on_timeout: Cmd,
}

impl Connection {
    /// Sends commands in one write, then reads as many replies, unchanged; with one more command after them, whose
    /// reply is not read. The handshake must be complete.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn exchange(
        &mut self,
        first: &[Cmd],
        command: &Cmd,
        trailing: Option<&Cmd>,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        self.usable = false;
        self.expect_no_reply().await?;
        let mut buffer = Vec::new();
        for command in first {
            buffer.extend(command.get_packed_command());
        }
        if self.asking == Asking::Yes {
            buffer.extend(redis::cmd("ASKING").get_packed_command());
        }
        for command in [command].into_iter().chain(trailing) {
            buffer.extend(command.get_packed_command());
        }
        if let Err(error) = self.stream.send(&buffer).await {
            // The server may have sent the reason before it closed the connection.
            self.stream.refill(self.max_reply_size);
            let _ = self.value().await;
            let why = StoreError::unanswered(format!("cannot send: {}", io_text(&error)));
            return Err(self.why_ended().await.unwrap_or(why));
        }
        let outcome = match self.reply_limit.take() {
            None => self.replies(first).await?,
            Some(reply_limit) => self.replies_within(first, reply_limit).await?,
        };
        self.pending_replies += usize::from(trailing.is_some());
        self.usable = true;
        Ok(outcome)
    }

    /// Reads what has arrived before a request. Only pushes and pending replies may: another reply would be taken for that to
    /// the request.
    async fn expect_no_reply(&mut self) -> Result<(), StoreError> {
        self.stream.refill(self.max_reply_size);
        loop {
            let arrived = tokio::select! {
                biased;
                arrived = parse_redis_value_async(&mut self.decoder, &mut self.stream) => arrived,
                () = std::future::ready(()) => return Ok(()),
            };
            match self.checked(arrived).await? {
                Value::Push { kind, data } => self.note_push(&kind, &data),
                _ if self.pending_replies > 0 => self.pending_replies -= 1,
                _ => return Err(net::unrequested()),
            }
        }
    }

    /// Reads one reply for each command, and the reply to the request; those pending from earlier requests come first.
    async fn replies(&mut self, first: &[Cmd]) -> Result<(Vec<Value>, Value), StoreError> {
        self.read_pending().await?;
        let mut replies = Vec::with_capacity(first.len());
        for command in first {
            replies.push(self.reply(has_name(command, b"SUBSCRIBE")).await?);
        }
        let allowed = if self.asking == Asking::Yes { Some(self.reply(false).await?) } else { None };
        let reply = self.reply(false).await?;
        // Without permission for ASKING the node would only redirect again.
        let refused = allowed.filter(|allowed| server_error(allowed).is_some());
        Ok((replies, refused.unwrap_or(reply)))
    }

    /// Returns the reply to one command that has a long reply.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn exchange_long(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.max_reply_size = MAX_LONG_REPLY_SIZE;
        let reply = self.exchange(&[], command, None).await;
        self.max_reply_size = MAX_REPLY_SIZE;
        reply.map(|(_, reply)| reply)
    }

    /// Reads the pending replies and returns the last one.
    async fn read_pending(&mut self) -> Result<Option<Value>, StoreError> {
        let mut last = None;
        while self.pending_replies > 0 {
            last = Some(self.reply(false).await?);
            self.pending_replies -= 1;
        }
        Ok(last)
    }

    /// Returns the reply to the command that was sent after the last request; sends it again if it was not sent with
    /// that request.
    ///
    /// # Errors
    /// The connection is broken.
    pub async fn trailing_reply(&mut self, command: &Cmd) -> Result<Value, StoreError> {
        self.usable = false;
        let reply = match self.read_pending().await? {
            Some(reply) => reply,
            None => self.exchange(&[], command, None).await?.1,
        };
        self.usable = true;
        Ok(reply)
    }

    /// Reads the replies within the limit. On failure the request is undone as far as possible.
    async fn replies_within(
        &mut self,
        first: &[Cmd],
        reply_limit: ReplyLimit,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        let ReplyLimit { limit, cancel, on_timeout } = reply_limit;
        tokio::select! {
            biased;
            outcome = self.replies(first) => return outcome,
            () = tokio::time::sleep(limit) => {}
            () = cancel.notified() => {}
        }
        let on_timeout = on_timeout.get_packed_command();
        match timeout(UNDO_WRITE_LIMIT, self.stream.send(&on_timeout)).await {
            Ok(Ok(())) => Err(StoreError::unreachable(format!("no answer within {} ms", limit.as_millis()))),
            _ => Err(StoreError::unanswered(format!("no answer within {} ms", limit.as_millis()))),
        }
    }

    /// Reads the next reply, and stores pushes that arrive before it. In RESP3 the reply to SUBSCRIBE is itself a push.
    async fn reply(&mut self, to_subscribe: bool) -> Result<Value, StoreError> {
        self.stream.refill(self.max_reply_size);
        loop {
            match self.value().await? {
                Value::Push { kind: PushKind::Subscribe, .. } if to_subscribe => return Ok(Value::Okay),
                Value::Push { kind, data } => self.note_push(&kind, &data),
                value => return Ok(value),
            }
        }
    }

    /// Reads the next value, a reply or a push.
    ///
    /// # Errors
    /// The connection failed, or the server violated the protocol.
    pub(super) async fn value(&mut self) -> Result<Value, StoreError> {
        let value = parse_redis_value_async(&mut self.decoder, &mut self.stream).await;
        self.checked(value).await
    }

    /// Returns what was read, or why nothing more can be.
    async fn checked(&mut self, value: redis::RedisResult<Value>) -> Result<Value, StoreError> {
        self.no_reply_yet &= value.is_err();
        if let Some((address, security)) = self.stranger.take_if(|_| value.is_ok()) {
            security.recognize(&address);
        }
        let error = match value {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let why = match error.kind() {
            redis::ErrorKind::Parse => "the server does not speak the Redis protocol".to_owned(),
            // Some proxies close the connection on an unknown command. Servers may crash instead, so this is no reason
            // to fall back from RESP3.
            _ if error.is_connection_dropped() && self.no_reply_yet && self.pushes => {
                format!("{CLOSED} without a reply (for a proxy that does not support HELLO: protocol=resp2)")
            }
            _ if error.is_connection_dropped() => CLOSED.to_owned(),
            _ => format!("cannot read: {}", shortened(&error.to_string())),
        };
        Err(self.why_ended().await.unwrap_or_else(|| StoreError::unanswered(why)))
    }

    /// Returns why the connection is of no use, as far as that is found out over others: the client certificate was
    /// rejected, the server uses TLS, or it is of another kind.
    async fn why_ended(&mut self) -> Option<StoreError> {
        let Some((address, security)) = self.stranger.take() else {
            return self.stream.why_ended().await;
        };
        if let Some(error) = security.other_kind(&address) {
            return Some(error);
        }
        if !security.is_stranger(&address) {
            return self.stream.why_ended().await;
        }
        // The first that finds something.
        tokio::select! {
            Some(error) = self.stream.why_ended() => Some(error),
            Some(error) = Protocol::Redis.mismatch(&address) => {
                security.note_other_kind(&address, &error);
                Some(error)
            }
            else => None,
        }
    }
}
