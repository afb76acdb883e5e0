//! Prometheus' own checks of the metrics and of the alert rules.

use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::fs::File;
use std::io::{Seek, Write};
use std::process::{Command, Stdio};

fn promtool(args: &[&str]) -> Command {
    let mut command = Command::new("promtool");
    command.args(args).stdin(Stdio::null());
    command
}

#[track_caller]
fn assert_success(mut command: Command) {
    let output = command.output().expect("promtool: install the Debian package prometheus");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    // A suggestion for a metric is printed, and is not a failure.
    assert!(!text.contains("WARN"), "{text}");
}

/// Asserts that Prometheus understands these metrics, and has nothing to remark on them.
#[track_caller]
pub fn assert_understood(metrics: &str) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(metrics.as_bytes()).unwrap();
    file.rewind().unwrap();
    let mut check = promtool(&["check", "metrics"]);
    check.stdin(file);
    assert_success(check);
}

/// Names are chosen by users, and may contain anything but control characters.
#[test]
fn hostile_names_are_understood() {
    let place = Place::new();
    let names = [
        "\"",
        "\\",
        "\\\"",
        "\\n",
        "a\"} 1\\",
        "{name=\"x\"}",
        "}",
        "#",
        "# HELP x",
        "a,b",
        "größe",
        "🔒",
        " ",
        "'",
        "%",
        "\u{202e}x",
        "\u{2028}",
        "a=\"b\"",
        "\\\\",
        "NaN",
        "+Inf",
        "{name=\"x\"} 7",
        "\",le=\"1",
    ];
    for names in names.chunks(7) {
        // Once each, and all of them again in the output of the parser.
        let run = place.run().args(["--metrics-file", "m"]).args(names);
        assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
        let mut check = promtool(&["check", "metrics"]);
        check.stdin(File::open(place.path("m")).unwrap());
        assert_success(check);
    }
    let text = place.read("m");
    assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "{text:?}");
    for name in names {
        let label = name.replace('\\', "\\\\").replace('"', "\\\"");
        let line = format!("dlock_runs_total{{name=\"{label}\",outcome=\"ran\"}} 1");
        assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}");
    }
    let runs = text.lines().filter(|line| line.ends_with(",outcome=\"ran\"} 1")).count();
    assert_eq!(runs, names.len());
    for keyword in ["# HELP ", "# TYPE "] {
        let mut families: Vec<_> = text.lines().filter(|line| line.starts_with(keyword)).collect();
        assert_eq!(families.len(), 8, "{families:?}");
        families.dedup();
        assert_eq!(families.len(), 8, "{families:?}");
    }
}

#[test]
fn the_alert_rules_fire_when_they_should() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/packaging/prometheus");
    for args in [&["check", "rules", "dlock.rules.yml"][..], &["test", "rules", "dlock.rules.test.yml"]] {
        let mut command = promtool(args);
        command.current_dir(directory);
        assert_success(command);
    }
}

/// Every metric used in a rule is one that dlock writes.
#[test]
fn the_alert_rules_query_existing_metrics() {
    let place = Place::new();
    let run = place.run().args(["--metrics-file", "m"]);
    assert_eq!(run.command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
    let store = Store::file();
    assert_eq!(store.run().sh("exit 0").output().exit, Exit::Code(0));
    let shown = store.place.bare().args(["status", "--prometheus", "-b", store.url()]).output();
    let written = place.read("m") + &shown.stdout;
    let rules = include_str!("../../../../packaging/prometheus/dlock.rules.yml");
    let words = rules.split(|c: char| !(c.is_ascii_alphanumeric() || "_:".contains(c)));
    let asked: Vec<_> = words.filter(|word| word.starts_with("dlock_")).collect();
    assert!(asked.len() > 10, "{asked:?}");
    for metric in asked {
        assert!(
            written.contains(&format!("\n{metric}{{")) || written.contains(&format!("# TYPE {metric} ")),
            "{metric}"
        );
    }
}
