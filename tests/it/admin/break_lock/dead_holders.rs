//! A dead holder, and a store that is down.

use super::stubborn;
use super::{assert_ended, breaking, working};
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::{SOON, wait::until};
use nix::sys::signal::Signal;

/// dlock and its guard, at the same instant, and the command with them.
#[test]
fn the_lock_of_a_dead_holder_ends_with_its_lease() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("6s"));
        run.marker().kill_all();
        // Whichever was killed first: dlock may have noticed that its guard is dead, and released the lock.
        assert!([Exit::by(Signal::SIGKILL), Exit::Code(70)].contains(&run.wait().exit));
        let output = breaking(&store).output();
        let free = format!("x on {} is free\n", store.url());
        if output.stdout != free {
            // Without a lease the hold has ended with its process.
            assert!(store.url().starts_with("redis"), "{output:?}");
            assert_ended(&output);
        }
        assert_eq!(store.run_with_ttl("30s").sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

#[test]
fn a_hung_store_is_unavailable() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    redis.stop();
    let output = breaking(&store).args(["--wait", "forever"]).output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
    let line = format!("dlock: x on {}: ", redis.url());
    assert!(output.stderr.starts_with(&line) && output.stderr.lines().count() == 1, "{}", output.stderr);
    redis.resume();
}

/// Whether the holder has released the lock is unknown then.
#[test]
fn a_store_that_hangs_later_is_unavailable() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let inherited_lock = store.place.inherited_lock();
    // The break goes on for long enough to be there when the server hangs, and the command for longer.
    let mut run = stubborn(store.run_with_ttl("30s").args(["--grace", "5s"]), &inherited_lock);
    let mut breaks = breaking(&store).args(["--wait", "4s", "--connect-timeout", "1s"]).spawn();
    let holder = format!("dlock#holder:{{{}}}", store.space().key("x"));
    let is_revoked =
        || redis.command(&["HGETALL", &holder]).texts().iter().any(|field| field.starts_with("r:"));
    until(SOON, "the revocation", is_revoked);
    redis.stop();
    let output = breaks.wait();
    assert_eq!(output.exit, Exit::Code(69), "{output:?}");
    let line = "; its holder has already been notified, see dlock status\n";
    assert!(output.stderr.ends_with(line), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{output:?}");
    redis.resume();
    assert_eq!(run.wait().exit, Exit::Code(76));
}

/// A holder that is gone is not reported again.
#[test]
fn an_unreachable_store_is_unavailable() {
    let store = Store::file();
    let output =
        store.place.bare().args(["break", "--yes", "-b", "redis://127.0.0.1:1/0"]).name("x").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis://127.0.0.1:1/0: "), "{}", output.stderr);
}
