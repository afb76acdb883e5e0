//! A request that is cancelled halfway leaves the store usable, whatever its effect there was.

use crate::stores::conformance::client::{Client, halfway};
use crate::stores::conformance::rig::Rig;
use dlock::backend::{Ending, Intent, Renewal};
use std::time::Duration;

/// More polls than any request takes.
const MANY: usize = 100;

/// Acquires the lock. Without a lease, a cancelled request may have left it to a connection that is closed: it is free when
/// the server has noticed that.
async fn acquire(client: &mut Client, rig: &dyn Rig) {
    if !rig.has_leases() {
        client.acquire_in_the_end().await;
    } else {
        client.acquire().await;
    }
}

/// Whether the claim can be completed after all, and is then the only one.
async fn works(client: &mut Client, rig: &dyn Rig) {
    acquire(client, rig).await;
    client.assert_held().await;
    Client::new(rig, "x").refused().await;
}

pub async fn a_dropped_connect_leaves_the_store_usable(rig: &mut dyn Rig) {
    for polls in 0..MANY {
        let mut client = Client::new(rig, "x");
        let whole = halfway(client.backend.connect(), polls).await;
        works(&mut client, rig).await;
        client.release().await;
        if whole.is_some() {
            return;
        }
    }
    panic!("connecting takes more than {MANY} polls");
}

pub async fn a_dropped_acquire_leaves_the_store_usable(rig: &mut dyn Rig) {
    let mut client = Client::new(rig, "x");
    for polls in 0..MANY {
        client.backend.connect().await.unwrap();
        let whole = halfway(client.backend.try_acquire(&client.claim, Intent::TakeNow), polls).await;
        if whole.is_some() {
            return works(&mut client, rig).await;
        }
        works(&mut client, rig).await;
        client.release().await;
    }
    panic!("asking takes more than {MANY} polls");
}

pub async fn a_dropped_renew_leaves_the_store_usable(rig: &mut dyn Rig) {
    let mut client = Client::new(rig, "x");
    client.acquire().await;
    for polls in 0..MANY {
        client.backend.connect().await.unwrap();
        let whole = halfway(client.backend.renew(&client.claim, Duration::ZERO), polls).await;
        client.assert_held().await;
        Client::new(rig, "x").refused().await;
        if let Some(renewal) = whole {
            assert!(matches!(renewal, Ok(Renewal::Held { .. })), "{renewal:?}");
            return;
        }
    }
    panic!("renewing takes more than {MANY} polls");
}

pub async fn a_dropped_release_leaves_the_store_usable(rig: &mut dyn Rig) {
    let mut client = Client::new(rig, "x");
    for polls in 0..MANY {
        acquire(&mut client, rig).await;
        client.backend.connect().await.unwrap();
        let whole =
            halfway(client.backend.release(&client.claim, Duration::ZERO, Ending::default()), polls).await;
        // Whether it was executed or not: repeated, it is done.
        client.release().await;
        let mut next = Client::new(rig, "x");
        acquire(&mut next, rig).await;
        next.release().await;
        if whole.is_some() {
            return;
        }
    }
    panic!("releasing takes more than {MANY} polls");
}
