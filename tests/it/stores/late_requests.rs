//! Requests that arrive after their client has given up (F03): what was withdrawn takes no lock and freezes none, on the stores
//! that are reached over HTTP, where what is on its way outlives the connection of the client; and a release does not end what the
//! same client has claimed since.

use crate::stores::conformance::client::{Client, by_another};
use crate::stores::conformance::rig::{locate, on_one_thread};
use crate::support::SOON;
use crate::support::dynamodb::Dynamo;
use crate::support::etcd::Etcd;
use crate::support::kubernetes::Kubernetes;
use crate::support::mariadb::{DATABASE, MariaDb};
use crate::support::memcached::Memcached;
use crate::support::postgres::Postgres;
use crate::support::proxy::Proxy;
use crate::support::redis::Keyspace;
use crate::support::s3::S3;
use crate::support::wait::until;
use dlock::backend::admin::{Frozen, LockAdmin};
use dlock::backend::{Attempt, Ending, Intent, Release};
use dlock::lock::{Claim, FreezeRequest};
use std::time::Duration;

/// What a client requests of a lock, and takes back over another connection.
#[derive(Debug, Clone, Copy)]
enum Request {
    Claim,
    /// By a waiter whose turn has come.
    Wait,
    Freeze,
}

impl Request {
    async fn send(self, store: &mut dyn LockAdmin, claim: &Claim) {
        match self {
            Request::Claim | Request::Wait => {
                let intent = if matches!(self, Request::Claim) { Intent::TakeNow } else { Intent::Enqueue };
                let attempt = store.try_acquire(claim, intent).await;
                assert!(matches!(attempt, Ok(Attempt::Granted(_))), "{attempt:?}");
            }
            Request::Freeze => {
                let frozen = store.freeze(&claim.name, &freeze()).await;
                assert!(matches!(frozen, Ok(Frozen::Done(_))), "{frozen:?}");
            }
        }
    }

    /// As dlock does after a request without a reply.
    async fn withdraw(self, store: &mut dyn LockAdmin, claim: &Claim) {
        store.connect().await.expect("a connection");
        match self {
            Request::Claim | Request::Wait => {
                store.release(claim, Duration::ZERO, Ending::default()).await.expect("a reply");
            }
            Request::Freeze => {
                if store.thaw(&claim.name, &freeze().id).await == Ok(false) {
                    self.send(store, claim).await;
                    assert_eq!(store.thaw(&claim.name, &freeze().id).await, Ok(true));
                }
            }
        }
    }
}

fn freeze() -> FreezeRequest {
    FreezeRequest { id: "late".to_owned(), by: "root@here".to_owned(), reason: None, lasts: None }
}

/// Waits until a request is held on its way.
async fn until_stuck(proxy: &Proxy) {
    while !proxy.is_stuck() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Lets the request arrive that is held on its way.
#[track_caller]
fn let_arrive(proxy: &Proxy) {
    let replies = proxy.replies_to_stuck();
    proxy.heal();
    until(SOON, "the reply to the late request", || proxy.replies_to_stuck() > replies);
}

/// Sends requests through a proxy that has this URL, each time with another one that is held on its way, withdraws what is
/// requested over another connection, and lets the request arrive: the lock is free, whether it was used before or not.
#[track_caller]
fn assert_refused(url: impl Fn(u16) -> String, port: u16) {
    let proxy = Proxy::to(port);
    let url = url(proxy.port());
    for request in [Request::Claim, Request::Wait, Request::Freeze] {
        let mut others = 0;
        while on_one_thread(is_held(&proxy, &url, request, others)) {
            others += 1;
        }
        assert!(others > 0, "{request:?}: nothing was held");
    }
}

/// Returns whether a request on a new lock, or on one that was used, has sent a piece after this number of others.
async fn is_held(proxy: &Proxy, url: &str, request: Request, others: usize) -> bool {
    let name = format!("{request:?}{others}");
    let mut was_held = false;
    for _ in ["a new lock", "a lock that was used"] {
        let (mut late, mut again) = (locate(url).unwrap().open(), locate(url).unwrap().open());
        let mut next = Client::at(url, &name);
        let claim = by_another(&next.claim);
        late.connect().await.expect("a connection");
        if matches!(request, Request::Wait) {
            let mut holder = Client::at(url, &name);
            holder.acquire().await;
            let attempt = late.try_acquire(&claim, Intent::Enqueue).await;
            assert!(matches!(attempt, Ok(Attempt::Busy(_))), "{attempt:?}");
            holder.release().await;
        }
        proxy.hold_request_after(others);
        let is_sent = tokio::select! {
            () = until_stuck(proxy) => false,
            () = request.send(&mut *late, &claim) => true,
        };
        drop(late);
        if is_sent {
            proxy.heal();
        }
        request.withdraw(&mut *again, &claim).await;
        if !is_sent {
            was_held = true;
            let_arrive(proxy);
        }
        next.acquire().await;
        assert_eq!(next.release().await, Release::Released, "{name}");
    }
    was_held
}

mod what_was_withdrawn_changes_no_lock_later {
    use super::*;

    #[test]
    fn dynamodb() {
        let dynamo = Dynamo::lent();
        assert_refused(|port| dynamo.url_by(port), dynamo.port());
    }

    #[test]
    fn dynamodb_lock_client() {
        let dynamo = Dynamo::lent();
        assert_refused(|port| format!("{}&recipe=lock-client", dynamo.url_by(port)), dynamo.port());
    }

    #[test]
    fn kubernetes() {
        let server = Kubernetes::lent();
        assert_refused(|port| server.url_by(port), server.port());
    }

    #[test]
    fn s3() {
        let s3 = S3::lent();
        assert_refused(|port| s3.url_by(&format!("http://127.0.0.1:{port}")), s3.port());
    }
}

/// A claim on a free lock that is one request, which depends on nothing that another client has written since.
#[test]
fn what_was_withdrawn_does_not_take_a_lock_that_others_have_used_since() {
    let dynamo = Dynamo::lent();
    let proxy = Proxy::to(dynamo.port());
    let url = dynamo.url_by(proxy.port());
    on_one_thread(async {
        let (mut late, mut again) = (locate(&url).unwrap().open(), locate(&url).unwrap().open());
        let mut next = Client::at(&url, "x");
        let claim = by_another(&next.claim);
        next.acquire().await;
        assert_eq!(next.release().await, Release::Released);
        late.connect().await.expect("a connection");
        proxy.hold_request_after(0);
        tokio::select! {
            () = until_stuck(&proxy) => {}
            () = Request::Claim.send(&mut *late, &claim) => panic!("without a request"),
        }
        drop(late);
        Request::Claim.withdraw(&mut *again, &claim).await;
        next.acquire().await;
        // The store's clock has whole seconds, and those of its servers may differ by two.
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert_eq!(next.release().await, Release::Released);
        let_arrive(&proxy);
        next.acquire().await;
        assert_eq!(next.release().await, Release::Released);
    });
}

/// Releases a lock by a request that is held on its way, claims it again over another connection, and lets the request arrive.
#[track_caller]
fn assert_kept(url: impl Fn(u16) -> String, port: u16) {
    let proxy = Proxy::to(port);
    let url = url(proxy.port());
    on_one_thread(async {
        let mut client = Client::at(&url, "x");
        // A server of Redis has the script then: the late request is carried out.
        client.acquire().await;
        assert_eq!(client.release().await, Release::Released);
        client.acquire().await;
        proxy.hold_request_after(0);
        tokio::select! {
            () = until_stuck(&proxy) => {}
            released = client.backend.release(&client.claim, Duration::ZERO, Ending::default()) => {
                panic!("without a request: {released:?}");
            }
        }
        client.acquire().await;
        let_arrive(&proxy);
        // Of HTTP/2, that may have been a frame before the reply.
        for _ in 0..20 {
            client.assert_held().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(client.release().await, Release::Released);
    });
}

mod a_late_release_does_not_end_a_later_claim {
    use super::*;

    #[test]
    fn redis() {
        let space = Keyspace::new();
        assert_kept(|port| space.url_at(port), space.port());
    }

    #[test]
    fn memcached() {
        let memcached = Memcached::start();
        assert_kept(|port| format!("memcached://127.0.0.1:{port}"), memcached.port());
    }

    #[test]
    fn etcd() {
        let etcd = Etcd::lent();
        assert_kept(|port| format!("etcd://127.0.0.1:{port}"), etcd.port(0));
    }

    #[test]
    fn postgres() {
        let server = Postgres::lent();
        assert_kept(|port| format!("postgres://postgres@127.0.0.1:{port}/postgres"), server.port());
    }

    #[test]
    fn mariadb() {
        let server = MariaDb::lent();
        let url = |port| format!("mysql://root@127.0.0.1:{port}/{DATABASE}?ssl_mode=disabled");
        assert_kept(url, server.port());
    }

    #[test]
    fn dynamodb() {
        let dynamo = Dynamo::lent();
        assert_kept(|port| dynamo.url_by(port), dynamo.port());
    }

    #[test]
    fn s3() {
        let s3 = S3::lent();
        assert_kept(|port| s3.url_by(&format!("http://127.0.0.1:{port}")), s3.port());
    }

    #[test]
    fn kubernetes() {
        let server = Kubernetes::lent();
        assert_kept(|port| server.url_by(port), server.port());
    }
}
