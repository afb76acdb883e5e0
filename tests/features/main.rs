//! What depends on which stores a build has.
//!
//! The code has one list of stores, `backend/registry.rs`, and asks it alone. Everything else is the same in every build, so
//! that all other tests need only the build with all stores.

// A test states what it expects by unwrapping it.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A store: its feature, whether this build has it, and the schemes of its URLs that are offered.
type Store = (&'static str, bool, &'static [&'static str]);

const STORES: &[Store] = &[
    ("file", true, &["file:"]),
    (
        "redis",
        cfg!(feature = "redis"),
        &["redis://", "rediss://", "redis+unix:", "redis-sentinel://", "redis-cluster://", "redlock://"],
    ),
    ("etcd", cfg!(feature = "etcd"), &["etcd://", "etcds://"]),
    ("zookeeper", cfg!(feature = "zookeeper"), &["zookeeper://", "zookeepers://"]),
    ("postgres", cfg!(feature = "postgres"), &["postgres://"]),
    ("mysql", cfg!(feature = "mysql"), &["mysql://", "mariadb://"]),
    ("memcached", cfg!(feature = "memcached"), &["memcached://", "memcacheds://"]),
    ("consul", cfg!(feature = "consul"), &["consul://", "consuls://", "consul+unix:"]),
    ("s3", cfg!(feature = "s3"), &["s3://"]),
    ("dynamodb", cfg!(feature = "dynamodb"), &["dynamodb://"]),
    ("kubernetes", cfg!(feature = "kubernetes"), &["k8s://"]),
];

/// How the URLs of the stores in this build begin.
fn known() -> Vec<&'static str> {
    STORES
        .iter()
        .filter(|(_, is_built, _)| *is_built)
        .flat_map(|(.., beginnings)| *beginnings)
        .copied()
        .collect()
}

/// `dlock` with these arguments, in this directory, without any configuration.
fn dlock(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dlock"));
    command.args(arguments).current_dir(directory).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.env("HOME", directory).stdin(Stdio::null()).output().unwrap()
}

/// The exit code and what was printed.
fn outcome(output: &Output) -> (Option<i32>, &str, &str) {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| std::str::from_utf8(text).unwrap());
    (output.status.code(), stdout, stderr)
}

fn directory() -> TempDir {
    tempfile::Builder::new().prefix("it-features-").tempdir().unwrap()
}

#[test]
fn a_store_left_out_of_this_build_names_its_feature() {
    let directory = directory();
    for (feature, is_built, beginnings) in STORES {
        for beginning in *beginnings {
            let scheme = beginning.split(':').next().unwrap();
            let url = format!("{scheme}://h?nonsense=1");
            let output = dlock(directory.path(), &["run", "-b", &url, "x", "--", "touch", "ran"]);
            let (code, _, stderr) = outcome(&output);
            assert_eq!(code, Some(78), "{stderr}");
            let left_out =
                format!("dlock: --backend: this build has no {scheme}: build it with --features {feature}\n");
            assert_eq!(stderr == left_out, !is_built, "{stderr}");
        }
    }
    assert!(!directory.path().join("ran").exists());
}

/// Other names of a scheme are not offered, but belong to the same store.
#[test]
fn a_synonym_belongs_to_its_store() {
    let directory = directory();
    for (scheme, feature, is_built) in [
        ("valkeys-sentinel", "redis", cfg!(feature = "redis")),
        ("postgresql", "postgres", cfg!(feature = "postgres")),
    ] {
        let output =
            dlock(directory.path(), &["run", "-b", &format!("{scheme}://h?nonsense=1"), "x", "--", "true"]);
        let left_out =
            format!("dlock: --backend: this build has no {scheme}: build it with --features {feature}\n");
        assert_eq!(outcome(&output).2 == left_out, !is_built, "{}", outcome(&output).2);
    }
}

#[test]
fn an_unknown_scheme_is_answered_with_the_stores_of_this_build() {
    let output = dlock(directory().path(), &["run", "-b", "nonsense://h", "x", "--", "true"]);
    let line = format!("dlock: --backend: unknown scheme 'nonsense': known are {}\n", known().join(", "));
    assert_eq!(outcome(&output), (Some(78), "", line.as_str()));
}

#[test]
fn the_stores_of_this_build_are_completed() {
    let output = dlock(directory().path(), &["__complete", "=", "dlock", "run", "-b"]);
    let (code, stdout, stderr) = outcome(&output);
    let mut lines = stdout.lines();
    assert_eq!((code, lines.next(), stderr), (Some(0), Some("values"), ""));
    assert_eq!(lines.collect::<Vec<_>>(), known());
}

/// The options that may have secrets are those of the store, which a build without it does not know.
#[test]
fn no_secret_of_a_url_is_printed() {
    let directory = directory();
    for beginning in STORES.iter().flat_map(|(.., beginnings)| *beginnings) {
        let scheme = beginning.split(':').next().unwrap();
        let url = format!("{scheme}://user:s3cret@h/x?pasword=s3cret&password=s3cret");
        for arguments in [
            &["run", "-b", &url, "x", "--", "true"][..],
            &["-b", &url, "config", "show"],
            &["-b", &url, "status"],
            &["run", &url, "--", "true"],
        ] {
            let output = dlock(directory.path(), arguments);
            let (_, stdout, stderr) = outcome(&output);
            assert!(
                !stdout.contains("s3cret") && !stderr.contains("s3cret"),
                "{arguments:?}: {stdout}{stderr}"
            );
        }
    }
}

/// Every build has this store.
#[test]
fn a_run_on_a_file_is_shown_and_broken_and_leaves_its_history() {
    let directory = directory();
    let locks = format!("file://{}", directory.path().display());
    let us = |arguments: &[&str]| dlock(directory.path(), &[&["-b", &locks][..], arguments].concat());
    // Shown from inside, entered once more, and asked to end.
    let script = "\"$0\" -b \"$1\" status x && \"$0\" -b \"$1\" run x -- echo nested && \"$0\" -b \"$1\" break --yes x";
    let run = us(&["run", "x", "--", "sh", "-c", script, env!("CARGO_BIN_EXE_dlock"), &locks]);
    let (code, stdout, stderr) = outcome(&run);
    assert!(stdout.contains("\nnested\n") && stdout.contains("exclusive"), "{stdout}{stderr}");
    assert!(code != Some(0) && stderr.contains("the lock was broken by"), "{stderr}");
    let history = us(&["status", "--history", "x"]);
    assert!(outcome(&history).1.contains("broken"), "{}", outcome(&history).1);
    let busy = us(&["run", "x", "--", env!("CARGO_BIN_EXE_dlock"), "-b", &locks, "doctor"]);
    assert_eq!(outcome(&busy).0, Some(0), "{}", outcome(&busy).1);
}

#[test]
fn help_is_printed() {
    for arguments in [&["--help"][..], &["run", "--help"], &["doctor", "--help"]] {
        let output = dlock(directory().path(), arguments);
        let (code, stdout, stderr) = outcome(&output);
        assert_eq!((code, stderr), (Some(0), ""), "{arguments:?}");
        assert!(stdout.contains("Usage: dlock"), "{stdout}");
    }
}
