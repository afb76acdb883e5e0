//! The commands, crontab lines and configurations of the documents take effect.

use super::sandbox::{Sandbox, scripts_of, without_notice};
use super::{blocks, blocks_in};
use crate::support::resp::Value;

#[test]
fn every_command_succeeds_and_runs_its_scripts() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    for block in blocks("sh") {
        // Those of this page have separate tests.
        if block.place.contains("fencing.7.md") {
            continue;
        }
        match blocks_in(block.place.split(':').next().unwrap(), "toml").first() {
            Some(configuration) => sandbox.configure(&configuration.text()),
            None => sandbox.configure("backend = 'file:'"),
        }
        let text = block.text();
        let output = sandbox.run(&format!("set -e\n{text}"));
        let seen = (output.status.code(), sandbox.take_ran(), without_notice(&output.stderr));
        assert_eq!(seen, (Some(0), scripts_of(&text), String::new()), "{}: {text}", block.place);
        let printed = String::from_utf8_lossy(&output.stdout);
        if text.contains("I hold the lock") {
            assert!(printed.ends_with("I hold the lock\n"), "{printed}");
        }
        let with_key = printed.lines().filter(|line| *line == "1").count();
        assert_eq!(
            with_key,
            text.matches("redis.example.com?prefix=").count(),
            "the key is the exact one: {text}"
        );
    }
}

/// Every line of it is the source of the effective value.
#[test]
fn the_configurations_take_effect() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    let configurations = blocks("toml");
    assert_eq!(configurations.len(), 2, "that of README.md, and that of dlock-config(5)");
    for block in configurations {
        sandbox.configure(&block.text());
        // Each lock shows the pools that it is in.
        let output = sandbox.run("dlock config show nightly-db && dlock config show phone-1");
        let shown = String::from_utf8(output.stdout).unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
        for (index, line) in block.lines.iter().enumerate() {
            let Some((key, value)) = line.split_once(" = ") else { continue };
            let value = sandbox.replace(value.split(" #").next().unwrap().trim_end());
            let source = format!("config.toml:{}", index + 1);
            let is_shown = |shown: &&str| {
                let shown = shown.split(", [locks.").next().unwrap_or_default();
                shown.starts_with(key) && shown.contains(&format!("= {value} ")) && shown.ends_with(&source)
            };
            assert!(shown.lines().any(|line| is_shown(&line)), "{}: {line}: {shown}", block.place);
        }
    }
    let output = sandbox.run("dlock run nightly-db -- sh -c 'printenv DLOCK_HELD'");
    assert!(String::from_utf8_lossy(&output.stdout).contains("?prefix=jobs:"), "{output:?}");
}

#[test]
fn the_steps_hold_the_lock_from_the_first_to_the_last() {
    let sandbox = Sandbox::new();
    let blocks: Vec<_> =
        blocks("sh").into_iter().filter(|block| block.text().contains("dlock acquire")).collect();
    assert_eq!(blocks.len(), 2, "that of README.md, and that of dlock-ci(7)");
    for block in blocks {
        // Each script records whether the lock is held while it runs.
        let text = block.text().replace("./deploy.sh", "./held.sh").replace("./migrate.sh", "./held.sh");
        sandbox.place.script("held.sh", "#!/bin/sh\nredis-cli -u \"$PLAIN\" exists dlock:deploy >>held\n");
        let output = sandbox.run(&format!("set -e\n{text}"));
        let seen = (output.status.code(), without_notice(&output.stderr));
        assert_eq!(seen, (Some(0), String::new()), "{}", block.place);
        // And no token.
        assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{}", block.place);
        assert_eq!(sandbox.place.read("held"), "1\n1\n", "{}", block.place);
        let _ = std::fs::remove_file(sandbox.place.path("held"));
        let left = sandbox.plain.command(&["EXISTS", "dlock:deploy"]);
        assert_eq!(left, Value::Int(0), "{}", block.place);
    }
}

/// A message fills several lines of a page.
#[test]
fn the_messages_of_the_pages_are_those_of_dlock() {
    let sandbox = Sandbox::new();
    sandbox.plain.command(&["HSET", "myapp:billing", "an owner", "1"]);
    sandbox.plain.command(&["PEXPIRE", "myapp:billing", "50000"]);
    let output = sandbox.run("dlock run -b 'redis://redis.example.com?prefix=' myapp:billing -- true");
    let printed = String::from_utf8(output.stderr).unwrap();
    let here = format!("127.0.0.1:{}/0", sandbox.plain.port());
    let [block] = blocks("message").try_into().ok().expect("one message");
    let without_time = |text: &str| {
        let (before, rest) = text.split_once("another ").expect("the program");
        let (program, rest) = rest.split_once("for another ").expect("the time left");
        let (_seconds, after) = rest.split_once("s at most").expect("seconds");
        [before, program, after].concat()
    };
    let printed = printed.replace(&here, "redis:6379/0");
    let shown = without_time(&block.lines.join(" "));
    assert_eq!(without_time(printed.trim_end()), shown, "{}", block.place);
}

#[test]
fn a_crontab_line_runs_the_job_or_skips_it_silently() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    for line in blocks("crontab").into_iter().flat_map(|block| block.lines) {
        let fields: Vec<&str> = line.splitn(6, ' ').collect();
        let [minute, hour, day, month, weekday, command] = fields[..] else {
            panic!("not a crontab line: {line}")
        };
        for field in [minute, hour, day, month, weekday] {
            let is_number = |part: &str| part.parse::<u8>().is_ok();
            assert!(field == "*" || field.split(',').all(is_number), "{line}");
        }
        assert!(!command.contains('%'), "cron makes a line end of an unescaped %: {line}");

        let free = sandbox.run(command);
        let seen = (free.status.code(), sandbox.take_ran(), String::from_utf8(free.stderr).unwrap());
        assert_eq!(seen, (Some(0), scripts_of(command), String::new()), "{line}");

        sandbox.plain.command(&["SET", "dlock:nightly", "another host", "PX", "60000"]);
        let held = sandbox.run(command);
        let printed = String::from_utf8([held.stdout, held.stderr].concat()).unwrap();
        assert_eq!(
            (held.status.code(), sandbox.take_ran(), printed),
            (Some(0), String::new(), String::new()),
            "{line}"
        );
        sandbox.plain.command(&["DEL", "dlock:nightly"]);
        if command.contains("--once-per") {
            let done = sandbox.run(command);
            let printed = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
            let seen = (done.status.code(), sandbox.take_ran(), printed);
            assert_eq!(seen, (Some(0), String::new(), String::new()), "{line}");
        }
        sandbox.plain.command(&["DEL", "dlock#success:{dlock:nightly}"]);
    }
}
