//! The rights that dlock needs, as a policy of IAM.

use serde_json::json;

use super::location::Location;
use crate::backend::location::Policy;
use crate::backend::net::aws::partition;

/// Returns the policy that gives a user or role exactly these rights.
pub(super) fn policy(location: &Location) -> Policy {
    let Location { table, region, .. } = location;
    let resource = format!("arn:{}:dynamodb:{region}:*:table/{table}", partition(region));
    let statement = |id: &str, actions: &[&str]| json!({ "Sid": id, "Effect": "Allow", "Action": actions, "Resource": resource });
    let policy = json!({
        "Version": "2012-10-17",
        "Statement": [
            statement("DlockLocks", &["dynamodb:DescribeTable", "dynamodb:GetItem", "dynamodb:UpdateItem"]),
            statement("DlockNames", &["dynamodb:Scan"]),
            statement("DlockDoctor", &["dynamodb:DescribeTimeToLive"]),
            statement("DlockInit", &["dynamodb:CreateTable"]),
        ],
    });
    let text = serde_json::to_string_pretty(&policy).expect("texts are JSON");
    let note = "attach this policy to the user or role of dlock (aws iam put-role-policy); DlockNames is for dlock status without \
                a name, DlockDoctor and DlockInit are for dlock doctor and dlock doctor --init, and nothing needs \
                dynamodb:DeleteItem";
    Policy { commands: text.lines().map(str::to_owned).collect(), note: note.to_owned() }
}
