//! `rediss://`: chain, name and expiry are verified unless disabled, which causes a warning; and client
//! certificates, where a server requires one. What all stores with TLS have in common is in `stores::tls`.

mod self_signed;

use crate::support::SOON;
use crate::support::dlock::BINARY;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::proxy::Proxy;
use crate::support::redis::{Options, Redis};
use crate::support::running::{Exit, Output};
use crate::support::tls::{Certificates, Flaw};
use crate::support::wait::{throughout, until};
use std::time::Duration;

const WARNING: &str =
    "dlock: the server's certificate is not checked (?insecure): a man in the middle can take the lock\n";

fn server(flaw: Flaw, args: &[&str]) -> Redis {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Redis::start_with(Options { args, tls: Some(flaw), ..Options::default() })
}

fn run(place: &Place, url: &str) -> Output {
    place.run().backend(url).args(["--connect-timeout", "5s"]).sh("echo ran").output()
}

/// The URL of a server by this host name, with this query.
fn url(redis: &Redis, host: &str, query: &str) -> String {
    format!("rediss://{host}:{}/0?{query}", redis.port())
}

fn ca(redis: &Redis) -> String {
    format!("ca_file={}", redis.certificates().ca.display())
}

#[track_caller]
fn assert_runs(output: &Output) {
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
}

#[track_caller]
fn assert_refused(output: &Output, code: i32, words: &[&str]) {
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    for word in words {
        assert!(output.stderr.contains(word), "{word}: {}", output.stderr);
    }
}

#[test]
fn other_schemes_and_older_versions_of_tls_are_as_good() {
    let (redis, place) = (server(Flaw::None, &["--tls-protocols", "TLSv1.2"]), Place::new());
    assert_runs(&run(&place, &url(&redis, "127.0.0.1", &ca(&redis))));
    for host in ["127.0.0.1", "localhost"] {
        assert_runs(&run(&place, &url(&redis, host, &ca(&redis)).replace("rediss:", "valkeys:")));
    }
}

/// `DLOCK_HELD` does not contain `ca_file=`.
#[test]
fn inside_a_run_over_tls_a_check_needs_the_url_unless_the_environment_has_it() {
    let (redis, place) = (server(Flaw::None, &[]), Place::new());
    let backend = url(&redis, "127.0.0.1", &ca(&redis));
    let inside = |text: String| place.run().backend(&backend).sh(&format!("exec '{BINARY}' {text}"));
    assert_refused(
        &inside("check".to_owned()).output(),
        69,
        &["unknown authority", "name the store with DLOCK_BACKEND or -b"],
    );
    let held = (Exit::Code(0), "", "");
    assert_eq!(inside(format!("check -b '{backend}'")).output().outcome(), held);
    let with_variable = place.run().no_backend().env("DLOCK_BACKEND", &backend);
    assert_eq!(with_variable.sh(&format!("exec '{BINARY}' check")).output().outcome(), held);
    assert_runs(&inside(format!("run -b '{backend}' x -- echo ran")).output());
}

/// There are some 150 of them, and each connection would parse them again.
#[test]
fn the_authorities_of_the_system_are_read_once() {
    let (redis, place) = (server(Flaw::None, &[]), Place::new());
    let roots = place.write("roots.pem", &std::fs::read_to_string(&redis.certificates().ca).unwrap());
    let proxy = Proxy::to(redis.port());
    let url = format!("rediss://127.0.0.1:{}/0", proxy.port());
    let run = place.run().backend(url).args(["--ttl", "6s"]).env("SSL_CERT_FILE", &roots);
    let mut run = run.stdin(std::process::Stdio::piped()).sh("echo ready; exec cat").spawn();
    run.await_ready();
    std::fs::remove_file(&roots).unwrap();
    proxy.close();
    until(SOON, "a new connection", || proxy.connections() > 0);
    // It works for renewals: without one the lock would be lost.
    throughout(Duration::from_secs(7), "the command runs", || run.poll().is_none());
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(0), "ready\n", ""));
}

#[test]
fn a_fifo_in_place_of_the_authorities_of_the_system_does_not_hang() {
    let (redis, place) = (server(Flaw::None, &[]), Place::new());
    nix::unistd::mkfifo(&place.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let run = place.run().backend(url(&redis, "127.0.0.1", "")).env("SSL_CERT_FILE", place.path("fifo"));
    assert_refused(&run.sh("echo ran").output(), 78, &["fifo", "SSL_CERT_FILE is not a regular file"]);
}

/// Its key alone would still verify the server's certificate.
#[test]
fn an_expired_authority_is_reported_with_its_file() {
    let (redis, place) = (server(Flaw::None, &[]), Place::new());
    let files = redis.certificates();
    let past = files.expired_ca.display().to_string();
    let words = [past.as_str(), "the certificate expired on 2001-01-01", "ca_file="];
    let by_past = format!("ca_file={past}");
    assert_refused(&run(&place, &url(&redis, "127.0.0.1", &by_past)), 78, &words);
    // Among others it is ignored, and reported when it is missing.
    let (past, other) =
        (std::fs::read_to_string(past).unwrap(), Certificates::make(&place.locks(), Flaw::None));
    let bundle = |ca: &std::path::Path| {
        let text = past.clone() + &std::fs::read_to_string(ca).unwrap();
        format!("ca_file={}", place.write("bundle.pem", &text).display())
    };
    assert_runs(&run(&place, &url(&redis, "127.0.0.1", &bundle(&files.ca))));
    let missed = run(&place, &url(&redis, "127.0.0.1", &bundle(&other.ca)));
    assert_refused(
        &missed,
        69,
        &["signed by an unknown authority (one in ca_file expired on 2001-01-01): name the authority"],
    );
    // doctor does not query the server either.
    let doctor = crate::admin::doctor::doctor(&place, &url(&redis, "127.0.0.1", &by_past)).output();
    assert_eq!(doctor.exit, Exit::Code(78), "{doctor:?}");
    assert!(doctor.stderr.contains("expired on 2001-01-01"), "{doctor:?}");
}

#[test]
fn an_authority_used_as_a_server_certificate_is_reported() {
    let (redis, place) = (server(Flaw::Authority, &[]), Place::new());
    let words = ["the server presents a CA certificate (CA:TRUE) as its own"];
    assert_refused(&run(&place, &url(&redis, "127.0.0.1", &ca(&redis))), 69, &words);
}

#[test]
fn insecure_checks_nothing_and_prints_a_warning() {
    let place = Place::new();
    for flaw in [Flaw::None, Flaw::WrongHost, Flaw::Expired] {
        let redis = server(flaw, &[]);
        for query in ["insecure", "insecure=true", "insecure=1", "insecure=yes"] {
            let output = run(&place, &url(&redis, "127.0.0.1", query));
            assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", WARNING), "{flaw:?} {query}");
        }
        let quiet =
            place.run().backend(url(&redis, "127.0.0.1", "insecure")).arg("-q").sh("echo ran").output();
        assert_runs(&quiet);
        if flaw != Flaw::None {
            let off = run(&place, &url(&redis, "127.0.0.1", &format!("insecure=false&{}", ca(&redis))));
            assert_refused(&off, 69, &["TLS: "]);
        }
    }
}

#[test]
fn a_client_authenticates_with_a_certificate() {
    let (redis, place) = (server(Flaw::None, &["--tls-auth-clients", "yes"]), Place::new());
    let files = redis.certificates();
    let query = |cert: &str, key: &str| format!("{}&cert_file={cert}&key_file={key}", ca(&redis));
    let (cert, key) = (files.client.display().to_string(), files.client_key.display().to_string());
    assert_runs(&run(&place, &url(&redis, "127.0.0.1", &query(&cert, &key))));
    // One of an authority unknown to the server, and an expired one.
    let other = Certificates::make(&place.locks(), Flaw::None);
    let strange = query(&other.client.display().to_string(), &other.client_key.display().to_string());
    let named = format!("the server does not accept our certificate {}", other.client.display());
    assert_refused(&run(&place, &url(&redis, "127.0.0.1", &strange)), 77, &[&named]);
    let (cert, key) = &files.expired_client;
    let (cert, key) = (cert.display().to_string(), key.display().to_string());
    let words = [cert.as_str(), "the certificate expired on 2001-01-01: renew it"];
    assert_refused(&run(&place, &url(&redis, "127.0.0.1", &query(&cert, &key))), 78, &words);
}

/// In TLS 1.3 the server reports it after the handshake has ended for the client, and closes the connection at once.
#[test]
fn a_missing_client_certificate_is_reported_with_the_options_that_name_it() {
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let args = ["--tls-auth-clients", "yes", "--tls-protocols", protocol];
        let (redis, place) = (server(Flaw::None, &args), Place::new());
        for query in [ca(&redis), "insecure".to_owned(), format!("{}&protocol=resp2", ca(&redis))] {
            let url = url(&redis, "127.0.0.1", &query);
            for wait in [&["-q"][..], &["-q", "--wait", "forever"]] {
                let output = place.run().backend(&url).args(wait).sh("echo ran").output();
                let words = ["TLS: the server requires a client certificate, cert_file= and key_file="];
                assert_refused(&output, 77, &words);
            }
            let status = place.bare().arg("status").env("DLOCK_BACKEND", &url).arg("-q").output();
            assert_refused(&status, 77, &["cert_file="]);
            let doctor = crate::admin::doctor::doctor(&place, &url).output();
            assert_eq!(doctor.exit, Exit::Code(1), "{doctor:?}");
            assert!(doctor.stdout.contains("-> name a certificate by cert_file="), "{doctor:?}");
        }
    }
}

#[test]
fn unusable_files_are_named() {
    let (redis, place) = (server(Flaw::None, &[]), Place::new());
    let files = redis.certificates();
    let garbage = place.write("garbage.pem", "garbage\n").display().to_string();
    let broken = "-----BEGIN CERTIFICATE-----\nZ2FyYmFnZQ==\n-----END CERTIFICATE-----\n";
    let broken = place.write("broken.pem", broken).display().to_string();
    let (cert, key) = (files.client.display().to_string(), files.client_key.display().to_string());
    let other_key = files.server_key.display().to_string();
    let encrypted =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nZ2FyYmFnZQ==\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let encrypted = place.write("encrypted.pem", encrypted).display().to_string();
    let missing = "/no/such/file.pem";
    let directory = place.locks().display().to_string();
    for (query, named) in [
        (format!("ca_file={missing}"), missing),
        (format!("ca_file={garbage}"), &garbage),
        (format!("ca_file={broken}"), &broken),
        (format!("ca_file={directory}"), &directory),
        (format!("{}&cert_file={missing}&key_file={key}", ca(&redis)), missing),
        (format!("{}&cert_file={cert}&key_file={missing}", ca(&redis)), missing),
        (format!("{}&cert_file={garbage}&key_file={key}", ca(&redis)), &garbage),
        (format!("{}&cert_file={cert}&key_file={garbage}", ca(&redis)), &garbage),
        (format!("{}&cert_file={cert}&key_file={other_key}", ca(&redis)), "does not fit the certificate"),
        (format!("{}&cert_file={cert}&key_file={encrypted}", ca(&redis)), "no unencrypted private key in it"),
    ] {
        assert_refused(&run(&place, &url(&redis, "127.0.0.1", &query)), 78, &[named]);
    }
}

/// The wrong one of the two protocols, in either direction and for every other kind of store: the scheme to use is named.
#[test]
fn tls_and_plain_do_not_mix() {
    let (tls, plain, place) = (server(Flaw::None, &[]), Redis::start(), Place::new());
    let run = |url: &str| place.run().backend(url).args(["--retry", "1m"]).arg("-q").sh("echo ran").output();
    let (with, without) = (tls.port(), plain.port());
    for (store, prefix, server_prefix) in [
        ("valkey", "", ""),
        ("redis-sentinel", "sentinel ", "127.0.0.1:PORT: "),
        ("redis-cluster", "", ""),
        ("redlock", "the only node is unavailable (", "127.0.0.1:PORT: "),
    ] {
        let secure = match store.split_once('-') {
            Some((family, kind)) => format!("{family}s-{kind}"),
            None => format!("{store}s"),
        };
        let (path, shown) = match store {
            "redis-sentinel" => ("/main", "/main/0"),
            "redis-cluster" => ("", ""),
            _ => ("", "/0"),
        };
        let end = if store == "redlock" { ")" } else { "" };
        for (scheme, other, port, found) in [
            (store, secure.as_str(), with, "the server uses TLS"),
            (&secure, store, without, "the server does not use TLS"),
        ] {
            let query = if port == without { format!("?{}", ca(&tls)) } else { String::new() };
            let output = run(&format!("{scheme}://127.0.0.1:{port}{path}{query}"));
            let server = server_prefix.replace("PORT", &port.to_string());
            let expected = format!(
                "dlock: x on {scheme}://127.0.0.1:{port}{shown}: {prefix}{server}{found}: use {other}://{end}; the \
                 command did not run\n"
            );
            assert_eq!(output.outcome(), (Exit::Code(78), "", expected.as_str()));
        }
    }
}

/// A server that sends nothing may be either.
#[test]
fn a_silent_server_is_not_taken_for_one_without_tls() {
    let (tls, silent, place) = (server(Flaw::None, &[]), Fake::silent(), Place::new());
    let url = format!("rediss://127.0.0.1:{}/0?{}", silent.port(), ca(&tls));
    let output = place.run().backend(url).args(["--connect-timeout", "1s"]).sh("echo ran").output();
    let expected = format!(
        "dlock: x on rediss://127.0.0.1:{}/0: no connection within 1000 ms; the command did not run, see --retry\n",
        silent.port()
    );
    assert_eq!(output.outcome(), (Exit::Code(69), "", expected.as_str()));
}
