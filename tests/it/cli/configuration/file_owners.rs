//! Configuration files that another user could have written: their author decides which files a run overwrites
//! and where it sends which passwords.

use super::{refused, write};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;
use nix::sys::stat::Mode;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

const ATTACKER: u32 = 12345;
const USER: u32 = 23456;

/// Runs dlock as an otherwise unused user.
fn as_user(run: Dlock, id: u32) -> Dlock {
    run.wrapped_by(["setpriv", &format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups"])
}

fn open_place() -> Place {
    let place = Place::new();
    for directory in [place.path("."), place.locks(), place.home()] {
        std::fs::set_permissions(directory, Permissions::from_mode(0o777)).unwrap();
    }
    place
}

/// A file of the attacker that `sudo -E` lets root read; no other user may write to it.
fn planted(place: &Place, name: &str, text: &str) {
    let path = write(place, name, text);
    std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    chown(&path, Some(ATTACKER), Some(ATTACKER)).expect("the tests run as root");
}

/// The ways to specify a file.
fn runs(place: &Place) -> [Dlock; 3] {
    let run = || place.run().backend(place.url()).command(["touch", "t"]);
    [
        run().args(["--config", &place.arg("c.toml")]),
        run().env("DLOCK_CONFIG", place.path("c.toml")),
        // The home of another user.
        run().env("HOME", place.path("home")),
    ]
}

#[test]
fn a_file_of_another_user_is_refused_without_effect() {
    let place = open_place();
    place.write("target", "precious\n");
    let text =
        format!("[locks.x]\nreport = \"{}\"\nmetrics_file = \"{}\"\n", place.arg("target"), place.arg("m"));
    let names = ["c.toml", "home/.config/dlock/config.toml"];
    for name in names {
        planted(&place, name, &text);
    }
    let why = |name: &str, reader: &str| {
        let path = if name == "c.toml" { "FILE".to_owned() } else { place.arg(name) };
        format!("{path}: belongs to user {ATTACKER}, and a configuration file has to belong to root{reader}")
    };
    for (run, name) in runs(&place).into_iter().zip([names[0], names[0], names[1]]) {
        assert_eq!(refused(&place, &run.output(), 78), why(name, ""));
    }
    for (run, name) in runs(&place).into_iter().zip([names[0], names[0], names[1]]) {
        let reader = format!(" or to user {USER}");
        assert_eq!(refused(&place, &as_user(run, USER).output(), 78), why(name, &reader));
    }
    // Other commands do not read it either, and a link leads to the same file.
    symlink("c.toml", place.path("link")).unwrap();
    for command in [&["status"][..], &["config", "show"], &["doctor"]] {
        let output = place.bare().args(command).args(["--config", &place.arg("link")]).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{command:?}");
    }
    assert_eq!(place.read("target"), "precious\n");
    assert!(!place.path("m").exists());
}

#[test]
fn files_of_root_and_of_the_user_are_read() {
    for owner in [0, USER] {
        let place = open_place();
        let path = write(&place, "c.toml", format!("backend = \"{}\"\n", place.url()));
        chown(&path, Some(owner), Some(owner)).unwrap();
        // Any user may own a link: its target is checked.
        symlink("c.toml", place.path("link")).unwrap();
        // `umask 002` lets the group write to it.
        for mode in [0o644, 0o664] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            for name in ["c.toml", "link"] {
                let run = place.run().no_backend().args(["--config", &place.arg(name)]).sh("echo ran");
                assert_eq!(as_user(run, USER).output().outcome(), (Exit::Code(0), "ran\n", ""));
            }
        }
    }
}

#[test]
fn a_world_writable_file_is_refused() {
    let place = open_place();
    let path = write(&place, "c.toml", "");
    for mode in [0o666, 0o602] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let run = place.run().args(["--config", &place.arg("c.toml")]).command(["touch", "t"]);
        let line = format!("FILE: it is world-writable (mode {mode:04o}): chmod o-w");
        assert_eq!(refused(&place, &run.output(), 78), line);
    }
}

fn make(kind: &str, path: &Path) {
    match kind {
        "fifo" => nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap(),
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        "directory" => std::fs::create_dir(path).unwrap(),
        device => symlink(device, path).unwrap(),
    }
}

/// Including a FIFO without a writer, and a device without an end.
#[test]
fn an_irregular_file_is_refused_at_once() {
    let place = open_place();
    for (kind, why) in [
        ("fifo", "not a regular file"),
        ("/dev/zero", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("socket", "no such device or address"),
        ("directory", "is a directory"),
    ] {
        let (path, in_home) = (place.path("c.toml"), place.path("home/.config/dlock/config.toml"));
        std::fs::create_dir_all(in_home.parent().unwrap()).unwrap();
        for path in [&path, &in_home] {
            let _ = std::fs::remove_file(path);
            make(kind, path);
        }
        for run in runs(&place) {
            let line = refused(&place, &run.output(), 78);
            assert!(line.ends_with(&format!(": cannot be read: {why}")), "{line}");
        }
    }
}
