//! Several names on one command line: an error in one refuses all, and unusual names work.

use crate::acquire::refusal::assert_usage;
use crate::support::running::Exit;
use crate::support::store::Store;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::process::Stdio;

#[test]
fn a_bad_name_among_several_is_named_and_none_is_taken() {
    let long = "n".repeat(201);
    let too_long =
        format!("NAME '{}': a lock name may have at most 200 bytes, this one has 201", "n".repeat(40));
    for (name, line) in [
        ("", "NAME '': a lock name may not be empty"),
        ("..", "NAME '..': '.' and '..' are not lock names"),
        ("a\nb", "NAME 'a\\u{a}b': a lock name may not contain control characters"),
        (&long, &too_long),
    ] {
        assert_usage([
            (&["run", name, "a", "b", "--", "touch", "t"][..], line),
            (&["run", "a", name, "b", "--", "touch", "t"], line),
            (&["run", "a", "--wait", "5", "b", name, "-c", "touch t"], line),
        ]);
    }
}

/// Without `--` the command cannot be distinguished from a name; the first word is taken for the name.
#[test]
fn names_without_a_command_are_refused_with_an_example() {
    assert_usage([
        (&["run", "a", "b"][..], "no command: did you mean: dlock run a -- b"),
        (&["run", "-w", "5", "a", "b", "-s", "c"], "no command: did you mean: dlock run -w 5 a -- b -s c"),
        (&["run", "a", "b", "--"], "no command: did you mean: dlock run a b -- ./backup.sh"),
    ]);
}

#[test]
fn a_name_that_is_repeated_counts_once() {
    for store in Store::each() {
        let run = store.run_with_ttl("60s").no_name().args(["x", "b", "x", "x", "b"]);
        let run = run.sh("echo \"$DLOCK_NAME\"; echo \"$DLOCK_HELD\"").output();
        assert_eq!((run.exit, run.stderr.as_str()), (Exit::Code(0), ""), "{}", store.url());
        let (name, held) = run.stdout.split_once('\n').unwrap();
        assert_eq!(name, "x", "the first as typed");
        assert_eq!(names_in(held), ["b", "x"]);
        assert!(!store.is_held());
    }
}

#[test]
fn more_than_64_names_are_refused() {
    let names: Vec<String> = (0..65).map(|number| format!("name-{number:02}")).collect();
    let names = names.iter().map(String::as_str);
    let arguments: Vec<&str> = ["run"].into_iter().chain(names).chain(["--", "touch", "t"]).collect();
    assert_usage([(&arguments[..], "at most 64 locks can be taken together, but 65 were given")]);
}

/// On one processor, so that the guard does not run while dlock prints much, and vice versa.
#[test]
fn the_largest_number_of_names_is_taken_together() {
    let names: Vec<String> = (0..64).map(|number| format!("name-{number:02}")).collect();
    for store in Store::each() {
        let run = || {
            // The first one twice: that is not a 65th.
            let run = store.run_with_ttl("30s").no_name().args(&names).arg(&names[0]);
            run.before_exec(to_one_processor)
        };
        let mut holder = run().stdin(Stdio::piped()).sh("echo \"$DLOCK_HELD\"; echo ready; exec cat").spawn();
        let held = holder.await_stdout("ready\n");
        assert_eq!(names_in(held.lines().next().unwrap()), names);
        for name in &names {
            let second = store.run_with_ttl("60s").name(name).command(["true"]).output();
            assert_eq!(second.exit, Exit::Code(75), "{name} on {}", store.url());
        }
        drop(holder.take_stdin());
        let output = holder.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        assert_eq!(run().command(["true"]).output().outcome(), (Exit::Code(0), "", ""), "all are free again");
    }
}

fn to_one_processor() -> std::io::Result<()> {
    let allowed = sched_getaffinity(Pid::from_raw(0))?;
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false)).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(first)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &one)?)
}

/// The names in a `DLOCK_HELD`.
fn names_in(held: &str) -> Vec<String> {
    let held: Vec<serde_json::Value> = serde_json::from_str(held).unwrap();
    held.iter().map(|hold| hold["name"].as_str().unwrap().to_owned()).collect()
}
