//! The JSON form of a holder, used by `--report` and `status --json`. Unknown values are null.

use std::time::Duration;

use serde::Serialize;

use super::{milliseconds, time};
use crate::lock::{FencingToken, Holder, Identity};

/// What a holder or a run says about itself, its keys in the order in which they are written.
#[derive(Debug, Default, Serialize)]
pub struct IdentityView<'a> {
    host: Option<&'a str>,
    pid: Option<u32>,
    user: Option<&'a str>,
    command: Option<&'a str>,
    note: Option<&'a str>,
    url: Option<&'a str>,
}

impl<'a> IdentityView<'a> {
    /// Returns the view of an identity; `None` is a client other than dlock.
    pub fn new(identity: Option<&'a Identity>) -> IdentityView<'a> {
        let Some(identity) = identity else { return IdentityView::default() };
        IdentityView {
            host: Some(&identity.host),
            pid: Some(identity.pid),
            user: Some(&identity.user),
            command: Some(&identity.command),
            note: identity.note.as_deref(),
            url: identity.url.as_deref(),
        }
    }
}

/// The lease of a token, for `acquire --json` and `renew --json`.
#[derive(Debug, Serialize)]
pub struct LeaseView<'a> {
    pub version: u32,
    pub name: &'a str,
    /// The token of a new lease; null if it was written to a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<Option<&'a str>>,
    /// The fencing token, if the store has one.
    pub fencing_token: Option<FencingToken>,
    pub expires_in_ms: Option<u64>,
    pub backend: &'a str,
}

/// A holder of a lock, its keys in the order in which they are written.
#[derive(Debug, Serialize)]
pub struct HolderView<'a> {
    #[serde(flatten)]
    identity: IdentityView<'a>,
    phase: &'static str,
    slot: Option<u32>,
    acquired_at: Option<String>,
    expires_in_ms: Option<u64>,
    immortal: bool,
    fencing_token: Option<FencingToken>,
    foreign: bool,
}

impl HolderView<'_> {
    /// Returns the view of a holder at `now`, the time since 1970 by the wall clock.
    pub fn new(holder: &Holder, now: Duration) -> HolderView<'_> {
        HolderView {
            identity: IdentityView::new(holder.identity.as_ref()),
            phase: holder.phase().as_str(),
            slot: holder.slot,
            acquired_at: holder.age.map(|age| time(now.saturating_sub(age))),
            expires_in_ms: holder.remaining.map(milliseconds),
            immortal: holder.immortal,
            fencing_token: holder.fencing,
            foreign: holder.identity.is_none(),
        }
    }
}
