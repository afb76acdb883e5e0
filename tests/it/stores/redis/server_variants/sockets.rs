//! A server on a socket of this host.

use crate::admin::doctor::{Findings, doctor};
use crate::support::dlock::Dlock;
use crate::support::place::Place;
use crate::support::redis::{Redis, await_renewal};
use crate::support::resp::Value;
use crate::support::running::{Exit, Output};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

/// A server with a socket in the place, and its URL.
fn server(place: &Place, args: &[&str]) -> (Redis, String) {
    let socket = place.arg("redis.sock");
    let redis = Redis::start_with_args(&[&["--unixsocket", &socket], args].concat());
    (redis, format!("redis+unix://{socket}"))
}

/// A user other than root.
fn as_other_user(dlock: Dlock) -> Dlock {
    dlock.wrapped_by(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"])
}

#[track_caller]
fn assert_refused(output: &Output, code: i32, words: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis+unix:///"), "{}", output.stderr);
    assert!(output.stderr.contains(words), "{words}: {}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

#[test]
fn a_lock_works_over_a_socket() {
    let place = Place::new();
    let (_redis, url) = server(&place, &[]);
    for url in [url.clone(), url.replace("redis+", "valkey+"), url.replace("//", ""), format!("{url}?db=3")] {
        let run = || place.run().backend(&url);
        let mut holder = run().args(["--ttl", "6s"]).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
        holder.await_ready();
        let refused = run().command(["true"]).output();
        assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
        assert!(refused.stderr.contains("(pid "), "{}", refused.stderr);
        let status = || {
            let status = place.bare().arg("status").args(["-b", &url, "--json"]).output();
            let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
            status["locks"][0]["holders"][0]["expires_in_ms"].as_i64().unwrap()
        };
        await_renewal(status);
        let mut waiter = run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
        waiter.await_stderr("waiting");
        drop(holder.take_stdin());
        assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\n", ""));
        let output = waiter.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
    }
    let found = Findings::of(doctor(&place, &url));
    assert_eq!(found.at("problem"), [""; 0], "{found:?}");
    assert!(found.only("reachability", "ok").starts_with(&place.arg("redis.sock")), "{found:?}");
    found.only("lock", "ok");
    found.only("notifications", "ok");
}

#[test]
fn a_token_works_over_a_socket() {
    let place = Place::new();
    let (_redis, url) = server(&place, &[]);
    let token = |words: &[&str]| {
        place.bare().args(words).args(["-b", &url, "--token-file", &place.arg("token"), "x"]).output()
    };
    assert_eq!(token(&["acquire", "--ttl", "1m"]).outcome(), (Exit::Code(0), "", ""));
    assert_eq!(token(&["renew", "--ttl", "2m"]).exit, Exit::Code(0));
    assert_eq!(token(&["check"]).exit, Exit::Code(0));
    assert_eq!(token(&["release"]).exit, Exit::Code(0));
    assert_eq!(token(&["check"]).exit, Exit::Code(76));
}

/// The output contains the socket, and not the password.
#[test]
fn a_user_authenticates_over_a_socket() {
    let place = Place::new();
    let (_redis, url) = server(&place, &["--user", "dlock", "on", ">s3cret", "~*", "&*", "+@all"]);
    let at = |user: &str| url.replace("///", &format!("//{user}@/"));
    let run = |url: String| place.run().no_backend().env("DLOCK_BACKEND", url);
    let output = run(at("dlock:s3cret")).sh("printenv DLOCK_HELD").output();
    assert_eq!(output.exit, Exit::Code(0), "{output:?}");
    assert!(
        output.stdout.contains("redis+unix://dlock@/") && !output.stdout.contains("s3cret"),
        "{output:?}"
    );
    assert_refused_as(&run(at("dlock:wrong")).command(["true"]).output(), "wrong username or password");
}

#[track_caller]
fn assert_refused_as(output: &Output, words: &str) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{}", output.stderr);
    assert!(output.stderr.contains(words), "{words}: {}", output.stderr);
    assert!(output.stderr.starts_with("dlock: x on redis+unix://dlock@/"), "{}", output.stderr);
}

/// A server may be started later.
#[test]
fn a_missing_socket_is_unavailable_and_waited_for() {
    let place = Place::new();
    let url = format!("redis+unix://{}", place.arg("redis.sock"));
    let run = || place.run().backend(&url);
    assert_refused(&run().command(["true"]).output(), 69, "there is no such socket: is the server running");
    let mut waiter = run().args(["--wait", "forever"]).sh("echo ran").spawn();
    let (mut redis, _) = server(&place, &[]);
    assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "ran\n", ""));
    // A killed server leaves it behind.
    redis.kill();
    assert_refused(&run().command(["true"]).output(), 69, "no server listens on the socket any more");
    let found = Findings::of(doctor(&place, &url));
    assert_eq!(found.at("problem"), ["reachability"], "{found:?}");
    assert!(found.check("reachability")[0]["remedy"].as_str().unwrap().contains("unixsocket"), "{found:?}");
}

#[test]
fn a_forbidden_socket_is_77_and_its_owner_is_named() {
    let place = Place::new();
    // The user needs access to the path of the socket.
    for path in [".", "home"] {
        std::fs::set_permissions(place.path(path), Permissions::from_mode(0o777)).unwrap();
    }
    let (_redis, url) = server(&place, &["--unixsocketperm", "700"]);
    let run = || as_other_user(place.run().backend(&url));
    let owner = "no permission for the socket: it is for user 0 and group 0 (mode 0700), see the configuration of the server";
    assert_refused(&run().args(["--wait", "forever"]).command(["true"]).output(), 77, owner);
    let found = Findings::of(as_other_user(doctor(&place, &url)));
    assert_eq!(found.at("problem"), ["reachability"], "{found:?}");
    assert_eq!(found.check("reachability")[0]["consequence"], "no lock can be taken: dlock run ends with 77");
    std::fs::set_permissions(place.path("redis.sock"), Permissions::from_mode(0o777)).unwrap();
    assert_eq!(run().sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    std::fs::create_dir(place.path("private")).unwrap();
    std::fs::set_permissions(place.path("private"), Permissions::from_mode(0o700)).unwrap();
    let hidden = format!("redis+unix://{}", place.arg("private/redis.sock"));
    let output = as_other_user(place.run().backend(hidden)).command(["true"]).output();
    assert_refused(
        &output,
        77,
        "no permission for the directory of the socket: let this user enter it (chmod +x)",
    );
}

#[test]
fn a_path_that_is_not_a_socket_is_an_invalid_url() {
    let place = Place::new();
    place.write("file", "");
    let long = "x".repeat(120);
    for (path, words) in [
        ("file", "this is not a socket"),
        ("home", "this is not a socket"),
        (long.as_str(), "cannot be a socket: path must be shorter"),
    ] {
        let url = format!("redis+unix://{}", place.arg(path));
        assert_refused(&place.run().backend(url).command(["true"]).output(), 78, words);
    }
}

/// F09: at once, also over a socket.
#[test]
fn a_lock_deleted_over_a_socket_is_lost_at_once() {
    let place = Place::new();
    let (redis, url) = server(&place, &[]);
    let mut run = place
        .run()
        .backend(&url)
        .args(["--ttl", "1h", "--grace", "1s"])
        .sh("echo ready; exec sleep 3600")
        .spawn();
    run.await_ready();
    assert_eq!(redis.command(&["DEL", "dlock:x"]), Value::Int(1));
    assert_eq!(run.wait().exit, Exit::Code(76));
}
