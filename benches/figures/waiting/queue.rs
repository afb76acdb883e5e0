//! The load that a queue puts on the store: each hand-off, and the waiting itself.

use std::error::Error;
use std::time::Duration;

use super::traffic::{Requests, Traffic};
use super::{Fixture, Lock, Waiters};
use crate::Bench;
use crate::report::{Section, Target};

/// The number of hand-offs per measurement.
const HANDOFFS: usize = 50;
const LENGTHS: [usize; 3] = [10, 100, 1000];

/// The cost of a hand-off with `behind` waiters after those that are measured. A gate stops the queue in front of them.
fn cost_of_handoff(bench: &Bench, behind: usize) -> Result<Traffic, Box<dyn Error>> {
    // With a ttl this long there are no requests other than those of the hand-offs.
    let fixture = Fixture::new(bench, Lock::Redis, &format!("queue-{behind}"), &["--ttl=1h"])?;
    let mut gate = fixture.gate()?;
    fixture.until("a holder", || fixture.is_held())?;
    let mut waiters = Waiters(Vec::with_capacity(HANDOFFS + behind));
    fixture.wait(&mut waiters, HANDOFFS - 1)?;
    let mut stop = fixture.gate()?;
    fixture.until("the gate that stops the queue", || Ok(fixture.waiting()? == HANDOFFS))?;
    fixture.wait(&mut waiters, behind)?;
    std::thread::sleep(Duration::from_millis(500));
    let traffic = Traffic::of(bench, || {
        gate.open();
        gate.end()?;
        fixture.until("the hand-offs", || Ok(fixture.stamps()?.len() == HANDOFFS))?;
        // The last hand-off may still be in progress.
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    })?;
    if fixture.waiting()? != behind {
        return Err(format!("{} waiters, not {behind}", fixture.waiting()?).into());
    }
    stop.open();
    stop.end()?;
    waiters.end()?;
    Ok(traffic.per(HANDOFFS))
}

/// Requests per ttl of the holder and of each waiter, in the order of the queue.
fn waiting(bench: &Bench, ttl: Duration, ttls: u32) -> Result<Vec<f64>, Box<dyn Error>> {
    let ttl_option = format!("--ttl={}s", ttl.as_secs());
    let options = [ttl_option.as_str()];
    let fixture = Fixture::new(bench, Lock::Redis, "queue-waiting", &options)?;
    // The clients are identified by the order of their first requests.
    let greetings = Requests::watch(bench)?;
    let gate = fixture.gate()?;
    fixture.until("a holder", || fixture.is_held())?;
    let mut waiters = Waiters(Vec::new());
    for _ in 0..5 {
        fixture.wait(&mut waiters, 1)?;
    }
    std::thread::sleep(ttl);
    let mut clients: Vec<String> = Vec::new();
    for request in greetings.end(bench)? {
        if !clients.contains(&request.client) {
            clients.push(request.client);
        }
    }
    let requests = Requests::watch(bench)?;
    std::thread::sleep(ttl * ttls);
    let seen = requests.end(bench)?;
    gate.end()?;
    waiters.end()?;
    let of = |client: &String| seen.iter().filter(|request| request.client == *client).count();
    Ok(clients.iter().map(|client| of(client) as f64 / f64::from(ttls)).collect())
}

/// The total number of requests per waiter when each command takes a second.
fn slow_commands(bench: &Bench, count: usize) -> Result<f64, Box<dyn Error>> {
    let fixture = Fixture::new(bench, Lock::Redis, "queue-slow", &["--ttl=1h"])?;
    let mut command = fixture.command(&["/usr/bin/sleep", "1"])?;
    let requests = Requests::watch(bench)?;
    let mut waiters = Waiters(Vec::new());
    for _ in 0..=count {
        waiters.0.push(command.spawn()?);
    }
    waiters.end()?;
    Ok(requests.end(bench)?.len() as f64 / (count + 1) as f64)
}

/// Measures hand-offs at three lengths of the queue, then a queue that does not move, then a slow one.
pub fn queue(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    bench.redis()?;
    let mut section = Section::new(
        format!("queue: one hand-off on redis, mean of {HANDOFFS}, by the number of waiters behind"),
        &[("waiters", 0), ("requests", 2), ("bytes read", 0), ("bytes written", 0)],
    );
    let mut costs = Vec::new();
    for behind in LENGTHS {
        let cost = cost_of_handoff(bench, behind)?;
        let Traffic { requests, read, written } = cost;
        section.row(&format!("{behind} waiters"), &[behind as f64, requests, read, written]);
        costs.push(cost);
    }
    let grows = |of: fn(&Traffic) -> f64| of(&costs[costs.len() - 1]) / of(&costs[0]);
    let most = grows(|cost| cost.requests).max(grows(|cost| cost.read)).max(grows(|cost| cost.written));
    let what = format!("growth from {} to {} waiters, at most", LENGTHS[0], LENGTHS[2]);
    section.target(&what, most, Target::AtMost(1.1));

    let per_ttl = waiting(bench, Duration::from_secs(2), 5)?;
    let names = ["holder", "first", "second", "third", "fourth", "fifth"];
    if per_ttl.len() != names.len() {
        return Err(format!("{} clients were seen, not {}", per_ttl.len(), names.len()).into());
    }
    section.figure("requests per ttl, holder", per_ttl[0]);
    let most = |counts: &[f64]| counts.iter().copied().fold(0.0, f64::max);
    section.target("requests per ttl, the first two waiters", most(&per_ttl[1..3]), Target::AtMost(6.0));
    section.target("requests per ttl, the others", most(&per_ttl[3..]), Target::AtMost(1.0));
    section.figure("commands of 1 s, 8 waiters: requests per waiter in total", slow_commands(bench, 8)?);
    Ok(section)
}
