//! Notifications that a server is requested to send: enabled along with a request, once for each connection; and which
//! of them concern the lock.

use redis::{Cmd, PushKind, Value};

use super::{Connection, has_name, server_error};

/// Commands that are sent along with a request, unless they were sent before.
#[derive(Clone, Copy, Default)]
pub struct RequestOptions<'a> {
    /// Notifications of changes to the keys that this request reads.
    pub tracking: bool,
    pub channel: Option<&'a str>,
    /// A command sent after it, whose reply is read [later](Connection::trailing_reply), if at all.
    pub trailing: Option<&'a Cmd>,
}

/// A feature of the server that is enabled by a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    /// It has not been requested.
    NotTried,
    /// It is enabled.
    On,
    /// The server has rejected it.
    Refused,
}

/// A push of a server. A later variant takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PushEvent {
    /// Waiters far ahead have been called.
    Look,
    /// Waiters ahead have been called.
    Next,
    /// The lock's key was changed.
    Touched,
    /// A later run supersedes this waiter.
    Superseded,
    /// It is the turn of this waiter.
    Called,
}

impl Connection {
    /// Returns the commands of the options that have not been tried on this connection yet.
    pub(super) fn due(&self, options: RequestOptions<'_>) -> Vec<Cmd> {
        let mut first = Vec::new();
        if self.pushes && options.tracking && self.tracking == Switch::NotTried {
            first.push(tracking());
        }
        if let Some(channel) = options.channel.filter(|_| self.pushes && self.channel == Switch::NotTried) {
            first.push(subscribe(channel));
        }
        first
    }

    /// Stores which of the options were enabled.
    pub(super) fn note_options(&mut self, options: &[Cmd], replies: &[Value]) {
        for (option, reply) in options.iter().zip(replies) {
            let state = if server_error(reply).is_some() { Switch::Refused } else { Switch::On };
            match has_name(option, b"CLIENT") {
                true => self.tracking = state,
                false => self.channel = state,
            }
        }
    }

    /// Stores the event of a push, unless a more important one is stored.
    pub(super) fn note_push(&mut self, kind: &PushKind, data: &[Value]) {
        self.last_push = self.last_push.max(self.push_event(kind, data));
    }

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
                b"superseded" => Some(PushEvent::Superseded),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Notifications of changes to each key read here by other clients, but not by this connection.
pub fn tracking() -> Cmd {
    redis::cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP").clone()
}

pub fn subscribe(channel: &str) -> Cmd {
    redis::cmd("SUBSCRIBE").arg(channel).clone()
}
