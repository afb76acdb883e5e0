//! Whether a server can call who waits.

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
    /// Whether the server can call us.
    pub(super) async fn notifications(
        &mut self,
        keys: &Keys,
        token: &Token,
        refused: &mut Refused,
    ) -> Result<(), StoreError> {
        self.examination.begin("notifications");
        if !self.connection.pushes() {
            let (found, remedy) = match self.location.resp3() {
                true => (
                    "the server, or a proxy before it, speaks only RESP2",
                    "use Redis 6 or later, or Valkey, and a proxy that speaks RESP3",
                ),
                false => ("RESP2 was asked for (protocol=)", "leave protocol= out"),
            };
            let consequence = "who waits is not called when it is its turn, but asks every now and then; and a lock that \
                               somebody removes is missed at the next renewal only";
            self.found(Finding::warning("notifications", found, consequence, remedy));
            return Ok(());
        }
        let channel = format!("{}{}", keys.channels, token.reveal());
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&channel).arg("hello");
        let (replies, heard) = self.connection.exchange(&[tracking(), subscribe(&channel)], &publish).await?;
        let [watches, listens] = replies.as_slice() else { return Ok(()) };
        refused.note(Need::Watch, "CLIENT TRACKING", KeyKind::None, watches);
        refused.note(Need::Call, "SUBSCRIBE", KeyKind::Channel, listens);
        refused.note(Need::Call, "PUBLISH", KeyKind::Channel, &heard);
        if refused.lacks(Need::Watch) || refused.lacks(Need::Call) {
            return Ok(());
        }
        self.found(match (server_error(watches), server_error(listens), number(Some(&heard))) {
            (None, None, Some(1..)) => Finding::ok(
                "notifications",
                "RESP3: who waits is called, and who holds a lock is told of its loss",
            ),
            (watches, listens, _) => Finding::warning(
                "notifications",
                watches.or(listens).map_or_else(|| "what is published is not heard".to_owned(), describe),
                "who waits is not called when it is its turn, but asks every now and then",
                "use no proxy between dlock and the server",
            ),
        });
        Ok(())
    }
}
