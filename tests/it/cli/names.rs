//! Names as injection: whatever a name contains, it is one lock, and nothing else is touched.

use crate::acquire::refusal::{assert_usage, refused_with};
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

/// Names with a meaning elsewhere: in a shell, a path, a glob, a protocol, a hash tag, or for people, to whom two of
/// them look equal.
fn names() -> Vec<String> {
    let short = [
        "a",
        "A",
        "a ",
        " a",
        " ",
        "\u{e1}",
        "a\u{301}",
        "a/b",
        "a%2Fb",
        "a}b",
        "{}x",
        "{a}b",
        "{a}",
        "*",
        "?",
        "[a-z]",
        "a*",
        "../a",
        "../../../../../../tmp/a",
        "/etc/passwd",
        "a/../b",
        "./a",
        "...",
        "a\\b",
        "a:b",
        "a;b",
        "a'b",
        "a\"b",
        "$(touch t)",
        "`touch t`",
        "%s%n",
        "%00",
        "a.lock",
        "a.dlock",
        "$8 FLUSHALL",
        "\u{202e}a",
    ];
    let mut names: Vec<String> = short.map(str::to_owned).to_vec();
    names.extend(["/".repeat(200), "\u{1F512}".repeat(50)]);
    names
}

/// A run that holds a lock until its standard input is closed, after it has printed its name.
fn hold(store: &Store, name: &str) -> Running {
    let run = store.run_with_ttl("60s").stdin(Stdio::piped()).name(name);
    run.sh("printf '%s\\nready\\n' \"$DLOCK_NAME\"; exec cat").spawn()
}

/// Every name can be held together with all others, excludes only itself, and arrives unchanged.
fn every_name_is_one_lock(store: &Store) {
    let names = names();
    let mut holders: Vec<Running> = names.iter().map(|name| hold(store, name)).collect();
    for (holder, name) in holders.iter_mut().zip(&names) {
        assert_eq!(holder.await_stdout("ready\n"), format!("{name}\nready\n"));
    }
    for name in &names {
        let second = store.run_with_ttl("60s").name(name).command(["touch", "t"]).output();
        assert_eq!((second.exit, second.stdout.as_str()), (Exit::Code(75), ""), "{name}");
        assert_eq!(second.stderr.lines().count(), 1, "{}", second.stderr);
        assert!(!second.stderr.contains('\u{202e}'), "{}", second.stderr);
    }
    for (mut holder, name) in holders.into_iter().zip(&names) {
        drop(holder.take_stdin());
        assert_eq!(holder.wait().exit, Exit::Code(0), "{name}");
        assert_eq!(
            store.run_with_ttl("60s").name(name).command(["true"]).output().outcome(),
            (Exit::Code(0), "", "")
        );
    }
    assert!(!store.place.path("t").exists());
}

/// F44
#[test]
fn every_name_is_one_lock_on_file() {
    let store = Store::file();
    let outside = |place: &Place| {
        let entries = std::fs::read_dir(place.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = entries.filter_map(|name| name.into_string().ok()).collect();
        names.retain(|name| !name.starts_with("stdout.") && !name.starts_with("stderr."));
        names.sort();
        names
    };
    let before = outside(&store.place);
    every_name_is_one_lock(&store);
    assert_eq!(outside(&store.place), before, "nothing is written but into the directory of locks");
    let files = std::fs::read_dir(store.place.locks()).unwrap();
    let files: Vec<_> = files.map(|file| file.unwrap()).collect();
    assert!(files.iter().all(|file| file.file_type().unwrap().is_file()), "{files:?}");
    assert_eq!(files.len(), 3 * names().len(), "a lock, its sidecar and its history for each name");
}

/// F44
#[test]
fn every_name_is_one_lock_on_redis() {
    let store = Store::redis();
    let bystander = store.space().key("bystander");
    store.space().command(&["SET", &bystander, "untouched"]);
    every_name_is_one_lock(&store);
    assert_eq!(store.space().command(&["GET", &bystander]).text(), "untouched");
    // Everything held under the prefix is gone again.
    assert_eq!(store.space().keys(), [bystander]);
}

/// F44: a prefix and a password cannot inject commands either.
#[test]
fn a_prefix_and_a_password_cannot_carry_commands() {
    use crate::support::redis::Redis;
    let redis = Redis::start_with_args(&["--requirepass", "a\r\nb"]);
    redis.connect().command(&["AUTH", "a\r\nb"]);
    let url =
        format!("redis://:a%0D%0Ab@127.0.0.1:{}/0?prefix=%0D%0A*1%0D%0A$8%0D%0AFLUSHALL%0D%0A", redis.port());
    let mut client = redis.connect();
    client.command(&["AUTH", "a\r\nb"]);
    client.command(&["SET", "bystander", "untouched"]);
    let store = Place::new();
    let run = store.run().env("DLOCK_BACKEND", &url).no_backend();
    assert_eq!(run.sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(client.command(&["GET", "bystander"]).text(), "untouched");
}

/// F44
#[test]
fn invalid_names_are_refused() {
    let long = "n".repeat(201);
    let four_byte = "\u{1F512}".repeat(51);
    let huge = "n".repeat(100_000);
    let control = |name: &str| format!("NAME '{name}': a lock name may not contain control characters");
    let too_long = |name: &str, bytes: usize| {
        format!("NAME '{name}': a lock name may have at most 200 bytes, this one has {bytes}")
    };
    for (name, line) in [
        ("", "NAME '': a lock name may not be empty".to_owned()),
        (".", "NAME '.': '.' and '..' are not lock names".to_owned()),
        ("..", "NAME '..': '.' and '..' are not lock names".to_owned()),
        ("a\nb", control("a\\u{a}b")),
        (
            "a\r\n*1\r\n$8\r\nFLUSHALL\r\n",
            control("a\\u{d}\\u{a}*1\\u{d}\\u{a}$8\\u{d}\\u{a}FLUSHALL\\u{d}\\u{a}"),
        ),
        ("\t", control("\\u{9}")),
        ("\u{1b}]52;c;eA==\u{7}", control("\\u{1b}]52;c;eA==\\u{7}")),
        ("\u{9b}2J", control("\\u{9b}2J")),
        ("\u{7f}", control("\\u{7f}")),
        (&long, too_long(&"n".repeat(40), 201)),
        (&four_byte, too_long(&"\u{1F512}".repeat(40), 204)),
        (&huge, too_long(&"n".repeat(40), 100_000)),
    ] {
        assert_usage([(&["run", name, "--", "touch", "t"][..], line.as_str())]);
    }
}

/// F44
#[test]
fn a_name_that_is_not_text_is_refused() {
    let name = OsStr::from_bytes(b"a\xffb");
    let output = refused_with(|run| run.arg("run").arg(name).args(["--", "touch", "t"]));
    assert_eq!(output.exit, Exit::Code(64));
    let line = output.stderr;
    assert!(line.contains("UTF-8") && line.contains("a\u{fffd}b"), "the value is shown: {line}");
}

/// F44: the reserved names of each store.
#[test]
fn names_of_side_keys_are_refused() {
    let place = Place::new();
    let locks = place.locks().display().to_string();
    let url = format!("file://{locks}?suffix=");
    let run = place.run().backend(&url).name("a.dlock").command(["touch", "t"]).output();
    let line =
        format!("dlock: NAME 'a.dlock' on {url}: its file a.dlock would be one of dlock's own (.dlock)\n");
    assert_eq!(run.outcome(), (Exit::Code(64), "", line.as_str()));
    for name in ["dlock#", "dlock#holder:{a}", "dlock#fencing:{a}"] {
        let run =
            place.run().backend("redis://127.0.0.1:1/0?prefix=").name(name).command(["touch", "t"]).output();
        let line = format!(
            "dlock: NAME '{name}' on redis://127.0.0.1:1/0?prefix=: its key would begin with dlock#, which dlock \
             keeps for itself\n"
        );
        assert_eq!(run.outcome(), (Exit::Code(64), "", line.as_str()));
    }
    {
        let run = |options: &str| {
            let url = format!("redis://127.0.0.1:1/0?{options}");
            place.run().backend(url).name("redisson_lock_token:{a}").command(["touch", "t"]).output()
        };
        let refused = run("prefix=&recipe=redisson");
        let why = "its key would begin with redisson_lock_, which Redisson keeps for itself\n";
        assert_eq!(refused.exit, Exit::Code(64));
        assert!(refused.stderr.ends_with(why), "{}", refused.stderr);
        for options in ["recipe=redisson", "prefix="] {
            assert_eq!(run(options).exit, Exit::Code(69), "{options}: the name is valid");
        }
    }
}
