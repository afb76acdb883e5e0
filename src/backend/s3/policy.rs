//! The rights that dlock needs, as a policy of IAM.

use serde_json::json;

use super::location::Location;
use crate::backend::location::Policy;
use crate::backend::net::aws::partition;

/// Returns the policy that gives a user or role exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let Location { bucket, prefix, region, .. } = location;
    let partition = partition(region);
    let of_bucket = format!("arn:{partition}:s3:::{bucket}");
    // What has a meaning in a resource stands for itself when it is written as a policy variable.
    let prefix: String = prefix
        .chars()
        .map(|character| match character {
            '*' | '?' | '$' => format!("${{{character}}}"),
            other => other.to_string(),
        })
        .collect();
    let policy = json!({
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "DlockLocks",
                "Effect": "Allow",
                "Action": ["s3:GetObject", "s3:PutObject"],
                "Resource": format!("{of_bucket}/{prefix}*"),
            },
            {
                // Without it, S3 replies to a read of an object that does not exist as if that were forbidden.
                "Sid": "DlockNames",
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": of_bucket,
            },
            {
                "Sid": "DlockDoctor",
                "Effect": "Allow",
                "Action": [
                    "s3:GetBucketVersioning",
                    "s3:GetLifecycleConfiguration",
                    "s3:GetBucketObjectLockConfiguration",
                ],
                "Resource": of_bucket,
            },
        ],
    });
    let text = serde_json::to_string_pretty(&policy).expect("texts are JSON");
    let note = "attach this policy to the user or role of dlock (aws iam put-role-policy); DlockDoctor is for dlock doctor alone, \
                and nothing needs s3:DeleteObject";
    Policy { commands: text.lines().map(str::to_owned).collect(), note: note.to_owned() }
}
