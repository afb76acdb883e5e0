//! A Redis user with read-only rights.

use super::working;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::store::Store;

#[test]
fn a_user_without_write_permission_is_refused() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let mut run = working(store.run_with_ttl("30s"));
    let mut waiter = store.run_with_ttl("30s").args(["-v", "--wait", "forever"]).command(["true"]).spawn();
    waiter.await_stderr("waiting");
    let dlock = |user: &str| {
        let url = format!("redis://{user}:s3cret@127.0.0.1:{}/0", redis.port());
        store.place.bare().args(["break", "--yes"]).env("DLOCK_BACKEND", url).name("x").output()
    };
    let none = ["ACL", "SETUSER", "none", "on", ">s3cret", "-@all", "+ping"];
    let read = ["ACL", "SETUSER", "read", "on", ">s3cret", "%R~*", "&*", "+@all"];
    let no_note = ["ACL", "SETUSER", "no_note", "on", ">s3cret", "~*", "&*", "+@all", "-hset"];
    for words in [&none[..], &read, &no_note] {
        redis.command(words);
        let output = dlock(words[2]);
        assert_eq!(output.exit, Exit::Code(77), "{words:?}: {output:?}");
        assert!(output.stderr.starts_with("dlock: x on redis://"), "{}", output.stderr);
        assert!(!output.stderr.contains("s3cret") && output.stderr.lines().count() == 1, "{}", output.stderr);
    }
    let wrong = format!("redis://read:wrong@127.0.0.1:{}/0", redis.port());
    let output = store.place.bare().args(["break", "--yes"]).env("DLOCK_BACKEND", wrong).name("x").output();
    assert_eq!(output.exit, Exit::Code(77), "{output:?}");
    run.assert_running();
    waiter.assert_running();
    super::assert_ended(&super::breaking(&store).output());
    assert_eq!(run.wait().exit, Exit::Code(76));
    assert_eq!(waiter.wait().exit, Exit::Code(0));
}
