//! `dlock doctor` on Kubernetes.

use crate::support::doctor::{answer, assert_answered, assert_found, doctor};
use crate::support::kubernetes::Kubernetes;
use crate::support::place::Place;
use crate::support::running::Exit;

#[test]
fn a_healthy_server_has_no_warning() {
    let server = Kubernetes::lent();
    let output = doctor(&server.url());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    for (check, found) in [
        ("leases", "those of the namespace default can be read"),
        ("credentials", "from "),
        ("conditions", "resourceVersion is honoured"),
        ("watch", "waiters are notified"),
        ("clock", "this host and the server agree to the minute"),
        ("lock", "taken, renewed and given back in"),
        ("race", "20 races of 8 connections for a free lock had one winner each"),
    ] {
        assert_found(&output, "ok", check, found);
    }
    assert_answered(&output);
    let (whose, detail) = answer(&output, "lease_clock");
    assert!(whose == "server" && detail.contains("33s"), "{whose}: {detail}");
    let mut names = server.names();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    // The first is not that of a lock.
    let number = names[0].strip_prefix("dlock---probe-").expect("a probe");
    assert_eq!(names[1], format!("dlock-doctor-{number}"));
    assert_eq!(server.lease(&names[0])["spec"]["holderIdentity"], "");
    let status = Place::new().bare().args(["status", "-b", &server.url()]).output();
    assert_eq!(status.exit, Exit::Code(0), "{status:?}");
    assert!(!status.stdout.contains("probe"), "{}", status.stdout);
}

/// A proxy that ends TLS writes its own `Date`.
#[test]
fn a_reply_whose_time_is_not_that_of_the_write_is_a_problem() {
    let server = Kubernetes::with_fault("date-is-ahead");
    let output = doctor(&server.url());
    assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
    assert_found(&output, "ok", "conditions", "resourceVersion is honoured");
    assert_found(
        &output,
        "problem",
        "clock",
        "the time of a write (managedFields) and that of its reply (Date) are",
    );
}

#[test]
fn a_missing_namespace_is_a_problem() {
    let server = Kubernetes::lent();
    let output = doctor(&server.url().replace("k8s://default", "k8s://missing"));
    assert_ne!(output.exit, Exit::Code(0), "{}", output.stdout);
    let said = format!("{}{}", output.stdout, output.stderr);
    assert!(said.contains("there is no namespace missing"), "{said}");
}

#[test]
fn a_server_that_ignores_conditions_or_checks_them_too_early_is_a_problem() {
    for (fault, check, found) in [
        ("ignores-conditions", "conditions", "a write that expects an old version succeeds"),
        ("is-not-atomic", "race", "races of 8 connections"),
    ] {
        let server = Kubernetes::with_fault(fault);
        let output = doctor(&server.url());
        assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
        assert_found(&output, "problem", check, found);
        assert_eq!(answer(&output, "atomic_grant").0, "no");
    }
}
