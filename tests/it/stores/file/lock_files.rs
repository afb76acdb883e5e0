//! Lock files: files planted in their place cannot make dlock follow, change or open anything.

use crate::support::place::Place;
use crate::support::running::Exit;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn a_symbolic_link_as_lock_file_is_refused() {
    for target in ["target", "no-such-target"] {
        let place = Place::new();
        place.write("target", "content");
        let link = place.lock_file("x");
        symlink(place.path(target), &link).unwrap();
        let run = place.run().command(["touch", "t"]).output();
        let line = format!(
            "dlock: x on {}: cannot open {}: it is a symbolic link, which dlock does not follow; the command did not \
             run\n",
            place.url(),
            link.display()
        );
        assert_eq!(run.outcome(), (Exit::Code(77), "", line.as_str()));
        assert_eq!(place.read("target"), "content");
        assert!(!place.path("no-such-target").exists() && !place.path("t").exists());
    }
}

#[test]
fn a_symbolic_link_as_sidecar_is_refused() {
    for target in ["target", "no-such-target"] {
        let place = Place::new();
        place.write("target", "content");
        let link = place.locks().join("x.dlock");
        symlink(place.path(target), &link).unwrap();
        let run = place.run().command(["touch", "t"]).output();
        let line = format!(
            "dlock: x on {}: cannot use {}: it is a symbolic link, which dlock does not follow; the command did not \
             run\n",
            place.url(),
            link.display()
        );
        assert_eq!(run.outcome(), (Exit::Code(77), "", line.as_str()));
        assert_eq!(place.read("target"), "content");
        assert!(!place.path("no-such-target").exists() && !place.path("t").exists());
        assert!(place.lock_is_free("x"));
    }
}

/// Opening such a file could block, or have a side effect.
#[test]
fn an_irregular_lock_file_is_refused() {
    let make = |kind: &str, path: &Path| match kind {
        "fifo" => nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        _ => std::fs::create_dir(path).unwrap(),
    };
    for file in ["x.lock", "x.dlock", "x%history.dlock"] {
        for kind in ["fifo", "socket", "directory"] {
            let place = Place::new();
            make(kind, &place.locks().join(file));
            let run = place.run().command(["touch", "t"]).output();
            let what = if file == "x.lock" { "open" } else { "use" };
            let line = format!(
                "dlock: x on {}: cannot {what} {}: not a regular file; the command did not run\n",
                place.url(),
                place.locks().join(file).display()
            );
            assert_eq!(run.outcome(), (Exit::Code(77), "", line.as_str()), "{kind}");
            assert!(!place.path("t").exists(), "{file} {kind}");
        }
    }
}

/// Users lock scripts and data files: dlock does not change their content, mode and times.
#[test]
fn the_content_of_a_locked_file_is_never_touched() {
    let place = Place::new();
    let script = place.locks().join("script");
    std::fs::write(&script, "#!/bin/sh\necho content\n").unwrap();
    std::fs::set_permissions(&script, Permissions::from_mode(0o555)).unwrap();
    let state = |path: &Path| {
        let meta = std::fs::metadata(path).unwrap();
        (meta.ino(), meta.mode(), meta.mtime_nsec(), meta.ctime_nsec(), std::fs::read(path).unwrap())
    };
    let before = state(&script);
    let url = format!("{}?suffix=", place.url());
    let run = place.run().backend(&url).name("script").sh("./locks/script").output();
    assert_eq!(run.outcome(), (Exit::Code(0), "content\n", ""));
    assert_eq!(state(&script), before);
}

#[test]
fn created_files_are_private_to_their_user() {
    let place = Place::new();
    for umask in ["000", "022", "077"] {
        let name = format!("x{umask}");
        let run = place.run().name(&name).command(["true"]).after_shell(&format!("umask {umask}"));
        assert_eq!(run.output().outcome(), (Exit::Code(0), "", ""));
        for suffix in ["lock", "dlock"] {
            assert_eq!(mode(&place.locks().join(format!("{name}.{suffix}"))), 0o600, "{name}.{suffix}");
        }
    }
}

#[test]
fn an_explicit_directory_is_used_unchanged() {
    let place = Place::new();
    for bits in [0o777, 0o1777, 0o755, 0o700] {
        std::fs::set_permissions(place.locks(), Permissions::from_mode(bits)).unwrap();
        assert_eq!(place.run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
        assert_eq!(mode(&place.locks()), bits);
    }
}

/// `flock dir/NAME.lock` of another user has created the file; its mode and owner stay unchanged.
#[test]
fn a_lock_file_created_by_others_is_used_unchanged() {
    let place = Place::new();
    let file = File::create(place.lock_file("x")).unwrap();
    for bits in [0o666, 0o444, 0o600] {
        file.set_permissions(Permissions::from_mode(bits)).unwrap();
        assert_eq!(place.run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
        assert_eq!(mode(&place.lock_file("x")), bits);
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}

/// F46: a sidecar that no dlock wrote, or a newer one, is refused and not guessed at.
#[test]
fn a_sidecar_of_unknown_content_is_refused_and_kept() {
    let newer = "{\"format\":3,\"fencing_token\":7,\"holder\":null,\"new\":1}\n";
    let big = "x".repeat(2 << 20);
    let deep = "[".repeat(100_000);
    for content in ["garbage", "{}", "[]", "null", "{\"format\":1}", newer, "\u{0}\u{1}", &big, &deep] {
        let place = Place::new();
        let sidecar = place.locks().join("x.dlock");
        std::fs::write(&sidecar, content).unwrap();
        let run = place.run().command(["touch", "t"]).output();
        let shown: String = content.chars().take(30).collect();
        assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(78), ""), "{shown}: {}", run.stderr);
        assert!(run.stderr.contains("x.dlock") && run.stderr.lines().count() == 1, "{}", run.stderr);
        assert!(std::fs::read_to_string(&sidecar).unwrap() == content, "{shown} was changed");
        assert!(place.lock_is_free("x") && !place.path("t").exists(), "{shown}");
    }
}

/// F46: no fencing token beyond the numbers of every language.
#[test]
fn an_exhausted_fencing_counter_does_not_wrap() {
    for counter in ["9007199254740991", "9007199254740992", "18446744073709551615"] {
        let place = Place::new();
        let sidecar = place.locks().join("x.dlock");
        std::fs::write(&sidecar, format!("{{\"format\":1,\"fencing_token\":{counter},\"holder\":null}}\n"))
            .unwrap();
        let run = place.run().sh("echo $DLOCK_FENCING_TOKEN").output();
        let token = run.stdout.trim().parse::<u64>().unwrap_or(0);
        let is_refused = matches!(run.exit, Exit::Code(69 | 78)) && run.stderr.lines().count() == 1;
        assert!(is_refused || token == 0 && run.exit == Exit::Code(0), "{counter}: {run:?}");
        assert!(place.lock_is_free("x"));
    }
}
