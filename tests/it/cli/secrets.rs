//! Passwords and tokens: users without permission find them nowhere.

use crate::support::place::Place;
use crate::support::process;
use crate::support::redis::{Connection, Options, Redis, await_renewal};
use crate::support::running::{Exit, Running};
use crate::support::wait;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;

const PASSWORD: &str = "hunter2-s3cret";
const WARNING: &str = "dlock: a password on the command line can be read by every user of this host: use password_file= \
                       or DLOCK_BACKEND\n";

fn server() -> Redis {
    Redis::start_with_args(&["--requirepass", PASSWORD])
}

fn url(redis: &Redis, rest: &str) -> String {
    format!("redis://127.0.0.1:{}/0{rest}", redis.port())
}

fn with_password(redis: &Redis) -> String {
    format!("redis://:{PASSWORD}@127.0.0.1:{}/0", redis.port())
}

fn owner(redis: &Redis) -> Connection {
    let mut client = redis.connect();
    assert_eq!(client.command(&["AUTH", PASSWORD]).text(), "OK");
    client
}

#[test]
fn a_password_on_the_command_line_works_and_warns() {
    let (redis, place) = (server(), Place::new());
    let run = || place.run().backend(with_password(&redis)).sh("echo ran");
    assert_eq!(run().output().outcome(), (Exit::Code(0), "ran\n", WARNING));
    assert_eq!(run().arg("-q").output().outcome(), (Exit::Code(0), "ran\n", ""));
    // No other user can read the environment.
    let run = place.run().no_backend().env("DLOCK_BACKEND", with_password(&redis)).sh("echo ran");
    assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// Everything about a run that other users can see, or that is stored.
fn assert_hidden(run: &Running, secret: &str, what: &str) {
    for stat in process::descendants(run.pid()) {
        let line = process::command_line(stat.pid);
        assert!(!line.contains(secret), "{what} in the command line of {}: {line}", stat.comm);
        assert!(!stat.comm.contains(secret));
    }
    assert!(!run.stderr().contains(secret), "{what}: {}", run.stderr());
}

#[test]
fn a_password_is_visible_nowhere() {
    let (redis, place) = (server(), Place::new());
    let mut holder = place
        .run()
        .backend(with_password(&redis))
        .args(["-vvv", "--ttl", "60s"])
        .stdin(Stdio::piped())
        .sh("printenv DLOCK_HELD; printenv DLOCK_TOKEN; echo ready; exec cat")
        .spawn();
    let printed = holder.await_stdout("ready\n");
    assert!(!printed.contains(PASSWORD) && printed.contains("\"backend\":\"redis://127.0.0.1:"), "{printed}");
    assert_hidden(&holder, PASSWORD, "the password");
    let mut waiter = place.run().backend(with_password(&redis)).args(["-vvv", "--wait", "forever"]);
    waiter = waiter.command(["true"]);
    let mut waiter = waiter.spawn();
    waiter.await_stderr("waiting");
    assert_hidden(&waiter, PASSWORD, "the password");
    // Nor is it in the data that dlock leaves in the store.
    let mut client = owner(&redis);
    for key in client.command(&["KEYS", "*"]).texts() {
        let kept = match client.command(&["TYPE", &key]).text().as_str() {
            "hash" => client.command(&["HGETALL", &key]).texts().join(" "),
            "zset" => client.command(&["ZRANGE", &key, "0", "-1"]).texts().join(" "),
            _ => client.command(&["GET", &key]).text(),
        };
        assert!(!kept.contains(PASSWORD) && !key.contains(PASSWORD), "{key}: {kept}");
    }
    drop(holder.take_stdin());
    for mut run in [holder, waiter] {
        let output = run.wait();
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stderr);
        assert!(!output.stderr.contains(PASSWORD), "{}", output.stderr);
    }
}

#[test]
fn a_password_is_in_no_error() {
    let (redis, place) = (server(), Place::new());
    let port = redis.port();
    let mut wrong = Vec::new();
    for (url, code) in [
        (format!("redis://:not-{PASSWORD}@127.0.0.1:{port}/0"), 77),
        (format!("redis://nobody:{PASSWORD}@127.0.0.1:{port}/0"), 77),
        (format!("redis://:{PASSWORD}@127.0.0.1:{port}/99"), 78),
        (format!("redis://:{PASSWORD}@127.0.0.1:1/0"), 69),
        (format!("redis://:{PASSWORD}@no-such-host.invalid/0"), 69),
        (format!("redis://:{PASSWORD}@127.0.0.1:port/0"), 78),
        (format!("redis://:{PASSWORD}@127.0.0.1:{port}/0?nonsense=1"), 78),
        (format!("redis://:{PASSWORD}@127.0.0.1:{port}/0 "), 78),
        (format!("redis://:{PASSWORD}%zz@127.0.0.1:{port}/0"), 78),
        (format!("redis://:{PASSWORD}/x@127.0.0.1:{port}/0"), 78),
        (format!("redis://:{PASSWORD}#@127.0.0.1:{port}/0"), 78),
        (format!("redis://:{PASSWORD}?@127.0.0.1:{port}/0"), 78),
        (format!("redis://me:123/{PASSWORD}@127.0.0.1:{port}/0"), 78),
        (format!("redis://me:123?{PASSWORD}@127.0.0.1:{port}/0"), 78),
        (format!("redis://me:123?{PASSWORD}=1@127.0.0.1:{port}/0"), 78),
        (format!("redis:{PASSWORD}@127.0.0.1:{port}/0"), 78),
        (format!("nonsense://:{PASSWORD}@127.0.0.1/0"), 78),
        (format!("file://:{PASSWORD}@/x"), 78),
        (PASSWORD.to_owned(), 78),
    ] {
        for run in [place.run().backend(&url), place.run().no_backend().env("DLOCK_BACKEND", &url)] {
            let output = run.arg("-vvv").command(["true"]).output();
            if output.exit != Exit::Code(code) || output.stderr.contains(PASSWORD) {
                wrong.push(format!("{url}: {:?} {}", output.exit, output.stderr));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join(""));
}

#[test]
fn a_token_is_in_no_command_line_and_no_message() {
    let place = Place::new();
    let mut run = place.run().args(["-vvv"]).stdin(Stdio::piped());
    run = run.sh("printenv DLOCK_TOKEN; echo ready; exec cat");
    let mut run = run.spawn();
    let printed = run.await_stdout("ready\n");
    let token = printed.lines().next().unwrap().to_owned();
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "128 bits: {token}");
    assert_hidden(&run, &token, "the token");
    assert!(!process::command_line(run.pid()).contains(&token));
    let other = place.run().arg("-vvv").command(["true"]).output();
    assert!(other.exit == Exit::Code(75) && !other.stderr.contains(&token), "{}", other.stderr);
}

/// The content without one trailing line break; whoever may read the file.
#[test]
fn a_password_file_is_read() {
    let (redis, place) = (server(), Place::new());
    let path = place.arg("password");
    let run = || place.run().backend(url(&redis, &format!("?password_file={path}"))).sh("echo ran").output();
    for (content, mode) in [(PASSWORD.to_owned(), 0o600), (format!("{PASSWORD}\n"), 0o444)] {
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(run().outcome(), (Exit::Code(0), "ran\n", ""));
    }
    for content in [String::new(), format!(" {PASSWORD}")] {
        std::fs::write(&path, &content).unwrap();
        let output = run();
        assert_eq!(
            (output.exit, output.stdout.as_str()),
            (Exit::Code(77), ""),
            "{content:?}: {}",
            output.stderr
        );
        assert!(!output.stderr.contains(PASSWORD), "{}", output.stderr);
    }
    std::fs::remove_file(&path).unwrap();
    let output = run();
    assert_eq!(output.exit, Exit::Code(78));
    assert!(output.stderr.contains(&path), "{}", output.stderr);
}

/// A password that is changed while the lock is held: the file is read again for every connection.
#[test]
fn a_password_file_is_read_again() {
    let (redis, place) = (server(), Place::new());
    let path = place.path("password");
    std::fs::write(&path, PASSWORD).unwrap();
    let url = url(&redis, &format!("?password_file={}", path.display()));
    let mut run = place.run().backend(url).args(["--ttl", "6s"]).stdin(Stdio::piped());
    run = run.sh("echo ready; exec cat");
    let mut run = run.spawn();
    run.await_ready();
    let mut client = owner(&redis);
    let before = client.command(&["GET", "dlock:x"]);
    std::fs::write(&path, "changed\n").unwrap();
    client.command(&["CONFIG", "SET", "requirepass", "changed"]);
    client.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let client = || {
        let mut client = redis.connect();
        client.command(&["AUTH", "changed"]);
        client
    };
    // Over a new connection, with the new password.
    await_renewal(|| client().command(&["PTTL", "dlock:x"]).int());
    wait::throughout(std::time::Duration::from_secs(7), "the lock is kept", || {
        client().command(&["GET", "dlock:x"]) == before
    });
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

#[test]
fn the_usual_variable_of_redis_is_read_when_the_url_has_no_password() {
    let (redis, place) = (server(), Place::new());
    let run = |url: String, password: &str| {
        place
            .run()
            .no_backend()
            .env("DLOCK_BACKEND", url)
            .env("REDISCLI_AUTH", password)
            .sh("echo $REDISCLI_AUTH")
            .output()
    };
    // It is passed on, like everything else.
    let expected = format!("{PASSWORD}\n");
    assert_eq!(run(url(&redis, ""), PASSWORD).outcome(), (Exit::Code(0), expected.as_str(), ""));
    assert_eq!(run(with_password(&redis), "wrong").outcome(), (Exit::Code(0), "wrong\n", ""));
    let file = place.write("password", PASSWORD);
    let by_file = url(&redis, &format!("?password_file={}", file.display()));
    assert_eq!(run(by_file, "wrong").outcome(), (Exit::Code(0), "wrong\n", ""));
    assert_eq!(run(url(&redis, ""), "wrong").exit, Exit::Code(77));
    assert_eq!(run(url(&redis, ""), "").exit, Exit::Code(77), "empty counts as unset");
}

/// Names and passwords of any characters, as URLs write them.
#[test]
fn names_and_passwords_may_have_any_character() {
    let (redis, place) = (Redis::start_with(Options::default()), Place::new());
    let password = "p@s:s/w?o#r%d[ ]&=+\u{e9}\u{1F512}";
    let rule = format!(">{password}");
    let made = redis.command(&["ACL", "SETUSER", "us:er", "on", &rule, "~*", "&*", "+@all"]);
    assert_eq!(made.text(), "OK");
    let encoded = "p%40s%3As%2Fw%3Fo%23r%25d%5B%20%5D%26%3D+%C3%A9%F0%9F%94%92";
    let url = format!("redis://us%3Aer:{encoded}@127.0.0.1:{}/0", redis.port());
    let run = place.run().no_backend().env("DLOCK_BACKEND", url).sh("echo ran");
    assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
    let file = place.write("password", password);
    let by_file = |path: &Path| {
        format!("redis://127.0.0.1:{}/0?username=us:er&password_file={}", redis.port(), path.display())
    };
    let run = place.run().backend(by_file(&file)).sh("echo ran");
    assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
}
