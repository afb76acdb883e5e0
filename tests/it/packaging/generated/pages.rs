//! Man pages: committed as they are generated, part of the binary, and rendered without warnings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::dlock::BINARY;
use crate::support::place::Place;
use crate::support::probe::example;
use crate::support::pty::Terminal;
use crate::support::running::Exit;

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Files by their names.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(directory).unwrap().map(Result::unwrap);
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap();
    entries.map(|entry| (entry.file_name().into_string().unwrap(), read(entry.path()))).collect()
}

/// The committed pages as this binary prints them, in a new directory.
fn written() -> (Place, PathBuf) {
    let place = Place::new();
    let directory = place.path("pages");
    std::fs::create_dir(&directory).unwrap();
    for file in files(&repository("man")).keys() {
        let output = place.bare().args(["man", file]).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{file}");
        std::fs::write(directory.join(file), &output.stdout).unwrap();
    }
    (place, directory)
}

/// The output of a program, on both streams; the program must be installed.
fn printed(program: &str, package: &str, arguments: &[&str], page: &Path) -> (Option<i32>, String, String) {
    let output = Command::new(program)
        .args(arguments)
        .arg(page)
        .env("LC_ALL", "C.UTF-8")
        .env("MANWIDTH", "80")
        .env("MAN_KEEP_FORMATTING", "")
        .env_remove("MANOPT")
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}: apt-get install {package}"));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A page as a reader sees it at 80 columns.
fn rendered(page: &Path) -> String {
    let (status, text, errors) = printed("man", "man-db", &["--warnings", "-E", "UTF-8", "-l"], page);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{}", page.display());
    text
}

#[test]
fn the_committed_man_pages_match_the_commands_and_their_texts() {
    let (place, directory) = written();
    let status = Command::new(example("manual")).arg(place.path("generated")).status().unwrap();
    assert!(status.success(), "{status}");
    let generated = files(&place.path("generated"));
    for (what, pages) in [("man/", files(&repository("man"))), ("dlock man", files(&directory))] {
        let names = |files: &BTreeMap<String, String>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&pages), names(&generated), "{what} has drifted: run packaging/generate.sh");
        for (name, text) in &generated {
            assert!(pages[name] == *text, "{what}: {name} has drifted: run packaging/generate.sh");
        }
    }
}

#[test]
fn a_page_is_named_by_its_command_or_topic() {
    let place = Place::new();
    for (arguments, file) in [
        (&["man"][..], "dlock.1"),
        (&["man", "run"], "dlock-run.1"),
        (&["man", "dlock-run"], "dlock-run.1"),
        (&["man", "redis"], "dlock-redis.7"),
        (&["man", "config"], "dlock-config.1"),
        (&["man", "config.5"], "dlock-config.5"),
        (&["man", "config", "show"], "dlock-config.1"),
    ] {
        let page = std::fs::read_to_string(repository("man").join(file)).unwrap();
        let output = place.bare().args(arguments).output();
        assert_eq!(output.outcome(), (Exit::Code(0), page.as_str(), ""), "{arguments:?}");
    }
}

#[test]
fn an_unknown_page_is_rejected() {
    let message = "dlock: no man page \"ru\": there are acquire, break, check, completions, config, doctor, freeze, history, man, \
                   release, renew, run, status, thaw, backends, ci, config.5, consul, dynamodb, etcd, fencing, file, kubernetes, memcached, migration, mysql, postgres, recipes, redis, s3, zookeeper\n";
    let place = Place::new();
    let output = place.bare().args(["man", "ru"]).output();
    assert_eq!(output.outcome(), (Exit::Code(64), "", message));
    for words in ["config nonsense", "redis cluster", "run x"] {
        let output = place.bare().arg("man").args(words.split(' ')).output();
        let beginning = format!("dlock: no man page \"{words}\": there are ");
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{words}");
        assert!(output.stderr.starts_with(&beginning), "{}", output.stderr);
    }
}

#[test]
fn the_pages_render_without_warnings() {
    let (_place, directory) = written();
    for name in files(&directory).keys() {
        let page = directory.join(name);
        let clean = (Some(0), String::new(), String::new());
        assert_eq!(printed("mandoc", "mandoc", &["-T", "lint"], &page), clean, "{name}");
        let (status, _, errors) = printed("groff", "groff-base", &["-man", "-Tutf8", "-ww"], &page);
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{name}");
        let text = rendered(&page);
        let wide: Vec<&str> = text.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{name}: wider than 80 columns: {wide:#?}");
    }
}

#[test]
fn every_page_begins_with_three_examples() {
    let (_place, directory) = written();
    for name in files(&directory).keys() {
        let page = rendered(&directory.join(name));
        let is_title =
            |line: &&str| line.starts_with(|first: char| first.is_ascii_uppercase()) && !line.contains('(');
        let titles: Vec<&str> = page.lines().filter(is_title).collect();
        let before = if name.ends_with(".1") { &["NAME", "SYNOPSIS"][..] } else { &["NAME"] };
        assert!(titles.starts_with(&[before, &["EXAMPLES"]].concat()), "{name}: {titles:?}");
        let examples = page.split_once("\nEXAMPLES\n").unwrap().1.split("\nDESCRIPTION\n").next().unwrap();
        assert!(examples.matches("dlock").count() >= 3, "{name}: {examples}");
    }
}

/// What repeats is described once.
#[test]
fn only_the_page_of_dlock_describes_the_options_of_every_command() {
    let (_place, directory) = written();
    for name in files(&directory).keys().filter(|name| name.ends_with(".1")) {
        let page = rendered(&directory.join(name));
        let is_described = page.lines().any(|line| line.trim_start().starts_with("-b, --backend URL"));
        assert_eq!(is_described, name == "dlock.1", "{name}");
    }
}

/// What a terminal shows of `dlock man fencing`, with these variables.
fn on_a_terminal(place: &Place, variables: &[&str]) -> (Exit, String) {
    let mut command = Command::new("env");
    command
        .args(["-u", "MANPAGER", "TERM=xterm", "PAGER=cat"])
        .args(variables)
        .args([BINARY, "man", "fencing"]);
    let mut terminal = Terminal::start(place, command);
    (terminal.wait(), terminal.screen().to_owned())
}

#[test]
fn dlock_man_shows_the_page_on_a_terminal() {
    let place = Place::new();
    for pager in ["MANPAGER=cat", "PAGER=cat"] {
        let (exit, shown) = on_a_terminal(&place, &[pager]);
        assert_eq!(exit, Exit::Code(0), "{pager}: {shown}");
        assert!(shown.contains("dlock-fencing - how") && !shown.contains(".SH"), "{pager}: {shown}");
    }
}

#[test]
fn dlock_man_shows_plain_text_on_a_dumb_terminal() {
    let (exit, shown) = on_a_terminal(&Place::new(), &["TERM=dumb", "MANPAGER=false"]);
    assert_eq!(exit, Exit::Code(0), "{shown}");
    assert!(shown.contains("dlock-fencing - how") && !shown.contains(".SH"), "{shown}");
    let is_control = |c: char| c.is_control() && c != '\n' && c != '\r';
    assert!(!shown.contains(is_control), "{shown:?}");
}

#[test]
fn dlock_man_says_what_to_do_without_man() {
    let message = "dlock: man: command not found: install man-db or mandoc, or print the page itself with dlock man \
                   fencing.7 | cat; dlock --help needs neither\n";
    for terminal in ["TERM=xterm", "TERM=dumb"] {
        let shown = on_a_terminal(&Place::new(), &[terminal, "PATH=/nowhere"]);
        assert_eq!(shown, (Exit::Code(70), message.to_owned()), "{terminal}");
    }
}

/// A reader does not scroll through four screens.
#[test]
fn the_help_of_run_has_at_most_120_lines() {
    let help = Place::new().bare().args(["run", "--help"]).output().stdout;
    assert!(help.lines().count() <= 120, "{} lines:\n{help}", help.lines().count());
}

/// The words before the two columns of a help text that start with a dash.
fn options_in(help: &str) -> Vec<&str> {
    let lines = help.lines().filter(|line| line.trim_start().starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ',', '[', ']']));
    let words = words.map(|word| word.trim_end_matches(['.', ':']));
    words.filter(|word| word.starts_with('-') && word.len() > 1 && *word != "--").collect()
}

#[test]
fn each_command_has_a_page_that_names_all_its_options_and_sections() {
    let (_place, directory) = written();
    let run = |arguments: &[&str]| {
        String::from_utf8(Command::new(BINARY).args(arguments).output().unwrap().stdout).unwrap()
    };
    let help = run(&["--help"]);
    let commands = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<&str> = commands.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"run") && commands.contains(&"man"), "{commands:?}");
    let overview = rendered(&directory.join("dlock.1"));
    for command in commands {
        assert!(overview.contains(&format!("dlock-{command}(1)")), "{command}");
        let page = rendered(&directory.join(format!("dlock-{command}.1")));
        let options = options_in(&page);
        let help = run(&[command, "--help"]);
        let head = help.split("\nExamples:").next().unwrap();
        for option in options_in(head) {
            assert!(options.contains(&option), "dlock-{command}.1 does not name {option}");
        }
        for section in ["EXAMPLES", "EXIT STATUS", "ENVIRONMENT", "FILES", "SEE ALSO"] {
            assert!(page.lines().any(|line| line == section), "dlock-{command}.1 has no {section}");
        }
    }
}

/// The rights that the page gives to a user of Redis suffice, and cause no message.
#[test]
fn the_redis_user_of_the_page_has_the_rights_of_a_run() {
    use crate::support::redis::Redis;
    let (_place, directory) = written();
    let page = rendered(&directory.join("dlock-redis.7"));
    let redis = Redis::start();
    let mut commands: Vec<Vec<&str>> = Vec::new();
    for line in page.lines().map(str::trim_start) {
        match line.starts_with("ACL SETUSER") {
            true => commands.push(line.split_whitespace().collect()),
            false if line.starts_with('+') => commands.last_mut().unwrap().extend(line.split_whitespace()),
            false => {}
        }
    }
    for words in &commands {
        assert_eq!(redis.command(words), crate::support::resp::Value::Text("OK".into()), "{words:?}");
    }
    // They are those that others try one by one.
    let rules = |word: &&str| word.starts_with(['+', '~', '&']);
    let mut here: Vec<&str> = commands.concat().into_iter().filter(rules).collect();
    let mut there = crate::stores::redis::minimal_rights::rules().concat();
    here.sort_unstable();
    there.sort_unstable();
    assert_eq!(here, there);
    let url = format!("redis://dlock:PASSWORD@127.0.0.1:{}", redis.port());
    let place = Place::new();
    let run = || place.run().no_backend().env("DLOCK_BACKEND", &url);
    let mut holder = run().stdin(std::process::Stdio::piped()).sh("echo ready; exec cat").spawn();
    holder.await_ready();
    let mut waiter = run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    let names = place.bare().args(["__complete", "=", "dlock", "run"]).env("DLOCK_BACKEND", &url).output();
    assert_eq!(names.outcome(), (Exit::Code(0), "values\nx\tlock\n", ""));
    drop(holder.take_stdin());
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    assert!(!output.stderr.contains("right"), "{}", output.stderr);
}
