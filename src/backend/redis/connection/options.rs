//! Notifications that a server is requested to send: enabled along with a request, once for each connection.

use redis::{Cmd, Value};

use super::{Connection, has_name, server_error};

/// Commands that are sent along with a request, unless they were sent before.
#[derive(Clone, Copy, Default)]
pub struct RequestOptions<'a> {
    /// Notifications of changes to the keys that this request reads.
    pub tracking: bool,
    /// Messages on this channel.
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
}

/// Notifications of changes to each key read here by other clients, but not by this connection.
pub fn tracking() -> Cmd {
    redis::cmd("CLIENT").arg("TRACKING").arg("ON").arg("NOLOOP").clone()
}

/// Messages on this channel.
pub fn subscribe(channel: &str) -> Cmd {
    redis::cmd("SUBSCRIBE").arg(channel).clone()
}
