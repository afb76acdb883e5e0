//! Programs read `--json`: each of its keys stands in the page of its command.

use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use serde_json::Value;
use std::collections::BTreeSet;

fn collect(value: &Value, keys: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            keys.extend(object.keys().cloned());
            object.values().for_each(|value| collect(value, keys));
        }
        Value::Array(array) => array.iter().for_each(|value| collect(value, keys)),
        _ => {}
    }
}

#[track_caller]
fn assert_described(command: &str, outputs: &[Output]) {
    let path = format!("{}/packaging/manual/pages/{command}.md", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(path).unwrap();
    let (_, section) = page.split_once("\n# JSON\n").expect("a section");
    let section = section.split("\n# ").next().unwrap();
    let mut keys = BTreeSet::new();
    for output in outputs {
        let value = serde_json::from_str(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        collect(&value, &mut keys);
    }
    keys.retain(|key| !section.contains(&format!("`{key}`")));
    assert!(keys.is_empty(), "{command}: {keys:?}");
}

#[test]
fn the_pages_of_status_and_history_describe_their_keys() {
    let place = Place::new();
    let done = place.run().args(["--once-per", "1h", "--min-hold", "1ms"]).sh("exit 0");
    assert_eq!(done.output().exit, Exit::Code(0));
    let mut holder = place.run().sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let mut waiter = place.run().args(["-v", "--wait", "forever"]).sh("true").spawn();
    waiter.await_stderr("waiting at position 1");
    let contended = place.run().arg("--no-wait").sh("true").output();
    assert_eq!(contended.exit, Exit::Code(75), "{}", contended.stderr);
    let ask = |words: &[&str]| place.bare().args(words).args(["-b", &place.url()]).output();
    ask(&["freeze", "--now", "--forever", "x"]);
    let shown = [ask(&["status", "--json"]), ask(&["status", "--json", "--overdue", "1h", "x"])];
    assert!(shown[0].stdout.contains("\"freeze\":{"), "{:?}", shown[0]);
    assert_described("status", &shown);
    assert_described("history", &[ask(&["history", "--json"])]);
}

#[test]
fn the_page_of_doctor_describes_its_keys() {
    let place = Place::new();
    assert_described("doctor", &[place.bare().args(["doctor", "--json", "-b", &place.url()]).output()]);
}
