//! A dead holder, and a store that is down.

#[cfg(feature = "redis")]
use super::stubborn;
use super::{assert_ended, breaking, working};
#[cfg(feature = "redis")]
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::store::Store;
#[cfg(feature = "redis")]
use crate::support::{SOON, wait::until};
use nix::sys::signal::Signal;

/// dlock and its guard, at the same instant, and the command with them.
#[test]
fn the_lock_of_a_dead_holder_ends_with_its_lease() {
    for store in Store::each() {
        let mut run = working(store.run_with_ttl("2s"));
        run.marker().kill_all();
        // Whichever was killed first: the other one may have noticed.
        assert!([Exit::by(Signal::SIGKILL), Exit::Code(70)].contains(&run.wait().exit));
        let output = breaking(&store).output();
        if store.url().starts_with("redis") {
            assert_ended(&output);
        } else {
            // Without a lease the hold has ended with its process.
            let free = format!("x on {} is free\n", store.url());
            assert_eq!(output.outcome(), (Exit::Code(0), free.as_str(), ""));
        }
        assert_eq!(store.run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

#[cfg(feature = "redis")]
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
#[cfg(feature = "redis")]
#[test]
fn a_store_that_hangs_later_is_unavailable() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let inherited_lock = store.place.inherited_lock();
    let mut run = stubborn(store.run_with_ttl("10s").args(["--grace", "2s"]), &inherited_lock);
    let mut breaks = breaking(&store).args(["--wait", "1s", "--connect-timeout", "1s"]).spawn();
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
#[cfg(feature = "redis")]
#[test]
fn an_unreachable_store_is_unavailable() {
    let store = Store::file();
    let output =
        store.place.bare().args(["break", "--yes", "-b", "redis://127.0.0.1:1/0"]).name("x").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis://127.0.0.1:1/0: "), "{}", output.stderr);
}
