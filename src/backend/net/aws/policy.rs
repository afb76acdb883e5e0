//! Policies of IAM.

use serde_json::{Value, json};

use crate::backend::location::Policy;

/// Returns a statement that allows these actions.
pub fn allow(id: &str, actions: impl Into<Value>, resource: &str) -> Value {
    json!({ "Sid": id, "Effect": "Allow", "Action": actions.into(), "Resource": resource })
}

/// Returns the policy that gives a user or role exactly these rights; `rest` is what else there is to know of them.
pub fn policy(statements: &[Value], rest: &str) -> Policy {
    let policy = json!({ "Version": "2012-10-17", "Statement": statements });
    let text = serde_json::to_string_pretty(&policy).expect("texts are JSON");
    let note = format!("attach this policy to the user or role of dlock (aws iam put-role-policy); {rest}");
    Policy { commands: text.lines().map(str::to_owned).collect(), note }
}
