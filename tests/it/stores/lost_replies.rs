//! Replies that are lost after the request was carried out.

use crate::support::dlock::Dlock;
use crate::support::proxy::Proxy;
use crate::support::running::{Exit, Output};

/// Runs a command as often as a run gets replies from the server on this port, through a proxy that has this URL, and
/// loses another one each time: the command runs nevertheless. `assert_clean` follows, with the number of the lost reply.
#[track_caller]
pub fn assert_recovered(url: impl Fn(u16) -> String, port: u16, ttl: &str, assert_clean: impl Fn(usize)) {
    lose_each(url, port, ttl, |reply, output| {
        assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""), "reply {reply}");
        assert_clean(reply);
    });
}

/// Does the same where a lock ends with the connection: a run that has it may lose it, but none waits for itself, and the
/// command never runs without being reported.
#[track_caller]
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub fn assert_lost_at_most(url: impl Fn(u16) -> String, port: u16, assert_clean: impl Fn(usize)) {
    lose_each(url, port, "10m", |reply, output| {
        let end = (output.exit, output.stdout.as_str());
        let ends = [(Exit::Code(0), "ran\n"), (Exit::Code(76), "ran\n"), (Exit::Code(76), "")];
        assert!(ends.contains(&end), "reply {reply}: {output:?}");
        assert_clean(reply);
    });
}

#[track_caller]
fn lose_each(url: impl Fn(u16) -> String, port: u16, ttl: &str, check: impl Fn(usize, &Output)) {
    let proxy = Proxy::to(port);
    let url = url(proxy.port());
    let run = || Dlock::run().backend(&url).args(["--ttl", ttl]).sh("echo ran").output();
    // After the first run, each one sends the same requests.
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    let before = proxy.replies();
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    let replies = proxy.replies() - before;
    assert!(replies >= 3, "{replies} replies");
    for reply in 0..replies {
        proxy.lose_reply_after(reply);
        check(reply, &run());
    }
}
