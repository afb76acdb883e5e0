//! The check of push notifications: whether the server can notify waiters and holders.

use super::super::connection::{server_error, subscribe, tracking};
use super::super::errors::describe;
use super::super::keys::Keys;
use super::super::reply::number;
use super::Examiner;
use super::rights::{NO_CALLS, NO_TRACKING};
use crate::backend::StoreError;
use crate::backend::diagnosis::Finding;
use crate::lock::Token;

impl Examiner<'_> {
    /// Checks that a message published by this client reaches it, and that the server tracks keys.
    pub(super) async fn notifications(&mut self, keys: &Keys, token: &Token) -> Result<(), StoreError> {
        self.diagnosis.begin("notifications");
        if !self.connection.pushes {
            let (found, remedy) = match self.location.resp3 {
                true => (
                    "the server, or a proxy before it, speaks only RESP2",
                    "use Redis 6 or later, or Valkey, and a proxy that speaks RESP3",
                ),
                false => ("RESP2 was requested (protocol=)", "remove protocol="),
            };
            let consequence = "waiters are not notified of their turn, and poll instead; the removal of a lock is noticed \
                               only at the next renewal";
            self.found(Finding::warning("notifications", found, consequence, remedy));
            return Ok(());
        }
        let channel = keys.channel(token.reveal());
        let publish = redis::cmd("PUBLISH").arg(&channel).arg("hello").clone();
        let (replies, received) =
            self.connection.exchange(&[tracking(), subscribe(&channel)], &publish, None).await?;
        let [tracked, subscribed] = replies.as_slice() else { return Ok(()) };
        let missing = [
            self.optional.note("CLIENT TRACKING", "", NO_TRACKING, tracked),
            self.optional.note("SUBSCRIBE", "&dlock#call:*", NO_CALLS, subscribed),
            self.optional.note("PUBLISH", "&dlock#call:*", NO_CALLS, &received),
        ];
        if missing.contains(&true) {
            return Ok(());
        }
        self.found(match (server_error(tracked), server_error(subscribed), number(Some(&received))) {
            (None, None, Some(1..)) => Finding::ok(
                "notifications",
                "RESP3: waiters are notified of their turn, holders of a lost lock",
            ),
            (tracked, subscribed, _) => Finding::warning(
                "notifications",
                tracked
                    .or(subscribed)
                    .map_or_else(|| "published messages are not received".to_owned(), describe),
                NO_CALLS,
                "use no proxy between dlock and the server",
            ),
        });
        Ok(())
    }
}
