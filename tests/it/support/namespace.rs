//! Network namespaces: networks that no other test sees.

use super::server::starter;
use nix::sched::{CloneFlags, setns, unshare};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::panic::resume_unwind;
use std::process::Command;

/// A network namespace. It exists as long as this value, or a process in it.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Creates one without any connection, and with a loopback device.
    ///
    /// # Panics
    /// Without the rights of root.
    pub fn new() -> Self {
        // Servers that are started while a test is in a namespace are not all to be there.
        starter();
        // Each thread has a network namespace of its own: that of the test stays as it is.
        let create = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("it takes root");
            File::open("/proc/thread-self/ns/net").expect("a namespace")
        };
        let namespace = Self(std::thread::spawn(create).join().expect("a namespace"));
        namespace.sh("ip link set lo up");
        namespace
    }

    /// Its path, valid while this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// The command prefix that runs a program in it.
    pub fn prefix(&self) -> [String; 2] {
        prefix(&self.path())
    }

    /// Runs a text for the shell in it, which must succeed.
    #[track_caller]
    pub fn sh(&self, text: &str) {
        sh(&self.path(), text);
    }

    /// Calls a function whose sockets, and child processes, are in this network.
    pub fn enter<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).expect("it takes root");
            act()
        };
        std::thread::scope(|scope| scope.spawn(enter).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// The path of the network namespace of a process.
pub fn of(pid: u32) -> String {
    format!("/proc/{pid}/ns/net")
}

/// The command prefix that runs a program in the network namespace with this path.
pub fn prefix(path: &str) -> [String; 2] {
    ["nsenter".to_owned(), format!("--net={path}")]
}

/// Runs a text for the shell in the network namespace with this path. It must succeed.
#[track_caller]
pub fn sh(path: &str, text: &str) {
    let [program, namespace] = prefix(path);
    let output = Command::new(program).args([&namespace, "sh", "-c", text]).output().expect("nsenter");
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
}
