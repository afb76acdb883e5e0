//! Redirections from one node of a cluster to another.

use redis::ServerError;

use crate::backend::net::Address;
use crate::backend::url::Host;

/// The maximum length of a host name (RFC 1035).
const LONGEST_NAME: usize = 255;

/// Whether requests are for a slot that is being migrated to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    /// The slot may be migrating, and the node is to serve it (`ASKING`).
    Yes,
    /// It is not migrating, or the node is to redirect to the owner of the slot.
    No,
}

/// The node to send a request to, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    /// Whether the slot is still being migrated to it.
    pub(super) asking: Asking,
    /// Empty if it is the host of the redirecting node.
    host: String,
    port: u16,
}

impl Redirect {
    /// Parses `MOVED slot host:port` and `ASK slot host:port`; `None` for other errors.
    pub(super) fn read(error: &ServerError) -> Option<Redirect> {
        let asking = match error.code() {
            "MOVED" => Asking::No,
            "ASK" => Asking::Yes,
            _ => return None,
        };
        let (_, node) = error.details()?.trim().split_once(' ')?;
        // An IPv6 address has no brackets here.
        let (host, port) = node.rsplit_once(':')?;
        let is_name =
            host.len() <= LONGEST_NAME && !host.contains(|c: char| c.is_whitespace() || c.is_control());
        // `?` is a node whose name is not known yet.
        (is_name && host != "?").then_some(())?;
        Some(Redirect { asking, host: host.to_owned(), port: port.parse().ok()? })
    }

    /// The address of that node, as given by `from`.
    pub(super) fn address(&self, from: &Address) -> Option<Address> {
        address(&self.host, self.port, from)
    }
}

/// The address of a node as given by another one: without a name it is on the same host.
pub(super) fn address(host: &str, port: u16, from: &Address) -> Option<Address> {
    let name = match (host, from) {
        ("", Address::Tcp(from)) => from.name.clone(),
        ("" | "?", _) => return None,
        (host, _) => host.to_owned(),
    };
    Some(Address::Tcp(Host { name, port: Some(port) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(Asking, Option<String>)> {
        let parsed = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).ok()?;
        let redis::Value::ServerError(error) = parsed else { return None };
        let from = Address::Tcp(Host { name: "here".into(), port: Some(1) });
        let redirect = Redirect::read(&error)?;
        Some((redirect.asking, redirect.address(&from).map(|address| address.to_string())))
    }

    #[test]
    fn redirections_are_read() {
        let to = |asking, address: &str| Some((asking, Some(address.to_owned())));
        assert_eq!(read("MOVED 3999 127.0.0.1:6381"), to(Asking::No, "127.0.0.1:6381"));
        assert_eq!(read("ASK 3999 node-2.example.com:6381"), to(Asking::Yes, "node-2.example.com:6381"));
        assert_eq!(read("MOVED 3999 :6381"), to(Asking::No, "here:6381"));
        assert_eq!(read("MOVED 3999 ::1:6381"), to(Asking::No, "[::1]:6381"));
        for nonsense in
            ["MOVED", "MOVED 1", "MOVED 1 h", "MOVED 1 h:x", "MOVED 1 ?:1", "MOVED 1 a b:1", "ERR 1 h:1"]
        {
            assert_eq!(read(nonsense), None, "{nonsense}");
        }
    }
}
