//! An environment that is invalid, enormous or missing is passed through or ignored, and has no other effect.

use crate::acquire::refusal::refused_in;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// A user that is unused and in no database.
const UNKNOWN_ID: u32 = 64_321;

fn as_unknown_user(run: Dlock) -> Dlock {
    let (user, group) = (format!("--reuid={UNKNOWN_ID}"), format!("--regid={UNKNOWN_ID}"));
    run.wrapped_by(["setpriv", &user, &group, "--clear-groups"])
}

/// A place whose directories such a user may use.
fn open_place() -> Place {
    let place = Place::new();
    for directory in [place.path("."), place.locks(), place.home()] {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    place
}

/// F48
#[test]
fn a_hundred_thousand_variables_are_passed_through() {
    let place = Place::new();
    // No shell: it would process each of them.
    let mut run = place.run().command(["env"]);
    for number in 0..100_000 {
        run = run.env(format!("V{number}"), "x");
    }
    let output = run.output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let passed_on = output.stdout.lines().filter(|line| line.starts_with('V') && line.ends_with("=x"));
    assert_eq!(passed_on.count(), 100_000);
    assert!(output.stdout.contains("\nDLOCK_NAME=x\n"));
}

/// F48
#[test]
fn variables_that_are_not_text_are_passed_through() {
    let place = Place::new();
    let run = || place.run().env("BYTES", OsStr::from_bytes(b"\xff\x1b\n\x80")).env("EMPTY", "");
    let output = run().sh("printf %s \"$BYTES\" | od -An -tx1; echo [$EMPTY]").output();
    assert_eq!(output.outcome(), (Exit::Code(0), " ff 1b 0a 80\n[]\n", ""));
    // A shell would drop a name that is invalid for shells.
    let output = run().env(OsStr::from_bytes(b"N\xff"), "1").command(["env"]).output();
    assert!(output.stdout.lines().any(|line| line == "N\u{fffd}=1"), "{}", output.stdout);
}

/// F48: invalid values are ignored, and the command gets the right ones instead.
#[test]
fn invalid_values_of_variables_that_dlock_sets_are_replaced() {
    let place = Place::new();
    let deep = "[".repeat(50_000);
    let long = format!("[{}]", vec!["{\"name\":\"x\",\"token\":\"\"}"; 2_000].join(","));
    for garbage in [
        "",
        "garbage",
        "[]",
        "{}",
        "[1]",
        "null",
        "[{\"name\":7,\"token\":7}]",
        "[{\"name\":\"y\"}]",
        &deep,
        &long,
        "\u{1b}[2J",
    ] {
        let run =
            place.run().env("DLOCK_HELD", garbage).env("DLOCK_TOKEN", garbage).env("DLOCK_NAME", garbage);
        let run = run.env("DLOCK_FENCING_TOKEN", garbage).env("DLOCK_NONSENSE", "kept");
        let output = run
            .sh("printf '%s\\n' \"$DLOCK_HELD\" \"$DLOCK_NAME\" \"$DLOCK_TOKEN\" $DLOCK_FENCING_TOKEN $DLOCK_NONSENSE")
            .output();
        assert_eq!(
            (output.exit, output.stderr.as_str()),
            (Exit::Code(0), ""),
            "{}",
            &garbage[..garbage.len().min(50)]
        );
        let lines: Vec<&str> = output.stdout.lines().collect();
        let held: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
        assert_eq!((held.as_array().unwrap().len(), &held[0]["name"]), (1, &"x".into()), "{}", lines[0]);
        assert_eq!((lines[1], lines[2].len(), lines[4]), ("x", 32, "kept"));
        assert_eq!(held[0]["token"], lines[2]);
        assert_eq!(held[0]["fencing_token"].to_string(), lines[3]);
    }
    // A variable that is not text is invalid, too.
    let run = place
        .run()
        .env("DLOCK_HELD", OsStr::from_bytes(b"\xff"))
        .env("DLOCK_TOKEN", OsStr::from_bytes(b"\xff"));
    assert_eq!(run.sh("echo ${#DLOCK_TOKEN}").output().outcome(), (Exit::Code(0), "32\n", ""));
}

/// F48: the variables that dlock set for an outer command are kept for an inner one, outermost first.
#[test]
fn the_holds_of_an_outer_dlock_stay_first() {
    let place = Place::new();
    let inner =
        format!("'{}' run -b '{}' inner -- printenv DLOCK_HELD", crate::support::dlock::BINARY, place.url());
    let output = place.run().name("outer").sh(&inner).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let held: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let names: Vec<_> =
        held.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["outer", "inner"]);
}

/// F48
#[test]
fn a_library_that_cannot_be_preloaded_is_left_to_the_loader() {
    let place = Place::new();
    let output = place.run().env("LD_PRELOAD", "/no/such/library.so").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
    assert!(!output.stderr.contains("dlock: "), "{}", output.stderr);
    assert!(place.lock_is_free("x"));
}

/// F48: messages and times are the same in every language and time zone.
#[test]
fn language_and_time_zone_change_nothing() {
    let place = Place::new();
    let mut holder = place.run().stdin(std::process::Stdio::piped()).sh("echo ready; exec cat").spawn();
    holder.await_ready();
    let without_age = |stderr: &str| {
        let (front, _) = stderr.split_once(" for ").unwrap();
        front.to_owned()
    };
    let usual = without_age(&place.run().command(["true"]).output().stderr);
    for (name, value) in [
        ("TZ", "Nowhere/Garbage"),
        ("TZ", ":/no/such/file"),
        ("TZ", "UTC-25:99"),
        ("LANG", "invalid"),
        ("LC_ALL", "xx_XX.nonsense"),
        ("LC_ALL", "C"),
        ("LANGUAGE", "tlh"),
    ] {
        let refused = place.run().env(name, value).command(["true"]).output();
        assert_eq!(
            (refused.exit, without_age(&refused.stderr)),
            (Exit::Code(75), usual.clone()),
            "{name}={value}"
        );
        let other = place.run().name("other").env(name, value).sh(&format!("echo \"${name}\"")).output();
        assert_eq!(other.outcome(), (Exit::Code(0), format!("{value}\n").as_str(), ""));
    }
}

/// F48
#[test]
fn without_any_variable_it_works() {
    let place = Place::new();
    let run = place.run().command(["/usr/bin/env"]).wrapped_by(["env", "-i"]).output();
    assert_eq!((run.exit, run.stderr.as_str()), (Exit::Code(0), ""));
    let mut names: Vec<&str> = run.stdout.lines().filter_map(|line| line.split('=').next()).collect();
    names.sort_unstable();
    assert_eq!(names, ["DLOCK_FENCING_TOKEN", "DLOCK_HELD", "DLOCK_NAME", "DLOCK_TOKEN"]);
}

/// F48: a user without a home and without an entry has no default directory; an explicit one works.
#[test]
fn a_user_without_a_home_has_to_give_a_directory() {
    let place = open_place();
    let why = "file: needs a home directory, and this user has none: name a directory, such as file:///var/lock/jobs\n";
    let run = || place.run().no_backend().env_remove("HOME").command(["touch", "t"]);
    for (run, source) in [
        (run(), ""),
        (run().env("HOME", ""), ""),
        (run().env("HOME", "not/absolute"), ""),
        (run().backend("file:"), "--backend: "),
        (run().env("DLOCK_BACKEND", "file:"), "DLOCK_BACKEND: "),
    ] {
        let output = refused_in(&place, as_unknown_user(run));
        assert_eq!(output.exit, Exit::Code(78), "{}", output.stderr);
        assert!(output.stderr.ends_with(&format!("{source}{why}")), "{}", output.stderr);
    }
    let named = place.run().env_remove("HOME").sh("echo ran");
    assert_eq!(as_unknown_user(named).output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A message must not refer to a variable that is not set.
#[test]
fn an_unset_variable_is_not_named_as_the_source() {
    let place = open_place();
    let run = place.run().no_backend().env_remove("HOME").command(["true"]);
    let output = as_unknown_user(run).output();
    assert_eq!(output.exit, Exit::Code(78));
    assert!(!output.stderr.contains("DLOCK_BACKEND: "), "{}", output.stderr);
}

/// Files that dlock creates below a home are private to its user, and existing ones stay unchanged.
#[test]
fn the_default_directory_is_private_to_its_user() {
    let place = open_place();
    let home = place.path("new-home");
    std::fs::create_dir(&home).unwrap();
    std::fs::set_permissions(&home, std::fs::Permissions::from_mode(0o777)).unwrap();
    let run = || as_unknown_user(place.run().no_backend().arg("-q").env("HOME", &home).sh("echo ran"));
    let loose = run().after_shell("umask 0").output();
    assert_eq!(loose.outcome(), (Exit::Code(0), "ran\n", ""));
    let mode = |path: &str| std::fs::metadata(home.join(path)).unwrap().mode() & 0o7777;
    for directory in [".local", ".local/state", ".local/state/dlock"] {
        assert_eq!(mode(directory), 0o700, "{directory}");
    }
    for file in [".local/state/dlock/x.lock", ".local/state/dlock/x.dlock"] {
        assert_eq!(mode(file), 0o600, "{file}");
    }
    assert_eq!(std::fs::metadata(&home).unwrap().mode() & 0o7777, 0o777);
    assert_eq!(run().output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// Whoever may remove a lock file can let two runs hold the lock.
#[test]
fn a_default_directory_of_others_is_not_used() {
    let place = open_place();
    let directory = place.path("new-home/.local/state/dlock");
    std::fs::create_dir_all(&directory).unwrap();
    let mode =
        |mode: u32| std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(mode)).unwrap();
    let run = place.run().no_backend().env("HOME", place.path("new-home"));
    mode(0o777);
    let output = as_unknown_user(run.command(["touch", "t"])).output();
    let why = "everybody may write to it: chmod o-w";
    assert_eq!((output.exit, output.stderr.contains(why)), (Exit::Code(77), true), "{}", output.stderr);
    mode(0o755);
    std::os::unix::fs::chown(&directory, Some(4711), None).unwrap();
    let run = place.run().no_backend().env("HOME", place.path("new-home"));
    let output = as_unknown_user(run.command(["touch", "t"])).output();
    let why = "it belongs to user 4711: name a directory in the URL";
    assert_eq!((output.exit, output.stderr.contains(why)), (Exit::Code(77), true), "{}", output.stderr);
    assert!(!place.path("t").exists());
}
