//! Directories of lock files, healthy and unhealthy ones.

use super::{Findings, doctor, without_numbers};
use crate::support::dlock::Dlock;
use crate::support::doctor::assert_refused;
use crate::support::place::Place;
use crate::support::running::Exit;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

fn findings(place: &Place) -> Findings {
    Findings::of(doctor(place, &place.url()))
}

/// As a user other than root, to whom modes apply.
fn by_other_user(place: &Place, run: Dlock) -> Dlock {
    mode(&place.path("."), 0o755);
    let ids = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    run.wrapped_by(ids)
}

#[test]
fn a_healthy_directory_has_only_good_findings() {
    let place = Place::new();
    mode(&place.locks(), 0o700);
    let output = doctor(&place, &place.url()).output();
    let directory = without_numbers(&place.locks().display().to_string()).trim_end().to_owned();
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap().name;
    let expected = format!(
        "file://{directory}\n\n\
         ok       directory    {directory}, of {user}, mode N\n\
         ok       file system  local: its locks are those of this host's kernel\n\
         ok       writing      lock files and sidecar files can be made and written\n\
         ok       room         room for N KiB and N files\n\
         ok       exclusion    flock(N) and locks of single bytes keep two descriptors apart\n\
         ok       latency      pN Nms, pN Nms of N locks taken and given back\n\
         ok       race         N races of N connections for a free lock had one winner each\n\
         ok       processes    a cgroup can be made: a whole tree is killed in one step\n\n\
         Is a grant atomic here?\n\
         \x20   yes: N races of N connections for a free lock had one winner each\n\
         Can a granted lock be lost, and by what?\n\
         \x20   no: the kernel keeps it until the holder's last process has ended, unless its lock file is\n\
         \x20   removed or replaced\n\
         Does a session keep to one server?\n\
         \x20   yes: the kernel of this host\n\
         Whose clock ends a lease, and how long does a crashed holder block others?\n\
         \x20   none: there is no lease and --ttl means nothing here: the lock of a crashed holder is free as\n\
         \x20   soon as the last process of that holder has ended\n\n\
         no problems, no warnings\n"
    );
    assert_eq!(
        (output.exit, without_numbers(&output.stdout), output.stderr.as_str()),
        (Exit::Code(0), expected, "")
    );
    assert_eq!(entries(&place.locks()), 0, "nothing is left");
    assert_eq!(findings(&place).recommended_ttl_ms(), None, "there is no lease");
}

/// The default directory is created, as the first run would.
#[test]
fn the_default_directory_is_created_and_reported() {
    let place = Place::new();
    let output = by_other_user(&place, place.bare().arg("doctor").env("HOME", place.path("home"))).output();
    assert_eq!(output.exit, Exit::Code(1), "not a home of theirs: {output:?}");
    assert!(output.stdout.contains("permission denied"), "{output:?}");
    mode(&place.home(), 0o777);
    let output = by_other_user(&place, place.bare().arg("doctor").args(["-q", "--init"])).output();
    // Everyone may replace the entries of that home.
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(1), ""), "{output:?}");
    assert!(output.stdout.contains("every user may replace"), "{output:?}");
    assert_eq!(entries(&place.path("home/.local/state/dlock")), 0);
}

/// F38
#[test]
fn a_missing_directory_or_a_file_in_its_place_is_a_problem() {
    let place = Place::new();
    let found = Findings::of(doctor(&place, "file:///nonexistent/locks"));
    assert_eq!(found.only("directory", "problem"), "no such file or directory");
    let file = place.write("file", "");
    let found = Findings::of(doctor(&place, &format!("file://{}", file.display())));
    assert_eq!(found.only("directory", "problem"), "it is not a directory");
}

/// F38
#[test]
fn an_unwritable_directory_is_a_problem() {
    let place = Place::new();
    mode(&place.locks(), 0o755);
    let found = Findings::of(by_other_user(&place, doctor(&place, &place.url())));
    assert_eq!(found.only("writing", "problem"), "cannot make a lock file: permission denied");
    assert_eq!(found.check("exclusion").len(), 0);
}

/// With the status of a run, also where a directory is to be created.
#[test]
fn a_denied_directory_is_refused_as_by_a_run() {
    let place = Place::new();
    mode(&place.locks(), 0o755);
    let closed = place.arg("closed");
    fs::create_dir(&closed).unwrap();
    mode(Path::new(&closed), 0o755);
    let named = place.url();
    for (url, check) in [(named.as_str(), "writing"), ("file:", "directory")] {
        let set = |run: Dlock| {
            by_other_user(
                &place,
                run.env("HOME", &closed).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_STATE_HOME"),
            )
        };
        let init = place.bare().args(["doctor", "--init", "--json", "-b", url]);
        let output = set(init).output();
        assert_eq!(output.exit, Exit::Code(1), "{output:?}");
        assert_refused(&output, check, 77, "");
        let run = set(place.run().backend(url)).sh("echo ran").output();
        assert_eq!((run.exit, run.stdout.as_str()), (Exit::Code(77), ""), "{run:?}");
    }
    let missing = place.bare().args(["doctor", "--json", "-b", "file:///nonexistent/locks"]).output();
    assert_refused(&missing, "directory", 78, "see dlock doctor --policy");
}

/// A user who may rename there can replace the lock file.
#[test]
fn a_world_writable_directory_without_the_sticky_bit_is_a_problem() {
    let place = Place::new();
    for (bits, level) in [(0o700, "ok"), (0o755, "ok"), (0o777, "problem"), (0o1777, "warning")] {
        mode(&place.locks(), bits);
        let found = findings(&place);
        assert!(found.only("directory", level).contains(&format!("mode {bits:04o}")), "{found:?}");
    }
    // The same holds for a directory above it, also one that is reached through a link.
    let open = place.path("open");
    fs::create_dir_all(open.join("locks")).unwrap();
    mode(&open.join("locks"), 0o700);
    mode(&open, 0o777);
    std::os::unix::fs::symlink(open.join("locks"), place.path("link")).unwrap();
    let found = Findings::of(doctor(&place, &format!("file://{}", place.path("link").display())));
    let said = found.only("directory", "problem");
    assert!(said.contains(&format!("leads to {}", open.join("locks").display())), "{said}");
    assert!(found.check("directory")[0]["consequence"].as_str().unwrap().contains("/open, lock files"));
}

#[test]
fn a_directory_of_another_user_is_a_warning() {
    let place = Place::new();
    nix::unistd::chown(&place.locks(), Some(nix::unistd::Uid::from_raw(65533)), None).unwrap();
    assert!(findings(&place).only("directory", "warning").contains("of user 65533"));
}

/// F38
#[test]
fn a_network_file_system_is_one_warning() {
    let place = Place::new();
    let library = crate::stores::file::network_file_systems::library(&place);
    let lying = |run: Dlock| run.env("LD_PRELOAD", &library).env("FS_MAGIC", "0x6969");
    let found = Findings::of(lying(doctor(&place, &place.url())));
    assert_eq!(found.only("file system", "warning"), "NFS: locks are made elsewhere");
    for question in ["loss", "one_server"] {
        assert_eq!(found.answer(question), ("unknown", "NFS: locks are made elsewhere"));
    }
    assert_eq!(found.at("problem"), [""; 0]);
}

/// On a file system that grants every lock.
#[test]
fn locks_that_do_not_exclude_are_a_problem() {
    let place = Place::new();
    let source = place.write("flock.c", "int flock(int file, int operation) { return 0; }\n");
    let library = place.path("flock.so");
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.expect("a C compiler: apt-get install gcc").success());
    let found = Findings::of(doctor(&place, &place.url()).env("LD_PRELOAD", &library));
    assert_eq!(found.only("exclusion", "problem"), "flock(2) grants an exclusive lock twice");
}

/// On a separate tmpfs with these options, after a shell script.
fn on_tmpfs(place: &Place, options: &str, prepare: &str) -> Findings {
    let directory = place.locks();
    let text = format!(
        "mount -t tmpfs -o '{options},mode=0700' none '{0}' && cd '{0}' && {{ {prepare}\n}} || exit 99",
        directory.display()
    );
    Findings::of(doctor(place, &place.url()).after_shell(&text).wrapped_by(["unshare", "--mount"]))
}

/// F38
#[test]
fn a_full_disk_is_a_problem_and_a_nearly_full_one_a_warning() {
    let place = Place::new();
    let found = on_tmpfs(&place, "size=4k", "head -c 4096 /dev/zero >fill");
    assert_eq!(found.only("writing", "problem"), "cannot write a sidecar file: no space left on device");
    assert!(found.only("room", "warning").starts_with("room for 0 KiB"));
    let found = on_tmpfs(&place, "nr_inodes=2", "touch fill");
    assert_eq!(found.only("writing", "problem"), "cannot make a lock file: no space left on device");
    let found = on_tmpfs(&place, "size=64k", "true");
    found.only("writing", "ok");
    found.only("room", "warning");
    let found = on_tmpfs(&place, "size=16m", "mount -o remount,ro none .");
    assert_eq!(found.only("writing", "problem"), "cannot make a lock file: read-only file system");
}

/// A directory that no run has needed yet is created by `--init`, and otherwise not left behind.
#[test]
fn the_default_directory_is_left_as_it_was() {
    let place = Place::new();
    mode(&place.home(), 0o777);
    for (arguments, exists) in [(&["-q"][..], false), (&["-q", "--init"], true), (&["-q"], true)] {
        let output = by_other_user(&place, place.bare().arg("doctor").args(arguments)).output();
        assert!(output.stdout.contains("had one winner each"), "{output:?}");
        for directory in ["home/.local", "home/.local/state/dlock"] {
            assert_eq!(place.path(directory).exists(), exists, "{arguments:?}: {directory}");
        }
    }
}
