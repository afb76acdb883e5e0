//! What a server says unasked, and what of it matters to us.

use redis::{PushKind, Value};

use super::Connection;

/// What a server says unasked; what comes later counts for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::backend::redis) enum PushEvent {
    /// Those far before us have been called.
    Look,
    /// Those before us have been called.
    Next,
    /// The lock's key was touched.
    Touched,
    /// It is our turn.
    Called,
}

impl Connection {
    /// What a push means for us, if anything. `invalidate` names the keys that were touched, or none when all were; the
    /// other keys that were read matter to nobody here.
    pub(super) fn word(&self, kind: &PushKind, data: &[Value]) -> Option<PushEvent> {
        match (kind, data) {
            (PushKind::Invalidate, [Value::Array(keys)]) => {
                let ours = |key: &Value| matches!(key, Value::BulkString(key) if key == self.lock.as_bytes());
                keys.iter().any(ours).then_some(PushEvent::Touched)
            }
            (PushKind::Invalidate, _) => Some(PushEvent::Touched),
            (PushKind::Message, [_, Value::BulkString(word)]) => match word.as_slice() {
                b"called" => Some(PushEvent::Called),
                b"next" => Some(PushEvent::Next),
                b"look" => Some(PushEvent::Look),
                _ => None,
            },
            _ => None,
        }
    }
}
