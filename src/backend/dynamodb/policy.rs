//! The rights that dlock needs, as a policy of IAM.

use super::location::Location;
use crate::backend::location::Policy;
use crate::backend::net::aws::policy::allow;
use crate::backend::net::aws::{Place, partition, policy};

/// Returns the policy that gives a user or role exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let Place { name: table, region, .. } = &location.place;
    let resource = format!("arn:{}:dynamodb:{region}:*:table/{table}", partition(region).1);
    let locks = ["dynamodb:DescribeTable", "dynamodb:GetItem", "dynamodb:UpdateItem"];
    let statements = [
        allow("DlockLocks", locks, &resource),
        allow("DlockNames", ["dynamodb:Scan"], &resource),
        allow("DlockDoctor", ["dynamodb:DescribeTimeToLive"], &resource),
        allow("DlockInit", ["dynamodb:CreateTable"], &resource),
    ];
    let rest = "DlockNames is for dlock status without a name, DlockDoctor and DlockInit are for dlock doctor and dlock doctor \
                --init, and nothing needs dynamodb:DeleteItem";
    policy::policy(&statements, rest)
}
