//! What a store reports about its locks, and how it changes them on request.

use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use crate::support::running::Exit;
use dlock::backend::admin::{Listed, LockAdmin, Removal, Revoked};
use dlock::backend::{Renewal, StoreError};
use dlock::lock::record::RecordKind;
use dlock::lock::{FencingToken, Holder, LockName, LockState, Mode, Phase, Record, Revocation, Token};

pub fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

pub async fn seen(rig: &dyn Rig, text: &str) -> LockState {
    let mut seen = rig.open().inspect(&[name(text)], None).await.unwrap();
    assert_eq!(seen.locks.len(), 1);
    seen.locks.remove(0)
}

async fn the_holder(rig: &dyn Rig, text: &str) -> Holder {
    let mut holders = seen(rig, text).await.holders;
    assert_eq!(holders.len(), 1, "{holders:?}");
    holders.remove(0)
}

fn revocation() -> Revocation {
    Revocation { by: "root@elsewhere".into(), reason: Some("it \"hung\"".into()) }
}

pub async fn inspect_reports_holders_and_waiters(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    let grant = owner.acquire().await;
    let mut waiters = [Client::new(rig, "x"), Client::new(rig, "x").in_mode(Mode::Shared)];
    for (number, waiter) in waiters.iter_mut().enumerate() {
        waiter.claim.identity.note = Some(format!("number {number}"));
        waiter.queue().await;
    }
    let names = [name("free"), name("x")];
    let seen = rig.open().inspect(&names, None).await.unwrap();
    let [free, lock] = &seen.locks[..] else { panic!("{seen:?}") };
    assert_eq!(*free, LockState::free(name("free")));
    assert_eq!((&lock.name, lock.mode, lock.holders.len()), (&names[1], Some(Mode::Exclusive), 1));
    let holder = &lock.holders[0];
    assert_eq!(holder.identity.as_ref(), Some(&owner.claim.identity));
    assert_eq!((holder.fencing, holder.slot, holder.phase()), (grant.fencing, None, Phase::Running));
    assert_eq!(holder.remaining.is_some(), rig.has_leases());
    let line: Vec<_> = lock.waiters.iter().map(|waiter| (waiter.identity.clone(), waiter.mode)).collect();
    let expected = waiters.each_ref().map(|waiter| (Some(waiter.claim.identity.clone()), waiter.claim.mode));
    assert_eq!(line, expected);
}

pub async fn inspect_reports_the_hold_that_a_token_proves(rig: &mut dyn Rig) {
    let mut readers = [(); 2].map(|()| Client::new(rig, "x").in_mode(Mode::Shared));
    for reader in &mut readers {
        reader.acquire().await;
    }
    let names = [name("x")];
    for (token, ours) in [(readers[1].claim.token.clone(), 1), (Token::random(), 0)] {
        let seen = rig.open().inspect(&names, Some(&token)).await.unwrap();
        let holders = &seen.locks[0].holders;
        assert_eq!(
            (holders.len(), holders.iter().filter(|holder| holder.ours).count()),
            (2, ours),
            "{holders:?}"
        );
    }
}

/// Where locks can be listed.
async fn assert_listed(rig: &dyn Rig, overseer: &mut dyn LockAdmin, expected: &[LockName]) {
    if rig.has_list() {
        assert_eq!(overseer.list(Listed::InUse).await.unwrap(), expected);
    }
}

pub async fn inspect_changes_nothing(rig: &mut dyn Rig) {
    let mut overseer = rig.open();
    assert_listed(rig, &mut *overseer, &[]).await;
    assert_eq!(overseer.history(&name("x")).await.unwrap(), []);
    assert_eq!(overseer.inspect(&[name("x")], None).await.unwrap().locks, [LockState::free(name("x"))]);
    assert_eq!(rig.traces("x"), [""; 0]);
    assert!(rig.is_free_to_others("x"));
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    the_holder(rig, "x").await;
    owner.assert_held().await;
}

pub async fn held_and_awaited_locks_are_listed(rig: &mut dyn Rig) {
    let (mut one, mut other) = (Client::new(rig, "a/b"), Client::new(rig, "größe"));
    one.acquire().await;
    other.acquire().await;
    Client::new(rig, "größe").queue().await;
    assert_eq!(rig.open().list(Listed::InUse).await.unwrap(), [name("a/b"), name("größe")]);
}

/// Successes, other holds and attempts that did not get the lock are kept separately.
pub async fn the_last_outcomes_are_kept(rig: &mut dyn Rig) {
    let mut client = Client::new(rig, "x");
    client.backend.connect().await.unwrap();
    let record = |number: u64, held, exit_status| Record {
        outcome: "ran".into(),
        identity: client.claim.identity.clone(),
        exit_status,
        waited_ms: number,
        held_ms: held,
        error: Some("\u{1b} \"\n".into()),
        ..Record::default()
    };
    let of_each_kind = |number| {
        [record(number, Some(0), Some(0)), record(number, Some(0), Some(1)), record(number, None, None)]
    };
    let records: Vec<_> = (0..25).flat_map(of_each_kind).collect();
    for record in &records {
        client.backend.add_record(&name("x"), record).await.unwrap();
    }
    let history = rig.open().history(&name("x")).await.unwrap();
    assert!(history.is_sorted_by(|(one, _), (next, _)| one >= next), "the latest first");
    for kind in [RecordKind::Succeeded, RecordKind::Held, RecordKind::Missed] {
        let kept: Vec<_> =
            history.iter().map(|(_, record)| record).filter(|record| record.kind() == kind).collect();
        let expected: Vec<_> = records[15..].iter().rev().filter(|record| record.kind() == kind).collect();
        assert_eq!(kept, expected);
    }
    assert_eq!(rig.open().history(&name("y")).await.unwrap(), []);
    if rig.has_list() {
        assert_eq!(rig.open().list(Listed::WithHistory).await.unwrap(), [name("x")]);
    }
}

/// By the runs that had the lock, and by the operator or the bearer of a token.
pub async fn breaks_and_tokens_are_recorded(rig: &mut dyn Rig) {
    let dlock = |words: &[&str]| {
        let run = rig.place().bare().args(words).env("DLOCK_BACKEND", rig.url());
        run.env("DLOCK_TOKEN", rig.place().read("token").trim())
    };
    let mut run = rig.run().sh("echo ready; exec sleep 1000").spawn();
    run.await_ready();
    let broken = dlock(&["break", "--yes", "--reason", "it hung", "x"]).output();
    assert_eq!(broken.exit, Exit::Code(0), "{}", broken.stderr);
    assert_eq!(run.wait().exit, Exit::Code(76));
    let mut expected = vec![("broken", Some("it hung")), ("lost", Some("it hung"))];
    if rig.has_leases() {
        for forced in [false, true] {
            let acquired = dlock(&["acquire", "--ttl", "1h", "--token-file", "token", "x"]).output();
            assert_eq!(acquired.exit, Exit::Code(0), "{}", acquired.stderr);
            // The record has not released it.
            assert_eq!(dlock(&["check", "x"]).output().exit, Exit::Code(0));
            assert_eq!(dlock(&["acquire", "--ttl", "1h", "x"]).output().exit, Exit::Code(75));
            let words: &[&str] = if forced { &["break", "--yes", "--force", "x"] } else { &["release", "x"] };
            let ended = dlock(words).output();
            assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
        }
        expected.extend([("acquired", None), ("contended", None), ("released", None)]);
        expected.extend([("acquired", None), ("contended", None), ("removed", None)]);
    }
    let history = rig.open().history(&name("x")).await.unwrap();
    let mut found: Vec<_> =
        history.iter().map(|(_, record)| (record.outcome.as_str(), record.reason.as_deref())).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for (_, record) in
        history.iter().filter(|(_, record)| ["broken", "removed"].contains(&record.outcome.as_str()))
    {
        assert!(record.holder.is_some() && record.fencing_token.is_some(), "{record:?}");
        assert_eq!(record.identity.command, "dlock break");
    }
}

pub async fn the_next_renewal_reports_a_revocation(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let revoked = the_holder(rig, "x").await;
    let mut waiter = Client::new(rig, "x");
    waiter.queue().await;
    let told = rig.open().revoke(&name("x"), &revoked, &revocation()).await.unwrap();
    assert_eq!(told, Revoked::Notified(1));
    let holder = the_holder(rig, "x").await;
    assert_eq!((holder.phase(), holder.revoked), (Phase::Revoking, Some(revocation())));
    // It is still the holder's: no other client gets it before the release.
    waiter.queue().await;
    match owner.renew().await {
        Renewal::Held { revoked, .. } => assert_eq!(revoked, Some(revocation())),
        lost @ Renewal::Lost(_) => panic!("{lost:?}"),
    }
    owner.release().await;
    waiter.claim_turn().await;
    let gone = rig.open().revoke(&name("x"), &revoked, &revocation()).await.unwrap();
    assert_eq!(gone, Revoked::Gone);
    assert_eq!(the_holder(rig, "x").await.revoked, None, "the next one is not told");
}

/// A hold with this fencing token, as it would be shown.
fn held_with(fencing: Option<FencingToken>) -> Holder {
    Holder { fencing, ..Holder::default() }
}

pub async fn only_the_given_hold_is_revoked(rig: &mut dyn Rig) {
    let mut readers = [(); 2].map(|()| Client::new(rig, "x").in_mode(Mode::Shared));
    let mut tokens = Vec::new();
    for reader in &mut readers {
        tokens.push(reader.acquire().await.fencing);
    }
    let mut overseer = rig.open();
    let other = held_with(FencingToken::new(1));
    let [first, second] = [held_with(tokens[0]), held_with(tokens[1])];
    assert_eq!(overseer.revoke(&name("x"), &other, &revocation()).await.unwrap(), Revoked::Gone);
    assert_eq!(overseer.revoke(&name("none"), &first, &revocation()).await.unwrap(), Revoked::Gone);
    assert_eq!(overseer.revoke(&name("x"), &second, &revocation()).await.unwrap(), Revoked::Notified(1));
    for (reader, expected) in readers.iter_mut().zip([None, Some(revocation())]) {
        match reader.renew().await {
            Renewal::Held { revoked, .. } => assert_eq!(revoked, expected),
            lost @ Renewal::Lost(_) => panic!("{lost:?}"),
        }
    }
    assert_eq!(rig.traces("none"), [""; 0]);
}

pub async fn a_hold_is_removed_unless_it_lives_in_a_descriptor(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let holder = the_holder(rig, "x").await;
    let removal = rig.open().remove(&name("x"), &holder).await.unwrap();
    if rig.has_leases() {
        assert_eq!(removal, Removal::Removed);
        owner.assert_not_held().await;
        assert!(rig.is_free_to_others("x"));
    } else {
        assert_eq!(removal, Removal::Impossible);
        owner.assert_held().await;
    }
}

/// Between the inspection and the request the lock was granted to another client.
pub async fn a_hold_that_was_not_inspected_is_not_removed(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let holder = the_holder(rig, "x").await;
    owner.release().await;
    let mut next = Client::new(rig, "x");
    next.acquire().await;
    let removal = rig.open().remove(&name("x"), &holder).await.unwrap();
    assert_eq!(removal, if rig.has_leases() { Removal::Changed } else { Removal::Impossible });
    next.assert_held().await;
}

pub async fn a_foreign_hold_is_removed_only_if_unchanged_since_its_inspection(rig: &mut dyn Rig) {
    assert!(rig.foreign_lock("x", None));
    let holder = the_holder(rig, "x").await;
    assert_eq!((holder.identity.as_ref(), holder.fencing, holder.phase()), (None, None, Phase::Unknown));
    // No dlock uses it.
    assert_listed(rig, &mut *rig.open(), &[]).await;
    let mut overseer = rig.open();
    if rig.has_leases() {
        let other = Holder { digest: Some("0".repeat(40)), ..holder.clone() };
        assert_eq!(overseer.remove(&name("x"), &other).await.unwrap(), Removal::Changed);
        assert!(rig.is_untouched("x"));
        assert_eq!(overseer.remove(&name("x"), &holder).await.unwrap(), Removal::Removed);
        assert!(rig.is_free_to_others("x"));
    } else {
        assert_eq!(overseer.remove(&name("x"), &holder).await.unwrap(), Removal::Impossible);
        assert!(!rig.is_free_to_others("x"));
    }
}

pub async fn a_dropped_inspection_leaves_the_store_usable(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let (mut overseer, names) = (rig.open(), [name("x")]);
    for steps in 1..8 {
        for asked in 0..3 {
            let mut left = steps;
            let mut asking: std::pin::Pin<Box<dyn Future<Output = ()>>> = match asked {
                0 => Box::pin(async { drop(overseer.list(Listed::InUse).await) }),
                1 => Box::pin(async { drop(overseer.inspect(&names, None).await) }),
                _ => Box::pin(async { drop(overseer.history(&names[0]).await) }),
            };
            std::future::poll_fn(|context| {
                left -= 1;
                match asking.as_mut().poll(context) {
                    std::task::Poll::Pending if left > 0 => std::task::Poll::Pending,
                    _ => std::task::Poll::Ready(()),
                }
            })
            .await;
        }
        // What was given up may still reach the server, and end connections that were made after it.
        let mut tries = 3;
        loop {
            let seen = overseer.inspect(&names, None).await;
            let listed = overseer.list(Listed::InUse).await;
            let is_ended = |error: Option<&StoreError>| {
                matches!(error, Some(StoreError::Unavailable { maybe_applied: true, .. }))
            };
            if tries > 0 && (is_ended(seen.as_ref().err()) || is_ended(listed.as_ref().err())) {
                tries -= 1;
                continue;
            }
            assert_eq!(seen.unwrap().locks[0].holders.len(), 1);
            if rig.has_list() {
                assert_eq!(listed.unwrap(), names);
            }
            break;
        }
    }
}
