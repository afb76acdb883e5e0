//! The probe: a small program of the tests that reports what happens to it under dlock.

use std::path::PathBuf;

/// Path of the probe, which cargo builds together with the tests.
pub fn path() -> PathBuf {
    let tests = std::env::current_exe().expect("the path of this test binary");
    let profile = tests.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps/it");
    let probe = profile.join("examples").join("probe");
    assert!(
        probe.exists(),
        "{} is missing: `cargo test` builds it, `cargo test --test it` does not",
        probe.display()
    );
    probe
}

/// The probe's path followed by its arguments.
pub fn command<const N: usize>(args: [&str; N]) -> Vec<String> {
    std::iter::once(path().to_str().expect("a path in UTF-8").to_owned())
        .chain(args.map(str::to_owned))
        .collect()
}
