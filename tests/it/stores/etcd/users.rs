//! Users, their rights, and the tokens of their sessions.

use crate::support::dlock::Dlock;
use crate::support::etcd::{Etcd, Plan};
use crate::support::place::Place;
use crate::support::running::Exit;
use std::process::Command;
use std::time::Duration;

/// An etcd with the user that `dlock doctor --policy` describes.
pub fn with_user() -> Etcd {
    let etcd = Etcd::start_with(Plan { args: vec!["--auth-token-ttl=1".to_owned()], ..Plan::default() });
    add_users(&etcd, &[("dlock", etcd.url())]);
    etcd
}

/// Adds each user by what `dlock doctor --policy` prints for a URL, with the password `secret`.
fn add_users(etcd: &Etcd, users: &[(&str, String)]) {
    let mut commands = String::new();
    for (user, url) in users {
        let policy = Place::new().bare().args(["doctor", "-q", "--policy", "-b", url]);
        let policy = policy.env("ETCDCTL_USER", format!("{user}:secret")).output();
        assert_eq!(policy.exit, Exit::Code(0), "{}", policy.stderr);
        let with_password = format!("user add {user}:secret");
        commands += &policy.stdout.replace(&format!("user add {user}"), &with_password);
    }
    require_login(etcd, &commands);
}

/// Runs these commands, each on a line, and requires a login from then on.
pub fn require_login(etcd: &Etcd, commands: &str) {
    let root = "etcdctl user add root:r; etcdctl user grant-role root root; etcdctl auth enable";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-ec", &format!("{commands}{root}")]);
    let output = shell.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", etcd.hosts()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The policy of the second user gives the first one nothing.
#[test]
fn two_users_have_rights_of_their_own() {
    let etcd = Etcd::start();
    let url = |prefix: &str| format!("etcd://{}?prefix=/{prefix}/", etcd.hosts());
    add_users(&etcd, &[("app", url("a")), ("web", url("b"))]);
    for (user, own, other) in [("app", "a", "b"), ("web", "b", "a")] {
        let run = |prefix: &str| Dlock::run().backend(url(prefix)).sh("echo ran");
        let run = |prefix: &str| run(prefix).env("ETCDCTL_USER", format!("{user}:secret")).output();
        assert_eq!(run(own).outcome(), (Exit::Code(0), "ran\n", ""), "{user}");
        assert_eq!(run(other).exit, Exit::Code(77), "{user}");
    }
}

#[test]
fn the_user_of_the_policy_has_the_rights_of_a_run() {
    let etcd = with_user();
    let run = |url: &str| Dlock::run().backend(url).env("ETCDCTL_USER", "dlock:secret").sh("echo ran");
    let output = run(&etcd.url()).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let doctor = Place::new()
        .bare()
        .args(["doctor", "-b"])
        .arg(etcd.url())
        .env("ETCDCTL_USER", "dlock:secret")
        .output();
    assert_eq!(doctor.exit, Exit::Code(0), "{}", doctor.stdout);
    let refused = run(&format!("{}?prefix=/other/", etcd.url())).output();
    let message = format!(
        "dlock: x on etcd://dlock@{}?prefix=/other/: a right is missing (permission denied): see dlock doctor --policy; the command did not run\n",
        etcd.hosts()
    );
    assert_eq!(refused.outcome(), (Exit::Code(77), "", message.as_str()));
}

/// F35: the token lasts 1 s after its last use, and a renewal comes every 3 s.
#[test]
fn a_run_survives_the_end_of_its_token() {
    let etcd = with_user();
    let run = Dlock::run().backend(etcd.url()).args(["--ttl", "9s"]).env("ETCDCTL_USER", "dlock:secret");
    let output = run.sh("sleep 12; echo ran").spawn().wait_within(Duration::from_secs(30));
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}
