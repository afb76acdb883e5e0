//! What `dlock doctor` reports.

use super::dlock::Dlock;
use super::place::Place;
use super::running::{Exit, Output};
use serde_json::Value;

/// The report on the store behind a URL, as JSON.
pub fn doctor(url: &str) -> Output {
    Place::new().bare().args(["doctor", "-b", url, "--json", "--connect-timeout", "5s"]).output()
}

/// The same, after what the store needs has been created.
pub fn init(url: &str) -> Output {
    Place::new().bare().args(["doctor", "--init", "-b", url, "--json", "--connect-timeout", "5s"]).output()
}

/// The findings of a report.
pub fn findings(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    report["findings"].as_array().expect("findings").clone()
}

/// One of the findings of a report is of this level, about this check, and says this among other things.
#[track_caller]
pub fn assert_found(output: &Output, level: &str, check: &str, found: &str) {
    let is_meant = |finding: &Value| {
        finding["level"] == level
            && finding["check"] == check
            && finding["found"].as_str().is_some_and(|text| text.contains(found))
    };
    assert!(findings(output).iter().any(is_meant), "{level} {check} {found}: {}", output.stdout);
}

/// The four questions are answered.
#[track_caller]
pub fn assert_answered(output: &Output) {
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let answers = report["answers"].to_string();
    for answer in ["atomic_grant", "loss", "one_server", "lease_clock"] {
        assert!(answers.contains(answer), "{answers}");
    }
}

/// A problem of this check ends with this status where a run would, and says what to do about it.
#[track_caller]
pub fn assert_refused(output: &Output, check: &str, status: u8, remedy: &str) {
    let findings = findings(output);
    let finding = findings.iter().find(|finding| finding["check"] == check && finding["level"] == "problem");
    let finding = finding.unwrap_or_else(|| panic!("{check}: {}", output.stdout));
    let text = |field: &str| finding[field].as_str().unwrap_or_default().to_owned();
    assert!(text("consequence").contains(&format!("dlock run ends with {status}")), "{finding}");
    assert!(text("remedy").contains(remedy), "{finding}");
}

/// In this state of the store, a run and the problem of this check agree on the status, with and without `--init`.
#[track_caller]
pub fn assert_run_agrees(url: &str, check: &str, status: u8, remedy: &str) {
    for report in [doctor(url), init(url)] {
        assert_eq!(report.exit, Exit::Code(1), "{url}: {}", report.stdout);
        assert_refused(&report, check, status, remedy);
    }
    let run = Dlock::run().backend(url).sh("echo ran").output();
    assert_eq!((&run.exit, run.stdout.as_str()), (&Exit::Code(status.into()), ""), "{url}: {}", run.stderr);
}

/// The examination ends with a problem, and answers none of the four questions about a server that it has not examined.
#[track_caller]
pub fn assert_unknown(url: &str) {
    let output = doctor(url);
    assert_eq!(output.exit, Exit::Code(1), "{url}: {output:?}");
    for question in ["atomic_grant", "loss", "one_server", "lease_clock"] {
        assert_eq!(answer(&output, question).0, "unknown", "{url}: {output:?}");
    }
}

/// The answer to a question, and its reason.
pub fn answer(output: &Output, question: &str) -> (String, String) {
    let report: Value = serde_json::from_str(&output.stdout).expect("JSON");
    let answers = report["answers"].as_array().expect("answers");
    let answer = answers.iter().find(|answer| answer["question"] == question).expect("all are answered");
    let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
    (text("answer"), text("detail"))
}
