//! The history in files.

use super::{history, last, outcome_of, run};
use crate::admin::status::{parse, status};
use crate::support::dlock::Dlock;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::os::unix::fs::PermissionsExt;

/// The user who planted it could read or redirect what is written.
#[test]
fn a_history_that_is_not_a_regular_file_is_refused() {
    let store = Store::file();
    let path = store.place.path("locks/x%history.dlock");
    run(&store, "true");
    assert_eq!(last(&store)["outcome"], "ran");
    assert!(path.is_file(), "{:?}", std::fs::read_dir(store.place.locks()).unwrap().collect::<Vec<_>>());
    for plant in
        ["rm $1; mkdir $1", "rmdir $1; mkfifo $1", "rm $1; ln -s /dev/full $1", "rm $1; ln -s nowhere $1"]
    {
        let planted = std::process::Command::new("sh").args(["-c", plant, "sh"]).arg(&path).status().unwrap();
        assert!(planted.success());
        let line = format!(
            "dlock: x on {}: cannot use {}: not a regular file; the command did not run\n",
            store.url(),
            path.display()
        );
        assert_eq!(run(&store, "echo ran").outcome(), (Exit::Code(77), "", line.as_str()), "{plant}");
        let output = status(&store).args(["--json", "--history", "x"]).output();
        assert_eq!(
            output.stderr.lines().count(),
            usize::from(output.exit != Exit::Code(0)),
            "{}",
            output.stderr
        );
    }
    std::fs::remove_file(&path).unwrap();
    run(&store, "exit 4");
    assert_eq!(outcome_of(&last(&store)).2, Some(4));
}

#[test]
fn a_full_disk_costs_the_history_and_nothing_else() {
    let store = Store::file();
    let script = format!(
        "mount -t tmpfs -o size=16k none locks || exit 99
         \"$1\" run -b {url} x -- true || exit 98
         dd if=/dev/zero of=locks/fill bs=512 count=1000 2>/dev/null
         for i in $(seq 60); do \"$1\" run -b {url} x -- sh -c 'exit 3'; echo $?; done | sort | uniq -c
         \"$1\" status -b {url} --history x >/dev/null; echo $?",
        url = store.url()
    );
    let output = store.place.bare().wrapped_by(["unshare", "-m", "sh", "-c", &script, "sh"]).output();
    let words: Vec<&str> = output.stdout.split_whitespace().collect();
    assert_eq!((words, output.stderr.as_str()), (vec!["60", "3", "0"], ""));
}

/// Others may have written anything there.
#[test]
fn meaningless_lines_are_skipped() {
    let store = Store::file();
    run(&store, "exit 3");
    let path = store.place.path("locks/x%history.dlock");
    let good = std::fs::read(&path).unwrap();
    let mut bytes = b"{\n\xff\xfe\n\n[]\n{\"at\":1}\n{\"at\":-1,\"outcome\":\"ran\"}\n".to_vec();
    bytes.extend(&good);
    bytes.extend(vec![b'x'; 300_000]);
    bytes.push(b'\n');
    bytes.extend(&good);
    bytes.extend(b"{\"at\":17,\"outc");
    std::fs::write(&path, bytes).unwrap();
    let seen = history(&store, "x");
    assert!(!seen.is_empty() && seen.iter().all(|record| outcome_of(record).2 == Some(3)), "{seen:?}");
    // Half a line of a killed writer does not corrupt the next one.
    run(&store, "exit 4");
    assert_eq!(outcome_of(&last(&store)).2, Some(4));
}

/// Without the rights of root to every file.
fn unprivileged(dlock: Dlock) -> Dlock {
    dlock.wrapped_by(["setpriv", "--bounding-set=-all", "--inh-caps=-all"])
}

fn make_unreadable(store: &Store, file: &str) {
    let path = store.place.locks().join(file);
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o000)).unwrap();
}

/// It keeps nobody from the histories that can be read.
#[test]
fn an_unreadable_history_is_left_out_unless_it_was_named() {
    let store = Store::file();
    for name in ["x", "secret", "secret2"] {
        let ended = store.run().name(name).command(["true"]).output();
        assert_eq!(ended.outcome(), (Exit::Code(0), "", ""));
    }
    make_unreadable(&store, "secret%history.dlock");
    for file in ["secret2.lock", "secret2.dlock", "secret2%history.dlock"] {
        make_unreadable(&store, file);
    }
    let output = unprivileged(status(&store).args(["--history", "--json"])).output();
    let seen = parse(&output.stdout);
    assert_eq!((output.exit, seen["locks"].as_array().map(Vec::len)), (Exit::Code(0), Some(1)), "{seen}");
    assert_eq!(seen["locks"][0]["name"], "x");
    let warnings: Vec<&str> = output.stderr.lines().collect();
    let [secret, secret2] = warnings[..] else { panic!("{warnings:?}") };
    let head = format!("on {}: its history is left out: cannot read ", store.url());
    assert!(secret.starts_with(&format!("dlock: secret {head}")), "{secret}");
    assert!(secret2.starts_with(&format!("dlock: secret2 {head}")), "{secret2}");
    let quiet = unprivileged(status(&store).args(["--history", "--json", "-q"])).output();
    assert_eq!(quiet.outcome(), (Exit::Code(0), output.stdout.as_str(), ""));
    let named = unprivileged(status(&store).args(["--history", "x", "secret"])).output();
    assert_eq!((named.exit, named.stdout.as_str()), (Exit::Code(77), ""), "{}", named.stderr);

    let metrics = unprivileged(status(&store).arg("--prometheus")).output();
    assert_eq!((metrics.exit, metrics.stderr.as_str()), (Exit::Code(0), ""));
    let of = |name: &str| -> Vec<&str> {
        let label = format!("{{name=\"{name}\"");
        metrics.stdout.lines().filter(|line| line.contains(&label)).collect()
    };
    for name in ["secret", "secret2"] {
        assert_eq!(of(name), [format!("dlock_lock_readable{{name=\"{name}\"}} 0")], "{}", metrics.stdout);
    }
    assert!(of("x").contains(&"dlock_lock_outcomes{name=\"x\",outcome=\"ran\"} 1"), "{}", metrics.stdout);
}

#[test]
fn an_unreadable_history_is_reported() {
    let store = Store::file();
    run(&store, "exit 3");
    make_unreadable(&store, "x%history.dlock");
    let output = unprivileged(status(&store).args(["--history", "x"])).output();
    assert_eq!(
        (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
        (Exit::Code(77), "", 1),
        "{}",
        output.stderr
    );
}
