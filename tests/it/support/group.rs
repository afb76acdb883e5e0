//! What groups of servers have in common: their URLs, and the check that no client uses them.

use super::redis::Redis;
use super::resp::Value;
use super::tls::Certificates;
use std::time::{Duration, Instant};

/// How long a client may still be listed after its process has ended.
const GOING: Duration = Duration::from_secs(1);

/// The URL of servers that listen on these ports.
pub fn url(
    scheme: &str,
    ports: &[u16],
    path: &str,
    password: Option<&str>,
    certificates: Option<&Certificates>,
) -> String {
    let password = password.map(|password| format!(":{password}@")).unwrap_or_default();
    let hosts: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let hosts = hosts.join(",");
    match certificates {
        None => format!("{scheme}://{password}{hosts}{path}"),
        Some(files) => {
            let scheme = secure(scheme);
            format!("{scheme}://{password}{hosts}{path}?ca_file={}", files.ca.display())
        }
    }
}

/// The variant of the scheme with TLS.
fn secure(scheme: &str) -> String {
    match scheme.strip_prefix("redis") {
        Some(rest) => format!("rediss{rest}"),
        None => format!("{scheme}s"),
    }
}

/// Empties a server. False when it does not reply, is not a master, or still has clients; those whose connections have
/// one of these names are not counted.
pub fn renew(server: &Redis, servants: &[&str]) -> bool {
    let Ok(mut client) = server.try_connect() else { return false };
    let until = Instant::now() + GOING;
    loop {
        let Ok(Value::Text(clients)) = client.try_command(&["CLIENT", "LIST"]) else { return false };
        if !clients.lines().any(|line| is_user(line, servants)) {
            break;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    let role = client.try_command(&["ROLE"]);
    let is_master =
        matches!(&role, Ok(Value::List(parts)) if parts.first() == Some(&Value::Text("master".into())));
    is_master && client.try_command(&["FLUSHALL"]).is_ok_and(|answer| answer == Value::Text("OK".into()))
}

/// Whether a line of CLIENT LIST describes a client other than this test, a server, or one of the servants.
fn is_user(line: &str, servants: &[&str]) -> bool {
    let field = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)).unwrap_or_default();
    let is_server = field("flags=").contains(['S', 'M']);
    // The last is a connection that a node of a cluster keeps open for a while after it has migrated keys to this one.
    let is_servant = servants.iter().any(|name| field("name=").starts_with(name))
        || ["client|list", "client", "restore-asking", "restore"].contains(&field("cmd="));
    !is_server && !is_servant
}
