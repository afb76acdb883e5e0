//! The meaning of etcd's errors: decided on their gRPC codes. The few distinctions that etcd makes by text only are made
//! here (`api/v3rpc/rpctypes/error.go`).

use std::error::Error;

use tonic::{Code, Status};

use crate::backend::{StoreError, net};
use crate::secret;

/// Whether no reply came: the connection has failed, rather than the request.
pub(super) fn is_disconnected(status: &Status) -> bool {
    status.source().is_some()
}

/// Whether the token of the session is not valid any more: the client has to authenticate again.
pub(super) fn is_token_expired(status: &Status) -> bool {
    let is_old = || status.message().contains("revision of auth store is old");
    status.code() == Code::Unauthenticated || status.code() == Code::InvalidArgument && is_old()
}

/// Whether the lease that was requested has been granted before.
pub(super) fn is_lease_granted(status: &Status) -> bool {
    status.code() == Code::FailedPrecondition
}

/// Returns the error of a request that failed.
pub(super) fn meaning(status: &Status) -> StoreError {
    if is_disconnected(status) {
        return net::io_cause(status).map_or_else(net::closed, net::broken);
    }
    let text = described(status);
    match status.code() {
        Code::Unavailable => StoreError::transient(text, true),
        _ if is_out_of_space(status) => StoreError::unreachable(out_of_space(status)),
        Code::Unimplemented => {
            StoreError::Config(format!("the server does not provide the etcd v3 API ({text})"))
        }
        Code::InvalidArgument if status.message().contains("user name is empty") => StoreError::Denied(
            "the cluster requires a username and password: see password_file= and ETCDCTL_USER".into(),
        ),
        Code::PermissionDenied => {
            StoreError::Denied(format!("a right is missing ({text}): see dlock doctor --policy"))
        }
        Code::Unauthenticated => StoreError::Denied(text),
        _ => StoreError::unanswered(text),
    }
}

/// Returns the error of a request to authenticate.
pub(super) fn refused_login(status: &Status) -> StoreError {
    match status.code() {
        Code::InvalidArgument if !is_disconnected(status) => StoreError::Denied(
            "wrong username or password: check the URL, password_file= and ETCDCTL_USER".into(),
        ),
        _ => meaning(status),
    }
}

/// The server's text, which is not trusted, without our secrets; it is escaped when it is printed.
pub(super) fn described(status: &Status) -> String {
    let text = status.message().trim_start_matches("etcdserver: ");
    secret::scrubbed(text).chars().take(200).collect()
}

/// Returns that the alarm NOSPACE keeps a request from being carried out.
pub(super) fn out_of_space(status: &Status) -> String {
    format!("the NOSPACE alarm is active ({}): see dlock doctor", described(status))
}

/// Whether the alarm NOSPACE keeps the request from being carried out.
pub(super) fn is_out_of_space(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("database space exceeded")
}
