//! Readers whose turn has come together, in whatever order they claim it.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;
use std::process::Stdio;

fn spawn(url: &str, options: &[&str]) -> Running {
    let run = Dlock::run().backend(url).args(options).args(["--ttl", "8s", "--wait", "1m"]);
    run.stdin(Stdio::piped()).sh("echo token=$DLOCK_FENCING_TOKEN.; exec cat").spawn()
}

/// The fencing token of a run, as soon as it has started.
fn token(run: &mut Running) -> u64 {
    let printed = run.await_stdout(".\n");
    printed.trim().trim_start_matches("token=").trim_end_matches('.').parse().expect("a token")
}

fn end(run: &mut Running) {
    drop(run.take_stdin());
    assert_eq!(run.wait().exit, Exit::Code(0));
}

#[test]
fn a_slower_reader_gets_a_larger_token() {
    let zookeeper = ZooKeeper::lent();
    let proxy = Proxy::to(zookeeper.port(0));
    let behind = format!("zookeeper://127.0.0.1:{}", proxy.port());
    let mut session = zookeeper.session();
    let mut await_nodes = |count: usize| {
        until(SOON, "another node", || session.children("/dlock/x").unwrap().len() == count);
    };
    let mut first = spawn(&zookeeper.url(), &[]);
    let mut tokens = vec![token(&mut first)];
    let mut slower = spawn(&behind, &["--shared"]);
    await_nodes(2);
    let mut faster = spawn(&zookeeper.url(), &["--shared"]);
    await_nodes(3);
    // They wait for both readers.
    let mut writers: Vec<Running> = Vec::new();
    for count in 4..6 {
        writers.push(spawn(&zookeeper.url(), &[]));
        await_nodes(count);
    }
    proxy.hold_both();
    end(&mut first);
    tokens.push(token(&mut faster));
    proxy.heal();
    tokens.push(token(&mut slower));
    let shown = Dlock::bare().args(["status", "--json", "x", "--backend", &zookeeper.url()]).output().stdout;
    for token in &tokens[1..] {
        assert!(shown.contains(&format!("\"fencing_token\":{token},")), "{token}: {shown}");
    }
    end(&mut faster);
    end(&mut slower);
    for writer in &mut writers {
        tokens.push(token(writer));
        end(writer);
    }
    let mut last = spawn(&zookeeper.url(), &["--shared"]);
    tokens.push(token(&mut last));
    end(&mut last);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}
