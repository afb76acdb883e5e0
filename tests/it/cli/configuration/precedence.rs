//! Which files are read, and what overrides what.

use super::{printed, refused, run, show, write};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

/// A table with a backend in a directory of the place.
fn backend(place: &Place, directory: &str) -> String {
    std::fs::create_dir_all(place.path(directory)).unwrap();
    format!("backend = \"file://{}\"\n", place.arg(directory))
}

/// Which of the directories the lock is in.
#[track_caller]
fn directory(run: Dlock) -> String {
    let held = printed(run.command(["printenv", "DLOCK_HELD"]));
    let held: serde_json::Value = serde_json::from_str(&held).unwrap();
    held[0]["backend"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()
}

/// Runs dlock where /etc/dlock/config.toml is this text.
fn with_system_file(place: &Place, text: &str, run: Dlock) -> Dlock {
    write(place, "etc/dlock/config.toml", text);
    std::fs::copy("/etc/passwd", place.path("etc/passwd")).unwrap();
    let mount = format!("mount --bind '{}' /etc || exit 99", place.arg("etc"));
    run.after_shell(&mount).wrapped_by(["unshare", "-m"])
}

#[test]
fn the_command_line_overrides_the_environment_which_overrides_the_file() {
    let place = Place::new();
    let text = backend(&place, "of-file");
    let url = |name: &str| {
        backend(&place, name);
        format!("file://{}", place.arg(name))
    };
    let with_variable = || run(&place, &text).env("DLOCK_BACKEND", url("of-variable"));
    assert_eq!(directory(run(&place, &text)), "of-file");
    assert_eq!(directory(with_variable()), "of-variable");
    assert_eq!(directory(with_variable().backend(url("of-flag"))), "of-flag");

    let text = format!("{text}[locks.x]\nttl = \"2m\"\nwait = \"forever\"");
    let shown = |variables: &[(&str, &str)], key: &str| {
        let run = show(&place, &text).args(["--json", "x"]);
        let run = variables.iter().fold(run, |run, (name, value)| run.env(name, value));
        let object: serde_json::Value = serde_json::from_str(&printed(run)).unwrap();
        object["locks"]["x"][key].clone()
    };
    for (key, of_file, name, value, shown_value) in
        [("ttl", "2m", "DLOCK_TTL", "90", "1m30s"), ("wait", "forever", "DLOCK_WAIT", "1", "1s")]
    {
        assert_eq!(shown(&[], key)["value"], of_file);
        let of_variable = shown(&[(name, value)], key);
        assert_eq!((&of_variable["value"], &of_variable["variable"]), (&shown_value.into(), &name.into()));
    }
}

/// A flag is not reported as contradicting a file.
#[test]
fn a_flag_overrides_what_contradicts_it_in_a_file() {
    let place = Place::new();
    let text = format!(
        "{}[locks.x]\nwait = \"forever\"\nslots = 3\ngrace = \"20s\"\nttl = \"2m\"",
        backend(&place, "d")
    );
    let mut holder = run(&place, &text).sh("echo ready; exec sleep 1000").spawn();
    holder.await_ready();
    // One of three slots.
    let slots = || run(&place, &text).command(["printenv", "DLOCK_SLOT"]);
    assert_eq!(slots().output().outcome(), (Exit::Code(0), "1\n", ""));
    for flags in [&["--no-wait", "--exclusive"][..], &["--no-wait", "--shared"], &["-n", "--slots", "1"]] {
        let output = run(&place, &text).args(flags).command(["touch", "t"]).output();
        let is_busy = matches!(output.exit, Exit::Code(64 | 75)) && !place.path("t").exists();
        assert!(is_busy, "{flags:?}: {output:?}");
    }
    drop(holder);
    let lease = run(&place, &text).args(["--ttl", "5s", "--grace", "1s"]).command(["true"]).output();
    assert_eq!(lease.outcome(), (Exit::Code(0), "", ""));
}

#[test]
fn the_user_file_overrides_the_system_file_key_by_key() {
    let place = Place::new();
    write(
        &place,
        "home/.config/dlock/config.toml",
        "[backends.prod]\nprefix = \"b:\"\n[backends.mine]\nurl = \"file:///mine\"\n\
         [locks.\"nightly-*\"]\nttl = \"2m\"\n[locks.other]\nnote = \"o\"\n",
    );
    let system = "backend = \"prod\"\n[backends.prod]\nurl = \"file:///srv\"\nsuffix = \".a\"\n\
                  [locks.\"nightly-*\"]\nttl = \"1m\"\nmin_hold = \"50s\"\n";
    let show = || place.bare().args(["config", "show"]);
    let user = place.arg("home/.config/dlock/config.toml");
    // An option that this store does not have, wherever the rest of the table is.
    let output = with_system_file(&place, system, show()).output();
    let line = format!(
        "dlock: {user}:2:1: unknown key 'prefix' in [backends.prod]: known for file: are url, username, password, \
         accept, suffix\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", line.as_str()));

    write(
        &place,
        "home/.config/dlock/config.toml",
        "[backends.prod]\nsuffix = \".b\"\n[backends.mine]\nurl = \"file:///mine\"\n\
         [locks.\"nightly-*\"]\nttl = \"2m\"\n[locks.other]\nnote = \"o\"\n",
    );
    let (host, user) = ("/etc/dlock/config.toml", user.as_str());
    let shown = printed(with_system_file(&place, system, show()));
    // However long the file names are.
    let shown: Vec<String> =
        shown.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = format!(
        "# {host}\n# {user}\n\n\
         [backends.prod]\nurl = \"file:///srv\" # {host}:3\nsuffix = \".b\" # {user}:2\n\n\
         [backends.mine]\nurl = \"file:///mine\" # {user}:4\n\n\
         [locks.\"nightly-*\"]\nttl = \"2m\" # {user}:6\nmin_hold = \"50s\" # {host}:7\n\n\
         [locks.\"other\"]\nnote = \"o\" # {user}:8\n\n\
         [locks.\"*\"] # every lock; a key of another table that matches overrides it\nbackend = \"prod\" # {host}:1\n"
    );
    assert!(shown.join("\n").starts_with(&expected), "{}\n--\n{expected}", shown.join("\n"));

    // An explicit file replaces both.
    let alone = with_system_file(&place, system, super::show(&place, "")).output().stdout;
    assert!(alone.starts_with(&format!("# {}\n\n[locks.\"*\"]", place.arg("c.toml"))), "{alone}");
}

/// Within one file a duplicate is an error; of two files the later one takes effect.
#[test]
fn a_key_of_the_user_overrides_the_url_of_the_host_and_the_other_way_round() {
    let place = Place::new();
    std::fs::create_dir(place.path("d")).unwrap();
    let url = |suffix: &str| {
        format!("backend = \"p\"\n[backends.p]\nurl = \"file://{}{suffix}\"\n", place.arg("d"))
    };
    let key = |suffix: &str| format!("[backends.p]\nsuffix = \"{suffix}\"\n");
    for (host, user) in [(url("?suffix=.host"), key(".user")), (key(".host"), url("?suffix=.user"))] {
        write(&place, "home/.config/dlock/config.toml", user);
        // A table without a url does not define a backend, until another file has one.
        let run = place.run().no_backend().command(["true"]);
        assert_eq!(with_system_file(&place, &host, run).output().outcome(), (Exit::Code(0), "", ""));
        assert!(std::fs::remove_file(place.path("d/x.user")).is_ok());
        assert!(!place.path("d/x.host").exists());
    }
    let twice = format!("{}suffix = \".b\"", url("?suffix=.a"));
    let output = run(&place, &twice).command(["touch", "t"]).output();
    let line = "FILE:4:10: suffix: suffix is in the url as well: remove one of them";
    assert_eq!(refused(&place, &output, 78), line);
}

#[test]
fn a_password_of_the_user_overrides_the_password_file_of_the_host() {
    let place = Place::new();
    let host = "[backends.p]\nurl = \"etcd://h\"\npassword_file = \"/p\"\n";
    let user = write(&place, "home/.config/dlock/config.toml", "[backends.p]\npassword = \"s3cret\"\n");
    let shown = printed(with_system_file(&place, host, place.bare().args(["config", "show"])));
    let expected = format!("password = \"***\"       # {}:2\n", user.display());
    assert!(shown.contains(&expected) && !shown.contains("password_file"), "{shown}");
}

#[test]
fn an_explicit_file_replaces_the_others() {
    let place = Place::new();
    write(&place, "home/.config/dlock/config.toml", backend(&place, "of-home"));
    let other = write(&place, "other.toml", backend(&place, "of-other"));
    let plain = || place.run().no_backend();
    assert_eq!(directory(plain()), "of-home");
    assert_eq!(directory(plain().env("DLOCK_CONFIG", &other)), "of-other");
    let named = run(&place, &backend(&place, "of-flag")).env("DLOCK_CONFIG", &other);
    assert_eq!(directory(named), "of-flag");
    // A path from the command line may be relative.
    assert_eq!(directory(plain().args(["--config", "other.toml"])), "of-other");
}

#[test]
fn a_missing_explicit_file_is_an_error() {
    let place = Place::new();
    for (run, line) in [
        (place.run().args(["--config", "/no/such/file"]), "--config: /no/such/file: no such file"),
        (place.run().args(["--config", "/etc/passwd/x"]), "--config: /etc/passwd/x: no such file"),
        (place.run().env("DLOCK_CONFIG", "/no/such/file"), "DLOCK_CONFIG: /no/such/file: no such file"),
        (place.run().args(["--config", "/etc"]), "/etc: cannot be read: is a directory"),
        (place.run().args(["--config", "/dev/zero"]), "/dev/zero: cannot be read: not a regular file"),
        (run(&place, &"#\n".repeat(600_000)), "FILE: cannot be read: longer than 1048576 bytes"),
    ] {
        assert_eq!(refused(&place, &run.command(["touch", "t"]).output(), 78), line);
    }
}

/// Write access to a directory gives no control over users who work in it.
#[test]
fn nothing_is_read_from_the_working_directory() {
    let place = Place::new();
    let names =
        ["config.toml", "dlock.toml", ".dlock.toml", ".config/dlock/config.toml", "dlock/config.toml"];
    for name in names.iter().chain(&["xdg/dlock/config.toml"]) {
        write(&place, name, "this is no TOML");
    }
    let run = || place.run().env("XDG_CONFIG_HOME", place.path("xdg")).command(["echo", "ran"]);
    for run in [run(), run().env("HOME", "."), run().env("HOME", ""), run().env_remove("HOME")] {
        assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

#[test]
fn an_unreadable_file_is_an_error() {
    let place = Place::new();
    for directory in [place.path("."), place.locks(), place.home()] {
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
    }
    let file = write(&place, "home/.config/dlock/config.toml", "");
    let as_user =
        |run: Dlock| run.wrapped_by(["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]);
    let run = || as_user(place.run().command(["echo", "ran"]));
    let line = format!("dlock: {}: cannot be read: permission denied\n", file.display());
    assert_eq!(run().output().outcome(), (Exit::Code(78), "", line.as_str()));
    assert_eq!(run().env("DLOCK_CONFIG", &file).output().outcome(), (Exit::Code(78), "", line.as_str()));
    // An inaccessible home (`ProtectHome=`) is ignored, unless a file in it is given explicitly.
    std::fs::set_permissions(place.home(), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(run().output().outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run().env("DLOCK_CONFIG", &file).output().outcome(), (Exit::Code(78), "", line.as_str()));
}

/// A configured setting must not be ignored silently.
#[test]
fn a_file_without_a_backend_never_means_this_host_only() {
    let place = Place::new();
    let output = run(&place, "[locks.x]\nttl = \"1m\"").command(["touch", "t"]).output();
    let line = "no backend configured: add backend = \"...\" to FILE, or give --backend or DLOCK_BACKEND (file: for \
                locks on this host only)";
    assert_eq!(refused(&place, &output, 78), line);
    let named = run(&place, "").backend(place.url()).command(["echo", "ran"]).output();
    assert_eq!(named.outcome(), (Exit::Code(0), "ran\n", ""));
}
