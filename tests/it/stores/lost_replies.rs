//! Replies that are lost after the request was carried out.

use crate::support::dlock::Dlock;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;

/// Runs a command as often as a run gets replies from the server on this port, through a proxy that has this URL, and
/// loses another one each time: the command runs nevertheless. `assert_clean` follows, with the number of the lost reply.
#[track_caller]
pub fn assert_recovered(url: impl Fn(u16) -> String, port: u16, ttl: &str, assert_clean: impl Fn(usize)) {
    let proxy = Proxy::to(port);
    let url = url(proxy.port());
    let run = || Dlock::run().backend(&url).args(["--ttl", ttl]).sh("echo ran").output();
    // After the first run, each one sends the same requests.
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    let before = proxy.replies();
    assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    let steps = proxy.replies() - before;
    assert!(steps >= 3, "{steps} replies");
    for step in 0..steps {
        proxy.lose_reply_after(step);
        assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""), "reply {step}");
        assert_clean(step);
    }
}
