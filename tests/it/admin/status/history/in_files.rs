//! The history in files.

use super::{history, last, outcome_of, run};
use crate::admin::status::status;
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

#[test]
fn an_unreadable_history_is_reported() {
    let store = Store::file();
    run(&store, "exit 3");
    let path = store.place.path("locks/x%history.dlock");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    let output = status(&store)
        .args(["--history", "x"])
        .wrapped_by(["setpriv", "--bounding-set=-all", "--inh-caps=-all"])
        .output();
    assert_eq!(
        (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
        (Exit::Code(77), "", 1),
        "{}",
        output.stderr
    );
}
