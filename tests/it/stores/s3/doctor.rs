//! `dlock doctor` on S3.

use super::fake::{self, Fault, reply, url};
use crate::support::doctor::{answer, assert_found, doctor};
use crate::support::running::Exit;
use crate::support::s3::S3;
use crate::support::web::Web;
use dlock::backend::ledger::Ledger;
use std::collections::HashMap;

#[test]
fn a_store_that_ignores_conditions_or_checks_them_too_early_is_a_problem() {
    for (fault, check, found) in [
        (Fault::IgnoresConditions, "conditions", "a write with a stale If-Match succeeds"),
        (Fault::IsNotAtomic, "writers", "races of 32 conditional writes had several winners, or none"),
    ] {
        let web = fake::start(fault);
        let output = doctor(&url(web.port()));
        assert_eq!(output.exit, Exit::Code(1), "{}", output.stdout);
        assert_found(&output, "problem", check, found);
        assert_eq!(answer(&output, "atomic_grant").0, "no");
    }
}

#[test]
fn a_bucket_that_keeps_versions_is_a_warning() {
    let versions = tempfile::Builder::new().prefix("it-versions-").tempdir().expect("a directory");
    let s3 = S3::start_with(&["--versioning-dir", &versions.path().to_string_lossy()], None);
    s3.set("versioning", "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>");
    let output = doctor(&s3.url());
    assert_found(&output, "warning", "versioning", "the bucket keeps all versions of its objects");
}

/// Renewals leave versions: the bucket may remove them, but not before its retention has ended.
#[test]
fn a_bucket_that_retains_versions_is_a_warning() {
    let web = fake::start(Fault::RetainsVersions);
    let output = doctor(&url(web.port()));
    assert_found(&output, "ok", "versioning", "noncurrent versions expire");
    assert_found(&output, "warning", "retention", "the bucket retains each version by default (Object Lock)");
}

/// They do not take each other's writes for faults of the store.
#[test]
fn doctors_at_the_same_time_do_not_disturb_each_other() {
    let web = fake::start(Fault::Nothing);
    let doctors: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn({
                let url = url(web.port());
                move || doctor(&url)
            })
        })
        .collect();
    for output in doctors.into_iter().map(|doctor| doctor.join().expect("a report")) {
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
        assert_found(&output, "ok", "writers", "20 races of 32 conditional writes had one winner each");
    }
    // Each has given up the value that it has used.
    let written =
        web.asked().into_iter().filter(|asked| asked.method == "PUT" && asked.path.ends_with(".probe"));
    let last: HashMap<String, Vec<u8>> = written.map(|asked| (asked.path, asked.body)).collect();
    let is_idle = |body: &Vec<u8>| Ledger::parse(body).expect("a ledger").is_idle();
    assert!(last.values().all(is_idle));
}

#[test]
fn a_doctor_leaves_values_alone_that_others_use() {
    let ledger = Ledger::of_foreign_holder(0);
    let web = Web::start(move |asked| {
        let body = if asked.path.contains('?') { b"<ListBucketResult/>".to_vec() } else { ledger.to_json() };
        Some(reply(200, Some(1), String::from_utf8(body).expect("text")))
    });
    let output = doctor(&url(web.port()));
    assert_found(&output, "warning", "conditions", "not tested: other runs of dlock doctor are in progress");
    assert!(web.asked().iter().all(|asked| asked.method == "GET"));
}
