//! The rights that dlock needs, as a policy of IAM.

use super::location::Location;
use crate::backend::location::Policy;
use crate::backend::net::aws::policy::allow;
use crate::backend::net::aws::{Place, partition, policy};

/// Returns the policy that gives a user or role exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let Place { name: bucket, prefix, region, .. } = &location.place;
    let (_, partition) = partition(region);
    let of_bucket = format!("arn:{partition}:s3:::{bucket}");
    // What has a meaning in a resource stands for itself when it is written as a policy variable.
    let prefix: String = prefix
        .chars()
        .map(|character| match character {
            '*' | '?' | '$' => format!("${{{character}}}"),
            other => other.to_string(),
        })
        .collect();
    let doctor =
        ["s3:GetBucketVersioning", "s3:GetLifecycleConfiguration", "s3:GetBucketObjectLockConfiguration"];
    let statements = [
        allow("DlockLocks", ["s3:GetObject", "s3:PutObject"], &format!("{of_bucket}/{prefix}*")),
        // Without it, S3 replies to a read of an object that does not exist as if that were forbidden.
        allow("DlockNames", "s3:ListBucket", &of_bucket),
        allow("DlockDoctor", doctor, &of_bucket),
    ];
    policy::policy(&statements, "DlockDoctor is for dlock doctor alone, and nothing needs s3:DeleteObject")
}
