//! Files given by an option or a URL that are not regular: nothing hangs, and no content of a file
//! chosen by another user is sent anywhere.

use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::{Options, Redis};
use crate::support::running::{Exit, Output};
use crate::support::tls::{Certificates, Flaw};
use nix::sys::stat::Mode;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Stdio;

/// A FIFO without a writer, a device without an end, and an empty device.
fn irregular(place: &Place) -> [String; 3] {
    nix::unistd::mkfifo(&place.path("fifo"), Mode::S_IRWXU).unwrap();
    symlink("/dev/zero", place.path("zero")).unwrap();
    [place.arg("fifo"), place.arg("zero"), "/dev/null".to_owned()]
}

#[track_caller]
fn assert_refused(output: &Output, code: i32, words: [&str; 2]) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
    }
}

#[test]
fn an_irregular_file_of_a_url_is_refused_at_once() {
    let redis = Redis::start_with(Options { tls: Some(Flaw::None), ..Options::default() });
    let (place, files) = (Place::new(), redis.certificates());
    let (cert, key) = (files.client.display(), files.client_key.display());
    for path in irregular(&place) {
        for query in [
            format!("ca_file={path}"),
            format!("cert_file={path}&key_file={key}"),
            format!("cert_file={cert}&key_file={path}"),
            format!("password_file={path}"),
        ] {
            let url = format!("rediss://127.0.0.1:{}/0?{query}", redis.port());
            for run in [place.run().backend(&url).sh("echo ran"), crate::admin::doctor::doctor(&place, &url)]
            {
                let is_doctor = run.arguments().iter().any(|argument| argument == "doctor");
                let output = run.output();
                if is_doctor && query.starts_with("password_file") {
                    assert_ne!(output.exit, Exit::Code(0), "{output:?}");
                } else {
                    assert_refused(&output, 78, [&path, "not a regular file"]);
                }
            }
        }
    }
    let sentinel = format!("redis-sentinel://127.0.0.1:1/s?sentinel_password_file={}", place.arg("fifo"));
    assert_refused(
        &place.run().backend(sentinel).sh("echo ran").output(),
        78,
        ["fifo", "not a regular file"],
    );
}

/// Whoever writes the key of a client certificate decides who we are. No server is asked.
#[test]
fn a_key_that_others_may_write_is_refused_on_every_store() {
    let place = Place::new();
    let files = Certificates::make(place.path("").as_path(), Flaw::None);
    let (cert, key) = (files.client.display(), files.client_key.display());
    std::fs::set_permissions(&files.client_key, Permissions::from_mode(0o602)).unwrap();
    for store in [
        "rediss://h/0?",
        "rediss-sentinel://h/s?",
        "redlocks://h,i,j?",
        "etcds://h?",
        "zookeepers://h?",
        "postgres://h/d?sslmode=require&",
        "mysql://u@h/d?",
        "memcacheds://h?",
        "consuls://h?",
        "s3://b?region=x&",
        "dynamodb://abc?region=x&",
    ] {
        let output =
            place.run().backend(format!("{store}cert_file={cert}&key_file={key}")).sh("true").output();
        let why = "client.key: it is world-writable (mode 0602): chmod o-w\n";
        assert_refused(&output, 78, ["dlock: --backend: ", why]);
    }
}

#[test]
fn a_token_fifo_without_a_writer_does_not_hang() {
    let (redis, place) = (Redis::start(), Place::new());
    let [fifo, zero, null] = irregular(&place);
    for (path, why) in [
        (fifo, "nothing was written to this pipe in time"),
        (zero, "not a regular file"),
        (null, "not a regular file"),
    ] {
        for command in ["renew", "release", "check"] {
            let run = place.bare().args([command, "--backend", &redis.url(), "--token-file", &path]).arg("x");
            assert_refused(&run.output(), 64, [&path, why]);
        }
    }
}

/// As created by `<(command)` of a shell.
#[test]
fn a_token_is_read_from_a_pipe() {
    let (redis, place) = (Redis::start(), Place::new());
    let acquire = place.bare().args(["acquire", "--backend", &redis.url(), "--ttl", "60s", "x"]);
    let token = acquire.output().stdout;
    for command in ["renew", "check", "release"] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let options = ["--backend", &redis.url(), "--token-file", "/dev/stdin"];
        let mut run = place.bare().arg(command).args(options).arg("x").stdin(Stdio::from(reader)).spawn();
        std::io::Write::write_all(&mut writer, token.as_bytes()).unwrap();
        drop(writer);
        assert_eq!(run.wait().exit, Exit::Code(0), "{command}: {}", run.stderr());
    }
}

/// With a URL of their choice an attacker could have any file sent to their server.
#[test]
fn a_password_is_one_bounded_line() {
    let place = Place::new();
    let long = "p".repeat(20_000);
    for (content, why) in [
        ("root:$y$secret:1\ndaemon:*:1\n", "more than one line"),
        ("secret\r\n", "more than one line"),
        ("secret\n\n", "more than one line"),
        (long.as_str(), "longer than 16384 bytes"),
    ] {
        let server = Fake::silent();
        let path = place.write("shadow", content);
        let url = format!("redis://127.0.0.1:{}/0?password_file={}", server.port(), path.display());
        let output = place.run().backend(url).args(["--connect-timeout", "2s"]).sh("echo ran").output();
        assert_refused(&output, 78, [&place.arg("shadow"), why]);
        assert!(!output.stderr.contains("secret"), "{}", output.stderr);
        assert_eq!(server.heard(), b"", "{content}");
    }
}
