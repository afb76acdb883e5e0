//! Settings of servers: passwords from files are used and never shown, and warnings can be accepted.

use super::{printed, run, show, write};
use crate::support::place::Place;
use crate::support::redis::{Options, Redis};
use crate::support::running::Exit;
use crate::support::tls::Flaw;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

const PASSWORD: &str = "hunter2 s3cret/@:?#";

fn server() -> Redis {
    Redis::start_with_args(&[
        "--requirepass",
        PASSWORD,
        "--user",
        "me",
        "on",
        &format!(">{PASSWORD}-2"),
        "~*",
        "&*",
        "+@all",
    ])
}

fn table(redis: &Redis, keys: &str) -> String {
    format!("backend = \"prod\"\n[backends.prod]\nurl = \"redis://127.0.0.1:{}/0\"\n{keys}", redis.port())
}

/// It is not encoded as it would be in a URL, and causes no warning: no other user can read it.
#[test]
fn the_password_of_a_table_opens_the_store() {
    let (redis, place) = (server(), Place::new());
    let ran = (Exit::Code(0), "ran\n", "");
    let one = table(&redis, &format!("password = \"{PASSWORD}\""));
    assert_eq!(run(&place, &one).sh("echo ran").output().outcome(), ran);
    assert_eq!(run(&place, &one).backend("prod").sh("echo ran").output().outcome(), ran);
    let user = table(&redis, &format!("username = \"me\"\npassword = \"{PASSWORD}-2\""));
    assert_eq!(run(&place, &user).sh("echo ran").output().outcome(), ran);
    let wrong = table(&redis, "password = \"other\"");
    assert_eq!(run(&place, &wrong).sh("echo ran").output().exit, Exit::Code(77));
    // The file overrides the usual variable.
    assert_eq!(run(&place, &one).env("REDISCLI_AUTH", "other").sh("echo ran").output().outcome(), ran);
    let held = printed(run(&place, &user).command(["printenv", "DLOCK_HELD"]));
    assert!(held.contains("redis://me@127.0.0.1") && !held.contains("hunter2"), "{held}");
}

/// Containers mount such files with 0444.
#[test]
fn a_password_file_may_be_readable() {
    let (redis, place) = (server(), Place::new());
    let file = write(&place, "pass", format!("{PASSWORD}-2\n"));
    std::fs::set_permissions(&file, Permissions::from_mode(0o444)).unwrap();
    let text = table(&redis, &format!("username = \"me\"\npassword_file = \"{}\"", file.display()));
    let run = run(&place, &text).sh("echo ran");
    std::fs::set_permissions(place.path("c.toml"), Permissions::from_mode(0o644)).unwrap();
    assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_password_file_that_cannot_be_read_is_named() {
    let (redis, place) = (server(), Place::new());
    let file = place.arg("none");
    let output =
        run(&place, &table(&redis, &format!("password_file = \"{file}\""))).command(["touch", "t"]).output();
    let line = super::refused(&place, &output, 78);
    assert!(line.contains(&format!(": password file {file}: no such file or directory;")), "{line}");
}

#[test]
fn the_warning_about_a_password_is_printed_once() {
    let place = Place::new();
    for (keys, line) in [
        (
            "password_file = \"/p\"\npassword = \"a\"",
            "5:12: password: there is a password_file as well: remove one of them",
        ),
        ("password_file = \"p\"", "4:17: password_file: password_file= takes an absolute path"),
    ] {
        let text = format!("backend = \"prod\"\n[backends.prod]\nurl = \"redis://h\"\n{keys}\n");
        let output = run(&place, &text).command(["touch", "t"]).output();
        assert_eq!(super::refused(&place, &output, 78), format!("FILE:{line}"));
    }
    for key in ["password = \"a\"", "password_file = \"/p\""] {
        let text = format!("backend = \"prod\"\n[backends.prod]\nurl = \"redis://:b@h\"\n{key}\n");
        let output = run(&place, &text).command(["touch", "t"]).output();
        let line = super::refused(&place, &output, 78);
        assert!(line.ends_with(": a password is in the url as well: remove one of them"), "{line}");
    }
}

#[test]
fn an_accepted_warning_is_not_printed() {
    let place = Place::new();
    let redis = Redis::start_with(Options { tls: Some(Flaw::None), ..Options::default() });
    let table = |keys: &str| {
        format!("[backends.p]\nurl = \"rediss://127.0.0.1:{}/0\"\ninsecure = true\n{keys}", redis.port())
    };
    let said = |keys: &str| {
        let output = run(&place, &table(keys)).backend("p").command(["true"]).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), ""), "{}", output.stderr);
        output.stderr
    };
    let warning =
        "dlock: the server's certificate is not checked (?insecure): a man in the middle can take the lock\n";
    assert_eq!(said(""), warning);
    assert_eq!(said("accept = [\"eviction\"]"), warning);
    assert_eq!(said("accept = [\"eviction\", \"insecure\"]"), "");
}

#[test]
fn an_accepted_evicting_store_causes_no_warning() {
    let place = Place::new();
    let redis = Redis::start_with_args(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let said = |keys: &str| {
        let output = run(&place, &table(&redis, keys)).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
        output.stderr
    };
    let warned = said("accept = [\"insecure\"]");
    assert!(warned.contains("(maxmemory-policy allkeys-lru)") && warned.lines().count() == 1, "{warned}");
    assert_eq!(said("accept = [\"eviction\"]"), "");
}

#[test]
fn the_shown_configuration_contains_no_passwords() {
    let place = Place::new();
    let text = "backend = \"redis://me:hunter2@h/1?prefix=a\"\n\
                [backends.p]\nurl = \"redis://h\"\npassword = \"hunter2\"\nusername = \"me\"\n\
                [backends.q]\nurl = \"rediss://:hunter2@h\"\npassword_file = \"/p\"\n";
    // It is given twice, and printed by no command before that is corrected.
    let output = show(&place, text).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
    let text = text.replace("password_file = \"/p\"\n", "[locks.x]\nbackend = \"redis://:hunter2@k\"\n");
    let shown = printed(show(&place, &text));
    for line in [
        "url      = \"redis://h\"  ",
        "username = \"me\"  ",
        "password = \"***\"  ",
        "url = \"rediss://:***@h\"  ",
        "backend = \"redis://:***@k\"  ",
        "\"redis://me:***@h/1?prefix=a\"  ",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let variable = show(&place, &text).arg("--json").env("DLOCK_BACKEND", "redis://:hunter2@e");
    let flag = show(&place, &text).args(["x", "-b", "redis://:hunter2@f"]);
    for shown in [shown, printed(variable), printed(flag), printed(show(&place, &text).arg("--json"))] {
        assert!(shown.contains("***") && !shown.contains("hunter2"), "{shown}");
    }
}
