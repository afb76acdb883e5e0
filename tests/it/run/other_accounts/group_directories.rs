//! A directory that users share by its group.

use super::{by_stranger, set_mode};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::PathBuf;
use std::process::Command;

const GROUP: u32 = 54321;

/// A member of the group with another primary group.
fn member(user: u32, run: Dlock) -> Dlock {
    let ids = [format!("--reuid={user}"), format!("--regid={user}"), format!("--groups={GROUP}")];
    run.wrapped_by(std::iter::once("setpriv".to_owned()).chain(ids))
}

fn shared_place(mode: u32) -> Place {
    let place = Place::new();
    set_mode(&place.path("."), 0o755);
    chown(place.locks(), None, Some(GROUP)).unwrap();
    set_mode(&place.locks(), mode);
    place
}

#[test]
fn members_of_a_group_share_locks_in_any_order() {
    for mode in [0o770, 0o2770, 0o3770] {
        for first in [0, 12345] {
            let place = shared_place(mode);
            for user in [first, 12346, 12345, 0] {
                let output = member(user, place.run()).sh("echo ran").output();
                assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{mode:o} {user}");
            }
            for file in ["x.lock", "x.dlock", "x%history.dlock"] {
                let metadata = fs::metadata(place.locks().join(file)).unwrap();
                let seen = (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777);
                assert_eq!(seen, (first, GROUP, 0o660), "{mode:o} {file}");
            }
        }
    }
}

/// The first of them creates the files while the others open them.
#[test]
fn each_member_of_a_group_may_create_the_files() {
    for _ in 0..5 {
        let place = shared_place(0o770);
        let start = |user| member(user, place.run().args(["--wait", "1m"])).sh("echo ran").spawn();
        let mut runs: Vec<Running> = (12340..12350).map(start).collect();
        for run in &mut runs {
            let output = run.wait();
            assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
        }
    }
}

/// A library to be preloaded: each change of the mode of an open file comes a second late.
fn slow_chmod(place: &Place) -> PathBuf {
    let text = "#include <sys/stat.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
                int fchmod(int fd, mode_t mode) { sleep(1); return syscall(SYS_fchmod, fd, mode); }\n";
    let (source, library) = (place.write("slow_chmod.c", text), place.path("slow_chmod.so"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.expect("a C compiler: apt-get install gcc").success());
    library
}

/// A member that is stopped for a second between the creation of a file and the change of its mode, as on a busy machine,
/// is not noticed by the others.
#[test]
fn a_file_appears_with_its_group_and_mode() {
    let place = shared_place(0o2770);
    let library = slow_chmod(&place);
    let slow = member(12340, place.run().env("LD_PRELOAD", library)).sh("unset LD_PRELOAD; echo ran");
    let mut slow = slow.spawn();
    let files = ["x.lock", "x.dlock", "x%history.dlock"].map(|file| place.locks().join(file));
    for file in &files[..2] {
        until(SOON, "the file", || file.exists());
        let output = member(12341, place.run().args(["--wait", "1m"])).sh("echo ran").output();
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "{}", file.display());
    }
    assert_eq!(slow.wait().outcome(), (Exit::Code(0), "ran\n", ""));
    for file in &files {
        let metadata = fs::metadata(file).unwrap();
        assert_eq!((metadata.gid(), metadata.mode() & 0o7777, metadata.nlink()), (GROUP, 0o660, 1));
    }
    assert_eq!(fs::read_dir(place.locks()).unwrap().count(), files.len());
}

#[test]
fn without_write_permission_for_the_group_files_stay_private() {
    let place = shared_place(0o750);
    assert_eq!(place.run().sh("echo ran").output().exit, Exit::Code(0));
    for file in ["x.lock", "x.dlock", "x%history.dlock"] {
        assert_eq!(fs::metadata(place.locks().join(file)).unwrap().mode() & 0o7777, 0o600, "{file}");
    }
}

/// The message names the owner and the mode of what is in the way, and how to share a directory.
#[test]
fn a_directory_of_another_user_is_refused_with_a_remedy() {
    let place = Place::new();
    for directory in [place.path("."), place.locks()] {
        set_mode(&directory, 0o755);
    }
    assert_eq!(place.run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
    for (name, owned) in
        [("x", "it belongs to root (mode 0600)"), ("y", "its directory belongs to root (mode 0755)")]
    {
        let output = by_stranger(place.run().name(name)).command(["true"]).output();
        let expected = format!(
            "dlock: {name} on {}: cannot open {}: permission denied: {owned}; users share a directory made with install \
             -d -g GROUP -m 2770; the command did not run\n",
            place.url(),
            place.lock_file(name).display()
        );
        assert_eq!(output.outcome(), (Exit::Code(77), "", expected.as_str()));
    }
}
