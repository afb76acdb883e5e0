//! One flight: a write, and the answers to it as they are, within bounds of size and of time.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, PushKind, Value, parse_redis_value_async};
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::{Connection, begins_with, server_error};
use crate::backend::redis::errors::shortened;
use crate::backend::redis::stream::{LARGEST_ANSWER, LONGEST_ANSWER};
use crate::backend::{StoreError, io_text};

/// How long it may take to hand over what is said last.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Makes one who waits for an answer wait no longer.
pub(in crate::backend::redis) type Cancel = Arc<Notify>;

/// How long to wait for an answer. What is said behind the question when that is over is carried out after it, however
/// late: no other connection could promise that.
#[derive(Clone)]
pub(in crate::backend::redis) struct Patience {
    pub(in crate::backend::redis) limit: Duration,
    pub(in crate::backend::redis) cancel: Cancel,
    pub(in crate::backend::redis) last_words: Cmd,
}

impl Connection {
    /// One write, then as many answers as commands, each as it is. The greeting is over.
    ///
    /// # Errors
    /// The connection is broken.
    pub(in crate::backend::redis) async fn exchange(
        &mut self,
        first: &[Cmd],
        command: &Cmd,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        self.exchange_and_more(first, command, None).await
    }

    /// The same, with one more command behind whose answer is not awaited.
    pub(super) async fn exchange_and_more(
        &mut self,
        first: &[Cmd],
        command: &Cmd,
        behind: Option<&Cmd>,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        self.usable = false;
        let mut flight = Vec::new();
        for command in first {
            flight.extend(command.get_packed_command());
        }
        if self.asks {
            flight.extend(redis::cmd("ASKING").get_packed_command());
        }
        for command in [command].into_iter().chain(behind) {
            flight.extend(command.get_packed_command());
        }
        let write = async {
            self.stream.stream.write_all(&flight).await?;
            self.stream.stream.flush().await
        };
        if let Err(error) = write.await {
            // It may have said why before it closed the connection.
            let _ = self.value().await;
            let why = StoreError::unanswered(format!("cannot send: {}", io_text(&error)));
            return Err(self.stream.refusal().unwrap_or(why));
        }
        let answers = match self.patience.take() {
            None => self.replies(first).await?,
            Some(patience) => self.replies_in_time(first, patience).await?,
        };
        self.pending_replies += usize::from(behind.is_some());
        self.usable = true;
        Ok(answers)
    }

    /// As many answers as commands, and the one that counts; those still owed come first.
    async fn replies(&mut self, first: &[Cmd]) -> Result<(Vec<Value>, Value), StoreError> {
        self.owed_answer().await?;
        let mut replies = Vec::with_capacity(first.len());
        for command in first {
            replies.push(self.reply(begins_with(command, b"SUBSCRIBE")).await?);
        }
        let allowed = if self.asks { Some(self.reply(false).await?) } else { None };
        let answer = self.reply(false).await?;
        // Without that right the node only says again that another one has the slot.
        let refused = allowed.filter(|allowed| server_error(allowed).is_some());
        Ok((replies, refused.unwrap_or(answer)))
    }

    /// The answer to one question of which a long one is expected.
    ///
    /// # Errors
    /// The connection is broken.
    pub(in crate::backend::redis) async fn exchange_long(
        &mut self,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        self.longest = LONGEST_ANSWER;
        let answer = self.exchange(&[], command).await;
        self.longest = LARGEST_ANSWER;
        answer.map(|(_, answer)| answer)
    }

    /// The last of the answers that nobody has awaited yet.
    async fn owed_answer(&mut self) -> Result<Option<Value>, StoreError> {
        let mut last = None;
        while self.pending_replies > 0 {
            last = Some(self.reply(false).await?);
            self.pending_replies -= 1;
        }
        Ok(last)
    }

    /// The answer to what went behind the last question; asked anew if that was not carried out with it.
    ///
    /// # Errors
    /// The connection is broken.
    pub(in crate::backend::redis) async fn answer_behind(
        &mut self,
        command: &Cmd,
    ) -> Result<Value, StoreError> {
        self.usable = false;
        let answer = match self.owed_answer().await? {
            Some(answer) => answer,
            None => self.exchange(&[], command).await?.1,
        };
        self.usable = true;
        Ok(answer)
    }

    /// What the question asked for is taken back when this fails, as far as that can be done.
    async fn replies_in_time(
        &mut self,
        first: &[Cmd],
        patience: Patience,
    ) -> Result<(Vec<Value>, Value), StoreError> {
        let Patience { limit, cancel, last_words } = patience;
        tokio::select! {
            biased;
            answers = self.replies(first) => return answers,
            () = tokio::time::sleep(limit) => {}
            () = cancel.notified() => {}
        }
        let last_words = last_words.get_packed_command();
        let said = async {
            self.stream.stream.write_all(&last_words).await?;
            self.stream.stream.flush().await
        };
        match timeout(LAST_WORDS, said).await {
            Ok(Ok(())) => Err(StoreError::unreachable(format!("no answer within {} ms", limit.as_millis()))),
            _ => Err(StoreError::unanswered(format!("no answer within {} ms", limit.as_millis()))),
        }
    }

    /// The next answer; pushes that come before it are noticed. In RESP3 the answer to SUBSCRIBE is a push itself.
    async fn reply(&mut self, to_subscribe: bool) -> Result<Value, StoreError> {
        self.stream.refill(self.longest);
        loop {
            match self.value().await? {
                Value::Push { kind: PushKind::Subscribe, .. } if to_subscribe => return Ok(Value::Okay),
                Value::Push { kind, data } => self.heard = self.heard.max(self.word(&kind, &data)),
                value => return Ok(value),
            }
        }
    }

    /// The next thing that the server says, be it an answer or a push.
    ///
    /// # Errors
    /// It does not say it, or not in the protocol.
    pub(super) async fn value(&mut self) -> Result<Value, StoreError> {
        let value = parse_redis_value_async(&mut self.decoder, &mut self.stream).await;
        self.silent &= value.is_err();
        value.map_err(|error| {
            let why = match error.kind() {
                redis::ErrorKind::Parse => "the server does not speak the Redis protocol".to_owned(),
                // Some proxies do that to whoever says what they do not know. Others die, so this is no reason to do without
                // what RESP3 is for.
                _ if error.is_connection_dropped() && self.silent && self.pushes => {
                    "the server closed the connection without a word (for a proxy that knows no HELLO: protocol=resp2)"
                        .to_owned()
                }
                _ if error.is_connection_dropped() => "the server closed the connection".to_owned(),
                _ => format!("cannot read: {}", shortened(&error.to_string())),
            };
            self.stream.refusal().unwrap_or_else(|| StoreError::unanswered(why))
        })
    }
}
