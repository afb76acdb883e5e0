//! Two concurrent claims, each of which is granted by some nodes: F34.

use super::fixture::{ALL, Fixture};
use crate::support::proxy::{Proxy, Way};
use crate::support::running::Exit;
use std::time::Duration;

/// F34: each reaches two nodes first, and a third node has an old entry of another client.
#[test]
fn of_two_runs_that_split_the_nodes_exactly_one_gets_the_lock() {
    let fixture = Fixture::old();
    let slow: Vec<Proxy> = ALL.iter().map(|node| Proxy::to(fixture.masters.node(*node).port())).collect();
    for proxy in &slow {
        proxy.delay(Way::Up, Duration::from_millis(15));
    }
    let url = |near: [usize; 2]| {
        let port = |node: usize| match near.contains(&node) {
            true => fixture.masters.node(node).port(),
            false => slow[node].port(),
        };
        let hosts: Vec<String> = ALL.iter().map(|node| format!("127.0.0.1:{}", port(*node))).collect();
        format!("redlock://{}/0", hosts.join(","))
    };
    fixture.foreign_lock(&[4], "what is left of somebody");
    for round in 0..10 {
        let command = ["sh", "-c", "echo ran; until test -e \"$0\"; do sleep 0.05; done"];
        let go = fixture.place.arg(&format!("go{round}"));
        let start = |near| fixture.run_at(&url(near)).command(command.iter().chain([&go.as_str()])).spawn();
        let mut runs = [start([0, 1]), start([2, 3])];
        let ended = crate::support::wait::eventually(crate::support::SOON, "one who gives up", || {
            runs.iter_mut().position(|run| run.poll().is_some())
        });
        fixture.place.write(&format!("go{round}"), "");
        let (loser, winner) = (runs[ended].wait(), runs[1 - ended].wait());
        assert_eq!((loser.exit, loser.stdout.as_str()), (Exit::Code(75), ""), "{}", loser.stderr);
        assert_eq!((winner.exit, winner.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", winner.stderr);
    }
}

/// F34
#[test]
fn of_many_concurrent_runs_one_holds_at_a_time() {
    let fixture = Fixture::old().ttl("6s");
    let file = fixture.place.arg("holder");
    let text = format!("mkdir '{file}' && sleep 0.02 && rmdir '{file}'");
    let runs: Vec<_> = (0..8).map(|_| fixture.run().args(["--wait", "25s"]).sh(&text).spawn()).collect();
    for mut run in runs {
        let output = run.wait();
        assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    }
    fixture.assert_no_traces(&ALL);
}
