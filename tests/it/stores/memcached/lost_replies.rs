//! Replies that are lost after the request was carried out.

use crate::support::dlock::Dlock;
use crate::support::memcached::Memcached;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;

/// Its command runs whichever reply is lost, and nothing is left.
#[test]
fn a_nested_run_survives_every_lost_reply() {
    let dlock = crate::support::dlock::BINARY;
    let memcached = Memcached::start();
    let proxy = Proxy::to(memcached.port());
    let url = format!("memcached://127.0.0.1:{}", proxy.port());
    let run = || {
        let run = Dlock::run().backend(&url).args(["-q", "--ttl", "60s"]);
        run.sh(&format!("'{dlock}' run -q -b {url} x -- echo inside")).output()
    };
    let before = proxy.replies();
    assert_eq!(run().outcome(), (Exit::Code(0), "inside\n", ""));
    // Of the inner one a probe, two replies to its entry, and one to its release; the outer one finds that the item has
    // changed, and reads it.
    let replies = 3 + 4 + 2;
    assert_eq!(proxy.replies() - before, replies);
    for step in 0..replies {
        proxy.lose_reply_after(step);
        assert_eq!(run().outcome(), (Exit::Code(0), "inside\n", ""), "reply {step}");
        assert_eq!(memcached.get("dlock:x"), None, "reply {step}");
    }
}

/// A release that keeps the lock for the rest of the minimum time.
#[test]
fn a_lost_reply_does_not_end_min_hold() {
    let memcached = Memcached::start();
    let proxy = Proxy::to(memcached.port());
    let url = format!("memcached://127.0.0.1:{}", proxy.port());
    let run = |name: &str| {
        Dlock::run().backend(&url).args(["-q", "--min-hold", "10m"]).name(name).sh("echo ran").output()
    };
    let before = proxy.replies();
    assert_eq!(run("first").outcome(), (Exit::Code(0), "ran\n", ""));
    for step in 0..proxy.replies() - before {
        proxy.lose_reply_after(step);
        let name = format!("x{step}");
        assert_eq!(run(&name).outcome(), (Exit::Code(0), "ran\n", ""), "reply {step}");
        let item = memcached.get(&format!("dlock:{name}")).unwrap();
        assert!(!item.contains(r#""ended_at":null"#), "reply {step}: {item}");
        assert!(memcached.remaining(&format!("dlock:{name}")).unwrap() > 500);
    }
}
