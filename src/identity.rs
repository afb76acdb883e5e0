//! The identity of this process for others (host, process, user), and checks of the identities that a store reports.
//!
//! Every client that may write to the store can write any pid into it. Nothing is done to a process, or because of it,
//! unless the kernel confirms that it is a dlock that was started for this very lock.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use crate::child::sys;
use crate::clock::boot_id;
use crate::lock::{Identity, LockName};
use crate::name_services;

/// Returns the login name of the effective user, or its number if the user database has none.
pub fn user() -> String {
    let uid = nix::unistd::geteuid();
    // Nearly every user is in this file, and reading it takes a tenth of the time of a query to all of NSS.
    let local =
        std::fs::read_to_string("/etc/passwd").ok().and_then(|passwd| login_name(&passwd, uid.as_raw()));
    local.unwrap_or_else(|| name_services::user(uid).map_or_else(|| uid.to_string(), |user| user.name))
}

/// Returns the first field of the line with this number in the third (`passwd(5)`).
fn login_name(passwd: &str, uid: u32) -> Option<String> {
    let mut entries = passwd.lines().map(|line| line.split(':'));
    entries.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Returns the name of this host.
pub fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the identity of this process while it holds a lock for `command`.
pub fn of_this_process(command: String, note: Option<String>) -> Identity {
    let pid = std::process::id();
    Identity {
        host: host(),
        pid,
        user: user(),
        command,
        note,
        start: crate::child::start_of(pid as i32).unwrap_or(0),
        boot: boot_id(),
        pid_ns: pid_namespace(),
        url: job_url(),
        ..Identity::default()
    }
}

/// A longer text is not a URL, and would be stored with every lock.
const LONGEST_URL: usize = 1000;

/// Returns the URL of the CI job that this process is part of, from the variables of GitHub and Forgejo Actions,
/// GitLab, Buildkite and Jenkins.
fn job_url() -> Option<String> {
    let variable = |name: &str| crate::input::variable(name)?.into_string().ok();
    let actions = || {
        let run = variable("GITHUB_RUN_ID")?;
        let (server, repository) = (variable("GITHUB_SERVER_URL")?, variable("GITHUB_REPOSITORY")?);
        Some(format!("{}/{repository}/actions/runs/{run}", server.trim_end_matches('/')))
    };
    let others = ["CI_JOB_URL", "BUILDKITE_BUILD_URL", "BUILD_URL"];
    let url = actions().or_else(|| others.into_iter().find_map(variable));
    url.filter(|url| url.len() <= LONGEST_URL)
}

/// Returns whether the process exists, on this boot of this host, and is not another one with the same pid.
pub fn is_alive(pid: u32, start: u64, boot: &str) -> bool {
    i32::try_from(pid).is_ok_and(|pid| crate::child::start_of(pid) == Some(start)) && boot == boot_id()
}

/// Returns the id of this process's PID namespace; 0 if unknown.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Returns whether the process is alive in this PID namespace, and a dlock for this lock. Containers of one boot may
/// have processes with the same pid and start tick, each in a separate namespace.
fn is_dlock_for(identity: &Identity, name: &LockName) -> bool {
    (identity.pid_ns == 0 || identity.pid_ns == pid_namespace())
        && is_alive(identity.pid, identity.start, &identity.boot)
        && runs_dlock(identity.pid)
        && has_argument(identity.pid, name)
}

/// Returns whether a process runs this program. The program of another user's process cannot be read, and an update may
/// have replaced it: then its name counts, which users can choose only for their own processes.
fn runs_dlock(pid: u32) -> bool {
    let program = |pid: &str| fs::metadata(format!("/proc/{pid}/exe")).map(|file| (file.dev(), file.ino()));
    let pid = pid.to_string();
    if let (Ok(program), Ok(ours)) = (program(&pid), program("self"))
        && program == ours
    {
        return true;
    }
    let name_of = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name_of(&pid);
    name.trim_end() == "dlock" || !name.is_empty() && name == name_of("self")
}

/// Returns whether the name is among the arguments of the process, before those of its command.
fn has_argument(pid: u32, name: &LockName) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    names_lock(&arguments, name.as_str().as_bytes())
}

/// Returns whether the arguments of a process, as in `/proc/PID/cmdline`, name this lock before those of its command: as
/// NAME, in the list of `--any`, or possibly in a pool.
fn names_lock(arguments: &[u8], name: &[u8]) -> bool {
    const ANY: &[u8] = b"--any";
    let mut own = arguments.split(|byte| *byte == 0).skip(1).take_while(|argument| *argument != b"--");
    let mut is_list = false;
    own.any(|argument| {
        let list = match argument.strip_prefix(ANY).and_then(|rest| rest.strip_prefix(b"=")) {
            Some(list) => Some(list),
            None => is_list.then_some(argument),
        };
        is_list = argument == ANY;
        // What is in a pool is known to its dlock only.
        let is_in =
            |list: &[u8]| !list.contains(&b',') || list.split(|byte| *byte == b',').any(|one| one == name);
        argument == name || list.is_some_and(is_in)
    })
}

/// Makes a dlock on this host that holds this lock check it at once, even if it was stopped: it queries its store
/// whenever it is continued. A dlock on another host queries its store in time by itself.
pub fn wake(identity: &Identity, name: &LockName) {
    let Ok(pid) = i32::try_from(identity.pid) else { return };
    let Ok(process) = sys::pidfd_open(pid) else { return };
    // The pidfd pins the process, which is checked only now.
    if is_dlock_for(identity, name) {
        let _ = sys::pidfd_send_signal(process.as_fd(), libc::SIGCONT);
    }
}

/// Returns whether this process runs below the dlock that holds the lock: waiting for it to end would never end.
pub fn is_our_ancestor(identity: &Identity, name: &LockName) -> bool {
    if identity.pid == std::process::id() || !is_dlock_for(identity, name) {
        return false;
    }
    let mut pid = std::process::id() as i32;
    while let Some(parent) = crate::child::parent_of(pid).filter(|parent| *parent > 0) {
        if u32::try_from(parent) == Ok(identity.pid) {
            return true;
        }
        pid = parent;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn login_names_are_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\n+::::::\nweb:x:33:33::/var/www:/bin/false\n";
        assert_eq!(login_name(passwd, 33).as_deref(), Some("web"));
        assert_eq!(login_name(passwd, 34), None);
    }

    #[test]
    fn arguments_name_a_lock_alone_or_in_a_list() {
        for (line, expected) in [
            ("dlock run a -- true", true),
            ("dlock run b -- a", false),
            ("dlock run --any b,a -- true", true),
            ("dlock run --any=b,a -- true", true),
            ("dlock run --any b,aa -- true", false),
            ("dlock run --note b,a b -- true", false),
            ("dlock run --any pool -- true", true),
            ("dlock run b -- true --any pool", false),
        ] {
            assert_eq!(names_lock(line.replace(' ', "\0").as_bytes(), b"a"), expected, "{line}");
        }
    }
}
