//! Pools: locks of which a run takes the first that becomes free.

use super::{printed, refused, run, show, write};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::Exit;

/// `dlock run --any` with a configuration file that names the directory of the place, and has this text.
fn any(place: &Place, text: &str, any: &str) -> Dlock {
    let text = format!("backend = \"{}\"\n{text}", place.url());
    run(place, &text).no_name().args(["--any", any])
}

const POOLS: &str = "[pools.phones]\nnames = [\"phone-1\", \" a, b\"]\n[pools.one]\nnames = [\"x\"]\n";

#[test]
fn a_pool_is_named_by_one_word() {
    let place = Place::new();
    let taken = |name: &str| any(&place, POOLS, name).sh("printf '%s|' \"$DLOCK_NAME\"").output();
    assert_eq!(taken("phones").outcome(), (Exit::Code(0), " a, b|", ""));
    assert_eq!(taken("one").outcome(), (Exit::Code(0), "x|", ""));
    // A list is not looked up.
    assert_eq!(taken("phones,one").outcome(), (Exit::Code(0), "one|", ""));
}

#[test]
fn an_unknown_pool_is_answered_with_the_known_ones() {
    let place = Place::new();
    let remedy = "names of locks are separated by commas, and a single one is given as NAME";
    let output = any(&place, POOLS, "phone-1").command(["touch", "t"]).output();
    let line = format!("--any: no pool is called 'phone-1': known are phones, one; {remedy}");
    assert_eq!(refused(&place, &output, 78), line);
    let output = any(&place, "", "phones").command(["touch", "t"]).output();
    let line = format!("--any: no pool is called 'phones': no configuration file has any; {remedy}");
    assert_eq!(refused(&place, &output, 78), line);
}

#[test]
fn an_invalid_pool_is_named_with_line_and_column() {
    let many = (0..65).map(|number| format!("\"{number}\"")).collect::<Vec<_>>().join(",");
    for (text, line) in [
        ("[pools.a]\n", "FILE:2:8: a: this pool has no names".to_owned()),
        ("[pools.a]\nname = \"x\"\n", "FILE:3:1: unknown key 'name' in [pools.a]: known are names".into()),
        (
            "[pools.a]\nnames = \"x\"\n",
            "FILE:3:9: names: expected an array of strings, found a string".into(),
        ),
        ("[pools.a]\nnames = []\n", "FILE:3:9: names: a pool has at least one name".into()),
        ("[pools.a]\nnames = [\"x\", 5]\n", "FILE:3:15: names: expected a string, found a number".into()),
        (
            "[pools.a]\nnames = [\"x\", \"..\"]\n",
            "FILE:3:15: names: '..': '.' and '..' are not lock names".into(),
        ),
        ("[pools.a]\nnames = [\"x\", \"x\"]\n", "FILE:3:15: names: 'x' is named twice".into()),
        (
            "[pools.a]\nnames = [\"redis://u:secret@h\"]\n",
            "FILE:3:10: names: 'redis://u:***@h' is a URL: did you mean -b redis://u:***@h".into(),
        ),
        (
            "[pools.\"a,b\"]\nnames = [\"x\"]\n",
            "FILE:2:8: a,b: the name of a pool is made of letters, digits, '-', '_' and '.'".into(),
        ),
        ("pools = 5\n", "FILE:2:9: pools: expected a table, found a number".into()),
        (&format!("[pools.a]\nnames = [{many}]\n"), "FILE:3:320: names: at most 64 names".into()),
    ] {
        let place = Place::new();
        // Whether it is used or not.
        let output = any(&place, text, "x,y").command(["touch", "t"]).output();
        assert_eq!(refused(&place, &output, 78), line, "{text}");
    }
}

/// Settings that the locks would have alone apply to them here too, and must agree.
#[test]
fn the_settings_of_its_locks_apply() {
    let place = Place::new();
    let pool = "[pools.p]\nnames = [\"x\", \"y\"]\n";
    for (text, line) in [
        ("[locks.x]\nslots = 3\n[locks.y]\nslots = 3\n", "FILE:5:9: slots: not with --any"),
        ("[locks.\"*\"]\nonce_per = \"1h\"\n", "FILE:5:12: once_per: not with --any"),
        (
            "[locks.x]\nttl = \"5s\"\n[locks.y]\nttl = \"9s\"\n",
            "FILE:5:7: ttl: FILE:7 sets a different value for another lock of this run: use --ttl",
        ),
    ] {
        let output = any(&place, &format!("{pool}{text}"), "p").command(["touch", "t"]).output();
        assert_eq!(refused(&place, &output, 78), line, "{text}");
    }
    let text = format!("{pool}[locks.\"*\"]\nconflict_exit_code = 9\n");
    let mut holder = run(&place, &format!("backend = \"{}\"\n{text}", place.url()));
    holder = holder.no_name().args(["x", "y"]).stdin(std::process::Stdio::piped()).sh("echo ready; exec cat");
    let mut holder = holder.spawn();
    holder.await_ready();
    let output = any(&place, &text, "p").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(9), ""), "{}", output.stderr);
    drop(holder.take_stdin());
    assert_eq!(holder.wait().exit, Exit::Code(0));
}

#[test]
fn pools_are_shown_and_read_from_the_file_of_the_user() {
    let place = Place::new();
    let shown = printed(show(&place, POOLS));
    assert!(shown.contains("\n[pools.phones]\nnames = [\"phone-1\", \" a, b\"]  # "), "{shown}");
    assert!(shown.contains("\n[pools.one]\nnames = [\"x\"]  # "), "{shown}");
    let of_lock = printed(show(&place, POOLS).arg("x"));
    assert!(of_lock.contains("[pools.one]") && !of_lock.contains("[pools.phones]"), "{of_lock}");
    let json: serde_json::Value = serde_json::from_str(&printed(show(&place, POOLS).arg("--json"))).unwrap();
    assert_eq!(json["pools"]["phones"]["names"]["value"], serde_json::json!(["phone-1", " a, b"]));
    assert_eq!(json["pools"]["one"]["names"]["line"], 4);
    // The file of the host is elsewhere in the tests; one of the user is enough to be read without being named.
    write(&place, "home/.config/dlock/config.toml", "[pools.mine]\nnames = [\"m\"]\n");
    let output = place.run().no_name().args(["--any", "mine"]).sh("echo $DLOCK_NAME").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "m\n", ""));
}
