//! Pushes of a server, and which of them concern the lock.

use redis::{PushKind, Value};

use super::Connection;

/// A push of a server. A later variant takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PushEvent {
    /// Waiters far ahead have been called.
    Look,
    /// Waiters ahead have been called.
    Next,
    /// The lock's key was changed.
    Touched,
    /// It is the turn of this waiter.
    Called,
}

impl Connection {
    /// Returns the event of a push, if it concerns the lock. `invalidate` names the keys that were changed, or none if
    /// all were; other keys that were read do not matter.
    pub(super) fn push_event(&self, kind: &PushKind, data: &[Value]) -> Option<PushEvent> {
        match (kind, data) {
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                let is_lock =
                    |key: &Value| matches!(key, Value::BulkString(key) if key == self.lock.as_bytes());
                keys.iter().any(is_lock).then_some(PushEvent::Touched)
            }
            (PushKind::Invalidate, _) => Some(PushEvent::Touched),
            (PushKind::Message, [_, Value::BulkString(event)]) => match event.as_slice() {
                b"called" => Some(PushEvent::Called),
                b"next" => Some(PushEvent::Next),
                b"look" => Some(PushEvent::Look),
                _ => None,
            },
            _ => None,
        }
    }
}
