//! Configuration files: which are read, what overrides what, what is refused, and what is shown of them.

mod errors;
mod file_owners;
mod pools;
mod precedence;
mod servers;
mod settings;
mod several_locks;
mod show;
mod tables;
mod verified_tls;

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// Writes the file `name`, and the directories above it, readable only by its owner.
pub fn write(place: &Place, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = place.path(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

/// `dlock run` with a configuration file, and without `-b`.
pub fn run(place: &Place, text: &str) -> Dlock {
    place.run().no_backend().arg("--config").arg(write(place, "c.toml", text))
}

/// `dlock config show` with a configuration file.
pub fn show(place: &Place, text: &str) -> Dlock {
    place.bare().args(["config", "show", "--config"]).arg(write(place, "c.toml", text))
}

/// Its output, when it succeeds.
#[track_caller]
pub fn printed(run: Dlock) -> String {
    let output = run.output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    output.stdout
}

/// The effective value of a setting of a lock, as `dlock config show` has it.
#[track_caller]
pub fn counts(place: &Place, text: &str, name: &str, key: &str) -> serde_json::Value {
    let object = printed(show(place, text).args(["--json", name]));
    let object: serde_json::Value = serde_json::from_str(&object).unwrap();
    object["locks"][name][key]["value"].clone()
}

/// Asserts that a run printed one line and ran nothing, and returns the line without its start,
/// and with `FILE` instead of the name of the file.
#[track_caller]
pub fn refused(place: &Place, output: &Output, code: i32) -> String {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert!(!place.path("t").exists(), "it ran in spite of: {}", output.stderr);
    let line = output.stderr.strip_prefix("dlock: ").and_then(|line| line.strip_suffix('\n'));
    let line = line.unwrap_or_else(|| panic!("one line: {}", output.stderr));
    assert!(!line.contains('\n'), "one line: {}", output.stderr);
    line.replace(&place.arg("c.toml"), "FILE")
}
