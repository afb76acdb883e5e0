//! Several locks with different backends: a run uses one store, and `dlock status` queries one.

use super::{printed, refused, run, write};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;

/// The store of every lock, and that of locks whose names start with `f-`.
fn stores(place: &Place) -> String {
    for directory in ["p", "f"] {
        std::fs::create_dir_all(place.path(directory)).unwrap();
    }
    let (p, f) = (place.arg("p"), place.arg("f"));
    format!(
        "backend = \"p\"\n[backends.p]\nurl = \"file://{p}\"\n[backends.f]\nurl = \"file://{f}\"\n\
         [locks.\"f-*\"]\nbackend = \"f\"\n[locks.\"*-note\"]\nnote = \"n\"\n"
    )
}

fn status(place: &Place, text: &str) -> Dlock {
    place.bare().args(["status", "--config"]).arg(write(place, "c.toml", text))
}

const RUN_APART: &str = "a run is on one store: give --backend, or nest one dlock run in the other";
const ASK_APART: &str = "one store is queried at a time: give --backend, or query these one at a time";

#[test]
fn locks_with_different_backends_are_not_taken_together() {
    let place = Place::new();
    let text = stores(&place);
    let mut holder = run(&place, &text).name("n").sh("echo ready; exec sleep 1000").spawn();
    holder.await_ready();
    let both =
        |text: &str, names: [&str; 2]| run(&place, text).arg(names[0]).name(names[1]).command(["touch", "t"]);
    let output = both(&text, ["f-1", "n"]).output();
    let line = format!("NAME 'f-1' is on f (FILE:7) and NAME 'n' is on p (FILE:1): {RUN_APART}");
    assert_eq!(refused(&place, &output, 78), line);
    let output = both(&text, ["n", "f-1"]).output();
    let line = format!("NAME 'n' is on p (FILE:1) and NAME 'f-1' is on f (FILE:7): {RUN_APART}");
    assert_eq!(refused(&place, &output, 78), line);
    // A table without a backend leaves its locks in the default one.
    let output = both(&text, ["a-note", "f-1"]).output();
    let line = format!("NAME 'a-note' is on p (FILE:1) and NAME 'f-1' is on f (FILE:7): {RUN_APART}");
    assert_eq!(refused(&place, &output, 78), line);

    // An explicit backend for all takes effect, and so do backends that agree.
    assert_eq!(both(&text, ["f-1", "n"]).arg("-n").backend("p").output().exit, Exit::Code(75));
    assert_eq!(both(&text, ["f-1", "n"]).arg("-n").env("DLOCK_BACKEND", "p").output().exit, Exit::Code(75));
    assert_eq!(both(&text, ["f-1", "f-2"]).output().outcome(), (Exit::Code(0), "", ""));
    assert_eq!(both(&text, ["a-note", "b"]).output().outcome(), (Exit::Code(0), "", ""));
    let same = text.replace("backend = \"f\"", &format!("backend = \"file://{}\"", place.arg("p")));
    assert_eq!(
        both(&same, ["f-1", "b"]).output().outcome(),
        (Exit::Code(0), "", ""),
        "one store, said twice"
    );
}

#[test]
fn a_lock_without_a_backend_does_not_use_that_of_another() {
    let place = Place::new();
    let text = stores(&place).replace("backend = \"p\"\n", "");
    let output = run(&place, &text).arg("f-1").name("n").command(["touch", "t"]).output();
    let line = format!("NAME 'f-1' is on f (FILE:6) and NAME 'n' has no backend: {RUN_APART}");
    assert_eq!(refused(&place, &output, 78), line);
}

#[test]
fn a_refusal_of_different_backends_shows_no_passwords() {
    let place = Place::new();
    let text = "backend = \"redis://:hunter2@h\"\n[locks.f]\nbackend = \"redis://me:hunter3@k/1\"\n";
    let output = run(&place, text).arg("f").name("n").command(["touch", "t"]).output();
    let line = format!(
        "NAME 'f' is on redis://me:***@k/1 (FILE:3) and NAME 'n' is on redis://:***@h (FILE:1): {RUN_APART}"
    );
    assert_eq!(refused(&place, &output, 78), line);
}

#[test]
fn status_does_not_query_one_store_for_locks_with_different_backends() {
    let place = Place::new();
    let text = stores(&place);
    let mut holder = run(&place, &text).name("n").sh("echo ready; exec sleep 1000").spawn();
    holder.await_ready();
    for option in ["--exit-code", "--json", "--watch", "--history"] {
        let output = status(&place, &text).args([option, "f-1", "n"]).output();
        let line = format!("NAME 'f-1' is on f (FILE:7) and NAME 'n' is on p (FILE:1): {ASK_APART}");
        assert_eq!(refused(&place, &output, 78), line, "{option}");
    }
    let of = |names: &[&str]| status(&place, &text).arg("--exit-code").args(names).output().exit;
    assert_eq!(of(&["n"]), Exit::Code(75));
    assert_eq!(of(&["f-1"]), Exit::Code(0));
    assert_eq!(of(&["-b", "p", "f-1", "n"]), Exit::Code(75));
    assert_eq!(of(&["n", "m"]), Exit::Code(75));
}

/// A list without them must not look complete.
#[test]
fn status_lists_the_stores_it_has_not_queried() {
    let place = Place::new();
    let text = format!("{}[locks.g]\nbackend = \"file:///g\"\n", stores(&place));
    let notices = |arguments: &[&str]| {
        let output = status(&place, &text).args(arguments).output();
        assert_eq!(output.exit, Exit::Code(0), "{arguments:?}: {}", output.stderr);
        output.stderr
    };
    let line = |asked: &str, others: &[&str]| {
        let flags: Vec<String> = others.iter().map(|other| format!("-b {other}")).collect();
        let (others, flags) = (others.join(", "), flags.join(" or "));
        let asked = format!("file://{}", place.arg(asked));
        format!("dlock: queried only {asked}, but the configuration has locks on {others} too: see {flags}\n")
    };
    assert_eq!(notices(&[]), line("p", &["f", "file:///g"]));
    assert_eq!(notices(&["*"]), line("p", &["f", "file:///g"]));
    assert_eq!(notices(&["--json"]), line("p", &["f", "file:///g"]));
    assert_eq!(notices(&["f-1*"]), line("p", &["f"]));
    assert_eq!(notices(&["[fg]"]), line("p", &["f", "file:///g"]));
    assert_eq!(notices(&["f-1", "x*"]), line("f", &["p"]), "a name chose the store");
    for silent in [&["x*"][..], &["n"], &["f-1"], &["-q"], &["-q", "f*"], &["-b", "p"], &["-b", "f", "*"]] {
        assert_eq!(notices(silent), "", "{silent:?}");
    }
    let variable = status(&place, &text).env("DLOCK_BACKEND", "p");
    assert_eq!(printed(variable), format!("file://{}\nno lock is held or awaited\n", place.arg("p")));
}
