//! The report of `dlock doctor`, for people and for programs.

use std::time::Duration;

use serde_json::json;

use super::form::{Form, wrapped};
use super::table::{Colour, painted};
use super::{json, milliseconds, printable};
use crate::backend::diagnosis::{Answer, Finding, Level, Question};
use crate::duration::show;

/// The findings on one store.
#[derive(Clone, Debug)]
pub struct DoctorReport {
    backend: String,
    /// The findings, in the order in which they were made.
    pub findings: Vec<Finding>,
    /// The answers that were found.
    pub answers: Vec<(Question, Answer)>,
    /// A lease that suits the latency of the store, if known.
    pub recommended_ttl: Option<Duration>,
}

/// The maximum line length, except for single words that are longer.
const WIDEST: usize = 100;
/// If less than this is left beside the name of a check, the text begins on the next line.
const NARROWEST: usize = 40;

impl DoctorReport {
    pub fn of(backend: &str) -> DoctorReport {
        DoctorReport {
            backend: backend.to_owned(),
            findings: Vec::new(),
            answers: Vec::new(),
            recommended_ttl: None,
        }
    }

    pub fn problems(&self) -> usize {
        self.count(Level::Problem)
    }

    fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    fn answer(&self, question: Question) -> Answer {
        let known = self.answers.iter().find(|(answered, _)| *answered == question);
        known.map_or_else(Answer::unknown, |(_, answer)| answer.clone())
    }

    pub fn json(&self) -> String {
        let answer = |question: Question| {
            let Answer { answer, detail } = self.answer(question);
            json!({ "question": question, "answer": answer, "detail": detail })
        };
        json::line(&json!({
            "version": 1,
            "backend": self.backend,
            "findings": self.findings,
            "answers": Question::ALL.map(answer),
            "problems": self.problems(),
            "warnings": self.count(Level::Warning),
            "recommended_ttl_ms": self.recommended_ttl.map(milliseconds),
        }))
    }

    pub fn text(&self, form: Form) -> String {
        let width = form.width.map_or(WIDEST, |width| width.min(WIDEST));
        let mut text = format!("{}\n\n", printable(&self.backend));
        let widest = self.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
        let column = "problem".len() + 2 + widest + 2;
        let indent = if column + NARROWEST <= width { column } else { 4 };
        for finding in &self.findings {
            let level = finding.level.as_str();
            let level = painted(&format!("{level:7}"), colour(finding.level), form.style);
            let head = match indent == column {
                true => format!("{level}  {:widest$}  ", finding.check),
                false => format!("{level}  {}\n{:indent$}", finding.check, ""),
            };
            let lines = [Some(&finding.found), finding.consequence.as_ref()].into_iter().flatten();
            let mut lines: Vec<String> =
                lines.flat_map(|line| wrapped(&printable(line), width.saturating_sub(indent), "")).collect();
            lines.extend(
                finding
                    .remedy
                    .iter()
                    .flat_map(|line| wrapped(&printable(line), width.saturating_sub(indent), "-> ")),
            );
            text.push_str(&head);
            text.push_str(&lines.join(&format!("\n{:indent$}", "")));
            text.push('\n');
        }
        text.push('\n');
        for question in Question::ALL {
            let Answer { answer, detail } = self.answer(question);
            let indent = 4;
            let lines = wrapped(&printable(&format!("{answer}: {detail}")), width.saturating_sub(indent), "");
            let lines: String = lines.iter().map(|line| format!("{:indent$}{line}\n", "")).collect();
            text.push_str(&format!("{}\n{lines}", wrapped(question.text(), width, "").join("\n")));
        }
        text.push('\n');
        if let Some(ttl) = self.recommended_ttl {
            text.push_str(&format!("Recommended: --ttl {}\n", show(ttl)));
        }
        let (problems, warnings) = (self.problems(), self.count(Level::Warning));
        text + &format!("{}, {}\n", counted(problems, "problem"), counted(warnings, "warning"))
    }
}

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn colour(level: Level) -> Colour {
    match level {
        Level::Ok => Colour::Green,
        Level::Warning => Colour::Yellow,
        Level::Problem => Colour::Red,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::form::Style;

    fn diagnosis() -> DoctorReport {
        let mut diagnosis = DoctorReport::of("redis://h:6379/0");
        diagnosis.findings = vec![
            Finding::ok("latency", "p50 1ms"),
            Finding::problem("eviction", "hostile \u{1b}[2J", "word ".repeat(30).trim_end(), "do this"),
        ];
        diagnosis
    }

    #[test]
    fn findings_are_aligned_wrapped_and_safe() {
        let words = |count| vec!["word"; count].join(" ");
        let expected = format!(
            "redis://h:6379/0\n\nok       latency   p50 1ms\nproblem  eviction  hostile \\u{{1b}}[2J\n{0:19}{1}\n{0:19}{2}\n\
             {0:19}-> do this\n\n{3}\n1 problem, no warnings\n",
            "",
            words(16),
            words(14),
            Question::ALL
                .map(|question| format!(
                    "{}\n    unknown: not determined: an earlier check failed\n",
                    question.text()
                ))
                .concat()
        );
        let form = Form { style: Style::Plain, width: None, is_wide: false };
        assert_eq!(diagnosis().text(form), expected);
        assert!(expected.lines().all(|line| line.len() <= WIDEST));
        let narrow = diagnosis().text(Form { width: Some(40), ..form });
        assert!(narrow.lines().all(|line| line.len() <= 40), "{narrow}");
        assert!(narrow.starts_with("redis://h:6379/0\n\nok       latency\n    p50 1ms\nproblem  eviction\n"));
        assert!(
            diagnosis()
                .text(Form { style: Style::Coloured, ..form })
                .contains("\u{1b}[31mproblem\u{1b}[0m  eviction")
        );
    }
}
