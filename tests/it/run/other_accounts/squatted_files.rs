//! Files that another account created before root's first run.

use super::{by_stranger, set_mode, sticky_place, stranger};
use crate::support::place::Place;
use crate::support::running::Exit;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

/// Each file of the lock `x`, and the failed operation in the message.
const FILES: [(&str, &str); 3] = [("x.lock", "open"), ("x.dlock", "use"), ("x%history.dlock", "use")];

/// A sidecar with only one fencing token left.
const EXHAUSTED: &str = r#"{"format":1,"fencing_token":9007199254740990}"#;

fn refusal(place: &Place, file: &str, what: &str, why: &str) -> String {
    let path = place.locks().join(file);
    format!("dlock: x on {}: cannot {what} {}: {why}; the command did not run\n", place.url(), path.display())
}

#[track_caller]
fn assert_refused(place: &Place, file: &str, what: &str, why: &str) {
    let before = fs::read(place.locks().join(file)).unwrap_or_default();
    for wait in [&[][..], &["--wait", "forever"]] {
        let output = place.run().args(wait).sh("echo ran").output();
        let line = refusal(place, file, what, why);
        assert_eq!(output.outcome(), (Exit::Code(77), "", line.as_str()), "{file}");
    }
    assert_eq!(fs::read(place.locks().join(file)).unwrap_or_default(), before, "{file} was written to");
}

/// F47: otherwise its token would be read, a revocation written, the counter exhausted, a member forged.
#[test]
fn a_file_planted_by_another_account_is_refused() {
    for (file, what) in FILES {
        let place = sticky_place();
        let path = place.locks().join(file);
        stranger(&place, &format!("echo '{EXHAUSTED}' >{file}; chmod 0666 {file}"));
        let why = format!("it belongs to nobody, and everybody may write to {}", place.locks().display());
        assert_refused(&place, file, what, &why);
        // Removing it repairs the lock; root's own files work for root and for users that may open them.
        fs::remove_file(&path).unwrap();
        assert_eq!(place.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
        let other = by_stranger(place.run()).sh("echo ran").output();
        assert_eq!((other.exit, other.stdout.as_str()), (Exit::Code(77), ""), "{}", other.stderr);
    }
}

/// A file of another account in its own directory was put there with permission.
#[test]
fn a_file_of_another_account_in_a_closed_directory_is_used() {
    let place = sticky_place();
    assert_eq!(place.run().sh("echo ran").output().exit, Exit::Code(0));
    set_mode(&place.locks(), 0o755);
    for (file, _) in FILES {
        chown(place.locks().join(file), Some(65534), Some(65534)).unwrap();
    }
    assert_eq!(place.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A second name of a file that root writes elsewhere.
#[test]
fn a_file_with_two_names_is_refused_everywhere() {
    for (file, what) in FILES {
        let place = Place::new();
        let target = place.write("target", EXHAUSTED);
        fs::hard_link(&target, place.locks().join(file)).unwrap();
        assert_refused(&place, file, what, "it has 2 names (hard links), and may have only one");
        assert_eq!((place.read("target").as_str(), fs::metadata(&target).unwrap().nlink()), (EXHAUSTED, 2));
    }
}

/// A holder that is already running does not trust a file that replaces its sidecar.
#[test]
fn a_revocation_in_a_planted_sidecar_is_ignored() {
    let place = sticky_place();
    // Without the sticky bit the other account may even remove root's file.
    set_mode(&place.locks(), 0o777);
    let mut run = place
        .run()
        .args(["--ttl", "1s"])
        .stdin(std::process::Stdio::piped())
        .sh("echo ready; cat; echo done")
        .spawn();
    run.await_ready();
    let mut forged = crate::support::wait::eventually(crate::support::SOON, "a whole sidecar", || {
        Some(place.noted("x")).filter(|noted| noted["members"][0].is_object())
    });
    forged["members"][0]["revoked"] = serde_json::json!({"by": "mallory", "reason": "mine"});
    set_mode(&place.path("."), 0o777);
    place.write("forged", &format!("{forged}\n"));
    stranger(&place, "cat ../forged >new && chmod 0666 new && mv -f new x.dlock");
    // Longer than the interval at which the holder checks its lock.
    crate::support::wait::throughout(std::time::Duration::from_secs(1), "it goes on", || {
        run.poll().is_none()
    });
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ready\ndone\n"), "{}", output.stderr);
}

#[test]
fn status_ignores_a_planted_sidecar() {
    let place = sticky_place();
    stranger(&place, &format!("echo '{EXHAUSTED}' >x.dlock; chmod 0666 x.dlock"));
    let output = place.bare().args(["status", "--json", "--exit-code", "-b", &place.url(), "x"]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(77), ""));
    assert!(output.stdout.contains(r#""state":"unknown""#), "{}", output.stdout);
}
