//! The check of push notifications: whether the server can notify waiters and holders.

use super::super::answers::number;
use super::super::connection::{server_error, subscribe, tracking};
use super::super::errors::describe;
use super::super::keys::Keys;
use super::Examiner;
use super::rights::{KeyKind, Need, Refused};
use crate::backend::StoreError;
use crate::backend::diagnosis::Finding;
use crate::lock::Token;

impl Examiner<'_> {
    /// Checks that a message published by this client reaches it, and that the server tracks keys.
    pub(super) async fn notifications(
        &mut self,
        keys: &Keys,
        token: &Token,
        refused: &mut Refused,
    ) -> Result<(), StoreError> {
        self.diagnosis.begin("notifications");
        if !self.connection.pushes() {
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
        let channel = format!("{}{}", keys.channels, token.reveal());
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&channel).arg("hello");
        let (replies, received) =
            self.connection.exchange(&[tracking(), subscribe(&channel)], &publish).await?;
        let [tracked, subscribed] = replies.as_slice() else { return Ok(()) };
        refused.note(Need::Track, "CLIENT TRACKING", KeyKind::None, tracked);
        refused.note(Need::Notify, "SUBSCRIBE", KeyKind::Channel, subscribed);
        refused.note(Need::Notify, "PUBLISH", KeyKind::Channel, &received);
        if refused.lacks(Need::Track) || refused.lacks(Need::Notify) {
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
                "waiters are not notified of their turn, and poll instead",
                "use no proxy between dlock and the server",
            ),
        });
        Ok(())
    }
}
