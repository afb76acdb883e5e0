//! The answers of several nodes together to the questions that every store answers.

use crate::backend::diagnosis::{Answer, Finding, Level, Question};
use crate::backend::redis::doctor::answers;

/// The answer of one node, with its name.
pub(super) type NodeAnswer = (String, Question, Answer);

/// Returns the first answer of a node to the question that is `no`, with the name of the node.
fn denial(answers: &[NodeAnswer], question: Question) -> Option<Answer> {
    let is_no = |(_, asked, answer): &&NodeAnswer| *asked == question && answer.answer == "no";
    answers
        .iter()
        .find(is_no)
        .map(|(name, _, Answer { detail, .. })| Answer::new("no", format!("{name}: {detail}")))
}

pub(super) fn atomic_grant(answers: &[NodeAnswer], count: usize, quorum: usize) -> Answer {
    denial(answers, Question::AtomicGrant).unwrap_or_else(|| {
        let yes = answers.iter().filter(|(_, asked, _)| *asked == Question::AtomicGrant);
        match yes.clone().next() {
            Some((_, _, Answer { detail, .. })) if yes.clone().count() >= quorum => Answer::new(
                "yes",
                format!("on {} of {count} nodes {detail}, and a lock needs {quorum}", yes.count()),
            ),
            _ => Answer::unknown(),
        }
    })
}

pub(super) fn losses(count: usize, quorum: usize) -> Answer {
    let enough = count + 1 - quorum;
    Answer::new(
        "yes",
        format!(
            "if {enough} of {count} nodes lose it within one lease; a node that may have forgotten locks does not count \
             until the longest lease has ended"
        ),
    )
}

pub(super) fn lease_clock(clocks: &Finding) -> Answer {
    Answer::new("nodes", format!("each its own, {}; {}", answers::lease_clock(), clocks.found))
}

/// `missing` nodes were not reached.
pub(super) fn one_server(answers: &[NodeAnswer], independence: &Finding, missing: usize) -> Answer {
    denial(answers, Question::OneServer).unwrap_or_else(|| {
        let answer = match independence.level {
            Level::Ok if missing == 0 => "yes",
            Level::Ok | Level::Warning => "unknown",
            Level::Problem => "no",
        };
        Answer::new(answer, &independence.found)
    })
}
