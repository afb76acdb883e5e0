//! Who we are to others: host, process, user; and whether others are who a store says they are.
//!
//! Whoever may write to the store can write any process number into it. Nothing is done to a process, or because of it,
//! unless the kernel says that it is a dlock that was started for this very lock.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use crate::child::sys;
use crate::clock::boot_id;
use crate::lock::{Identity, LockName};

/// The login name of the effective user, or its number where the user database has none.
pub fn user() -> String {
    let uid = nix::unistd::geteuid();
    // Nearly every user is in this file, and reading it takes a tenth of the time that asking all of NSS does.
    let local =
        std::fs::read_to_string("/etc/passwd").ok().and_then(|passwd| login_name(&passwd, uid.as_raw()));
    local.unwrap_or_else(|| match nix::unistd::User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    })
}

/// The first field of the line with this number in the third (`passwd(5)`).
fn login_name(passwd: &str, uid: u32) -> Option<String> {
    let mut entries = passwd.lines().map(|line| line.split(':'));
    entries.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// The name of this host.
pub fn host() -> String {
    nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// What this process says of itself while it holds a lock for `command`.
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
        url: job_page(&|name| crate::config::variable(name)?.into_string().ok()),
        unattended: false,
    }
}

/// A longer one is no address, and would be stored beside every lock.
const LONGEST_URL: usize = 1000;

/// The page of the CI job that we are part of, as GitHub and Forgejo Actions, GitLab, Buildkite and Jenkins tell it.
fn job_page(variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let actions = || {
        let run = variable("GITHUB_RUN_ID")?;
        let (server, repository) = (variable("GITHUB_SERVER_URL")?, variable("GITHUB_REPOSITORY")?);
        Some(format!("{}/{repository}/actions/runs/{run}", server.trim_end_matches('/')))
    };
    let others = ["CI_JOB_URL", "BUILDKITE_BUILD_URL", "BUILD_URL"];
    let page = actions().or_else(|| others.into_iter().find_map(variable));
    page.filter(|page| page.len() <= LONGEST_URL)
}

/// Whether the process is there, on this boot of this host, and is not another one with the same number.
pub fn lives(pid: u32, start: u64, boot: &str) -> bool {
    i32::try_from(pid).is_ok_and(|pid| crate::child::start_of(pid) == Some(start)) && boot == boot_id()
}

/// The number of our PID namespace; 0 where it cannot be known.
fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Whether the process is a living one of ours, and a dlock for this lock. Containers of one boot may have processes with
/// the same number and start tick, each in a namespace of its own.
fn is_dlock_for(identity: &Identity, name: &LockName) -> bool {
    (identity.pid_ns == 0 || identity.pid_ns == pid_namespace())
        && lives(identity.pid, identity.start, &identity.boot)
        && runs_dlock(identity.pid)
        && asked_for(identity.pid, name)
}

/// Whether a process runs our program. What program another user runs is not ours to see, and an update may have replaced
/// it: then its name counts, which others can choose for their own processes only.
fn runs_dlock(pid: u32) -> bool {
    let program = |pid: &str| fs::metadata(format!("/proc/{pid}/exe")).map(|file| (file.dev(), file.ino()));
    let pid = pid.to_string();
    if let (Ok(program), Ok(ours)) = (program(&pid), program("self"))
        && program == ours
    {
        return true;
    }
    let called = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let called_like = called(&pid);
    called_like.trim_end() == "dlock" || !called_like.is_empty() && called_like == called("self")
}

/// Whether the name is among the arguments of the process, before those of its command.
fn asked_for(pid: u32, name: &LockName) -> bool {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut own = arguments.split(|byte| *byte == 0).skip(1).take_while(|argument| *argument != b"--");
    own.any(|argument| argument == name.as_str().as_bytes())
}

/// Makes a dlock on this host that holds this lock check it at once, also one that was stopped: it asks its store whenever
/// it is continued. One on another host asks in time by itself.
pub fn wake(identity: &Identity, name: &LockName) {
    let Ok(pid) = i32::try_from(identity.pid) else { return };
    let Ok(process) = sys::pidfd_open(pid) else { return };
    // It is the right one if it still was when we had a hold of it.
    if is_dlock_for(identity, name) {
        let _ = sys::pidfd_send_signal(process.as_fd(), libc::SIGCONT);
    }
}

/// Whether we run below this dlock, which holds the lock: waiting for it to end would never end.
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
    fn the_page_of_a_ci_job_is_known() {
        let page = |variables: &[(&str, &str)]| {
            let value = |name: &str| variables.iter().find(|(known, _)| *known == name);
            job_page(&|name| value(name).map(|(_, value)| (*value).to_owned()))
        };
        let actions = [
            ("GITHUB_SERVER_URL", "https://github.com"),
            ("GITHUB_REPOSITORY", "o/r"),
            ("GITHUB_RUN_ID", "17"),
            ("CI_JOB_URL", "https://gitlab.com/1"),
        ];
        assert_eq!(page(&actions).as_deref(), Some("https://github.com/o/r/actions/runs/17"));
        assert_eq!(page(&actions[1..]).as_deref(), Some("https://gitlab.com/1"));
        assert_eq!(page(&actions[1..3]), None);
        for name in ["CI_JOB_URL", "BUILDKITE_BUILD_URL", "BUILD_URL"] {
            assert_eq!(page(&[(name, "https://ci/1")]).as_deref(), Some("https://ci/1"));
        }
        assert_eq!(page(&[("BUILD_URL", &"x".repeat(1001))]), None);
        assert_eq!(page(&[]), None);
    }

    #[test]
    fn login_names_are_found_by_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nbroken\n+::::::\nweb:x:33:33::/var/www:/bin/false\n";
        assert_eq!(login_name(passwd, 33).as_deref(), Some("web"));
        assert_eq!(login_name(passwd, 34), None);
    }
}
