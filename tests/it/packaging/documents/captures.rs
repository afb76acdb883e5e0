//! The captures of `dlock status` in the README match its output.

use super::{Sandbox, blocks};
use crate::support::SOON;
use crate::support::wait::until;
use std::process::Child;

/// A line of a table without the parts that differ between runs.
fn row(line: &str) -> Vec<String> {
    let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    cells.map(anything).collect()
}

/// Placeholders for variable parts, by their kind.
fn anything(cell: &str) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_duration = |text: &str| {
        let units = text.replace("ms", "s").replace(['d', 'h', 'm'], "s");
        units.ends_with('s') && units.split_terminator('s').all(is_number)
    };
    match cell {
        "root" => "USER".into(),
        _ if cell == user() => "USER".into(),
        _ if cell == host() || ["ci-7", "ci-8", "web-1", "web-2", "web-3"].contains(&cell) => "HOST".into(),
        _ if is_number(cell) => "NUMBER".into(),
        _ if is_duration(cell) => "DURATION".into(),
        _ if cell.len() == 19 && cell.split([' ', '-', ':']).all(is_number) => "TIME".into(),
        _ if cell.starts_with("held by ") => "held by WHO".into(),
        _ => match cell.strip_prefix("ended ").and_then(|rest| rest.strip_suffix(" ago")) {
            Some(age) if is_duration(age) => "ended DURATION ago".into(),
            _ => cell.to_owned(),
        },
    }
}

fn host() -> String {
    nix::unistd::gethostname().unwrap().into_string().unwrap()
}

fn user() -> String {
    nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name
}

/// Starts the processes in the captures, in the order of their lines, and waits until they are ready.
fn play(sandbox: &Sandbox) -> Fixture {
    for script in ["deploy.sh", "render.sh"] {
        sandbox.place.script(script, "#!/bin/sh\nexec sleep 1000\n");
    }
    sandbox
        .place
        .script("backup.sh", "#!/bin/sh\ntouch started; until [ -e go ]; do sleep 0.05; done; exit $1\n");
    let url = sandbox.plain.url();
    let dlock = |job: Option<&str>, arguments: &str| {
        let mut shell = sandbox.shell();
        shell.env("DLOCK_BACKEND", &url);
        if let Some(job) = job {
            shell.env("GITHUB_SERVER_URL", "https://github.com").env("GITHUB_REPOSITORY", "acme/shop");
            shell.env("GITHUB_RUN_ID", job);
        }
        shell.args(["-c", &format!("exec dlock run -q {arguments}")]).spawn().unwrap()
    };
    let shows = |text: &str, times: usize| {
        until(SOON, text, || {
            let output =
                sandbox.shell().env("DLOCK_BACKEND", &url).args(["-c", "dlock status"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).matches(text).count() == times
        });
    };
    // The outcomes of the backup.
    sandbox.place.write("go", "");
    assert!(dlock(None, "nightly -- ./backup.sh 0").wait().unwrap().success());
    for file in ["go", "started"] {
        std::fs::remove_file(sandbox.place.path(file)).unwrap();
    }
    let mut failing = dlock(None, "nightly -- ./backup.sh 1");
    until(SOON, "the backup", || sandbox.place.path("started").exists());
    assert_eq!(dlock(None, "nightly -- ./backup.sh 0").wait().unwrap().code(), Some(75));
    sandbox.place.write("go", "");
    assert_eq!(failing.wait().unwrap().code(), Some(1));
    // The current holders and waiters.
    let mut fixture = Fixture(Vec::new());
    for (job, arguments, script, times) in [
        (Some("1234"), "--note 'release 1.2' deploy -- ./deploy.sh", "deploy.sh", 1),
        (Some("1235"), "--wait 30m deploy -- ./deploy.sh", "deploy.sh", 2),
        (None, "--slots 3 render -- ./render.sh", "render.sh", 1),
        (None, "--slots 3 render -- ./render.sh", "render.sh", 2),
    ] {
        fixture.0.push(dlock(job, arguments));
        shows(script, times);
    }
    fixture
}

/// The holders and waiters, until this value is dropped.
struct Fixture(Vec<Child>);

impl Drop for Fixture {
    fn drop(&mut self) {
        for dlock in &mut self.0 {
            let _ = dlock.kill();
            let _ = dlock.wait();
        }
    }
}

/// The captures of `dlock status` match its output, except for hosts, processes, users, times and tokens.
#[test]
fn the_captures_of_the_readme_match_the_output() {
    let sandbox = Sandbox::new();
    let _fixture = play(&sandbox);
    let [now, history] = blocks("text").try_into().ok().expect("two captures");
    // The backup kept by --min-hold has run since the history was captured.
    for block in [history, now] {
        let command = block.lines[0].strip_prefix("$ ").expect("a command");
        if command == "dlock status" {
            let url = sandbox.plain.url();
            let output = sandbox.run(&format!("dlock run -b {url} --min-hold 50m nightly -- ./backup.sh 0"));
            assert!(output.status.success());
        }
        let mut shell = sandbox.shell();
        shell.env("DLOCK_BACKEND", sandbox.plain.url());
        let output = shell.args(["-c", command]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        let seen: Vec<_> = printed.lines().map(row).collect();
        let shown: Vec<_> = block.lines[1..].iter().map(|line| row(&sandbox.replace(line))).collect();
        assert_eq!(seen, shown, "{}: {command}", block.place);
    }
}
