//! What a server that is asked by HTTP may answer instead of what it should: a run ends with a message, and `dlock doctor`
//! says with which status.

use crate::support::dlock::Dlock;
use crate::support::doctor::{doctor, findings};
use crate::support::kubernetes::url_of;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::web::{Answer, Web};

fn answers() -> Vec<Answer> {
    let later = ("Retry-After", "1".to_owned());
    let elsewhere = ("Location", "http://127.0.0.1:1/".to_owned());
    let page = "<html><body>no</body></html>".to_owned();
    vec![
        (200, vec![], page.clone()),
        (307, vec![elsewhere], String::new()),
        (409, vec![], page.clone()),
        (429, vec![later.clone()], page.clone()),
        (500, vec![], page.clone()),
        (503, vec![later], page),
    ]
}

/// The URL of a store whose server is on this port.
type Url = fn(&Place, u16) -> String;

#[track_caller]
fn assert_agreed(url: Url) {
    for answer in answers() {
        let (place, answered) = (Place::new(), answer.clone());
        let web = Web::start(move |_| Some(answered.clone()));
        let url = url(&place, web.port());
        let run = Dlock::run().no_backend().env("DLOCK_BACKEND", &url).args(["--connect-timeout", "2s"]);
        let run = run.sh("echo ran").output();
        let Exit::Code(status @ (69 | 77 | 78)) = run.exit else { panic!("{answer:?}: {run:?}") };
        assert_eq!((run.stdout.as_str(), run.stderr.lines().count()), ("", 1), "{answer:?}: {run:?}");
        let report = doctor(&url);
        assert_eq!(report.exit, Exit::Code(1), "{answer:?}: {report:?}");
        let ends = format!("dlock run ends with {status}");
        let says = |finding: &serde_json::Value| {
            finding["level"] == "problem"
                && finding["consequence"].as_str().is_some_and(|text| text.contains(&ends))
                && finding["remedy"].as_str().is_some_and(|text| !text.is_empty())
        };
        assert!(findings(&report).iter().any(says), "{answer:?}: {ends}: {}", report.stdout);
    }
}

#[test]
fn doctor_agrees_with_a_run_on_consul() {
    assert_agreed(|_, port| format!("consul://127.0.0.1:{port}"));
}

#[test]
fn doctor_agrees_with_a_run_on_kubernetes() {
    assert_agreed(|place, port| url_of(&place.path(""), &format!("http://127.0.0.1:{port}")));
}

#[test]
fn doctor_agrees_with_a_run_on_s3() {
    assert_agreed(|_, port| format!("s3://key:secret@b/p?endpoint=http://127.0.0.1:{port}"));
}

#[test]
fn doctor_agrees_with_a_run_on_dynamodb() {
    assert_agreed(|_, port| format!("dynamodb://key:secret@abc/p?endpoint=http://127.0.0.1:{port}"));
}
