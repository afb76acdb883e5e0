//! dlock-migration(7): every dlock line in it is run here literally, and every line of `flock(1)`, which is available on
//! every Linux.

use super::blocks;
use super::sandbox::{Sandbox, scripts_of};
use std::process::{Child, Command, Stdio};

/// A block: the line of the other tool, and that of dlock.
struct Row {
    before: String,
    now: String,
}

impl Row {
    fn is_of_flock(&self) -> bool {
        self.before.starts_with("flock ") || self.before.starts_with("(flock ")
    }

    /// The lock file in the line of `flock`.
    fn file(&self) -> &str {
        let mut words = self.before.split([' ', '>']);
        words.find(|word| word.starts_with("/srv/locks/")).expect("a lock file")
    }

    fn gives_up(&self) -> bool {
        self.before.contains(" -n ")
    }
}

fn rows() -> Vec<Row> {
    let row = |block: super::Block| {
        let text = block.text();
        let (before, now) = text.split_once("\ndlock run ").unwrap_or_else(|| panic!("{}", block.place));
        Row { before: before.to_owned(), now: format!("dlock run {now}") }
    };
    blocks("migration").into_iter().map(row).collect()
}

/// Holds a lock file with `flock(1)` until it is dropped.
struct Held(Child);

impl Held {
    fn hold(sandbox: &Sandbox, file: &str) -> Self {
        let mut flock = Command::new("flock");
        flock
            .args([&sandbox.replace(file), "sh", "-c", "echo held; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut flock = flock.spawn().expect("flock can be started, package util-linux");
        let mut answer = [0; 5];
        std::io::Read::read_exact(flock.stdout.as_mut().unwrap(), &mut answer).expect("flock gets the lock");
        Self(flock)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn both_lines_of_a_row_run_the_same_script() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    let mut of_flock = 0;
    for row in rows() {
        let mut lines = vec![&row.now];
        if row.is_of_flock() {
            lines.push(&row.before);
            of_flock += 1;
        }
        for line in lines {
            let output = sandbox.run(line);
            let seen = (output.status.code(), sandbox.take_ran(), String::from_utf8(output.stderr).unwrap());
            assert_eq!(seen, (Some(0), scripts_of(&row.before), String::new()), "{line}");
        }
        assert_ne!(scripts_of(&row.before), "", "{}", row.before);
    }
    assert!(of_flock >= 7, "{of_flock} rows of flock");
}

#[test]
fn both_lines_of_a_row_give_up_while_flock_holds_the_file() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.is_of_flock() && row.gives_up()).collect();
    assert!(rows.len() >= 4, "{} rows", rows.len());
    for row in rows {
        let held = Held::hold(&sandbox, row.file());
        let chosen = row.now.contains(" -E 0 ");
        let of_flock = if row.before.contains("exit 75") { 75 } else { 1 };
        for (line, otherwise) in [(&row.before, of_flock), (&row.now, 75)] {
            let status = sandbox.run(line).status.code();
            let expected = if chosen { 0 } else { otherwise };
            assert_eq!((status, sandbox.take_ran()), (Some(expected), String::new()), "{line}");
        }
        drop(held);
    }
}

#[test]
fn the_line_for_etcdctl_lock_excludes_etcdctl() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    let row =
        rows().into_iter().find(|row| row.before.starts_with("etcdctl lock ")).expect("a row of etcdctl");
    let url = sandbox.replace("etcd://etcd-1,etcd-2,etcd-3");
    let endpoints = url.strip_prefix("etcd://").expect("a URL without options");
    let mut holder = Command::new("etcdctl");
    holder.env("ETCDCTL_API", "3").args(["--endpoints", endpoints, "lock", "nightly"]).stdout(Stdio::piped());
    let mut holder = holder.spawn().expect("etcdctl can be started, package etcd-client");
    // It prints its key when it has the lock.
    let mut key = [0; 8];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut key).expect("etcdctl gets the lock");
    assert_eq!(&key, b"nightly/");
    let status = sandbox.run(&row.now.replace("-w forever", "-n")).status.code();
    assert_eq!((status, sandbox.take_ran()), (Some(75), String::new()), "{}", row.now);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(holder.id() as i32), nix::sys::signal::SIGTERM)
        .unwrap();
    let output = sandbox.run(&row.now);
    assert_eq!((output.status.code(), sandbox.take_ran()), (Some(0), scripts_of(&row.now)), "{output:?}");
    holder.wait().unwrap();
}

/// The line is the same in README.md.
#[test]
fn a_script_locks_itself_and_runs_once() {
    let line = |path: &str| {
        let locks_itself = |block: &super::Block| block.text().contains("exec dlock run");
        let mut blocks = super::blocks_in(path, "sh").into_iter().filter(locks_itself);
        blocks.next().unwrap_or_else(|| panic!("no script that locks itself in {path}")).text()
    };
    let line = [line("README.md"), line("packaging/manual/pages/migration.7.md")];
    assert_eq!(line[0], line[1]);
    let sandbox = Sandbox::new();
    let script = format!(
        "#!/bin/sh\n{}\necho \"$*\" >>turns\n[ \"$1\" != again ] && ./lock-itself again\nexit 0\n",
        line[0]
    );
    sandbox.place.write("lock-itself", &script);
    let output = sandbox.run("chmod +x lock-itself; ./lock-itself one two");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    // Within its own hold it does not take the lock again.
    assert_eq!(sandbox.place.read("turns"), "one two\nagain\n");
    let held = sandbox.run("dlock run job -- env -u DLOCK_NAME -u DLOCK_HELD ./lock-itself three");
    assert_eq!(held.status.code(), Some(0), "{held:?}");
    assert_eq!(sandbox.place.read("turns"), "one two\nagain\n", "the lock was held");
}
