//! A listing consists of several replies, and other clients go on between them.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::wait::until;
use crate::support::zookeeper::ZooKeeper;
use std::process::Stdio;

/// The first holder leaves while a waiter reads the entries ahead of it: then it has to read the next one as well, which is
/// granted a slot at the same time.
#[test]
fn entries_that_become_entitled_during_a_listing_are_read() {
    let zookeeper = ZooKeeper::lent();
    let proxy = Proxy::to(zookeeper.port(0));
    let behind = format!("zookeeper://127.0.0.1:{}", proxy.port());
    let run = |url: &str, options: &[&str]| {
        let run = Dlock::run().backend(url).args(options).args(["--ttl", "6s", "--wait", "1m"]);
        run.stdin(Stdio::piped()).sh("echo slot=$DLOCK_SLOT; exec cat").spawn()
    };
    for replies in 0..12 {
        let mut reader = run(&zookeeper.url(), &["--shared"]);
        reader.await_stdout("slot=\n");
        let mut first = run(&zookeeper.url(), &["--slots", "3"]);
        let mut session = zookeeper.session();
        until(SOON, "the first waiter", || session.children("/dlock/x").unwrap().len() == 2);
        session.close().unwrap();
        proxy.hold_reply_after(replies);
        let mut second = run(&behind, &["--slots", "3"]);
        until(SOON, "a held reply", || proxy.is_holding());
        drop(reader.take_stdin());
        assert_eq!(reader.wait().exit, Exit::Code(0));
        first.await_stdout("slot=0\n");
        proxy.heal();
        second.await_stdout("slot=1\n");
        for run in [&mut first, &mut second] {
            drop(run.take_stdin());
            assert_eq!(run.wait().exit, Exit::Code(0), "after {replies} replies");
        }
    }
}
