//! Each setting of a file has the effect of its flag.

use super::{counts, printed, refused, run};
use crate::support::place::Place;
use crate::support::running::Exit;

#[test]
fn every_setting_of_a_file_is_read() {
    let place = Place::new();
    let text = "backend = \"file:\"\n[locks.x]\nwait = \"1m\"\nretry = 5\nttl = 90.5\nstop_signal = \"sigusr1\"\ngrace = \"2s\"\nmax_runtime = \"1h\"\n\
                min_hold = \"1d\"\nonce_per = \"23h\"\nsupersede = \"running\"\norphans = \"wait\"\non_lost = \"warn\"\nslots = 7\nconflict_exit_code = 0\nnote = \"n\"\n\
                quiet = true\nrequire_server = true\nreport = \"/r.json\"\nmetrics_file = \"/m.prom\"";
    for (key, value) in [
        ("backend", "\"file:\""),
        ("wait", "\"1m\""),
        ("retry", "\"5s\""),
        ("ttl", "\"1m30s500ms\""),
        ("stop_signal", "\"USR1\""),
        ("grace", "\"2s\""),
        ("max_runtime", "\"1h\""),
        ("min_hold", "\"1d\""),
        ("once_per", "\"23h\""),
        ("supersede", "\"running\""),
        ("orphans", "\"wait\""),
        ("on_lost", "\"warn\""),
        ("slots", "7"),
        ("conflict_exit_code", "0"),
        ("note", "\"n\""),
        ("quiet", "true"),
        ("require_server", "true"),
        ("report", "\"/r.json\""),
        ("metrics_file", "\"/m.prom\""),
    ] {
        assert_eq!(counts(&place, text, "x", key).to_string(), value, "{key}");
    }
}

/// Each where a run shows it.
#[test]
fn the_settings_of_a_file_do_what_their_flags_do() {
    let place = Place::new();
    let with = |key: &str| format!("backend = \"{}\"\n[locks.x]\n{key}\n", place.url());
    let run = |key: &str| run(&place, &with(key));
    let limited = run("max_runtime = \"1ms\"").command(["sleep", "1000"]).output();
    assert_eq!(limited.exit, Exit::Code(124), "{}", limited.stderr);
    let orphans = run("orphans = \"kill\"").sh("sleep 1000 & echo ran").output();
    assert_eq!(orphans.outcome(), (Exit::Code(0), "ran\n", ""));
    let mut holder = place.run().args(["--note", "mine"]).sh("echo ready; exec sleep 1000").spawn();
    holder.await_ready();
    let code = run("conflict_exit_code = 7").command(["true"]).output();
    assert_eq!((code.exit, code.stderr.contains("note: mine")), (Exit::Code(7), true), "{}", code.stderr);
    let quiet = run("quiet = true").command(["true"]).output();
    assert_eq!(quiet.outcome(), (Exit::Code(75), "", ""));
    let waited = run("wait = \"1ms\"").command(["true"]).output();
    assert!(waited.stderr.contains("; gave up after "), "{}", waited.stderr);
    let mut waiter = run("wait = \"forever\"").arg("-v").command(["echo", "ran"]).spawn();
    waiter.await_stderr("waiting");
    drop(holder);
    assert_eq!(waiter.wait().exit, Exit::Code(0));
    let mut noted = run("note = \"theirs\"").sh("echo ready; exec sleep 1000").spawn();
    noted.await_ready();
    let busy = place.run().command(["true"]).output();
    assert!(busy.stderr.contains("note: theirs"), "{}", busy.stderr);
}

#[test]
fn a_lock_for_this_host_only_is_rejected_where_a_server_is_required() {
    let place = Place::new();
    let end = "would be for this host only: name a server with --backend";
    let on = |source: &str| format!("{source}: a lock on {} {end}", place.url());
    let flag = place.run().arg("--require-server").command(["touch", "t"]).output();
    assert_eq!(refused(&place, &flag, 78), on("--require-server"));
    let default = place.run().no_backend().args(["-q", "--require-server"]).command(["touch", "t"]).output();
    assert!(refused(&place, &default, 78).ends_with(end), "{default:?}");
    let backend = format!("backend = \"{}\"\n", place.url());
    for text in
        [format!("require_server = true\n{backend}"), format!("{backend}[locks.x]\nrequire_server = true\n")]
    {
        let line = 1 + text.lines().position(|line| line.starts_with("require")).unwrap();
        let output = run(&place, &text).command(["touch", "t"]).output();
        assert_eq!(refused(&place, &output, 78), on(&format!("FILE:{line}: require_server")));
    }
}

/// Whatever other errors there are, they are known.
#[test]
fn the_report_is_written_where_the_file_specifies() {
    let place = Place::new();
    let outputs = |name: &str| {
        format!(
            "report = \"{}\"\nmetrics_file = \"{}\"\n",
            place.arg(&format!("{name}.json")),
            place.arg("m.prom")
        )
    };
    let text =
        format!("backend = \"{}\"\n[locks.x]\n{}[locks.y]\n{}", place.url(), outputs("x"), outputs("y"));
    let outcome = |name: &str| {
        let report: serde_json::Value = serde_json::from_str(&place.read(name)).unwrap_or_default();
        let _ = std::fs::remove_file(place.path(name));
        report["outcome"].as_str().unwrap_or_default().to_owned()
    };
    printed(run(&place, &text).command(["true"]));
    assert_eq!(outcome("x.json"), "ran");
    assert!(place.read("m.prom").contains("dlock_runs_total{name=\"x\",outcome=\"ran\"} 1\n"));
    // A flag overrides the file.
    printed(run(&place, &text).arg("--report").arg(place.path("flag.json")).command(["true"]));
    assert_eq!((outcome("flag.json"), place.path("x.json").exists()), ("ran".into(), false));
    let bad = run(&place, &text).args(["--ttl", "3s", "--grace", "1h"]).command(["true"]).output();
    assert_eq!((bad.exit, outcome("x.json")), (Exit::Code(64), "usage".into()));
    let bad = run(&place, &text).env("DLOCK_TTL", "garbage").command(["true"]).output();
    assert_eq!((bad.exit, outcome("x.json")), (Exit::Code(78), "config".into()));
    // One run has one report.
    let both = run(&place, &text).arg("x").name("y").command(["touch", "t"]).output();
    let line = "FILE:3:10: report: FILE:6 sets a different value for another lock of this run: \
                use --report";
    assert_eq!(refused(&place, &both, 78), line);
    let elsewhere = text.replace(&place.arg("x.json"), "/no/such/directory/r.json");
    let line = refused(&place, &run(&place, &elsewhere).command(["touch", "t"]).output(), 78);
    assert!(line.starts_with("FILE:3:10: report: "), "{line}");
}

/// The settings of the command line are reported as well when the file is invalid.
#[test]
fn an_invalid_file_is_reported_where_the_command_line_specifies() {
    let place = Place::new();
    let output = run(&place, "x = 1").args(["--report", "r.json"]).command(["touch", "t"]).output();
    refused(&place, &output, 78);
    let report: serde_json::Value = serde_json::from_str(&place.read("r.json")).unwrap();
    assert_eq!((&report["outcome"], &report["dlock_exit"]), (&"config".into(), &78.into()));
}
