//! Programs read `--json`: each of its keys stands in the page of its command.

use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;
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
fn the_pages_of_acquire_renew_and_config_describe_their_keys() {
    let store = Store::redis();
    let ask = |words: &[&str]| store.place.bare().args(words).args(["-b", store.url(), "--json", "x"]);
    let acquired = ask(&["acquire", "--ttl", "60s"]).output();
    let object: Value = serde_json::from_str(&acquired.stdout).unwrap();
    let renewed = ask(&["renew"]).env("DLOCK_TOKEN", object["token"].as_str().unwrap()).output();
    assert_described("acquire", &[acquired]);
    assert_described("renew", &[renewed]);
    let text = "[locks.'*']\nttl = '10s'\n[locks.x]\nwait = '1m'\n[backends.a]\nurl = 'file:'\n[pools.phones]\nnames = ['a', 'b']\n";
    let file = store.place.write("c.toml", text);
    let show = || store.place.bare().env("DLOCK_CONFIG", &file).args(["config", "show", "--json"]);
    let keys_of_tables = |output: Output| {
        // The members of a table are keys of the configuration, which dlock-config(5) describes.
        let mut shown: Value = serde_json::from_str(&output.stdout).unwrap();
        let mut kept = Vec::new();
        for part in ["backends", "locks", "pools"] {
            let tables = shown[part].take();
            kept.extend(tables.as_object().into_iter().flatten().flat_map(|(_, table)| match table {
                Value::Object(keys) => keys.values().cloned().collect(),
                other => vec![other.clone()],
            }));
        }
        shown["backends"] = kept.into();
        Output { stdout: shown.to_string(), ..output }
    };
    assert_described("config", &[keys_of_tables(show().output()), keys_of_tables(show().arg("x").output())]);
}

#[test]
fn the_page_of_doctor_describes_its_keys() {
    let place = Place::new();
    assert_described("doctor", &[place.bare().args(["doctor", "--json", "-b", &place.url()]).output()]);
}
