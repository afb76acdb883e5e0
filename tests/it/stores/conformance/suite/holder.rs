//! What is reported about a holder, and what never is.

use super::exclusion::holding;
use crate::stores::conformance::client::{Client, LONG};
use crate::stores::conformance::rig::{Rig, locate};
use crate::support::SOON;
use std::time::Duration;

pub async fn busy_names_the_holder(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let holder = Client::new(rig, "x").refused().await;
    assert_eq!(holder.identity, Some(owner.claim.identity.clone()));
    assert!(holder.age.is_some_and(|age| age < SOON), "{holder:?}");
    match holder.remaining {
        Some(remaining) => {
            assert!(rig.has_leases() && remaining > Duration::ZERO && remaining <= LONG + rig.rounding());
        }
        None => assert!(!rig.has_leases()),
    }
    assert_eq!(holder.hint, None);
    owner.release().await;
    // The next holder is not mistaken for the former one.
    let mut next = Client::new(rig, "x");
    next.claim.identity.note = None;
    next.acquire().await;
    let holder = Client::new(rig, "x").refused().await;
    assert_eq!(holder.identity, Some(next.claim.identity.clone()));
}

pub async fn busy_names_what_a_run_reports_of_itself(rig: &mut dyn Rig) {
    let run = holding(rig);
    let identity = Client::new(rig, "x").refused().await.identity.unwrap();
    let us = dlock::identity::of_this_process(String::new(), None);
    assert_eq!(
        (identity.host.as_str(), identity.user.as_str(), identity.command.as_str(), identity.note.as_deref()),
        (us.host.as_str(), us.user.as_str(), "sh", None)
    );
    assert_eq!((i32::try_from(identity.pid), identity.boot), (Ok(run.pid()), us.boot));
    let second = rig.run().sh("echo ran").output();
    let beginning = format!("dlock: x is held by {} (pid {}, {}, sh) for ", us.host, run.pid(), us.user);
    let line = second.stderr.as_str();
    assert!(line.starts_with(&beginning) && line.ends_with("; not waiting, see --wait\n"), "{line}");
    assert_eq!(line.lines().count(), 1);
}

pub async fn busy_never_reveals_a_token(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let token = owner.claim.token.reveal().to_owned();
    let holder = format!("{:?}", Client::new(rig, "x").refused().await);
    assert!(!holder.contains(&token), "{holder}");
    for verbose in [&[][..], &["-vvv"], &["-vvv", "--wait", "10ms"], &["--log-format", "json"]] {
        let refused = rig.run().args(verbose).sh("echo ran").output();
        assert!(!refused.stderr.is_empty() && !refused.stderr.contains(&token), "{}", refused.stderr);
    }
}

pub async fn a_foreign_holder_has_no_name(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    if !rig.has_leases() {
        // A live holder that has not noticed yet is still reported; one that has released is not.
        owner.release().await;
    }
    rig.replace("x");
    let holder = Client::new(rig, "x").refused().await;
    assert_eq!((holder.identity, holder.remaining), (None, None));
    // A server may know when a node was created.
    assert!(holder.age.is_none() || rig.has_sessions(), "{:?}", holder.age);
}

pub async fn display_reveals_no_secret(rig: &mut dyn Rig) {
    let Some(url) = rig.url_with_secret("s%40cret%2Fs3cret") else { return };
    let location = locate(&url).unwrap();
    let display = location.display();
    assert!(!display.contains("cret"), "{display}");
    // A token has no user.
    let host = if url.contains("somebody:") { "somebody@127.0.0.1" } else { "//127.0.0.1" };
    assert!(display.contains(host), "{display}");
}
