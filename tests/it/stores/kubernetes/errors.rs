//! What is wrong with the server, the configuration or the URL, in a sentence.

use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::kubernetes::{Kubernetes, url_of};
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::web::{Answer, Web};
use serde_json::json;

#[track_caller]
fn refused(url: &str, code: i32, message: &str) {
    let run = Dlock::run().backend(url).args(["--connect-timeout", "2s"]);
    let output = run.env("KUBECONFIG", "/nonexistent").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
    assert!(output.stderr.contains(message), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

fn status(code: u16, reason: &str, kind: &str) -> Answer {
    let date = "Fri, 30 Jan 2026 02:00:00 GMT".to_owned();
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "said", "reason": reason, "code": code,
        "details": { "name": "x", "kind": kind },
    });
    (code, vec![("Date", date)], body.to_string())
}

#[test]
fn a_url_names_one_namespace_and_nothing_else() {
    for (url, message) in [
        ("k8s://a,b", "k8s:// takes one namespace, as in k8s://NAMESPACE; the cluster is context="),
        ("k8s://a:80", "k8s:// takes one namespace"),
        ("k8s://a_b", "k8s:// takes one namespace"),
        ("k8s://a/b", "k8s:// has no path, only a namespace"),
        ("k8s://me@a", "k8s:// takes no username: the credentials are those of the kubeconfig"),
        ("k8s://a?kubeconfig=b", "kubeconfig= takes an absolute path"),
    ] {
        refused(url, 78, message);
    }
    let output = Dlock::run().backend("k8s://a").args(["--ttl", "4s"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{}", output.stderr);
    assert!(output.stderr.contains("--ttl is at least 5s"), "{}", output.stderr);
}

#[test]
fn what_a_server_refuses_is_said_with_what_to_do() {
    let place = Place::new();
    for (answer, code, message) in [
        (
            status(404, "NotFound", "namespaces"),
            78,
            "there is no namespace default: create it, or check the URL",
        ),
        (status(404, "NotFound", ""), 78, "the server has no Leases (coordination.k8s.io/v1)"),
        (status(401, "Unauthorized", ""), 77, "the server does not accept the credentials"),
        (
            status(403, "Forbidden", "leases"),
            77,
            "said (dlock doctor --policy prints the rights that dlock needs)",
        ),
        (status(500, "InternalError", ""), 69, "the server replies 500 Internal Server Error: said"),
        (status(504, "Timeout", ""), 69, "the server replies 504 Gateway Timeout: said"),
        (status(503, "ServiceUnavailable", ""), 69, "the server replies 503 Service Unavailable: said"),
        (status(429, "TooManyRequests", ""), 69, "the server replies 429 Too Many Requests: said"),
        ((404, Vec::new(), "no".into()), 78, "the server does not reply as Kubernetes does"),
        ((200, Vec::new(), "[]".into()), 78, "the server does not reply as Kubernetes does"),
        (
            (302, vec![("Location", "https://login/".into())], String::new()),
            78,
            "the server redirects to https://login/",
        ),
        (
            (502, vec![("Content-Type", "text/html".into())], "<html>".into()),
            69,
            "a web page: another server or a proxy has answered",
        ),
    ] {
        let web = Web::start(move |_| Some(answer.clone()));
        refused(&url_of(&place.path(""), &format!("http://127.0.0.1:{}", web.port())), code, message);
    }
}

#[test]
fn a_list_that_is_not_one_of_kubernetes_is_refused() {
    let place = Place::new();
    for body in ["[]", "7", "{}", r#"{"items": {}}"#] {
        let web = Web::start(move |_| Some((200, Vec::new(), body.into())));
        let url = url_of(&place.path(""), &format!("http://127.0.0.1:{}", web.port()));
        let status = place.bare().args(["status", "-b", &url]).output();
        assert_eq!((status.exit, status.stdout.as_str()), (Exit::Code(78), ""), "{}", status.stderr);
        let why = "the server does not reply as Kubernetes does: check the server of the context\n";
        assert!(status.stderr.ends_with(why), "{}", status.stderr);
    }
}

#[test]
fn a_missing_namespace_is_found_by_the_first_write() {
    let server = Kubernetes::lent();
    refused(
        &server.url().replace("k8s://default", "k8s://missing"),
        78,
        "there is no namespace missing: create it",
    );
}

#[test]
fn a_server_that_does_not_reply_is_unavailable_in_time() {
    let place = Place::new();
    let at = |port: u16| url_of(&place.path(""), &format!("http://127.0.0.1:{port}"));
    refused(&at(1), 69, "connection refused");
    let half = Fake::answering_once("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"kind\"");
    refused(&at(half.port()), 69, "the server closed the connection");
    let silent = Fake::silent();
    refused(&at(silent.port()), 69, "; the command did not run");
}

#[test]
fn a_server_without_tls_is_refused_where_it_has_to_prove_its_identity() {
    let place = Place::new();
    let url = url_of(&place.path(""), "http://127.0.0.1:1");
    let message =
        "the server would not be verified (require_verified_tls): use a context whose server is https://";
    refused(&format!("{url}&require_verified_tls"), 78, message);
}

/// Nobody is asked what `dlock doctor --policy` prints.
#[test]
fn a_policy_needs_no_configuration() {
    let output = Place::new().bare().args(["doctor", "-q", "--policy", "-b", "k8s://jobs"]).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    assert!(output.stdout.contains("  namespace: jobs\nrules:\n"), "{}", output.stdout);
}

#[test]
fn a_name_that_no_object_may_have_is_encoded() {
    let (place, server) = (Place::new(), Kubernetes::lent());
    let long = "Ä".repeat(100);
    for name in ["nightly", "a.b", "J b", "dlock--x", &long] {
        let run = place.run().backend(server.url()).name(name).sh("echo ran").output();
        assert_eq!(run.outcome(), (Exit::Code(0), "ran\n", ""), "{name}");
    }
    let names = server.names();
    for name in ["nightly", "a.b", "dlock---4a-20b", "dlock--dlock-2d-2dx"] {
        assert!(names.iter().any(|known| known == name), "{name} {names:?}");
    }
    assert!(names.iter().any(|name| name.starts_with("dlock---sha256-") && name.len() < 100), "{names:?}");
    let history = place.bare().args(["status", "--history", "-b", &server.url(), &long]).output();
    assert!(history.stdout.contains(" ok "), "{history:?}");
}
