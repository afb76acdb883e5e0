//! The watch of some keys, which shares a connection with other requests.

use futures_util::{StreamExt, stream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::connection::Channel;
use super::messages::{WatchCreateRequest, WatchRequest};
use crate::backend::Change;

/// Leaves out the events of new values.
const NO_PUTS: i32 = 0;

/// Which events of a key are reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Events {
    All,
    Removal,
}

/// Returns the request to report the events of a key after a revision.
pub(super) fn request(key: Vec<u8>, events: Events, after: u64) -> WatchCreateRequest {
    let filters = if events == Events::Removal { vec![NO_PUTS] } else { Vec::new() };
    WatchCreateRequest { key, start_revision: after as i64 + 1, filters }
}

/// A watch, which ends when it is dropped.
pub(super) struct Watcher {
    changes: UnboundedReceiver<Change>,
    task: AbortHandle,
}

impl Watcher {
    /// Begins to watch. A change of `own` is not the turn of this client.
    pub fn start(channel: Channel, requests: Vec<WatchCreateRequest>, own: Option<Vec<u8>>) -> Watcher {
        let (sender, changes) = unbounded_channel();
        let task = tokio::spawn(follow(channel, requests, own, sender)).abort_handle();
        Watcher { changes, task }
    }

    /// Returns whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.changes.is_closed()
    }

    /// Forgets what has been reported.
    pub fn clear(&mut self) {
        while self.changes.try_recv().is_ok() {}
    }

    /// Waits for a change; [`Change::Disconnected`] once it has ended. Cancellation safe.
    pub async fn changed(&mut self) -> Change {
        self.changes.recv().await.unwrap_or(Change::Disconnected)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(
    channel: Channel,
    requests: Vec<WatchCreateRequest>,
    own: Option<Vec<u8>>,
    sender: UnboundedSender<Change>,
) {
    let requests = requests.into_iter().map(|create| WatchRequest { create: Some(create) });
    // The stream of requests stays open: its end may be taken for that of the watch.
    let Ok(mut replies) = channel.stream(stream::iter(requests).chain(stream::pending())).await else {
        return;
    };
    while let Ok(Some(reply)) = replies.message().await {
        let changes = reply.events.iter().map(|event| {
            let key = event.kv.as_ref().map(|kv| &kv.key);
            if key == own.as_ref() { Change::Touched } else { Change::OurTurn }
        });
        for change in changes {
            let _ = sender.send(change);
        }
        if reply.canceled {
            // The revisions from which to watch were compacted: what has happened is unknown. Without them, it is denied.
            let _ =
                sender.send(if reply.compact_revision > 0 { Change::Touched } else { Change::Disconnected });
            return;
        }
    }
}
