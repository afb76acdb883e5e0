//! A self-signed server certificate, as created by `openssl req -x509` (CA:TRUE), and given by `ca_file=`.

use super::{assert_refused, assert_runs, run, url};
use crate::support::place::Place;
use crate::support::redis::{Options, Redis};
use crate::support::tls::{Certificates, Flaw};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A certificate and its key, which is created unless it exists.
fn openssl(place: &Place, name: &str, key: &Path, options: &[&str]) -> PathBuf {
    let path = place.path(name);
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-days", "30", "-subj", "/CN=redis", "-out"]).arg(&path).args(options);
    match key.exists() {
        true => command.arg("-key").arg(key),
        false => command.args(["-newkey", "rsa:2048", "-nodes", "-keyout"]).arg(key),
    };
    let output = command.output().expect("openssl: install the Debian package openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

fn server(place: &Place, certificate: &Path, key: &Path) -> Redis {
    let others = Certificates::make(&place.locks(), Flaw::None);
    let certificates = Certificates { server: certificate.to_owned(), server_key: key.to_owned(), ..others };
    Redis::start_with(Options { certificates: Some(certificates), ..Options::default() })
}

fn by(path: &Path) -> String {
    format!("ca_file={}", path.display())
}

const FOR_LOCALHOST: [&str; 2] = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
const CA_AS_SERVER: &str = "the server presents a CA certificate (CA:TRUE) as its own";

#[test]
fn only_the_given_self_signed_certificate_is_accepted() {
    let place = Place::new();
    let key = place.path("key.pem");
    let own = openssl(&place, "own.pem", &key, &FOR_LOCALHOST);
    let redis = server(&place, &own, &key);
    for host in ["127.0.0.1", "localhost"] {
        assert_runs(&run(&place, &url(&redis, host, &by(&own))));
    }
    // Together with others, too.
    let bundle = [&redis.certificates().ca, &own].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    let bundle = place.write("bundle.pem", &bundle);
    assert_runs(&run(&place, &url(&redis, "localhost", &by(&bundle))));
    // The same key and the same name, created again: another certificate.
    let again = openssl(&place, "again.pem", &key, &FOR_LOCALHOST);
    assert_refused(&run(&place, &url(&redis, "localhost", &by(&again))), 69, &[CA_AS_SERVER, "ca_file="]);
    // The same names, and another key.
    let stranger = openssl(&place, "stranger.pem", &place.path("other.pem"), &FOR_LOCALHOST);
    let output = run(&place, &url(&redis, "localhost", &by(&stranger)));
    assert_refused(&output, 69, &["TLS: "]);
}

#[test]
fn the_name_of_a_self_signed_certificate_is_checked() {
    let place = Place::new();
    let key = place.path("key.pem");
    let own = openssl(&place, "own.pem", &key, &["-addext", "subjectAltName=DNS:elsewhere.example"]);
    let redis = server(&place, &own, &key);
    let words = ["TLS: ", "not valid for name", "elsewhere.example", "server_name="];
    assert_refused(&run(&place, &url(&redis, "localhost", &by(&own))), 69, &words);
    let query = format!("{}&server_name=elsewhere.example", by(&own));
    assert_runs(&run(&place, &url(&redis, "localhost", &query)));
    // A common name is not the name of a host (RFC 9525).
    let nameless = openssl(&place, "nameless.pem", &key, &[]);
    let redis = server(&place, &nameless, &key);
    let query = format!("{}&server_name=redis", by(&nameless));
    assert_refused(
        &run(&place, &url(&redis, "localhost", &query)),
        69,
        &["has no subjectAltName", "subjectAltName"],
    );
}

#[test]
fn the_dates_of_a_self_signed_certificate_are_checked() {
    for (from, until, code, words) in [
        (2000, 2001, 78, "expired on 2001-01-01"),
        (2090, 2091, 69, "the server's certificate is valid from 2090-01-01 only"),
    ] {
        let place = Place::new();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let own = place.write("own.pem", &params.self_signed(&key).unwrap().pem());
        let redis = server(&place, &own, &place.write("key.pem", &key.serialize_pem()));
        assert_refused(&run(&place, &url(&redis, "localhost", &by(&own))), code, &[words]);
    }
}
