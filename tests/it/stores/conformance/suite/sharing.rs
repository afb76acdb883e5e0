//! Shared and exclusive: readers share, a writer is alone, and neither starves the other.

use super::exclusion::{holding, let_end};
use super::queue::{CLAIM_AT_LEAST, Rounds};
use crate::stores::conformance::client::{Client, LONG, granted, refusal, until};
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use crate::support::running::{Exit, Running};
use dlock::backend::{Attempt, Release};
use dlock::lock::Mode;
use futures_util::future::join_all;
use nix::sys::signal::Signal;
use std::cell::Cell;
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::time::timeout;

fn reader(rig: &dyn Rig) -> Client {
    Client::new(rig, "x").in_mode(Mode::Shared)
}

fn writer(rig: &dyn Rig) -> Client {
    Client::new(rig, "x")
}

/// Readers that hold the lock.
async fn reading(rig: &dyn Rig, count: usize) -> Vec<Client> {
    let mut readers = Vec::new();
    for _ in 0..count {
        let mut client = reader(rig);
        client.acquire().await;
        readers.push(client);
    }
    readers
}

pub async fn readers_share(rig: &mut dyn Rig) {
    let mut readers = reading(rig, 5).await;
    for reader in &mut readers {
        reader.assert_held().await;
    }
    // The first reader is not the one on which the others depend.
    while let Some(mut first) = (!readers.is_empty()).then(|| readers.remove(0)) {
        let busy = writer(rig).busy().await;
        assert_eq!(busy.holders.len() + busy.more, 1 + readers.len());
        assert_eq!((busy.position, busy.promised), (None, false));
        assert_eq!(first.release().await, Release::Released);
        for reader in &mut readers {
            reader.assert_held().await;
        }
    }
    assert_eq!(rig.traces("x"), [""; 0]);
    writer(rig).acquire().await;
}

pub async fn all_readers_are_counted(rig: &mut dyn Rig) {
    let mut readers = reading(rig, 40).await;
    let busy = writer(rig).busy().await;
    assert_eq!(busy.holders.len() + busy.more, 40);
    let oldest = busy.holders[0].identity.as_ref();
    assert_eq!(oldest, Some(&readers[0].claim.identity));
    for reader in &mut readers[1..] {
        reader.release().await;
    }
    let busy = writer(rig).busy().await;
    assert_eq!((busy.holders.len(), busy.more), (1, 0));
}

pub async fn each_reader_has_its_own_fencing_token(rig: &mut dyn Rig) {
    let mut last = None;
    let mut readers = Vec::new();
    for _ in 0..5 {
        let mut reader = reader(rig);
        let fencing = reader.acquire().await.fencing;
        assert!(fencing > last, "{last:?}, then {fencing:?}");
        last = fencing;
        readers.push(reader);
    }
    for mut reader in readers {
        reader.release().await;
    }
    assert!(writer(rig).acquire().await.fencing > last);
}

pub async fn a_writer_and_readers_exclude_each_other(rig: &mut dyn Rig) {
    let mut writing = writer(rig);
    writing.acquire().await;
    let holder = reader(rig).refused().await;
    assert_eq!(holder.identity, Some(writing.claim.identity.clone()));
    writing.assert_held().await;
    writing.release().await;
    let mut readers = reading(rig, 2).await;
    writer(rig).refused().await;
    for reader in &mut readers {
        reader.assert_held().await;
    }
}

pub async fn runs_share_according_to_their_options(rig: &mut dyn Rig) {
    let shared = |text: &str| rig.run().arg("--shared").stdin(Stdio::piped()).sh(text);
    let mut reading: Vec<Running> = (0..2).map(|_| shared("echo ready; exec cat").spawn()).collect();
    reading.iter_mut().for_each(Running::await_ready);
    assert_eq!(shared("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    let refused = rig.run().arg("--exclusive").sh("echo ran").output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""));
    assert!(refused.stderr.contains(" and one other; not waiting"), "{}", refused.stderr);
    reading.into_iter().for_each(let_end);
    let writing = holding(rig);
    assert_eq!(shared("echo ran").output().exit, Exit::Code(75));
    let_end(writing);
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn a_waiting_writer_blocks_later_readers(rig: &mut dyn Rig) {
    let rounds = Rounds::begin();
    let (mut writing, mut later) = loop {
        let mut first = reading(rig, 1).await.remove(0);
        let (mut writing, mut later) = (writer(rig), reader(rig));
        assert_eq!(writing.queue().await.position, Some(1));
        let busy = reader(rig).busy().await;
        assert_eq!(busy.holders[0].identity, Some(first.claim.identity.clone()));
        assert!(!busy.promised);
        assert_eq!(later.queue().await.position, Some(2));
        let released = Instant::now();
        first.release().await;
        let reply = later.wait_in_line().await;
        if !rig.may_have_passed(released) {
            assert!(refusal(reply).promised, "it is the writer's turn");
            break (writing, later);
        }
        rounds.end([writing, later]).await;
    };
    writing.claim_turn().await;
    later.queue().await;
    writing.release().await;
    later.claim_turn().await;
}

/// Readers that always overlap would otherwise exclude a writer forever.
pub async fn a_writer_is_not_starved(rig: &mut dyn Rig) {
    const READERS: usize = 4;
    let (grants, over) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let mut tasks = Vec::new();
    for number in 0..READERS {
        let (mut client, grants, over) = (reader(rig), grants.clone(), over.clone());
        let read = async move {
            while !over.get() {
                client.wait_for_grant().await;
                grants.set(grants.get() + 1);
                tokio::time::sleep(Duration::from_millis(20 + 5 * number as u64)).await;
                client.release().await;
            }
        };
        tasks.push(tokio::task::spawn_local(read));
    }
    until("readers at work", || grants.get() > 2 * READERS).await;
    let mut writing = writer(rig);
    let busy = loop {
        match writing.wait_in_line().await {
            Attempt::Busy(busy) => break busy,
            // On a busy machine it happens that there is no reader, and then there is nothing to wait for.
            _ => writing.release().await,
        };
    };
    let before = grants.get();
    let writing = writing.continue_beside(busy);
    let (mut writing, _) = writing.granted().await;
    // A grant may have been in flight when the writer joined the queue, but no client reads twice before it.
    let passed = grants.get() - before;
    assert!(passed <= READERS, "{passed} grants before the writer's");
    writing.release().await;
    let before = grants.get();
    until("readers at work again", || grants.get() > before + READERS).await;
    over.set(true);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(rig.traces("x"), [""; 0]);
}

pub async fn all_readers_at_the_head_are_called_together(rig: &mut dyn Rig) {
    let rounds = Rounds::begin();
    let mut line = loop {
        let mut holder = writer(rig);
        holder.acquire().await;
        let modes = [Mode::Shared, Mode::Shared, Mode::Shared, Mode::Exclusive, Mode::Shared];
        let mut line = Vec::new();
        for (before, mode) in modes.into_iter().enumerate() {
            let mut client = Client::new(rig, "x").in_mode(mode);
            assert_eq!(client.queue().await.position, u32::try_from(before + 1).ok());
            line.push(client);
        }
        let released = Instant::now();
        holder.release().await;
        // None of them depends on requests of the others.
        let mut replies = Vec::new();
        for index in [2, 1, 0] {
            replies.push(line[index].wait_in_line().await);
        }
        if !rig.may_have_passed(released) {
            for reply in replies {
                granted(reply);
            }
            break line;
        }
        rounds.end(line).await;
    };
    for (index, place) in [(3, 1), (4, 2)] {
        let busy = line[index].queue().await;
        assert_eq!((busy.position, busy.promised, busy.holders.len()), (Some(place), false, 3));
    }
    for reader in &mut line[..3] {
        reader.release().await;
    }
    line[3].await_turn().await;
    line[3].claim_turn().await;
    line[3].release().await;
    line[4].claim_turn().await;
}

pub async fn every_reader_at_the_head_is_notified(rig: &mut dyn Rig) {
    let mut holder = writer(rig);
    holder.acquire().await;
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut reader = reader(rig);
        reader.queue().await;
        readers.push(reader);
    }
    let mut last = writer(rig);
    assert_eq!(last.queue().await.position, Some(5));
    let released = Instant::now();
    holder.release().await;
    // One that is too slow, on a busy machine, has lost its turn, and waits behind the writer.
    let may_be_late = || !rig.has_turns_by_order() && released.elapsed() >= CLAIM_AT_LEAST;
    let claims = readers.iter_mut().map(async |reader| {
        loop {
            reader.await_notification().await;
            match reader.wait_in_line().await {
                Attempt::Granted(_) => return true,
                _ if may_be_late() => return false,
                _ => {}
            }
        }
    });
    let is_granted = join_all(claims).await;
    let (mut reading, late): (Vec<_>, Vec<_>) =
        readers.into_iter().zip(is_granted).partition(|(_, is_granted)| *is_granted);
    for (reader, _) in &mut reading {
        reader.assert_held().await;
    }
    if late.is_empty() {
        assert_eq!(last.queue().await.position, Some(1));
    }
    for (mut reader, _) in reading {
        reader.release().await;
    }
    let others = late.into_iter().map(|(reader, _)| reader).chain([last]);
    let served = join_all(others.map(async |mut client| {
        client.wait_for_grant().await;
        client.release().await;
    }));
    timeout(SOON, served).await.expect("all are served in the end");
}

pub async fn a_foreign_client_is_excluded_until_the_last_reader_has_left(rig: &mut dyn Rig) {
    for order in [[0, 1], [1, 0]] {
        let mut readers = reading(rig, 2).await;
        for index in order {
            assert!(!rig.foreign_lock("x", None));
            readers[index].release().await;
        }
        assert!(rig.is_free_to_others("x"));
    }
    assert!(rig.foreign_lock("x", None));
    assert_eq!(reader(rig).refused().await.identity, None);
    let waiting = reader(rig).wait_beside().await;
    let also = reader(rig).wait_beside().await;
    rig.foreign_unlock("x");
    let _readers = (waiting.granted().await, also.granted().await);
    assert!(!rig.foreign_lock("x", None));
}

/// The longest lease decides, whenever it was granted.
pub async fn a_short_lease_does_not_end_other_readers(rig: &mut dyn Rig) {
    if !rig.has_leases() {
        return;
    }
    for order in [[rig.short(), LONG], [LONG, rig.short()]] {
        let mut readers = order.map(|ttl| reader(rig).with_ttl(ttl));
        for reader in &mut readers {
            assert_eq!(reader.acquire().await.lease, rig.lease(reader.claim.ttl));
        }
        readers.sort_by_key(|reader| reader.claim.ttl);
        let [mut short, mut long] = readers;
        tokio::time::sleep(rig.end_of_lease(rig.short())).await;
        assert!(!rig.foreign_lock("x", None));
        long.assert_held().await;
        short.assert_not_held().await;
        assert_eq!(writer(rig).busy().await.holders.len(), 1);
        assert_eq!(short.release().await, Release::NotHeld);
        long.release().await;
        assert!(rig.is_free_to_others("x"));
    }
}

/// By the end of its lease, or at once where a descriptor or session holds the lock.
pub async fn a_dead_reader_is_released(rig: &mut dyn Rig) {
    let acquired = Instant::now();
    let mut dying = reader(rig).with_ttl(rig.short());
    dying.acquire().await;
    let mut living = reader(rig);
    living.acquire().await;
    let waiting = writer(rig).wait_beside().await;
    drop(dying);
    living.release().await;
    waiting.granted().await;
    if rig.has_leases() {
        assert!(acquired.elapsed() >= rig.short() * 99 / 100, "free after {:?}", acquired.elapsed());
    }
}

pub async fn a_killed_shared_run_is_released(rig: &mut dyn Rig) {
    let inherited_lock = rig.place().inherited_lock();
    let mut dying = rig
        .run()
        .args(["--ttl", &rig.ttl(5), "--shared"])
        .probe(["--inherited-lock", inherited_lock.path(), "ignore-term"])
        .spawn();
    dying.await_ready();
    let mut next_holder =
        rig.run().args(["-v", "--wait", "forever"]).probe(["next-holder", inherited_lock.path()]).spawn();
    next_holder.await_stderr("waiting");
    dying.signal(Signal::SIGKILL);
    assert_eq!(next_holder.wait().stdout, "clean\n");
    assert_eq!(dying.wait().exit, Exit::by(Signal::SIGKILL));
}
