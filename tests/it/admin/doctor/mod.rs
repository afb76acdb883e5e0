//! `dlock doctor`: its findings about healthy stores and about unhealthy ones.

mod fencing_floor;
mod files;
mod healthy;
mod host;
mod output;
mod policy;
mod protocol;
mod rights;
mod servers;
mod unreachable;

use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use serde_json::Value;

/// `dlock doctor -b URL`; the URL is not on the command line, because it may contain a password.
pub fn doctor(place: &Place, url: &str) -> Dlock {
    place.bare().arg("doctor").env("DLOCK_BACKEND", url)
}

/// The findings.
#[derive(Debug)]
pub struct Findings(Value);

impl Findings {
    /// Requests JSON, and checks what holds for all findings.
    #[track_caller]
    pub fn of(dlock: Dlock) -> Self {
        let output = dlock.arg("--json").output();
        assert_eq!(output.stderr, "");
        let findings = Self::read(&output);
        let problems = findings.all().iter().filter(|finding| finding["level"] == "problem").count();
        assert_eq!(output.exit, Exit::Code(i32::from(problems > 0)), "{findings:?}");
        findings
    }

    #[track_caller]
    fn read(output: &Output) -> Self {
        assert!(output.stdout.starts_with("{\"version\":1,\"backend\":\""), "{output:?}");
        assert_eq!(output.stdout.lines().count(), 1, "{output:?}");
        let value: Value = serde_json::from_str(&output.stdout).unwrap();
        let findings = Self(value);
        for finding in findings.all() {
            let is_ok = finding["level"] == "ok";
            assert!(finding["found"].as_str().is_some_and(|text| !text.is_empty()), "{finding}");
            for key in ["consequence", "remedy"] {
                assert_eq!(finding[key].is_null(), is_ok, "{finding}");
            }
        }
        let count = |level: &str| findings.all().iter().filter(|finding| finding["level"] == level).count();
        assert_eq!(findings.0["problems"], count("problem"));
        assert_eq!(findings.0["warnings"], count("warning"));
        findings
    }

    pub fn all(&self) -> &[Value] {
        self.0["findings"].as_array().map_or(&[], Vec::as_slice)
    }

    /// The findings of one check.
    pub fn check(&self, check: &str) -> Vec<&Value> {
        self.all().iter().filter(|finding| finding["check"] == check).collect()
    }

    /// The checks of this level.
    pub fn at(&self, level: &str) -> Vec<&str> {
        let all = self.all().iter().filter(|finding| finding["level"] == level);
        all.filter_map(|finding| finding["check"].as_str()).collect()
    }

    /// The text of the only finding of a check, of this level.
    #[track_caller]
    pub fn only(&self, check: &str, level: &str) -> &str {
        let found = self.check(check);
        let [finding] = found.as_slice() else { panic!("not one finding about {check}: {self:?}") };
        assert_eq!(finding["level"], level, "{finding}");
        finding["found"].as_str().unwrap()
    }

    /// The answer to a question: the word and the detail.
    #[track_caller]
    pub fn answer(&self, question: &str) -> (&str, &str) {
        let answers = self.0["answers"].as_array().unwrap();
        let answer = answers.iter().find(|answer| answer["question"] == question).unwrap();
        (answer["answer"].as_str().unwrap(), answer["detail"].as_str().unwrap())
    }

    /// The recommended lease, in ms.
    pub fn recommended_ttl_ms(&self) -> Option<u64> {
        self.0["recommended_ttl_ms"].as_u64()
    }
}

/// A text with `N` for each number, so that times and ports do not matter.
pub fn without_numbers(text: &str) -> String {
    let mut result = String::new();
    let mut number = false;
    for c in text.chars() {
        match c {
            '0'..='9' if number => {}
            '.' if number => {}
            '0'..='9' => {
                number = true;
                result.push('N');
            }
            c => {
                number = false;
                result.push(c);
            }
        }
    }
    // Clocks differ a little, in either direction; and not every host allows the creation of a cgroup.
    let result = result.replace(" behind this host's", " ahead of this host's");
    let cgroup = |line: &str| match line.split_once("found one by one in /proc;") {
        Some((head, _)) => format!("{head}a cgroup can be made: a whole tree is killed in one step"),
        None => line.to_owned(),
    };
    result.lines().map(|line| cgroup(line) + "\n").collect()
}
