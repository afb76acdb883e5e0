//! HTTP proxies between dlock and a store of objects.

use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, assert_refused};
use crate::support::fake::Fake;
use crate::support::http_proxy::HttpProxy;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::s3::S3;
use crate::support::tls::{Certificates, Flaw};

/// `me:se cret` in base64.
const LOGIN: &str = "Basic bWU6c2UgY3JldA==";

fn variable(proxy: &HttpProxy) -> String {
    format!("http://me:se%20cret@127.0.0.1:{}", proxy.port())
}

/// Nobody but the proxy knows this host. The signature of a request covers the host that the client names.
#[test]
fn requests_without_tls_are_forwarded_with_their_signature() {
    let (place, s3) = (Place::new(), S3::lent());
    let proxy = HttpProxy::with_login(s3.port(), LOGIN);
    let run = place.run().backend(s3.url_by("http://store.invalid:9000")).env("http_proxy", variable(&proxy));
    let ran = run.args(["--ttl", "10s"]).sh("echo ran").output();
    assert_eq!(ran.outcome(), (Exit::Code(0), "ran\n", ""));
    let heads = proxy.heads();
    let is_forwarded = |head: &String| {
        head.contains(" http://store.invalid:9000/locks/") && head.contains("host: store.invalid:9000")
    };
    assert!(heads.len() >= 3 && heads.iter().all(is_forwarded), "{heads:?}");
    // A listed host is asked directly.
    let run = place.run().backend(s3.url()).env("http_proxy", variable(&proxy)).env("no_proxy", "127.0.0.1");
    let ran = run.args(["--ttl", "10s"]).sh("echo ran").output();
    assert_eq!(ran.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(proxy.heads().len(), heads.len());
}

#[test]
fn tls_goes_through_a_tunnel_and_proves_the_identity_of_the_server() {
    let place = Place::new();
    let directory = tempfile::Builder::new().prefix("it-proxy-").tempdir().expect("a directory");
    let s3 = S3::start_with(&[], Some(&Certificates::make(directory.path(), Flaw::None)));
    let proxy = HttpProxy::with_login(s3.port(), LOGIN);
    let run = |url: String| {
        let run = place.run().backend(url).env("HTTPS_PROXY", variable(&proxy));
        run.args(["--ttl", "10s"]).sh("echo ran").output()
    };
    let ran = run(s3.url());
    assert_eq!(ran.outcome(), (Exit::Code(0), "ran\n", ""));
    let heads = proxy.heads();
    let is_tunnel = |head: &String| head.starts_with("CONNECT 127.0.0.1:");
    assert!(!heads.is_empty() && heads.iter().all(is_tunnel), "{heads:?}");
    let refused = run(s3.url() + "&server_name=other.example");
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(69), ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("(HTTPS_PROXY): TLS: "), "{}", refused.stderr);
}

#[test]
fn doctor_reports_the_proxy() {
    let (place, s3) = (Place::new(), S3::lent());
    let doctor = |proxy: &HttpProxy| {
        let doctor = place.bare().args(["doctor", "-b", &s3.url_by("http://store.invalid:9000"), "--json"]);
        doctor.env("http_proxy", variable(proxy)).output()
    };
    let proxy = HttpProxy::with_login(s3.port(), LOGIN);
    let output = doctor(&proxy);
    let reached =
        format!("store.invalid:9000 is reached through the proxy 127.0.0.1:{} (http_proxy)", proxy.port());
    assert_found(&output, "ok", "proxy", &reached);
    assert_found(&output, "ok", "lock", "taken, renewed and given back in");
    let other = HttpProxy::with_login(s3.port(), "Basic another");
    assert_refused(&doctor(&other), "proxy", 77, "or list the host in NO_PROXY");
}

/// Nothing is known of the way behind a proxy.
#[test]
fn a_server_that_is_not_one_of_s3_is_not_probed_past_the_proxy() {
    let (proxy, server) =
        (Fake::answering_once("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"), Fake::silent());
    let output = refused(&format!("http://127.0.0.1:{}", server.port()), &proxy);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
    assert!(output.stderr.contains("the server does not reply as S3 does"), "{}", output.stderr);
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_silent_proxy_is_named() {
    let proxy = Fake::silent();
    let output = refused("http://store.invalid:9000", &proxy);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    let named = format!(" ms through the proxy 127.0.0.1:{} (http_proxy)", proxy.port());
    assert!(output.stderr.contains(&named), "{}", output.stderr);
}

/// A run through a proxy. A key in the environment is not on the command line.
fn refused(endpoint: &str, proxy: &Fake) -> Output {
    let url = format!("s3://key:secret@b/p?endpoint={endpoint}");
    let run = Dlock::run().no_backend().env("DLOCK_BACKEND", url);
    let run = run.env("http_proxy", format!("127.0.0.1:{}", proxy.port()));
    run.args(["--connect-timeout", "2s"]).sh("echo ran").output()
}
