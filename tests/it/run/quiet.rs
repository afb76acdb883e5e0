//! What `-q` silences and what it does not, and messages for programs.

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Output, Running};
use crate::support::store::Store;
use serde_json::Value;
use std::process::Stdio;

fn holding(place: &Place) -> Running {
    let mut run = place.run().stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    run
}

/// A server that refuses every login.
fn closed_server() -> crate::support::redis::Redis {
    crate::support::redis::Redis::start_with_args(&["--requirepass", "secret"])
}

/// Runs that fail in each way in which `-q` does not silence them; the store at `denied` refuses the login.
fn failures(place: &Place, denied: &str, options: &[&str]) -> Vec<(i32, Output)> {
    let run = || place.run().args(options);
    vec![
        (64, run().args(["--grace", "1h"]).command(["true"]).output()),
        (64, run().no_name().command(["true"]).output()),
        (78, run().backend("nonsense:").command(["true"]).output()),
        (78, run().env("DLOCK_TTL", "nonsense").command(["true"]).output()),
        (78, run().backend("file:///no/such/directory").command(["true"]).output()),
        (124, run().args(["--max-runtime", "1ms"]).command(["sleep", "1000"]).output()),
        (126, run().command(["/"]).output()),
        (127, run().command(["no-such-command"]).output()),
        (77, run().backend(denied).command(["true"]).output()),
        (69, run().backend("redis://127.0.0.1:1").command(["true"]).output()),
    ]
}

#[test]
fn quiet_does_not_silence_failures() {
    let place = Place::new();
    let server = closed_server();
    let denied = server.url();
    let loud = failures(&place, &denied, &[]);
    let quiet = failures(&place, &denied, &["-q"]);
    for ((code, loud), (_, quiet)) in loud.iter().zip(&quiet) {
        assert_eq!((quiet.exit, quiet.stdout.as_str()), (Exit::Code(*code), ""), "{}", quiet.stderr);
        assert!(quiet.stderr.starts_with("dlock: ") && quiet.stderr.lines().count() == 1, "{}", quiet.stderr);
        // A line that is proposed has the options that were typed.
        assert_eq!(quiet.stderr.replace(" -q ", " "), loud.stderr);
    }
}

#[test]
fn quiet_does_not_silence_a_lost_lock() {
    use crate::support::store::Store;
    let store = Store::redis();
    let mut run = store.run_with_ttl("30s").arg("--quiet").sh("echo ready; exec sleep 1000").spawn();
    run.await_ready();
    store.space().command(&["DEL", &store.space().key("x")]);
    let output = run.wait();
    let line = format!(
        "dlock: x on {}: the lock was lost: it is gone from the store (deleted, expired or evicted); the command was \
         stopped\n",
        store.url()
    );
    assert_eq!(output.outcome(), (Exit::Code(76), "ready\n", line.as_str()));
}

#[test]
fn quiet_silences_contention() {
    let place = Place::new();
    let _holder = holding(&place);
    for options in [&["-q"][..], &["--quiet"], &["-q", "--wait", "10ms"], &["-q", "-v"]] {
        let output = place.run().args(options).command(["touch", "t"]).output();
        assert_eq!(output.outcome(), (Exit::Code(75), "", ""));
    }
    let output = place.run().args(["-q", "-E", "0"]).command(["touch", "t"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    assert!(!place.path("t").exists());
}

#[test]
fn quiet_silences_the_notice_of_a_missing_backend() {
    let place = Place::new();
    // Root's locks are in one directory for the whole host, whatever HOME is.
    let name = format!("it-{}", place.marker().value());
    let run = || place.run().no_backend().name(&name).command(["true"]);
    assert_eq!(run().arg("-q").output().outcome(), (Exit::Code(0), "", ""));
    let loud = run().output();
    assert!(
        loud.stderr.starts_with("dlock: no backend configured: locking for user ")
            && loud.stderr.contains(" on this host only (file://")
            && loud.stderr.lines().count() == 1,
        "{}",
        loud.stderr
    );
    assert_eq!(run().env("DLOCK_BACKEND", "file:").output().outcome(), (Exit::Code(0), "", ""));
    assert_eq!(run().args(["-b", "file:"]).output().outcome(), (Exit::Code(0), "", ""));
    for suffix in ["lock", "dlock"] {
        let _ = std::fs::remove_file(format!("/var/lib/dlock/{name}.{suffix}"));
    }
}

/// Every line is a separate object, starts with its version, and contains the text of the message.
#[test]
fn messages_for_programs_are_json() {
    let place = Place::new();
    let _holder = holding(&place);
    let text = place.run().name("x").command(["true"]).output();
    let mut cases = vec![(75, text, place.run().args(["--log-format", "json"]).command(["true"]).output())];
    let free = Place::new();
    let server = closed_server();
    let denied = server.url();
    let as_json = failures(&free, &denied, &["--log-format", "json"]);
    for ((code, text), (_, json)) in failures(&free, &denied, &[]).into_iter().zip(as_json) {
        cases.push((code, text, json));
    }
    for (code, text, json) in cases {
        assert_eq!((json.exit, json.stdout.as_str()), (Exit::Code(code), ""), "{}", json.stderr);
        assert!(
            json.stderr.starts_with("{\"version\":1,") && json.stderr.ends_with("}\n"),
            "{}",
            json.stderr
        );
        assert_eq!(json.stderr.lines().count(), 1, "{}", json.stderr);
        let object: Value = serde_json::from_str(&json.stderr).unwrap();
        let level = if code == 75 { "warning" } else { "error" };
        assert_eq!((&object["version"], &object["level"]), (&1.into(), &level.into()));
        assert_eq!(object["code"], code, "{object}");
        // A line that is proposed has the options that were typed.
        let message = object["message"].as_str().unwrap().replace(" --log-format json", "");
        let shown = text.stderr.strip_prefix("dlock: ").unwrap().trim_end();
        // Between two runs only the age of the holder differs.
        let head = |text: &str| text.split(" for ").next().map(str::to_owned);
        assert_eq!(head(&message), head(shown));
    }
}

/// Every line says what happened, to which lock, in which store, with whom, and with which exit status.
#[test]
fn a_line_for_programs_has_the_same_keys_whatever_happened() {
    let place = Place::new();
    let lines = |run: Dlock| -> Vec<Value> {
        let stderr = run.args(["-v", "--log-format", "json"]).command(["true"]).output().stderr;
        stderr.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let summary = |line: &Value| {
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            ["version", "level", "time", "event", "lock", "backend", "holder", "code", "message"]
        );
        let time: jiff::Timestamp = line["time"].as_str().unwrap().parse().unwrap();
        assert!(jiff::Timestamp::now().duration_since(time).as_secs().abs() < 60, "{time}");
        assert_eq!(line["backend"], place.url());
        let host = line["holder"].as_object().map(|holder| holder["command"].as_str().unwrap().to_owned());
        (line["event"].as_str().unwrap().to_owned(), line["lock"].clone(), host, line["code"].clone())
    };
    let seen = |run: Dlock| lines(run).iter().map(summary).collect::<Vec<_>>();
    let line = |event: &str, lock: Value, holder: Option<&str>, code: Value| {
        (event.to_owned(), lock, holder.map(str::to_owned), code)
    };
    let once = || place.run().args(["--once-per", "1h"]).name("x");
    let granted =
        [line("granted", "x".into(), None, Value::Null), line("released", "x".into(), None, Value::Null)];
    assert_eq!(seen(once()), granted);
    assert_eq!(seen(once()), [line("done", "x".into(), None, 0.into())]);
    let _holder = holding(&place);
    let waiting = line("waiting", "x".into(), Some("sh"), Value::Null);
    let contended = line("contended", "x".into(), Some("sh"), 75.into());
    assert_eq!(seen(place.run().args(["--wait", "10ms"])), [waiting, contended.clone()]);
    assert_eq!(seen(place.run().arg("y")), [contended], "the lock that is held, of two");
    let chosen = line("contended", "x".into(), Some("sh"), 5.into());
    assert_eq!(seen(place.run().args(["-E", "5"])), [chosen]);
    let limited = place.run().name("y").args(["--max-runtime", "1s", "--log-format", "json"]);
    let limited = limited.command(["sleep", "1000"]).output();
    let limited: Value = serde_json::from_str(&limited.stderr).unwrap();
    assert_eq!(summary(&limited), line("max_runtime", "y".into(), None, 124.into()));
}

/// Of the other commands, too.
#[test]
fn the_code_is_the_exit_status_that_a_held_lock_leads_to() {
    let store = Store::redis();
    let dlock = |words: &[&str]| {
        let (command, rest) = words.split_first().unwrap();
        store.place.bare().args([command, "-b", store.url(), "--log-format", "json"]).args(rest).output()
    };
    assert_eq!(dlock(&["acquire", "--ttl", "30s", "x"]).exit, Exit::Code(0));
    for (words, code) in [
        (&["acquire", "--ttl", "30s", "x"][..], 75),
        (&["acquire", "--ttl", "30s", "-E", "9", "x"], 9),
        (&["break", "--yes", "x"], 75),
        (&["doctor", "--fencing-floor", "5", "x"], 75),
    ] {
        let output = dlock(words);
        assert_eq!((output.exit, output.stderr.lines().count()), (Exit::Code(code), 1), "{output:?}");
        let object: Value = serde_json::from_str(&output.stderr).unwrap();
        let seen = [&object["event"], &object["lock"], &object["code"]];
        assert_eq!(seen, [&Value::from("contended"), &"x".into(), &code.into()], "{words:?}: {object}");
    }
}

/// An invalid command line that selects a message format gets its error in that format.
#[test]
fn an_invalid_command_line_is_reported_as_json() {
    let place = Place::new();
    for options in [&["--log-format", "json", "--ttl", "5M"][..], &["--log-format=json", "--tll", "5"]] {
        let output = place.run().args(options).command(["true"]).output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""));
        assert!(output.stderr.starts_with("{\"version\":1,\"level\":\"error\","), "{}", output.stderr);
    }
}
