//! `dlock freeze`: nobody starts under the name, and everyone keeps what they have.

use super::admin::{name, seen};
use crate::stores::conformance::client::{Client, LONG, Waiting};
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use crate::support::dlock::BINARY;
use crate::support::running::Exit;
use dlock::backend::admin::{Frozen, Listed, LockAdmin};
use dlock::backend::{Attempt, Busy, Outlook, Release, Renewal, StoreError};
use dlock::lock::{Freeze, FreezeRequest, LockState, Mode};
use futures_util::future::join_all;
use std::cell::Cell;
use std::process::Stdio;
use std::time::{Duration, Instant};

async fn operator(rig: &dyn Rig) -> Box<dyn LockAdmin> {
    let mut operator = rig.open();
    operator.connect().await.unwrap();
    operator
}

fn request(lasts: Option<Duration>) -> FreezeRequest {
    FreezeRequest::new("ops@elsewhere".into(), Some("\"db\" move".into()), lasts)
}

async fn freeze(rig: &dyn Rig, request: &FreezeRequest) -> Freeze {
    match persistent(async || operator(rig).await.freeze(&name("x"), request).await).await {
        Frozen::Done(freeze) | Frozen::Kept(freeze) => freeze,
        other => panic!("{other:?}"),
    }
}

async fn thaw(rig: &dyn Rig, request: &FreezeRequest) -> bool {
    if rig.has_dead_servers() {
        let there = seen(rig, "x").await.freeze;
        let error = operator(rig).await.thaw(&name("x"), &request.id).await.unwrap_err();
        assert!(error.to_string().starts_with("it is thawed, but may still be frozen at "), "{error}");
        return there.is_some_and(|freeze| freeze.id == request.id);
    }
    persistent(async || operator(rig).await.thaw(&name("x"), &request.id).await).await
}

/// Repeats a request as long as other clients are in its way.
async fn persistent<T>(mut send: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let end = Instant::now() + SOON;
    loop {
        match send().await {
            Ok(reply) => return reply,
            Err(StoreError::Unavailable { outlook: Outlook::Transient, .. }) if Instant::now() < end => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The claim is kept out by this freeze alone.
#[track_caller]
fn assert_frozen(busy: Busy, request: &FreezeRequest) {
    let freeze = busy.freeze.as_ref().unwrap_or_else(|| panic!("{busy:?}"));
    assert_eq!((&freeze.id, &freeze.by, &freeze.reason), (&request.id, &request.by, &request.reason));
}

pub async fn a_freeze_keeps_everyone_out(rig: &mut dyn Rig) {
    let request = request(Some(LONG));
    let frozen = freeze(rig, &request).await;
    // The clocks of several nodes differ a little, and some show whole seconds.
    assert!(frozen.until.unwrap().abs_diff(frozen.since + 600_000) <= 3000, "{frozen:?}");
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Slots(2)].into_iter().filter(|mode| rig.has(*mode)) {
        let busy = Client::new(rig, "x").in_mode(mode).busy().await;
        assert_eq!(busy.holders, []);
        assert_frozen(busy, &request);
    }
    let mut other = Client::new(rig, "other");
    other.acquire().await;
    let state = seen(rig, "x").await;
    assert_eq!(state, LockState { freeze: Some(frozen.clone()), ..LockState::free(name("x")) });
    if rig.has_list() {
        assert_eq!(rig.open().list(Listed::InUse).await.unwrap(), [name("other"), name("x")]);
    }
    other.release().await;
    // The reply may have been lost.
    assert_eq!(freeze(rig, &request).await, frozen);
    let another = FreezeRequest::new("ops@web-2".into(), None, None);
    let refused = operator(rig).await.freeze(&name("x"), &another).await;
    assert_eq!(refused, Ok(Frozen::Already(frozen)));
    assert!(!thaw(rig, &another).await, "that of the first one is left");
    assert_frozen(Client::new(rig, "x").busy().await, &request);
    assert!(thaw(rig, &request).await);
    assert!(!thaw(rig, &request).await);
    assert_eq!(seen(rig, "x").await, LockState::free(name("x")));
    Client::new(rig, "x").acquire().await;
}

/// Those who wait keep their order, and a run inside the hold enters it.
pub async fn the_holder_of_a_frozen_lock_ends_as_it_would(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let (mut first, mut second) = (Client::new(rig, "x"), Client::new(rig, "x"));
    first.queue().await;
    let request = request(None);
    assert_eq!(freeze(rig, &request).await.until, None);
    assert_frozen(first.queue().await, &request);
    assert_eq!(second.queue().await.position, Some(2));
    owner.assert_held().await;
    let mut inside = Client::new(rig, "x");
    inside.claim.outer = vec![owner.claim.token.clone()];
    inside.claim.requires_outer_hold = true;
    inside.acquire().await;
    inside.release().await;
    let state = seen(rig, "x").await;
    assert_eq!((state.holders.len(), state.waiters.len()), (1, 2));
    assert_eq!(state.freeze.unwrap().id, request.id);
    assert_eq!(owner.release().await, Release::Released);
    let busy = first.queue().await;
    assert_eq!((busy.position, busy.holders.len()), (Some(1), 0), "{busy:?}");
    assert_frozen(busy, &request);
    assert_frozen(second.queue().await, &request);
    assert!(thaw(rig, &request).await);
    let busy = second.queue().await;
    assert!(busy.freeze.is_none() && busy.position == Some(2), "{busy:?}");
    first.claim_turn().await;
    first.release().await;
    second.claim_turn().await;
}

/// A waiter that was called does not lose its position because it cannot claim the lock.
pub async fn a_waiter_that_was_called_is_kept_out_and_keeps_its_place(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let (mut first, mut second) = (Client::new(rig, "x"), Client::new(rig, "x"));
    first.queue().await;
    second.queue().await;
    owner.release().await;
    let request = request(None);
    freeze(rig, &request).await;
    for (waiter, position) in [(&mut first, 1), (&mut second, 2)] {
        let busy = waiter.queue().await;
        assert_eq!(busy.position, Some(position));
        assert_frozen(busy, &request);
    }
    tokio::time::sleep(rig.turn_lasts() + Duration::from_millis(200)).await;
    assert!(thaw(rig, &request).await);
    assert_eq!(second.queue().await.position, Some(2));
    first.claim_turn().await;
}

pub async fn a_thaw_lets_waiters_in_at_once(rig: &mut dyn Rig) {
    let request = request(None);
    freeze(rig, &request).await;
    let first = Client::new(rig, "x").wait_beside().await;
    let second = Client::new(rig, "x").wait_beside().await;
    assert!(thaw(rig, &request).await);
    let (mut first, _) = first.granted().await;
    assert_eq!(first.release().await, Release::Released);
    second.granted().await;
}

/// By the clock of the store, which may show whole seconds.
pub async fn a_freeze_ends_by_itself(rig: &mut dyn Rig) {
    const LASTS: Duration = Duration::from_secs(3);
    let begin = Instant::now();
    let request = request(Some(LASTS));
    freeze(rig, &request).await;
    let waiter: Waiting = Client::new(rig, "x").wait_beside().await;
    let (mut waiter, _) = waiter.granted().await;
    let lasted = begin.elapsed();
    assert!(lasted + Duration::from_secs(1) >= LASTS, "it has ended after {lasted:?}");
    assert_eq!(waiter.release().await, Release::Released);
    let state = seen(rig, "x").await;
    assert_eq!(state, LockState::free(name("x")), "nothing of it is left");
    assert!(!thaw(rig, &request).await);
    Client::new(rig, "x").acquire().await;
}

/// Whatever had been decided before the freeze came.
pub async fn nobody_starts_once_a_lock_is_frozen(rig: &mut dyn Rig) {
    const ROUNDS: usize = 5;
    let rig = &*rig;
    for mode in [Mode::Exclusive, Mode::Shared] {
        // The number of the freeze that is in force.
        let (frozen, is_over) = (Cell::new(None), Cell::new(false));
        let client = async || {
            let mut client = Client::new(rig, "x").in_mode(mode);
            while !is_over.get() {
                let was_frozen = frozen.get();
                if let Attempt::Granted(_) = client.wait_in_line().await {
                    let is_kept_out = was_frozen.is_some() && was_frozen == frozen.get();
                    assert!(!is_kept_out, "granted while the lock was frozen");
                    assert!(matches!(client.release().await, Release::Released | Release::NotHeld));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            client.release().await;
        };
        let operator = async {
            for round in 0..ROUNDS {
                tokio::time::sleep(Duration::from_millis(30)).await;
                let request = request(None);
                freeze(rig, &request).await;
                frozen.set(Some(round));
                tokio::time::sleep(Duration::from_millis(100)).await;
                let end = Instant::now() + SOON;
                loop {
                    let holders = seen(rig, "x").await.holders;
                    assert!(holders.is_empty() || Instant::now() < end, "{holders:?}");
                    if holders.is_empty() {
                        break;
                    }
                }
                frozen.set(None);
                assert!(thaw(rig, &request).await);
            }
            is_over.set(true);
        };
        tokio::join!(join_all((0..6).map(|_| client())), operator);
    }
}

/// With the binary: the command that freezes waits for the holder, and the runs that meet the freeze say so.
pub async fn an_operator_freezes_a_lock_and_thaws_it(rig: &mut dyn Rig) {
    let dlock = |line: &str| {
        let mut command = rig.place().bare().backend(rig.backend());
        for word in line.split(' ') {
            command = command.arg(word);
        }
        command
    };
    let inner = format!("'{BINARY}' run -b '{}' x -- echo inside", rig.backend());
    let work = format!("echo ready; read line; {inner}; read line");
    let mut holder = rig.run().stdin(Stdio::piped()).sh(&work).spawn();
    let mut stdin = holder.take_stdin();
    holder.await_ready();
    let mut waiter = rig.run().args(["-v", "--wait", "forever"]).sh("echo waiter").spawn();
    waiter.await_stderr("; waiting at position 1");
    let mut freezing = dlock("freeze --for 1h --reason move x").spawn();
    let lines = freezing.await_stdout("; waiting for its end\n");
    let by = format!("{}@{}", dlock::identity::user(), dlock::identity::host());
    assert!(lines.starts_with(&format!("x is frozen by {by} until ")), "{lines}");
    assert!(lines.contains(" for 'move'\nx is still held by "), "{lines}");
    let kept_out = rig.run().sh("echo never").output();
    assert_eq!(kept_out.exit, Exit::Code(75), "{kept_out:?}");
    let line = format!("dlock: x is frozen by {by} until ");
    assert!(kept_out.stderr.contains(&line), "{}", kept_out.stderr);
    assert!(kept_out.stderr.contains(" for 'move'; not waiting, see --wait\n"), "{}", kept_out.stderr);
    std::io::Write::write_all(&mut stdin, b"\n").unwrap();
    holder.await_stdout("inside\n");
    freezing.assert_running();
    std::io::Write::write_all(&mut stdin, b"\n").unwrap();
    assert_eq!(freezing.wait().exit, Exit::Code(0));
    assert_eq!(holder.wait().exit, Exit::Code(0));
    waiter.assert_running();
    let second = dlock("freeze --forever --now x").output();
    assert_eq!(second.exit, Exit::Code(75), "{second:?}");
    let thawed = dlock("thaw x").output();
    match rig.has_dead_servers() {
        true => {
            assert_eq!(thawed.exit, Exit::Code(69), "{thawed:?}");
            assert!(thawed.stderr.contains(": it is thawed, but may still be frozen at "), "{thawed:?}");
        }
        false => {
            assert_eq!(thawed.exit, Exit::Code(0), "{thawed:?}");
            let line = format!("x was frozen by {by} until ");
            assert!(thawed.stdout.starts_with(&line), "{}", thawed.stdout);
        }
    }
    assert_eq!(waiter.wait().exit, Exit::Code(0));
    let again = dlock("thaw x").output();
    assert!(again.exit == Exit::Code(0) && again.stdout.ends_with(" is not frozen\n"), "{again:?}");
}

/// A hold that was taken for the bearer of a token is kept as long as it is renewed.
pub async fn a_token_keeps_a_frozen_lock(rig: &mut dyn Rig) {
    let mut owner = Client::new(rig, "x");
    owner.claim.identity.unattended = true;
    owner.acquire().await;
    let request = request(None);
    freeze(rig, &request).await;
    let renewal = owner.renew().await;
    assert!(matches!(renewal, Renewal::Held { .. }), "{renewal:?}");
    assert_frozen(Client::new(rig, "x").busy().await, &request);
    assert_eq!(owner.release().await, Release::Released);
    assert_frozen(Client::new(rig, "x").busy().await, &request);
    assert!(thaw(rig, &request).await);
}

/// Unless `dlock freeze` says that they are not.
pub async fn other_programs_are_kept_out(rig: &mut dyn Rig) {
    let is_promised = rig.open().unfrozen().is_none();
    let may_take = |rig: &mut dyn Rig, when: &str| {
        let is_taken = rig.foreign_lock("x", None);
        assert!(!is_taken || !is_promised, "{when}");
        if is_taken {
            rig.foreign_unlock("x");
        }
    };
    let first = request(Some(LONG));
    freeze(rig, &first).await;
    may_take(rig, "of a lock that was free");
    Client::new(rig, "x").busy().await;
    may_take(rig, "of a lock that a dlock has asked for");
    assert!(thaw(rig, &first).await);
    let mut owner = Client::new(rig, "x");
    owner.acquire().await;
    let second = request(None);
    freeze(rig, &second).await;
    owner.release().await;
    Client::new(rig, "x").busy().await;
    may_take(rig, "of a lock that was held");
    assert_eq!(seen(rig, "x").await.holders, []);
    assert!(thaw(rig, &second).await);
    if rig.has_leases() {
        // Its entry is there until a dlock claims the lock.
        let mut dead = Client::new(rig, "x").with_ttl(rig.short());
        dead.acquire().await;
        drop(dead);
        tokio::time::sleep(rig.end_of_lease(rig.short())).await;
        let third = request(None);
        freeze(rig, &third).await;
        freeze(rig, &third).await;
        may_take(rig, "of a lock whose holder is dead");
        assert!(thaw(rig, &third).await);
    }
    assert!(rig.is_free_to_others("x"), "nothing is left of it");
    Client::new(rig, "x").acquire().await;
}
