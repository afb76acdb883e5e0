//! Servers, and proxies in front of them, that support only RESP2.

use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::redis::{Connection, Redis, await_renewal};
use crate::support::resp::{Value, old_reply};
use crate::support::running::Exit;
use std::process::Stdio;
use std::sync::Mutex;

/// The whole life of a lock: held, renewed, refused to another client, waited for, freed.
fn a_lock_lives(url: &str, redis: &Redis, password: Option<&str>) {
    let place = Place::new();
    let run = || place.run().no_backend().env("DLOCK_BACKEND", url);
    let mut holder = run().args(["--ttl", "6s"]).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    holder.await_ready();
    let refused = run().command(["true"]).output();
    assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
    assert!(refused.stderr.contains("(pid "), "{}", refused.stderr);
    let left = || {
        let mut client = redis.connect();
        if let Some(password) = password {
            client.command(&["AUTH", password]);
        }
        client.command(&["PTTL", "dlock:x"]).int()
    };
    await_renewal(left);
    let mut waiter = run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    drop(holder.take_stdin());
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    let output = waiter.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    assert_eq!(left(), -2, "free");
}

#[test]
fn a_server_without_hello_is_used_with_resp2() {
    let redis = Redis::start_with_args(&["--rename-command", "HELLO", ""]);
    assert!(matches!(redis.command(&["HELLO", "3"]), Value::Error(_)));
    a_lock_lives(&redis.url(), &redis, None);
}

#[test]
fn a_server_without_hello_gets_the_password() {
    let redis = Redis::start_with_args(&["--rename-command", "HELLO", "", "--requirepass", "s3cret"]);
    let url = format!("redis://:s3cret@127.0.0.1:{}/0", redis.port());
    a_lock_lives(&url, &redis, Some("s3cret"));
    let place = Place::new();
    let wrong = format!("redis://:wrong@127.0.0.1:{}/0", redis.port());
    let output = place.run().no_backend().env("DLOCK_BACKEND", wrong).command(["true"]).output();
    assert_eq!(output.exit, Exit::Code(77), "{}", output.stderr);
}

/// Before Redis 6 there was neither HELLO nor tracking.
#[test]
fn a_server_without_hello_and_client_suffices() {
    let redis = Redis::start_with_args(&["--rename-command", "HELLO", "", "--rename-command", "CLIENT", ""]);
    a_lock_lives(&redis.url(), &redis, None);
}

/// As in some hosted servers and proxies: the script is sent completely each time.
#[test]
fn a_server_without_evalsha_suffices() {
    let redis = Redis::start_with_args(&["--rename-command", "EVALSHA", ""]);
    a_lock_lives(&redis.url(), &redis, None);
}

#[test]
fn resp2_can_be_requested() {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.port());
    a_lock_lives(&format!("redis://127.0.0.1:{}/0?protocol=resp2", proxy.port()), &redis, None);
    let flights = proxy.flights();
    assert!(flights.iter().all(|flight| !flight.names().contains(&"HELLO".to_owned())), "{flights:?}");
}

#[test]
fn resp2_supports_a_password_and_a_database() {
    let redis = Redis::start_with_args(&["--requirepass", "s3cret"]);
    let place = Place::new();
    let url = |password: &str, database: &str| {
        format!("redis://:{password}@127.0.0.1:{}/{database}?protocol=resp2", redis.port())
    };
    let run = |url: String| place.run().no_backend().env("DLOCK_BACKEND", url).sh("echo ran").output();
    assert_eq!(run(url("s3cret", "3")).outcome(), (Exit::Code(0), "ran\n", ""));
    let mut client = redis.connect();
    client.command(&["AUTH", "s3cret"]);
    client.command(&["SELECT", "3"]);
    assert_eq!(client.command(&["KEYS", "dlock#fencing:*"]).texts().len(), 1, "in database 3");
    assert_eq!(run(url("wrong", "3")).exit, Exit::Code(77));
    assert_eq!(run(url("s3cret", "99")).exit, Exit::Code(78));
}

/// The errors of Redis 6 that knows HELLO but not this version, of one before 6, and of proxies.
#[test]
fn a_proxy_that_refuses_hello_is_used_with_resp2() {
    for refusal in [
        "-NOPROTO unsupported protocol version\r\n",
        "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n",
        "-ERR unknown command\r\n",
        "-unsupported command 'HELLO'\r\n",
    ] {
        let redis = Redis::start();
        let behind = Mutex::new(Connection::to(redis.port()).unwrap());
        let proxy = Fake::scripted(move |words| {
            if ["HELLO", "CLIENT", "SUBSCRIBE"].contains(&words[0].to_uppercase().as_str()) {
                return Some(refusal.as_bytes().to_vec());
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Some(old_reply(&behind.lock().unwrap().command(&words)))
        });
        a_lock_lives(&format!("redis://127.0.0.1:{}/0", proxy.port()), &redis, None);
    }
}
