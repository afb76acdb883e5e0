//! A run that a store refuses.

use crate::support::dlock::Dlock;
use crate::support::running::Exit;

/// Asserts that a run on this URL ends with this status and this message, and that its command does not run. The server has
/// ten seconds for its replies.
#[track_caller]
pub fn assert_refused(url: &str, code: i32, message: &str) {
    assert_refused_within("10s", url, code, message);
}

/// Asserts the same of a run that gives its server this time.
#[track_caller]
pub fn assert_refused_within(timeout: &str, url: &str, code: i32, message: &str) {
    let output = Dlock::run().backend(url).args(["--connect-timeout", timeout]).sh("echo ran").output();
    let expected = format!("dlock: {message}\n");
    assert_eq!(output.outcome(), (Exit::Code(code), "", expected.as_str()));
}

/// Asserts that each of these URLs is refused (78) with this message, without a server.
#[track_caller]
pub fn assert_invalid<U: Into<String>, M: std::fmt::Display>(urls: impl IntoIterator<Item = (U, M)>) {
    for (url, message) in urls {
        assert_refused(&url.into(), 78, &format!("--backend: {message}"));
    }
}

/// A URL as messages show it.
pub fn shown(url: &str) -> String {
    let options = url.split_once('?').map_or("", |(_, options)| options);
    // Of S3 they show which server it is, and of Kubernetes which configuration names it.
    let is_shown = |option: &&str| option.starts_with("endpoint=") || option.starts_with("kubeconfig=");
    let end = options.split('&').find(is_shown).map(|option| format!("?{option}")).unwrap_or_default();
    format!("{}{end}", url.split('?').next().unwrap_or(url))
}
