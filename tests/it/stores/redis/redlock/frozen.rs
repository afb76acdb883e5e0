//! A Redlock is frozen when a majority of its nodes is.

use super::fixture::{ALL, Fixture, KEY};
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::{locate, on_one_thread};
use crate::support::resp::Value;
use dlock::backend::StoreError;
use dlock::backend::admin::{Frozen, LockAdmin};
use dlock::lock::{Freeze, FreezeRequest, LockName};
use std::time::Duration;

fn name() -> LockName {
    LockName::new("x").unwrap()
}

fn request() -> FreezeRequest {
    FreezeRequest::new("root@here".into(), Some("a migration".into()), Some(Duration::from_secs(600)))
}

/// Freezes some nodes with one request, each as a server of its own.
async fn freeze_at(fixture: &Fixture, nodes: &[usize], request: &FreezeRequest) {
    for node in nodes {
        let mut operator = locate(&fixture.masters.node(*node).url()).unwrap().open();
        assert!(matches!(operator.freeze(&name(), request).await.unwrap(), Frozen::Done(_)));
    }
}

/// Which of these nodes are frozen.
fn frozen_at(fixture: &Fixture, nodes: &[usize]) -> Vec<usize> {
    let exists = |node: &usize| fixture.masters.node(*node).command(&["EXISTS", "dlock#frozen:{dlock:x}"]);
    nodes.iter().copied().filter(|node| exists(node) == Value::Int(1)).collect()
}

fn operator(fixture: &Fixture) -> Box<dyn LockAdmin> {
    locate(&fixture.masters.url()).unwrap().open()
}

async fn shown(operator: &mut dyn LockAdmin) -> Option<Freeze> {
    operator.inspect(&[name()], None).await.unwrap().locks.remove(0).freeze
}

fn done(frozen: Frozen) -> Freeze {
    match frozen {
        Frozen::Done(freeze) => freeze,
        other => panic!("{other:?}"),
    }
}

/// Asserts that a thaw has failed at these nodes only.
#[track_caller]
fn assert_missed(fixture: &Fixture, thawed: Result<bool, StoreError>, nodes: &[usize]) {
    let Err(StoreError::Unavailable { reason, maybe_applied: true, .. }) = thawed else {
        panic!("{thawed:?}")
    };
    for node in ALL {
        let address = format!("127.0.0.1:{}", fixture.masters.node(node).port());
        assert_eq!(reason.contains(&address), nodes.contains(&node), "{reason}");
    }
}

fn kept(frozen: Frozen) -> Freeze {
    match frozen {
        Frozen::Kept(freeze) => freeze,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_freeze_is_at_every_node_until_it_is_thawed() {
    let fixture = Fixture::new();
    on_one_thread(async {
        let (mut operator, request) = (operator(&fixture), request());
        let mut holder = Client::at(&fixture.masters.url(), "x");
        holder.acquire().await;
        let freeze = done(operator.freeze(&name(), &request).await.unwrap());
        assert_eq!((&freeze.id, &freeze.reason), (&request.id, &request.reason));
        assert_eq!(frozen_at(&fixture, &ALL), ALL);
        assert_eq!(kept(operator.freeze(&name(), &request).await.unwrap()), freeze);
        let mut waiter = Client::at(&fixture.masters.url(), "x");
        let busy = waiter.queue().await;
        assert_eq!((busy.holders.len(), busy.freeze.as_deref()), (1, Some(&freeze)));
        holder.assert_held().await;
        holder.release().await;
        let busy = waiter.queue().await;
        assert_eq!((busy.holders.len(), busy.position), (0, Some(1)));
        assert_eq!(busy.freeze.as_deref(), Some(&freeze));
        assert_eq!(shown(&mut *operator).await, Some(freeze.clone()));
        let busy = Client::at(&fixture.masters.url(), "x").busy().await;
        assert_eq!((busy.promised, busy.freeze.as_deref()), (false, Some(&freeze)));
        for node in ALL {
            let taken = fixture.masters.node(node).command(&["SET", KEY, "another's", "NX", "PX", "1000"]);
            assert_eq!(taken, Value::Nil);
        }
        assert!(operator.thaw(&name(), &request.id).await.unwrap());
        assert!(!operator.thaw(&name(), &request.id).await.unwrap());
        assert_eq!(shown(&mut *operator).await, None);
        waiter.wait_for_grant().await;
        waiter.release().await;
    });
    fixture.assert_no_traces(&ALL);
}

#[test]
fn a_minority_of_frozen_nodes_keeps_nobody_out() {
    let fixture = Fixture::old();
    on_one_thread(async {
        let (mut operator, request) = (operator(&fixture), request());
        freeze_at(&fixture, &[0, 1], &request).await;
        assert_eq!(shown(&mut *operator).await, None);
        let mut holder = Client::at(&fixture.masters.url(), "x");
        holder.acquire().await;
        let mut waiter = Client::at(&fixture.masters.url(), "x");
        for busy in [Client::at(&fixture.masters.url(), "x").busy().await, waiter.queue().await] {
            assert_eq!((busy.holders.len(), busy.freeze), (1, None));
        }
        let waiter = waiter.wait_beside().await;
        holder.release().await;
        let (mut next, _) = waiter.granted().await;
        next.assert_held().await;
        next.release().await;
        assert!(operator.thaw(&name(), &request.id).await.unwrap());
        assert_eq!(frozen_at(&fixture, &ALL), [0usize; 0]);
    });
}

#[test]
fn a_majority_of_frozen_nodes_keeps_everyone_out() {
    let fixture = Fixture::old();
    on_one_thread(async {
        let (mut operator, request) = (operator(&fixture), request());
        freeze_at(&fixture, &[0, 2, 4], &request).await;
        let seen = shown(&mut *operator).await.expect("it is frozen");
        let mut waiter = Client::at(&fixture.masters.url(), "x");
        for busy in [Client::at(&fixture.masters.url(), "x").busy().await, waiter.queue().await] {
            assert_eq!((busy.holders.len(), busy.promised), (0, false));
            assert_eq!(busy.freeze.as_deref(), Some(&seen));
        }
        // Nothing of the attempts is left at the others.
        fixture.await_free_at(&[1, 3]);
        assert!(operator.thaw(&name(), &request.id).await.unwrap());
        waiter.wait_for_grant().await;
    });
}

/// A freeze of another operator at so many nodes that the others are no majority is the one that counts.
#[test]
fn a_freeze_that_cannot_have_a_majority_is_undone() {
    let fixture = Fixture::old();
    on_one_thread(async {
        let (mut operator, first, second) = (operator(&fixture), request(), request());
        freeze_at(&fixture, &[0, 1, 2], &first).await;
        let Frozen::Already(freeze) = operator.freeze(&name(), &second).await.unwrap() else {
            panic!("there are two freezes")
        };
        assert_eq!((&freeze.id, frozen_at(&fixture, &ALL)), (&first.id, vec![0, 1, 2]));
        assert!(!operator.thaw(&name(), &second.id).await.unwrap());
        assert!(operator.thaw(&name(), &first.id).await.unwrap());

        freeze_at(&fixture, &[0, 1], &first).await;
        assert_eq!(done(operator.freeze(&name(), &second).await.unwrap()).id, second.id);
        assert_eq!(shown(&mut *operator).await.map(|freeze| freeze.id), Some(second.id));
    });
}

#[test]
fn a_freeze_that_most_nodes_refuse_leaves_no_node_frozen() {
    let fixture = Fixture::old();
    for node in [1, 2, 4] {
        fixture.masters.node(node).command(&["HSET", "dlock#waiters:{dlock:x}", "format", "3"]);
    }
    on_one_thread(async {
        let request = request();
        // An earlier attempt has reached one of the others.
        freeze_at(&fixture, &[0], &request).await;
        let error = operator(&fixture).freeze(&name(), &request).await.unwrap_err();
        assert!(error.to_string().contains("stored by another dlock (format 3"), "{error}");
        assert_eq!(frozen_at(&fixture, &ALL), [0usize; 0]);
    });
}

/// It keeps nobody out there, and the next freeze takes its place.
#[test]
fn a_freeze_stays_at_a_node_that_has_missed_the_thaw() {
    let mut fixture = Fixture::old();
    let [first, second] = [(); 2].map(|()| request());
    on_one_thread(async { done(operator(&fixture).freeze(&name(), &first).await.unwrap()) });
    fixture.masters.node(3).save();
    fixture.masters.kill(3);
    on_one_thread(async {
        let mut operator = operator(&fixture);
        for _ in 0..2 {
            assert_missed(&fixture, operator.thaw(&name(), &first.id).await, &[3]);
            assert_eq!(frozen_at(&fixture, &[0, 1, 2, 4]), [0usize; 0]);
        }
    });
    fixture.masters.node_mut(3).restart();
    on_one_thread(async {
        assert_eq!(frozen_at(&fixture, &ALL), [3]);
        let mut operator = operator(&fixture);
        assert_eq!(shown(&mut *operator).await, None);
        let mut holder = Client::at(&fixture.masters.url(), "x");
        holder.acquire().await;
        holder.release().await;
        done(operator.freeze(&name(), &second).await.unwrap());
        let freeze = fixture.masters.node(3).command(&["GET", "dlock#frozen:{dlock:x}"]).text();
        assert!(freeze.contains(&second.id), "{freeze}");
        kept(operator.freeze(&name(), &second).await.unwrap());
        assert!(operator.thaw(&name(), &second.id).await.unwrap());
        assert_eq!(frozen_at(&fixture, &ALL), [0usize; 0]);
    });
}

/// The others are thawed meanwhile.
#[test]
fn a_thaw_names_a_node_that_hangs() {
    let fixture = Fixture::old();
    on_one_thread(async {
        let (mut operator, request) = (operator(&fixture), request());
        done(operator.freeze(&name(), &request).await.unwrap());
        fixture.masters.node(1).stop();
        assert_missed(&fixture, operator.thaw(&name(), &request.id).await, &[1]);
        assert_eq!(frozen_at(&fixture, &[0, 2, 3, 4]), [0usize; 0]);
        fixture.masters.node(1).resume();
        operator.thaw(&name(), &request.id).await.unwrap();
        assert_eq!(frozen_at(&fixture, &ALL), [0usize; 0]);
    });
}

#[test]
fn a_freeze_needs_a_majority_of_the_nodes() {
    let mut fixture = Fixture::old();
    fixture.masters.kill(0);
    fixture.masters.kill(1);
    on_one_thread(async {
        let (mut operator, request) = (operator(&fixture), request());
        let freeze = done(operator.freeze(&name(), &request).await.unwrap());
        let busy = Client::at(&fixture.masters.url(), "x").busy().await;
        assert_eq!(busy.freeze.as_deref(), Some(&freeze));
        assert_missed(&fixture, operator.thaw(&name(), &request.id).await, &[0, 1]);
        // One frozen node and two that have failed leave no majority.
        freeze_at(&fixture, &[2], &request).await;
        assert_eq!(shown(&mut *operator).await.map(|freeze| freeze.id), Some(request.id.clone()));
        let busy = Client::at(&fixture.masters.url(), "x").busy().await;
        assert_eq!(busy.freeze.map(|freeze| freeze.id), Some(request.id.clone()));
        assert_missed(&fixture, operator.thaw(&name(), &request.id).await, &[0, 1]);
        assert_eq!(frozen_at(&fixture, &[2, 3, 4]), [0usize; 0]);
    });
    fixture.masters.kill(2);
    on_one_thread(async {
        let (mut operator, request) = (operator(&fixture), request());
        for error in [
            operator.freeze(&name(), &request).await.unwrap_err(),
            operator.thaw(&name(), &request.id).await.unwrap_err(),
        ] {
            assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
        }
    });
}

/// The operator who repeats the request learns that it has been frozen all the time.
#[test]
fn a_freeze_is_kept_although_nodes_go_down() {
    let mut fixture = Fixture::old();
    let [request, other] = [(); 2].map(|()| request());
    let freeze = on_one_thread(async { done(operator(&fixture).freeze(&name(), &request).await.unwrap()) });
    fixture.masters.kill(0);
    on_one_thread(async {
        let mut operator = operator(&fixture);
        let shown = shown(&mut *operator).await;
        assert_eq!(shown.map(|freeze| freeze.id), Some(freeze.id.clone()));
        assert_eq!(kept(operator.freeze(&name(), &request).await.unwrap()).id, freeze.id);
    });
    // It has come back without its data: the freeze is new there only.
    fixture.masters.restart_empty(0);
    fixture.masters.kill(1);
    on_one_thread(async {
        assert_eq!(kept(operator(&fixture).freeze(&name(), &request).await.unwrap()).id, freeze.id);
        assert_eq!(frozen_at(&fixture, &[0, 2, 3, 4]), [0, 2, 3, 4]);
        // Where most nodes had it not, it was not frozen before.
        for node in [0, 2, 3] {
            let mut operator = locate(&fixture.masters.node(node).url()).unwrap().open();
            assert!(operator.thaw(&name(), &request.id).await.unwrap());
        }
        assert_eq!(done(operator(&fixture).freeze(&name(), &request).await.unwrap()).id, freeze.id);
        let refused = operator(&fixture).freeze(&name(), &other).await.unwrap();
        assert!(matches!(refused, Frozen::Already(_)), "{refused:?}");
    });
}
