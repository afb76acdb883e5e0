//! `dlock doctor` on S3.

use super::fake::{self, Fault, url};
use crate::support::doctor::{answer, assert_found, doctor};
use crate::support::running::Exit;
use crate::support::s3::S3;

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
