//! `require_verified_tls`: servers that need not prove their identity are refused before they are contacted.

use super::{refused, run, write};
use crate::support::place::Place;
use crate::support::running::Exit;
use std::net::TcpListener;

/// URLs of servers that are not verified, and what to use instead.
const UNVERIFIED: [(&str, &str); 18] = [
    ("redis://HOST", "use rediss://"),
    ("rediss://HOST?insecure", "remove insecure"),
    ("redis-sentinel://HOST/main", "use rediss-sentinel://"),
    ("redlock://HOST", "use redlocks://"),
    ("etcd://HOST", "use etcds://"),
    ("etcds://HOST?insecure", "remove insecure"),
    ("zookeeper://HOST", "use zookeepers://"),
    ("memcached://HOST", "use memcacheds://"),
    ("consul://HOST", "use consuls://"),
    ("consuls://HOST?insecure", "remove insecure"),
    ("s3://b?endpoint=http://HOST", "use an endpoint= with https://"),
    ("dynamodb://abc?endpoint=http://HOST", "use an endpoint= with https://"),
    ("postgres://me@HOST/db?sslmode=disable", "use sslmode=verify-full, without insecure"),
    ("postgres://me@HOST/db?sslmode=require", "use sslmode=verify-full, without insecure"),
    ("mysql://HOST/db", "use ssl_mode=verify_ca with ca_file=, or ssl_mode=verify_identity"),
    (
        "mysql://HOST/db?ssl_mode=required",
        "use ssl_mode=verify_ca with ca_file=, or ssl_mode=verify_identity",
    ),
    (
        "mysql://HOST/db?ssl_mode=disabled",
        "use ssl_mode=verify_ca with ca_file=, or ssl_mode=verify_identity",
    ),
    ("mysql://HOST/db?insecure", "use ssl_mode=verify_ca with ca_file=, or ssl_mode=verify_identity"),
];

/// A server that nobody may contact.
fn untouched() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let host = listener.local_addr().unwrap().to_string();
    (listener, host)
}

/// A URL with one more option.
fn with(url: &str, option: &str) -> String {
    format!("{url}{}{option}", if url.contains('?') { '&' } else { '?' })
}

#[test]
fn a_url_refuses_a_server_that_is_not_verified() {
    let (listener, host) = untouched();
    for (url, how) in UNVERIFIED {
        let url = url.replace("HOST", &host);
        for value in ["yes", "true", "1", ""] {
            let place = Place::new();
            let url = with(&url, &format!("require_verified_tls={value}"));
            let output = place.run().backend(&url).command(["touch", "t"]).output();
            let expected =
                format!("--backend: the server would not be verified (require_verified_tls): {how}");
            assert_eq!(refused(&place, &output, 78), expected, "{url}");
        }
    }
    let url = format!("redis://{host}?require_verified_tls=maybe");
    let place = Place::new();
    let output = place.run().backend(&url).command(["touch", "t"]).output();
    let expected = "--backend: require_verified_tls= is yes or no, not 'maybe'";
    assert_eq!(refused(&place, &output, 78), expected);
    assert!(listener.accept().is_err(), "the server was contacted");
}

#[test]
fn a_configuration_refuses_every_server_that_is_not_verified() {
    let (listener, host) = untouched();
    for (url, how) in UNVERIFIED {
        let url = url.replace("HOST", &host);
        let place = Place::new();
        let text = format!("backend = \"{url}\"\nrequire_verified_tls = true\n");
        let output = run(&place, &text).arg("-q").command(["touch", "t"]).output();
        let line = refused(&place, &output, 78);
        let expected = format!(": the server would not be verified (require_verified_tls): {how}");
        assert!(line.starts_with("FILE:2: ") && line.ends_with(&expected), "{url}: {line}");
        // Whoever names it, and for whatever.
        let config = write(&place, "only.toml", "require_verified_tls = true\n");
        for command in [&["run", "x", "--", "touch", "t"][..], &["doctor"], &["status"], &["break", "x"]] {
            let (name, rest) = command.split_first().unwrap();
            let output = place.bare().args([name, "-b", &url, "--config"]).arg(&config).args(rest).output();
            assert_eq!(output.exit, Exit::Code(78), "{command:?} {}", output.stderr);
        }
    }
    assert!(listener.accept().is_err(), "the server was contacted");
    // In the table of one backend, where it is a truth value.
    let place = Place::new();
    let text =
        format!("backend = \"r\"\n[backends.r]\nurl = \"redis://{host}\"\nrequire_verified_tls = true\n");
    let output = run(&place, &text).command(["touch", "t"]).output();
    let expected = "FILE:4:24: require_verified_tls: the server would not be verified (require_verified_tls): use rediss://";
    assert_eq!(refused(&place, &output, 78), expected);
}

#[test]
fn what_is_verified_or_local_is_not_refused() {
    let (listener, host) = untouched();
    for url in [
        "redis+unix:///nowhere/socket",
        "rediss://HOST",
        "etcds://HOST",
        "zookeepers://HOST",
        "memcacheds://HOST",
        "consuls://HOST",
        "consul+unix:///nowhere/socket",
        "postgres:///db?host=/nowhere",
        "postgres://me@HOST/db?sslmode=verify-full",
        "mysql:///db?socket=/nowhere/socket",
        "mysql://HOST/db?ssl_mode=verify_identity",
    ] {
        let place = Place::new();
        let url = with(&url.replace("HOST", &host), "require_verified_tls=yes");
        let run = place.run().backend(&url).args(["--connect-timeout", "100ms"]);
        let output = run.command(["touch", "t"]).output();
        assert_eq!(output.exit, Exit::Code(69), "{url}: {}", output.stderr);
    }
    drop(listener);
    let place = Place::new();
    let text = format!("backend = \"{}\"\nrequire_verified_tls = true\n", place.url());
    assert_eq!(run(&place, &text).command(["true"]).output().outcome(), (Exit::Code(0), "", ""));
}
