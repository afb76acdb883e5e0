//! A sidecar with content that no dlock of this version wrote: refused, never guessed at, never overwritten.

use super::{assert_run, end, hold, noted, sidecar};
use crate::support::place::Place;
use crate::support::running::Exit;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// The content in its place, and why it is refused.
const DAMAGES: &[(&str, i32, &str)] = &[
    ("garbage", 78, "PATH: not written by dlock, or damaged"),
    ("half", 78, "PATH: not written by dlock, or damaged"),
    ("newer", 78, "PATH: written by another dlock (format 3, known: 1 and 2)"),
    ("newer, large", 78, "PATH: written by another dlock (format 3, known: 1 and 2)"),
    ("newer entries", 78, "PATH: not written by dlock, or damaged"),
    ("directory", 77, "cannot use PATH: not a regular file"),
    ("link", 77, "cannot use PATH: it is a symbolic link, which dlock does not follow"),
];

/// Replaces the sidecar; the old file stays open in processes that have it open.
fn damage(place: &Place, what: &str) {
    let path = sidecar(place);
    let good = fs::read_to_string(&path).unwrap();
    let content = match what {
        "garbage" => "\u{0}garbage\n{\"format\":1}\n".to_owned(),
        "half" => good[..good.find("identity").unwrap()].to_owned(),
        "newer" => good.replace("\"format\":1", "\"format\":3"),
        "newer, large" => "{\"format\":3,\"at\":4096,\"length\":10}\n".to_owned(),
        "newer entries" => good.replace("\"mode\":", "\"mode\":\"of another dlock\",\"was\":"),
        other => {
            fs::rename(&path, place.path("good")).unwrap();
            return match other {
                "directory" => fs::create_dir(path).unwrap(),
                _ => symlink(place.path("good"), path).unwrap(),
            };
        }
    };
    fs::rename(place.write("other", &content), path).unwrap();
}

/// What shows that another process has written.
fn state(path: &Path) -> (u64, Vec<u8>) {
    let mtime = fs::symlink_metadata(path).unwrap();
    (mtime.mtime_nsec() as u64, fs::read(path).unwrap_or_default())
}

/// F38, F46: the holder ends normally, the waiters report why they cannot continue, and the lock is free.
#[test]
fn a_damaged_sidecar_ends_the_wait_of_waiters() {
    for (what, code, why) in DAMAGES {
        let place = Place::new();
        let path = sidecar(&place);
        let why = why.replace("PATH", path.to_str().unwrap());
        let line = format!("dlock: x on {}: {why}; the command did not run\n", place.url());
        let holder = hold(place.run());
        let mut waiters = [1, 2, 3].map(|position| {
            let mut run = noted(&place, place.run().args(["--wait", "forever"])).spawn();
            run.await_stderr(&format!("waiting at position {position}\n"));
            run
        });
        damage(&place, what);
        let damaged = state(&path);
        end(holder);
        for waiter in &mut waiters {
            let output = waiter.wait();
            let said = output.stderr.lines().last().unwrap_or_default().to_owned() + "\n";
            assert_eq!((output.exit, said.as_str()), (Exit::Code(*code), line.as_str()), "{what}");
        }
        assert!(place.lock_is_free("x"), "{what}");
        assert_run(place.run(), *code, &line);
        assert_eq!(state(&path), damaged, "{what} was changed");
        assert_eq!(place.read("log"), "", "{what}: somebody ran");
        // Removing it repairs the lock.
        if *what == "directory" {
            fs::remove_dir(&path).unwrap()
        } else {
            fs::remove_file(&path).unwrap()
        }
        assert_run(place.run(), 0, "");
    }
}
