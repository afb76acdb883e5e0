//! Files that another user plants where a report or metrics are to be written, before the check or while the command
//! runs.

use super::assert_nothing_else;
use crate::support::place::Place;
use crate::support::running::Exit;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

const ATTACKER: u32 = 12345;
/// The attack, as a shell script.
const AS_ATTACKER: &str = "setpriv --reuid=12345 --regid=12345 --clear-groups sh -c";

/// A place with a directory `shared` of this mode, and a file of the user beside it.
fn shared(mode: u32) -> Place {
    let place = Place::new();
    for (directory, mode) in [(".", 0o755), ("shared", mode)] {
        let _ = std::fs::create_dir(place.path(directory));
        std::fs::set_permissions(place.path(directory), Permissions::from_mode(mode)).unwrap();
    }
    place.write("target", "precious\n");
    std::fs::set_permissions(place.path("target"), Permissions::from_mode(0o640)).unwrap();
    place
}

#[track_caller]
fn assert_untouched(place: &Place) {
    let target = std::fs::metadata(place.path("target")).unwrap();
    assert_eq!(
        (place.read("target").as_str(), target.mode() & 0o777, target.uid()),
        ("precious\n", 0o640, 0)
    );
    assert_nothing_else(place);
}

#[test]
fn a_link_of_another_user_is_never_followed() {
    let everybodys = "it belongs to another user, in a world-writable directory";
    let link = "it is a symbolic link that belongs to another user";
    for (mode, why) in [(0o777, everybodys), (0o1777, everybodys), (0o755, link)] {
        let place = shared(mode);
        symlink("../target", place.path("shared/r")).unwrap();
        lchown(place.path("shared/r"), Some(ATTACKER), Some(ATTACKER)).expect("the tests run as root");
        for option in ["--report", "--metrics-file"] {
            let output = place.run().args([option, "shared/r"]).command(["touch", "ran"]).output();
            let line = format!("dlock: {option}: cannot write 'shared/r': {why}\n");
            assert_eq!(output.outcome(), (Exit::Code(64), "", line.as_str()));
            assert!(!place.path("ran").exists());
        }
        assert_untouched(&place);
    }
}

/// Neither its owner nor its mode is adopted.
#[test]
fn a_link_that_is_planted_while_the_command_runs_is_not_followed() {
    for (mode, option) in [(0o777, "--report"), (0o1777, "--report"), (0o777, "--metrics-file")] {
        let place = shared(mode);
        let attack = format!("{AS_ATTACKER} 'ln -s ../target shared/r'; exit 7");
        let output = place.run().args([option, "shared/r"]).sh(&attack).output();
        assert_eq!(output.exit, Exit::Code(7));
        assert!(output.stderr.starts_with(&format!("dlock: {option}: ")), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        assert_untouched(&place);
    }
    // Also a link of the user: it did not exist when the path was resolved.
    let place = shared(0o755);
    let output = place.run().args(["--report", "shared/r"]).sh("ln -s ../target shared/r; exit 7").output();
    let line = "dlock: --report: cannot write 'shared/r': it is no longer a regular file\n";
    assert_eq!(output.outcome(), (Exit::Code(7), "", line));
    assert_untouched(&place);
}

/// A FIFO without a writer, and a device without an end; also of the user.
#[test]
fn a_planted_metrics_file_neither_hangs_nor_exhausts_memory() {
    for (attack, why) in [
        ("mkfifo shared/m", "cannot be read: not a regular file"),
        ("ln -s /dev/zero shared/m", "cannot be read: too many symbolic links encountered"),
        ("truncate -s 1T shared/m", "cannot be read: longer than 16777216 bytes"),
    ] {
        let place = shared(0o777);
        let run = || place.run().args(["--metrics-file", "shared/m"]);
        let output = run().sh(&format!("{attack}; exit 7")).output();
        let line = format!("dlock: --metrics-file: this run is not counted: {why}\n");
        assert_eq!(output.outcome(), (Exit::Code(7), "", line.as_str()), "{attack}");
        std::fs::remove_file(place.path("shared/m")).unwrap();
        let output = run().sh(&format!("{AS_ATTACKER} '{attack}'; exit 7")).output();
        assert_eq!((output.exit, output.stderr.lines().count()), (Exit::Code(7), 1), "{}", output.stderr);
        assert_untouched(&place);
    }
}

/// The file that keeps writers apart is one, too.
#[test]
fn a_lock_of_the_metrics_that_is_a_fifo_is_refused() {
    let place = shared(0o755);
    nix::unistd::mkfifo(&place.path("shared/.m.lock"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let output = place.run().args(["--metrics-file", "shared/m"]).command(["touch", "ran"]).output();
    let line = "dlock: --metrics-file: cannot use 'shared/m': not a regular file\n";
    assert_eq!(output.outcome(), (Exit::Code(64), "", line));
}

/// The target of the path when the command has ended does not matter.
#[test]
fn a_directory_replaced_while_the_command_runs_changes_nothing() {
    let place = shared(0o777);
    std::fs::create_dir_all(place.path("shared/out")).unwrap();
    std::fs::create_dir(place.path("secret")).unwrap();
    place.write("secret/r", "precious\n");
    let attack = format!("{AS_ATTACKER} 'mv shared/out shared/old && ln -s ../secret shared/out'");
    let output = place.run().args(["--report", "shared/out/r"]).sh(&attack).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    assert_eq!(place.read("secret/r"), "precious\n");
    assert!(place.read("shared/old/r").starts_with("{\"version\":1,"));
}

#[test]
fn a_path_through_a_link_to_a_directory_works() {
    let place = Place::new();
    std::fs::create_dir(place.path("d")).unwrap();
    symlink("d", place.path("link")).unwrap();
    chown(place.path("d"), Some(ATTACKER), None).unwrap();
    let run = place.run().args(["--report", "link/r", "--metrics-file", "link/m"]);
    assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
    assert!(place.read("d/r").starts_with("{\"version\":1,") && !place.read("d/m").is_empty());
}

/// As a build does with its output.
#[test]
fn a_directory_recreated_by_the_command_gets_the_report() {
    let place = Place::new();
    std::fs::create_dir(place.path("out")).unwrap();
    let output = place.run().args(["--report", "out/r"]).sh("rm -r out; mkdir out").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    assert!(place.read("out/r").starts_with("{\"version\":1,"));
}
