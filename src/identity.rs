//! Who we are to others: host, process, user.

use crate::lock::Identity;

/// The login name of the effective user, or its number where the user database has none.
pub fn user() -> String {
    let uid = nix::unistd::geteuid();
    match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

/// What this process says of itself while it holds a lock for `command`.
pub fn of_this_process(command: String, note: Option<String>) -> Identity {
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let pid = std::process::id();
    Identity {
        host,
        pid,
        user: user(),
        command,
        note,
        start: crate::child::start_of(pid as i32).unwrap_or(0),
        boot: boot(),
    }
}

/// The boot that this host is in (`random(4)`, `boot_id`); empty where there is no such thing.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}
