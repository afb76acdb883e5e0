//! What the error codes of ZooKeeper mean for a lock (`KeeperException.Code`).

use crate::backend::StoreError;

/// An error code in a reply; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(pub(super) i32);

impl Code {
    pub(super) const OK: Code = Code(0);
    /// The server does not know the request: it is older than 3.5.
    const UNIMPLEMENTED: Code = Code(-6);
    const OPERATION_TIMEOUT: Code = Code(-7);
    const BAD_ARGUMENTS: Code = Code(-8);
    pub(super) const NO_NODE: Code = Code(-101);
    const NO_AUTH: Code = Code(-102);
    pub(super) const BAD_VERSION: Code = Code(-103);
    pub(super) const NODE_EXISTS: Code = Code(-110);
    const SESSION_EXPIRED: Code = Code(-112);
    const INVALID_ACL: Code = Code(-114);
    const AUTH_FAILED: Code = Code(-115);
    const SESSION_MOVED: Code = Code(-118);
    const QUOTA_EXCEEDED: Code = Code(-125);
    const THROTTLED: Code = Code(-127);

    /// Returns whether the error ends the use of the session on this connection.
    pub(super) fn ends_session(self) -> bool {
        matches!(self, Code::SESSION_EXPIRED | Code::SESSION_MOVED | Code::AUTH_FAILED)
    }

    /// Returns the error for a request about `path` that failed.
    pub(super) fn error(self, path: &str) -> StoreError {
        match self {
            Code::NO_AUTH => StoreError::Denied(format!(
                "permission denied for {path}: check its ACL, see dlock doctor --policy"
            )),
            Code::AUTH_FAILED => StoreError::Denied("the server rejected the username and password".into()),
            Code::INVALID_ACL => StoreError::Denied(format!(
                "the server rejected the ACL of {path}: is digest authentication enabled?"
            )),
            Code::UNIMPLEMENTED => {
                StoreError::Config("the server is too old: dlock needs ZooKeeper 3.5.3 or later".into())
            }
            Code::BAD_ARGUMENTS => StoreError::Config(format!("the server rejected the path {path}")),
            Code::NO_NODE => StoreError::Config(format!("the node {path} does not exist")),
            Code::QUOTA_EXCEEDED => {
                StoreError::unreachable(format!("the quota of a node above {path} is exceeded"))
            }
            Code::SESSION_EXPIRED => expired(),
            Code::SESSION_MOVED => StoreError::transient("the session has moved to another connection", true),
            Code::OPERATION_TIMEOUT | Code::THROTTLED => {
                StoreError::transient("the server is overloaded", true)
            }
            Code(code) => StoreError::unanswered(format!("the server reported error {code} for {path}")),
        }
    }
}

/// Returns the error of a request in a session that has expired. The next request begins another one.
pub(super) fn expired() -> StoreError {
    StoreError::transient("the session has expired", true)
}
