//! What a server is asked to tell us from now on: said with a question, once on each connection.

use redis::{Cmd, Value};

use super::{Connection, begins_with, server_error};

/// What goes along with a question, if it was not asked for before.
#[derive(Clone, Copy, Default)]
pub(in crate::backend::redis) struct RequestOptions<'a> {
    /// Word of whoever touches what this question reads.
    pub(in crate::backend::redis) tracking: bool,
    /// Word on this channel.
    pub(in crate::backend::redis) channel: Option<&'a str>,
    /// This behind it, whose answer is awaited [later](Connection::answer_behind), if at all.
    pub(in crate::backend::redis) behind: Option<&'a Cmd>,
}

/// Something that a server does for us once it was asked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Switch {
    /// Nobody has asked.
    NotTried,
    /// It does it.
    On,
    /// It will not.
    Refused,
}

impl Connection {
    /// What of the wishes is to be said, because it was not tried before.
    pub(super) fn due(&self, wishes: RequestOptions<'_>) -> Vec<Cmd> {
        let mut first = Vec::new();
        if self.pushes && wishes.tracking && self.tracking == Switch::NotTried {
            first.push(tracking());
        }
        if let Some(channel) = wishes.channel.filter(|_| self.pushes && self.channel == Switch::NotTried) {
            first.push(subscribe(channel));
        }
        first
    }

    /// Notes which of the wishes were granted.
    pub(super) fn note_wishes(&mut self, wishes: &[Cmd], replies: &[Value]) {
        for (wish, reply) in wishes.iter().zip(replies) {
            let state = if server_error(reply).is_some() { Switch::Refused } else { Switch::On };
            match begins_with(wish, b"CLIENT") {
                true => self.tracking = state,
                false => self.channel = state,
            }
        }
    }
}

/// Word of every key read here that somebody else touches, but not of our own changes.
pub(in crate::backend::redis) fn tracking() -> Cmd {
    let mut command = redis::cmd("CLIENT");
    command.arg("TRACKING").arg("ON").arg("NOLOOP");
    command
}

/// Word on this channel.
pub(in crate::backend::redis) fn subscribe(channel: &str) -> Cmd {
    let mut command = redis::cmd("SUBSCRIBE");
    command.arg(channel);
    command
}
