//! The probe: a small program of the tests that reports what happens to it under dlock.

use std::path::PathBuf;

/// Path of the probe.
pub fn path() -> PathBuf {
    example("probe")
}

/// Path of an example of `Cargo.toml`, which cargo builds together with the tests.
pub fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("the path of this test binary");
    let profile = tests.parent().and_then(|deps| deps.parent()).expect("target/PROFILE/deps/it");
    let program = profile.join("examples").join(name);
    assert!(
        program.exists(),
        "{} is missing: `cargo test` builds it, `cargo test --test it` does not",
        program.display()
    );
    program
}

/// The probe's path followed by its arguments.
pub fn command<const N: usize>(args: [&str; N]) -> Vec<String> {
    std::iter::once(path().to_str().expect("a path in UTF-8").to_owned())
        .chain(args.map(str::to_owned))
        .collect()
}
