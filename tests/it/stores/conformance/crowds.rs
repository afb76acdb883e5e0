//! What many waiters cost: a server at a hand-off, and the next waiter when those ahead die.

use super::client::Client;
use super::rig::Rig;
use super::suite::queue_of_runs::waiting_with_ttl;
use crate::support::{process, running::Exit};
use dlock::backend::CLAIM_WITHIN;
use dlock::lock::LockName;
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// What ten hand-offs cost a server with this many waiters: the growth of a figure of the server.
pub async fn ten_hand_offs(client: impl Fn() -> Client, waiters: usize, figure: impl Fn() -> u64) -> u64 {
    const HAND_OFFS: usize = 10;
    let mut holder = client();
    holder.acquire().await;
    let mut waiting = Vec::new();
    for _ in 0..waiters + HAND_OFFS {
        waiting.push(client().wait_beside().await);
    }
    let before = figure();
    for next in waiting.drain(..HAND_OFFS) {
        holder.release().await;
        (holder, _) = next.granted().await;
    }
    figure() - before
}

/// F51: the holder and the first three of `WAITERS` are killed together. The next one waits for the longest of their
/// leases: not for one after another, and not for its own.
pub async fn killed_together_they_cost_the_longest_lease<const WAITERS: usize>(rig: &mut dyn Rig) {
    const LONGEST: Duration = Duration::from_secs(6);
    /// The delay of a busy machine. Another lease would cost more.
    const DELAY: Duration = Duration::from_secs(4);
    let mut holder = rig.run().args(["--ttl", "6s"]).sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let leases = ["5s", "6s", "5s"];
    let waiting =
        leases.iter().enumerate().map(|(ahead, ttl)| waiting_with_ttl(rig, ttl, ahead + 1, "killed"));
    let mut killed = vec![holder];
    killed.extend(waiting);
    let mut next = waiting_with_ttl(rig, "60s", killed.len(), "next");
    let mut others = Vec::new();
    for _ in killed.len()..WAITERS {
        others.push(Client::new(rig, "x").elsewhere().wait_beside().await);
    }
    assert_eq!(rig.waiters("x"), WAITERS);
    let processes: Vec<i32> =
        killed.iter().flat_map(|run| run.marker().bearers()).map(|process| process.pid).collect();
    processes.iter().for_each(|pid| process::send(*pid, Signal::SIGKILL));
    let began = Instant::now();
    for run in &mut killed {
        assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    }
    assert_eq!(next.wait().exit, Exit::Code(0));
    let took = began.elapsed();
    assert_eq!(rig.place().read("log"), "next\n");
    assert!(took < rig.end_of_lease(LONGEST) + DELAY, "{took:?}");
}

/// F51: the holder and the first two waiters are killed just after a renewal. The third moves half a second for each of
/// them after the end of the lease, although it has asked while the holder was alive, and need not have asked again.
pub async fn killed_after_a_renewal_they_cost_half_a_second_each(rig: &mut dyn Rig) {
    const TTL: Duration = Duration::from_secs(9);
    /// The delay of a busy machine. If the third slept for another lease, that would cost more.
    const DELAY: Duration = Duration::from_secs(6);
    let mut holder = rig.run().args(["--ttl", "9s"]).sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let killed = [1, 2].map(|place| waiting_with_ttl(rig, "9s", place, "killed"));
    let mut third = waiting_with_ttl(rig, "9s", 3, "third");
    let (name, mut overseer) = (LockName::new("x").unwrap(), rig.open());
    let mut before = TTL;
    let (asked, rest) = loop {
        let asked = Instant::now();
        let seen = overseer.inspect(std::slice::from_ref(&name), None).await.unwrap();
        let rest = seen.locks[0].holders[0].remaining.unwrap();
        if rest > before {
            break (asked, rest);
        }
        before = rest;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let processes: Vec<i32> = [&holder]
        .into_iter()
        .chain(&killed)
        .flat_map(|run| run.marker().bearers())
        .map(|process| process.pid)
        .collect();
    processes.iter().for_each(|pid| process::send(*pid, Signal::SIGKILL));
    assert_eq!(third.wait().exit, Exit::Code(0));
    // The lease ended no earlier than `rest` after the request that has shown it.
    let took = asked.elapsed();
    let late = took.saturating_sub(rest).as_millis();
    println!("{}: the third ran {late} ms after the end of the lease", rig.url());
    assert_eq!(rig.place().read("log"), "third\n");
    assert!(took > rest - TTL / 10, "{took:?} of {rest:?}");
    assert!(took < rest + 2 * CLAIM_WITHIN + DELAY, "{took:?} of {rest:?}");
}
