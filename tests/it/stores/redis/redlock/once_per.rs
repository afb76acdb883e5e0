//! `--once-per` on a Redlock: any node of the majority that would grant the lock may say that the job is done.

use super::fixture::{ALL, Fixture};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::wait::until;

const SUCCESS: &str = "dlock#success:{dlock:x}";

fn nightly(fixture: &Fixture) -> Dlock {
    fixture.run().args(["-q", "--once-per", "23h"]).sh("echo ran")
}

/// Runs the job, and waits until every node has recorded it.
fn done_everywhere() -> Fixture {
    let fixture = Fixture::old();
    assert_eq!(nightly(&fixture).output().outcome(), (Exit::Code(0), "ran\n", ""));
    let knows = |node: &usize| fixture.masters.node(*node).command(&["EXISTS", SUCCESS]) == Value::Int(1);
    until(SOON, "a success at every node", || ALL.iter().all(knows));
    fixture
}

#[test]
fn a_success_that_a_majority_knows_is_found_by_every_majority() {
    for forgetful in [[0, 1], [3, 4], [1, 3]] {
        let fixture = done_everywhere();
        for node in forgetful {
            fixture.masters.node(node).command(&["DEL", SUCCESS]);
        }
        for _ in 0..5 {
            assert_eq!(nightly(&fixture).output().outcome(), (Exit::Code(0), "", ""));
        }
        // What some of the nodes had granted is given back.
        fixture.await_free_at(&ALL);
    }
}

#[test]
fn a_success_that_two_nodes_cannot_tell_is_found() {
    let mut fixture = done_everywhere();
    fixture.masters.kill(1);
    fixture.masters.kill(4);
    fixture.masters.node(0).command(&["DEL", SUCCESS]);
    assert_eq!(nightly(&fixture).output().outcome(), (Exit::Code(0), "", ""));
}

#[test]
fn an_unknown_format_at_every_node_is_rejected() {
    let fixture = done_everywhere();
    fixture.masters.command(&["SET", SUCCESS, r#"{"format":2}"#]);
    let output = nightly(&fixture).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""));
    let what = ": the record of its last success was stored by another version of dlock (format 2, known: 1): use one version on all hosts";
    assert!(output.stderr.contains(what), "{}", output.stderr);
    fixture.await_free_at(&ALL);
}
