//! Every command in README.md is run here literally.
//!
//! The fenced blocks are read from the file itself, so text and test cannot drift apart. What a reader has and
//! a test has not is replaced by the tables [`Sandbox::replacements`] and [`SCRIPTS`], and by nothing else.
//! A fence in a language that no test runs is an error.

use crate::stores::redis::fencing_recipes;
use crate::support::SOON;
use crate::support::cluster::Cluster;
use crate::support::dlock::BINARY;
use crate::support::masters::Masters;
use crate::support::place::Place;
use crate::support::pool::Lent;
use crate::support::process::Marker;
use crate::support::redis::{Options, Redis};
use crate::support::sentinels::Sentinels;
use crate::support::tls::Flaw;
use crate::support::wait::{eventually, until};
use std::cell::OnceCell;
use std::io::Write;
use std::process::{Command, Output, Stdio};

mod captures;

pub(crate) const README: &str = include_str!("../../../README.md");

/// The reader's cluster, which is started only where it is used.
const CLUSTER: &str = "redis-cluster://redis-1.example.com,redis-2.example.com,redis-3.example.com";

/// The reader's masters, which are started only where they are used.
const MASTERS: &str = "redlock://redis-1.example.com,redis-2.example.com,redis-3.example.com,redis-4.example.com,redis-5.example.com";

/// The reader's sentinels, which are started only where they are used.
const SENTINELS: &str = "redis-sentinel://redis-1.example.com,redis-2.example.com,redis-3.example.com/locks";

/// The reader's own programs. Each records that it ran, in the file `ran`.
const SCRIPTS: &[(&str, &str)] = &[
    // Waits for the file `go`, so that a test determines how long a backup takes.
    ("backup.sh", "touch started; until [ -e go ]; do sleep 0.01; done; echo backup complete"),
    ("billing.sh", "redis-cli -u \"$PLAIN\" exists myapp:billing"),
    ("deploy.sh", "echo deployed"),
    ("dump.sh", "echo dump"),
    ("migrate.sh", "echo migrated"),
    ("poll.sh", "echo polled"),
    ("reindex.sh", "echo reindexed"),
    ("render.sh", "test \"$DLOCK_SLOT\" -lt 3"),
    ("report.sh", "echo report"),
];

/// A fenced block: its language, the heading above it, its first line, and its text.
pub(crate) struct Block {
    pub(crate) language: &'static str,
    pub(crate) section: &'static str,
    line: usize,
    pub(crate) text: Vec<&'static str>,
}

fn blocks(language: &str) -> Vec<Block> {
    let mut blocks = all_blocks();
    blocks.retain(|block| block.language == language);
    assert!(!blocks.is_empty(), "README.md has no block of {language}");
    blocks
}

pub(crate) fn all_blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut section = "";
    let mut inside = false;
    for (index, line) in README.lines().enumerate() {
        match (line.strip_prefix("```"), inside) {
            (Some(language), false) => {
                blocks.push(Block { language, section, line: index + 1, text: Vec::new() });
                inside = true;
            }
            (Some(_), true) => inside = false,
            (None, true) => blocks.last_mut().expect("we are inside one").text.push(line),
            (None, false) if line.starts_with('#') => section = line.trim_start_matches('#').trim_start(),
            (None, false) => {}
        }
    }
    assert!(!inside, "README.md ends inside a block");
    blocks
}

/// A reader's machine: their scripts in the working directory, `dlock` in PATH, and their servers.
pub(crate) struct Sandbox {
    pub(crate) place: Place,
    plain: Redis,
    tls: Redis,
    with_users: Redis,
    masters: OnceCell<Lent<Masters>>,
    sentinels: OnceCell<Lent<Sentinels>>,
    cluster: OnceCell<Lent<Cluster>>,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let place = Place::new();
        std::fs::create_dir(place.path("bin")).unwrap();
        std::os::unix::fs::symlink(BINARY, place.path("bin/dlock")).unwrap();
        for (name, text) in SCRIPTS {
            place.script(name, &format!("#!/bin/sh\necho ./{name} >>ran\n{text}\n"));
        }
        place.write("redis.pass", "secret\n");
        let socket = place.arg("redis.sock");
        let user = ["--user", "dlock", "on", ">secret", "~*", "&*", "+@all"];
        Self {
            place,
            plain: Redis::start_with_args(&["--unixsocket", &socket]),
            tls: Redis::start_with(Options { tls: Some(Flaw::None), ..Options::default() }),
            with_users: Redis::start_with_args(&user),
            masters: OnceCell::new(),
            sentinels: OnceCell::new(),
            cluster: OnceCell::new(),
        }
    }

    /// A text of the README, and its replacement here. The first match is used.
    fn replacements(&self) -> Vec<(&'static str, String)> {
        let repository = env!("CARGO_MANIFEST_DIR");
        let here = |name: &str| self.place.path(name).display().to_string();
        let host = |server: &Redis| format!("127.0.0.1:{}", server.port());
        vec![
            // The reader's servers and files.
            ("dlock@redis.example.com", format!("dlock@{}", host(&self.with_users))),
            ("rediss://redis.example.com", format!("rediss://{}", host(&self.tls))),
            ("redis://redis.example.com", format!("redis://{}", host(&self.plain))),
            ("/etc/ssl/redis-ca.pem", self.tls.certificates().ca.display().to_string()),
            ("/etc/dlock/redis.pass", here("redis.pass")),
            ("/etc/dlock/me.pem", self.tls.certificates().client.display().to_string()),
            ("/etc/dlock/me.key", self.tls.certificates().client_key.display().to_string()),
            ("/run/redis/redis.sock", here("redis.sock")),
            ("/srv/locks", here("locks")),
            ("/var/lib/prometheus/node-exporter", here("home")),
            // This is the binary that cargo has just built.
            ("cargo run --release --", "dlock".into()),
            // It runs this very test; only that it can be started is checked here.
            ("tests/run.sh", format!("test -x {repository}/tests/run.sh")),
            // It takes minutes, and has a separate test.
            ("tests/interop.sh", format!("test -x {repository}/tests/interop.sh")),
            ("packaging/build.sh", format!("test -x {repository}/packaging/build.sh")),
            // Installing is a task of cargo; that there is a locked package to install is checked here.
            ("cargo install --locked --profile dist --path .", format!("test -f {repository}/Cargo.lock")),
        ]
    }

    pub(crate) fn replace(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if text.contains(MASTERS) {
            text = text.replace(MASTERS, &self.masters.get_or_init(Masters::lent).url());
        }
        if text.contains(SENTINELS) {
            text = text.replace(SENTINELS, &self.sentinels.get_or_init(Sentinels::lent).url());
        }
        if text.contains(CLUSTER) {
            text = text.replace(CLUSTER, &self.cluster.get_or_init(Cluster::lent).url());
        }
        for (shown, here) in self.replacements() {
            text = text.replace(shown, &here);
        }
        text
    }

    /// `/bin/sh` in the reader's directory, with little more environment than in cron.
    pub(crate) fn shell(&self) -> Command {
        let mut shell = Command::new("/bin/sh");
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", self.place.path("bin").display());
        shell.env_clear().env("PATH", path).env("HOME", self.place.home()).env("PLAIN", self.plain.url());
        shell.env(Marker::VARIABLE, self.place.marker().value());
        shell.current_dir(self.place.path(".")).stdin(Stdio::null());
        shell
    }

    pub(crate) fn run(&self, command: &str) -> Output {
        self.shell().args(["-c", &self.replace(command)]).output().unwrap()
    }

    /// Installs the configuration shown in a section, if there is one, as the user's.
    fn configure(&self, section: &str) {
        let file = self.place.home().join(".config/dlock/config.toml");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&file);
        let shown =
            all_blocks().into_iter().find(|block| (block.language, block.section) == ("toml", section));
        if let Some(block) = shown {
            std::fs::write(file, self.replace(&block.text.join("\n"))).unwrap();
        }
    }

    /// Which of the reader's scripts have run since the last call.
    pub(crate) fn take_ran(&self) -> String {
        let ran = self.place.read("ran");
        let _ = std::fs::remove_file(self.place.path("ran"));
        ran
    }
}

/// The script started by a command line, as it writes itself into `ran`.
pub(crate) fn script_of(command: &str) -> String {
    let script = command.split([' ', '\'', ')']).find(|word| word.starts_with("./"));
    script.map(|script| format!("{script}\n")).unwrap_or_default()
}

/// The output of a program without the notice that no backend is configured.
fn without_notice(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    text.lines().filter(|line| !line.starts_with("dlock: no backend configured: ")).collect()
}

#[test]
fn every_block_of_the_readme_is_run_by_a_test() {
    for block in all_blocks() {
        assert!(
            ["console", "sh", "text", "crontab", "yaml", "toml"].contains(&block.language),
            "README.md:{}: no test runs a block of {:?}",
            block.line,
            block.language
        );
    }
}

#[test]
fn every_command_of_the_readme_succeeds_and_runs_its_script() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    let blocks = blocks("sh").into_iter();
    // The skipped ones have separate tests.
    for block in blocks.filter(|block| ![fencing_recipes::SECTION, STEPS].contains(&block.section)) {
        sandbox.configure(block.section);
        for command in block.text {
            let output = sandbox.run(command);
            let seen = (output.status.code(), sandbox.take_ran(), without_notice(&output.stderr));
            assert_eq!(
                seen,
                (Some(0), script_of(command), String::new()),
                "README.md:{}: {command}",
                block.line
            );
            if command.contains("I hold the lock") {
                assert_eq!(String::from_utf8_lossy(&output.stdout), "I hold the lock\n");
            }
            if command.contains("prefix=") {
                assert_eq!(
                    String::from_utf8_lossy(&output.stdout),
                    "1\n",
                    "the key is the exact one: {command}"
                );
            }
        }
    }
}

/// Every line of it is the source of the effective value.
#[test]
fn the_configuration_of_the_readme_takes_effect() {
    let sandbox = Sandbox::new();
    let [block] = blocks("toml").try_into().ok().expect("one configuration");
    sandbox.configure(block.section);
    let output = sandbox.run("dlock config show nightly-db");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
    for (index, line) in block.text.iter().enumerate() {
        let Some((key, value)) = line.split_once(" = ") else { continue };
        let value = sandbox.replace(value.split(" #").next().unwrap().trim_end());
        let source = format!("config.toml:{}", index + 1);
        let is_shown = |shown: &&str| {
            shown.starts_with(key) && shown.contains(&format!("= {value} ")) && shown.ends_with(&source)
        };
        assert!(shown.lines().any(|line| is_shown(&line)), "{line}: {shown}");
    }
    sandbox.place.write("go", "");
    let output = sandbox.run("dlock run nightly-db -- sh -c 'printenv DLOCK_HELD'");
    assert!(String::from_utf8_lossy(&output.stdout).contains("?prefix=jobs:"), "{output:?}");
}

/// The heading of the section with several consecutive commands.
const STEPS: &str = "Hold a lock over several steps of a pipeline";

#[test]
fn the_steps_of_the_readme_hold_the_lock_from_the_first_to_the_last() {
    let sandbox = Sandbox::new();
    let blocks: Vec<_> = blocks("sh").into_iter().filter(|block| block.section == STEPS).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        // Each script records whether the lock is held while it runs.
        let text =
            block.text.join("\n").replace("./deploy.sh", "./held.sh").replace("./migrate.sh", "./held.sh");
        sandbox.place.script("held.sh", "#!/bin/sh\nredis-cli -u \"$PLAIN\" exists dlock:release >>held\n");
        let output = sandbox.run(&format!("set -e\n{text}"));
        let seen = (output.status.code(), without_notice(&output.stderr));
        assert_eq!(seen, (Some(0), String::new()), "README.md:{}", block.line);
        // And no token.
        let shown = if text.contains("./report.sh") { "report\n" } else { "" };
        assert_eq!(String::from_utf8_lossy(&output.stdout), shown, "README.md:{}", block.line);
        let expected = text.matches("./held.sh").count();
        assert_eq!(sandbox.place.read("held"), "1\n".repeat(expected), "README.md:{}", block.line);
        let _ = std::fs::remove_file(sandbox.place.path("held"));
        let left = sandbox.plain.command(&["EXISTS", "dlock:release"]);
        assert_eq!(left, crate::support::resp::Value::Int(0), "README.md:{}", block.line);
    }
}

/// Types the demo into a shell, line by line, waiting for the replies in the README.
#[test]
fn the_demo_of_the_readme_matches_the_output() {
    let sandbox = Sandbox::new();
    let mut blocks = blocks("console");
    // These have separate tests.
    let others = [crate::admin::break_lock::readme::SECTION, crate::admin::doctor::readme::SECTION];
    blocks.retain(|block| !others.contains(&block.section));
    let [block] = blocks.try_into().ok().expect("one demo");
    let screen = sandbox.place.path("screen");
    let file = std::fs::File::options().create(true).append(true).open(&screen).unwrap();
    let mut shell = sandbox.shell();
    shell.stdin(Stdio::piped()).stdout(file.try_clone().unwrap()).stderr(file);
    let mut shell = shell.spawn().unwrap();
    let mut keyboard = shell.stdin.take().unwrap();
    let mut expected = String::new();
    let mut lines = block.text.iter().peekable();
    while let Some(line) = lines.next() {
        let command = line
            .strip_prefix("$ ")
            .unwrap_or_else(|| panic!("README.md:{}: not a command: {line}", block.line));
        writeln!(keyboard, "{}", sandbox.replace(command)).unwrap();
        while let Some(answer) = lines.next_if(|line| !line.starts_with("$ ")) {
            expected += &format!("{}\n", anywhere(answer));
        }
        if command.ends_with('&') {
            until(SOON, "the first backup", || sandbox.place.path("started").exists());
        }
        if command.contains("--wait") {
            sandbox.place.write("go", "");
        }
        let seen = || {
            std::fs::read_to_string(&screen)
                .unwrap()
                .lines()
                .map(|line| anywhere(line) + "\n")
                .collect::<String>()
        };
        let complete = || seen().lines().count() >= expected.lines().count();
        until(SOON, &format!("an answer to {command:?}; so far: {}", seen()), complete);
        assert_eq!(seen(), expected, "README.md:{}: {command}", block.line);
    }
    drop(keyboard);
    assert!(eventually(SOON, "the end of the shell", || shell.try_wait().unwrap()).success());
}

/// A line about a holder with placeholders for host, pid, user and age.
fn anywhere(line: &str) -> String {
    let parts = || {
        let (lock, rest) = line.split_once(" is held by ")?;
        let (_host, rest) = rest.split_once(" (pid ")?;
        let (_pid, rest) = rest.split_once(", ")?;
        let (_user, rest) = rest.split_once(", ")?;
        let (command, rest) = rest.split_once(") for ")?;
        let (_age, rest) = rest.split_once("; ")?;
        Some(format!("{lock} is held by HOST (pid PID, USER, {command}) for AGE; {rest}"))
    };
    parts().unwrap_or_else(|| line.to_owned())
}

#[test]
fn the_crontab_line_of_the_readme_runs_the_job_or_skips_it_silently() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    for block in blocks("crontab") {
        for line in block.text {
            let fields: Vec<&str> = line.splitn(6, ' ').collect();
            let [minute, hour, day, month, weekday, command] = fields[..] else {
                panic!("not a crontab line: {line}")
            };
            for field in [minute, hour, day, month, weekday] {
                assert!(field == "*" || field.parse::<u8>().is_ok(), "{line}");
            }
            assert!(!command.contains('%'), "cron makes a line end of an unescaped %: {line}");

            let free = sandbox.run(command);
            let seen = (free.status.code(), sandbox.take_ran(), String::from_utf8(free.stderr).unwrap());
            assert_eq!(seen, (Some(0), script_of(command), String::new()), "{line}");

            sandbox.plain.command(&["SET", "dlock:nightly", "another host", "PX", "60000"]);
            let held = sandbox.run(command);
            let printed = String::from_utf8([held.stdout, held.stderr].concat()).unwrap();
            assert_eq!(
                (held.status.code(), sandbox.take_ran(), printed),
                (Some(0), String::new(), String::new())
            );
            sandbox.plain.command(&["DEL", "dlock:nightly"]);
        }
    }
}

/// Those of the action and of the template are run literally by `tests/pipelines.py`.
#[test]
fn the_ci_steps_of_the_readme_run() {
    let sandbox = Sandbox::new();
    let is_ours =
        |block: &Block| !block.text.iter().any(|line| line.contains("uses: ") || line.contains("extends: "));
    let steps: Vec<Block> = blocks("yaml").into_iter().filter(is_ours).collect();
    assert_eq!(steps.len(), 2, "a step of GitHub, and one of Buildkite");
    for block in steps {
        let mut shell = sandbox.shell();
        shell.env("CI", "true");
        let mut script = Vec::new();
        for line in &block.text {
            let Some((key, value)) = line.trim().trim_start_matches("- ").split_once(": ") else {
                // A line of the script, or a key with an object for its value.
                script.extend((!line.trim().ends_with(':')).then_some(line.trim()));
                continue;
            };
            match key {
                "command" => script.push(value),
                "name" | "run" => {}
                _ => drop(shell.env(key, sandbox.replace(value))),
            }
        }
        // As the usual runners do.
        let text = script.join("\n");
        let output = shell.args(["-e", "-c", &sandbox.replace(&text)]).output().unwrap();
        assert_eq!((output.status.code(), sandbox.take_ran()), (Some(0), script_of(&text)), "{text}");
        assert_ne!(script_of(&text), "", "README.md:{}: runs no script", block.line);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}

/// Text in code style in the README that looks like an option must be one.
#[test]
fn every_option_that_the_readme_names_exists() {
    let help: String = ["run", "acquire", "renew", "doctor", "status", "break"]
        .iter()
        .map(|command| Command::new(BINARY).args([command, "--help"]).output().unwrap().stdout)
        .map(|help| String::from_utf8(help).unwrap())
        .collect();
    let mut options: Vec<&str> = README
        .split(|c: char| c.is_whitespace() || "`'\"(),;|".contains(c))
        .filter(|word| {
            word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
        })
        // Those of other programs.
        .filter(|word| !["--release", "--locked", "--path", "--profile", "--help"].contains(word))
        .collect();
    options.sort_unstable();
    options.dedup();
    assert!(options.len() > 5, "{options:?}");
    let unknown: Vec<_> = options.iter().filter(|option| !help.contains(**option)).collect();
    assert!(unknown.is_empty(), "in no help: {unknown:?}");
}
