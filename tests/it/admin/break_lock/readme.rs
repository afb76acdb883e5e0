//! The example of `dlock break` in README.md matches the real output.

use super::{host, user, without_times};
use crate::packaging::documents::{Sandbox, blocks};
use crate::support::SOON;
use crate::support::pty::Terminal;
use crate::support::running::Exit;
use crate::support::wait::{eventually, until};
use nix::sys::termios::LocalFlags;
use std::process::Stdio;

#[test]
fn the_break_example_of_the_readme_matches_the_output() {
    let [block] = blocks("console").try_into().ok().expect("one break");
    let (command, shown) = block.lines.split_first().expect("a command");
    let command = command.strip_prefix("$ ").expect("a command");
    let sandbox = Sandbox::new();
    let stderr = std::fs::File::create(sandbox.place.path("stderr")).unwrap();
    let mut holder = sandbox.shell();
    let run = sandbox.replace("exec dlock run -b redis://redis.example.com nightly -- ./backup.sh");
    let mut holder = holder.args(["-c", &run]).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
    until(SOON, "the backup", || sandbox.place.path("started").exists());

    let mut shell = sandbox.shell();
    shell.args(["-c", &sandbox.replace(command)]);
    let mut terminal = Terminal::start(&sandbox.place, shell);
    terminal.set_local(LocalFlags::ECHO, true);
    let mut printed = terminal.expect("[y/N] ");
    terminal.type_keys("y\n");
    printed += "[y/N] ";
    printed += &terminal.expect(": that hold has ended\n");
    printed += ": that hold has ended";
    assert_eq!(terminal.wait(), Exit::Code(0));
    // The reader has another server and another host, and waits longer.
    let server = sandbox.replace("redis://redis.example.com");
    let printed = printed.replace(&server, "redis://redis.example.com:6379");
    let shown = shown.join("\n").replace("web-3", &host()).replace(", root,", &format!(", {},", user()));
    let normal = |text: &str| {
        let (before, after) = text.split_once("fencing token ").expect("a fencing token");
        let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
        without_times(&format!("{before}fencing token N{rest}"))
    };
    assert_eq!(normal(&printed), normal(&shown));

    let status = eventually(SOON, "the end of the holder", || holder.try_wait().unwrap());
    assert_eq!(status.code(), Some(76));
    let said = sandbox.place.read("stderr");
    assert!(
        said.contains(&format!("the lock was broken by {}@{}: hangs, see #4711; ", user(), host())),
        "{said}"
    );
}
