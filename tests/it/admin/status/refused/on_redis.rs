//! Servers that are unreachable, or refuse.

use crate::admin::status::status;
use crate::support::fake::Fake;
use crate::support::redis::Redis;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::wait::boot_ns;

#[test]
fn an_unreachable_store_is_69() {
    let mut redis = Redis::start();
    let store = Store::on(&redis);
    redis.kill();
    for args in [&["x"][..], &["--json"], &["--history", "x"], &["--exit-code", "x"], &["-q"], &["--watch"]] {
        let output = status(&store).args(args).output();
        assert_eq!(
            (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
            (Exit::Code(69), "", 1),
            "{}",
            output.stderr
        );
        assert!(
            output.stderr.starts_with("dlock: ") && output.stderr.contains(&redis.url()),
            "{}",
            output.stderr
        );
    }
}

#[test]
fn a_hung_store_is_abandoned_in_time() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    redis.stop();
    let began = boot_ns();
    let output = status(&store).args(["--connect-timeout", "300ms"]).output();
    assert_eq!(
        (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
        (Exit::Code(69), "", 1),
        "{}",
        output.stderr
    );
    assert!(boot_ns() - began < 10_000_000_000);
    redis.resume();
}

#[test]
fn a_wrong_password_is_77_and_not_printed() {
    let redis = Redis::start_with_args(&["--requirepass", "hunter2"]);
    let store = Store::file();
    let names: Vec<String> = (0..40).map(|number| format!("{number:0>200}")).collect();
    for (user, what) in [("", "password"), (":wrong-hunter3@", "password")] {
        let url = format!("redis://{user}127.0.0.1:{}/0", redis.port());
        for args in [&["x".to_owned()][..], &[], &names, &["--history".into(), "x".into()]] {
            let output = store.place.bare().arg("status").args(args).env("DLOCK_BACKEND", &url).output();
            assert_eq!(
                (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
                (Exit::Code(77), "", 1),
                "{}",
                output.stderr
            );
            assert!(output.stderr.contains(what) && !output.stderr.contains("hunter3"), "{}", output.stderr);
        }
    }
}

/// The rights of a run, and to read the index and the history.
#[test]
fn status_needs_few_rights() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let _run = crate::admin::status::holding(store.run_with_ttl("30s"));
    let _waiter = crate::admin::status::waiting(store.run_with_ttl("30s"));
    let rights = "eval evalsha time get type pttl hget hgetall zcard zrange zrem zscan lrange";
    let mut words = vec![
        "ACL".to_owned(),
        "SETUSER".into(),
        "looker".into(),
        "on".into(),
        ">s3cret".into(),
        "resetchannels".into(),
        "-@all".into(),
        "~dlock:*".into(),
        "~dlock#*".into(),
    ];
    words.extend(rights.split(' ').map(|right| format!("+{right}")));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    redis.command(&words);
    let url = format!("redis://looker:s3cret@127.0.0.1:{}/0", redis.port());
    let look =
        |args: &[&str]| store.place.bare().args(["status", "-q", "--json", "-b", &url]).args(args).output();
    let output = look(&[]);
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    let lock = crate::admin::status::parse(&output.stdout)["locks"][0].take();
    assert_eq!(
        (lock["holders"][0]["host"].is_string(), lock["waiters"][0]["host"].is_string()),
        (true, true),
        "{lock}"
    );
    assert_eq!(look(&["--history", "x"]).exit, Exit::Code(0));
    redis.command(&["SET", "dlock:foreign", "x"]);
    assert_eq!(crate::admin::status::parse(&look(&["foreign"]).stdout)["locks"][0]["state"], "held");
    for right in ["-zscan", "-eval"] {
        redis.command(&["ACL", "SETUSER", "looker", right, "-evalsha"]);
        let output = look(&[]);
        assert_eq!((output.exit, output.stderr.lines().count()), (Exit::Code(77), 1), "{}", output.stderr);
    }
}

/// F47: a server that is none.
#[test]
fn a_server_with_invalid_replies_is_69() {
    let store = Store::file();
    for answer in ["$999999999999\r\n", "*-5\r\n", "+OK\r\n+OK\r\n+OK\r\n"] {
        let server = Fake::answering_once(answer);
        let url = format!("redis://127.0.0.1:{}", server.port());
        for args in [&[][..], &["x"], &["--history", "x"]] {
            let output = store
                .place
                .bare()
                .args(["status", "-b", &url, "--connect-timeout", "1s"])
                .args(args)
                .output();
            assert_eq!(
                (output.exit, output.stdout.as_str(), output.stderr.lines().count()),
                (Exit::Code(69), "", 1),
                "{}",
                output.stderr
            );
        }
    }
}
