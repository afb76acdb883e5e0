//! Replies that are lost after the request was carried out.

use crate::support::dlock::Dlock;
use crate::support::memcached::Memcached;
use crate::support::proxy::Proxy;
use crate::support::running::Exit;

/// Loses each of the replies to a run once: its command runs nevertheless, and nothing is left.
#[track_caller]
fn assert_recovered(replies: usize, command: &str, expected: &str) {
    let memcached = Memcached::start();
    let proxy = Proxy::to(memcached.port());
    let url = format!("memcached://127.0.0.1:{}", proxy.port());
    let run = || {
        let run = Dlock::run().backend(&url).args(["-q", "--ttl", "20s"]);
        run.sh(&command.replace("URL", &url)).output()
    };
    let before = proxy.replies();
    assert_eq!(run().outcome(), (Exit::Code(0), expected, ""));
    assert_eq!(proxy.replies() - before, replies);
    for step in 0..replies {
        proxy.lose_reply_after(step);
        assert_eq!(run().outcome(), (Exit::Code(0), expected, ""), "reply {step}");
        assert_eq!(memcached.get("dlock:x"), None, "reply {step}");
    }
}

/// The probe, the grant, and the release: one round trip each.
#[test]
fn a_run_survives_every_lost_reply() {
    assert_recovered(3, "echo ran", "ran\n");
}

#[test]
fn a_nested_run_survives_every_lost_reply() {
    let dlock = crate::support::dlock::BINARY;
    // Of the inner one a probe, two replies to its entry, and two to its release; the outer one reads the item that it has
    // changed.
    assert_recovered(3 + 5 + 2, &format!("'{dlock}' run -q -b URL x -- echo inside"), "inside\n");
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
        assert!(item.contains(r#""ended_at""#), "reply {step}: {item}");
        assert!(memcached.remaining(&format!("dlock:{name}")).unwrap() > 500);
    }
}
