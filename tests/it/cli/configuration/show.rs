//! `dlock config show`: its complete output.

use super::{printed, show, write};
use crate::support::place::Place;
use crate::support::running::Exit;

const TEXT: &str = r#"backend = "prod"
[backends.prod]
url = "redis://127.0.0.1:1"
prefix = "a b:"
db = 3
accept = ["eviction", "insecure"]
[backends."v1.2"]
url = "file:///srv"
[locks."nightly-*"]
ttl = "1m"
min_hold = "50s"
conflict_exit_code = 0
[locks."*"]
note = "ours"
"#;

/// With FILE as the name of the file.
fn shown(place: &Place, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    // The name of this place would change the alignment.
    write(place, "c.toml", TEXT);
    let run = place.bare().args(["config", "show", "--config", "c.toml"]).args(arguments);
    printed(variables.iter().fold(run, |run, (name, value)| run.env(name, value)))
}

#[test]
fn every_setting_is_shown_with_its_source() {
    let expected = r#"# c.toml

[backends.prod]
url    = "redis://127.0.0.1:1"     # c.toml:3
prefix = "a b:"                    # c.toml:4
db     = "3"                       # c.toml:5
accept = ["eviction", "insecure"]  # c.toml:6

[backends."v1.2"]
url = "file:///srv"  # c.toml:8

[locks."nightly-*"]
ttl                = "1m"   # c.toml:10, overridden by DLOCK_TTL
min_hold           = "50s"  # c.toml:11
conflict_exit_code = 0      # c.toml:12

[locks."*"]                     # every lock; a key of another table that matches overrides it
backend              = "prod"   # c.toml:1
wait                 = "0s"     # default
retry                = "0s"     # default
ttl                  = "20s"    # DLOCK_TTL
stop_signal          = "TERM"   # default
grace                = "4s"     # default
max_runtime          = "0s"     # default
min_hold             = "0s"     # default
orphans              = "leave"  # default
on_lost              = "kill"   # default
slots                = 1        # default
conflict_exit_code   = 75       # default
note                 = "ours"   # c.toml:14
quiet                = true     # --quiet
require_server       = false    # default
require_verified_tls = false    # default
# not set: once_per, supersede, report, metrics_file
"#;
    assert_eq!(shown(&Place::new(), &["-q"], &[("DLOCK_TTL", "20")]), expected);
}

#[test]
fn the_settings_of_one_lock_are_shown_with_their_sources() {
    let expected = r#"# c.toml

[backends."v1.2"]
url = "file:///srv"  # c.toml:8

[locks."nightly-db"]             # by [locks."nightly-*"], c.toml:9; [locks."*"], c.toml:13
backend              = "v1.2"      # --backend
wait                 = "forever"   # DLOCK_WAIT
retry                = "0s"        # default
ttl                  = "1m"        # c.toml:10, [locks."nightly-*"]
stop_signal          = "TERM"      # default
grace                = "5s"        # default
max_runtime          = "0s"        # default
min_hold             = "50s"       # c.toml:11, [locks."nightly-*"]
orphans              = "leave"     # default
on_lost              = "kill"      # default
slots                = 1           # default
conflict_exit_code   = 0           # c.toml:12, [locks."nightly-*"]
note                 = "ours"      # c.toml:14, [locks."*"]
quiet                = false       # default
require_server       = false       # default
require_verified_tls = false       # default
# not set: once_per, supersede, report, metrics_file
"#;
    let arguments = ["nightly-db", "-b", "v1.2"];
    let found = shown(&Place::new(), &arguments, &[("DLOCK_WAIT", "forever"), ("DLOCK_BACKEND", "garbage")]);
    // The column of the remarks follows the longest line.
    let squeeze = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(squeeze(&found), squeeze(expected));
}

#[test]
fn without_a_file_the_defaults_are_shown() {
    let place = Place::new();
    let found = printed(place.bare().args(["config", "show"]));
    let head = "# no configuration file was read\n\n[locks.\"*\"]                     # every lock; a key \
    of another table that matches overrides it\nbackend              = \"file:\"  # default\nwait                 = \"0s\"     # default\n";
    assert!(found.starts_with(head), "{found}");
    let found = printed(place.bare().args(["config", "show", "x"]));
    assert!(found.contains("[locks.\"x\"]                     # no table matches\n"), "{found}");
}

/// It is set for all locks at once, as `require_server` is.
#[test]
fn what_is_required_of_every_server_is_shown() {
    let place = Place::new();
    let text = "backend = \"rediss://h\"\nrequire_server = true\nrequire_verified_tls = true\n";
    for words in [&[][..], &["x"]] {
        let found = printed(show(&place, text).args(words));
        let rows: Vec<&str> = found.lines().filter(|line| line.starts_with("require_")).collect();
        let [server, tls] = rows[..] else { panic!("{found}") };
        assert!(
            server.starts_with("require_server       = true ") && server.ends_with("c.toml:2"),
            "{server}"
        );
        assert!(tls.starts_with("require_verified_tls = true ") && tls.ends_with("c.toml:3"), "{tls}");
    }
}

/// A file without a backend is shown as such.
#[test]
fn an_unset_backend_is_shown_as_not_set() {
    let found = printed(show(&Place::new(), ""));
    assert!(
        found.ends_with("# not set: backend, once_per, supersede, note, report, metrics_file\n"),
        "{found}"
    );
}

#[test]
fn the_json_object_starts_with_its_version_and_contains_the_same() {
    let place = Place::new();
    let text = shown(&place, &["nightly-db", "--json", "-q"], &[("DLOCK_TTL", "20")]);
    assert!(text.starts_with(
        "{\"version\":1,\"files\":[\"c.toml\"],\"name\":\"nightly-db\",\"table\":\"nightly-*\","
    ));
    assert_eq!(text.lines().count(), 1);
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    let lock = &object["locks"]["nightly-db"];
    for (key, expected) in [
        ("backend", r#"{"file":"c.toml","line":1,"source":"file","value":"prod"}"#),
        ("ttl", r#"{"source":"environment","value":"20s","variable":"DLOCK_TTL"}"#),
        ("quiet", r#"{"flag":"--quiet","source":"flag","value":true}"#),
        ("wait", r#"{"source":"default","value":"0s"}"#),
        ("report", r#"{"source":"default","value":null}"#),
        ("require_server", r#"{"source":"default","value":false}"#),
        ("require_verified_tls", r#"{"source":"default","value":false}"#),
        (
            "conflict_exit_code",
            r#"{"file":"c.toml","line":12,"source":"file","table":"nightly-*","value":0}"#,
        ),
    ] {
        assert_eq!(lock[key].to_string(), expected, "{key}");
    }
    let backends = r#"{"prod":{"accept":{"file":"c.toml","line":6,"source":"file","value":["eviction","insecure"]},"db":{"file":"c.toml","line":5,"source":"file","value":"3"},"prefix":{"file":"c.toml","line":4,"source":"file","value":"a b:"},"url":{"file":"c.toml","line":3,"source":"file","value":"redis://127.0.0.1:1"}}}"#;
    assert_eq!(object["backends"].to_string(), backends);
    let all = shown(&place, &["--json"], &[("DLOCK_TTL", "20")]);
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    assert_eq!((&all["name"], &all["table"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    let overridden = &all["locks"]["nightly-*"]["ttl"]["overridden_by"];
    assert_eq!(overridden, "DLOCK_TTL");
}

/// A misspelt option may be a password, and so may one of a store that this build lacks.
#[test]
fn the_value_of_an_unknown_option_is_not_shown() {
    let place = Place::new();
    let text = "[backends.s]\nurl = \"redis-sentinel://s/m?sentinel_password=hunter2&prefix=a&hunter2\"\n\
                [backends.e]\nurl = \"nats://e?passwort=hunter2\"\ntls_key = \"hunter2\"\n\
                [locks.x]\nbackend = \"redis://h?auth=hunter2&db=3\"\n\
                [locks.y]\nbackend = \"file:///srv?token=hunter2\"\n";
    for arguments in [&[][..], &["--json"], &["x"], &["y", "--json"]] {
        let found = printed(show(&place, text).args(arguments));
        assert!(found.contains("***") && !found.contains("hunter2"), "{arguments:?}: {found}");
    }
    let found = printed(show(&place, text));
    assert!(found.contains("redis-sentinel://s/m?sentinel_password=***&prefix=a&***\""), "{found}");
    assert!(found.contains("tls_key = \"***\""), "{found}");
    for name in ["x", "y"] {
        let url = "redis://h?passwort=hunter2";
        for run in [
            place.run().args(["--config", &place.arg("c.toml")]).no_backend().name(name),
            place.run().backend(url).name(name),
            place.run().no_backend().env("DLOCK_BACKEND", url).name(name),
        ] {
            let output = run.command(["touch", "t"]).output();
            assert_eq!(output.exit, Exit::Code(78), "{output:?}");
            assert!(!output.stderr.contains("hunter2"), "{output:?}");
        }
    }
    // Names of several locks on several stores: an error that shows the URLs.
    let run = place.run().args(["--config", &place.arg("c.toml")]).no_backend().args(["x", "y"]);
    let line = super::refused(&place, &run.no_name().command(["touch", "t"]).output(), 78);
    assert!(line.contains("on file:///srv?token=*** ") && !line.contains("hunter2"), "{line}");
}

#[test]
fn no_store_is_contacted() {
    let server = crate::support::fake::Fake::silent();
    let place = Place::new();
    let text = format!("backend = \"redis://127.0.0.1:{}\"\n", server.port());
    printed(show(&place, &text));
    printed(show(&place, &text).arg("x"));
    assert_eq!(server.connections(), 0);
}

#[test]
fn an_invalid_command_line_is_explained() {
    let place = Place::new();
    for (arguments, line) in [
        (&["config"][..], "no subcommand: try dlock config show"),
        (&["config", "shw"], "unrecognized subcommand 'shw'; did you mean show"),
        (&["config", "show", "a", "b"], "unexpected argument 'b' found"),
        (&["config", "show", "."], "NAME '.': '.' and '..' are not lock names"),
        (&["config", "show", "--ttl", "5"], "unexpected argument '--ttl' found"),
    ] {
        let output = place.bare().args(arguments).output();
        assert_eq!(output.outcome(), (Exit::Code(64), "", format!("dlock: {line}\n").as_str()));
    }
    // A name may begin with a dash.
    let shown = printed(place.bare().args(["config", "show", "--", "-n"]));
    assert!(shown.contains("[locks.\"-n\"]"), "{shown}");
}
