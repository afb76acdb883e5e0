//! What a line costs the store: each hand-off, and the waiting itself.

use std::error::Error;
use std::time::Duration;

use super::traffic::{Requests, Traffic};
use super::{Crowd, Lock, Scene};
use crate::Bench;
use crate::stats::verdict;

/// Hand-offs that are looked at, each time.
const STRETCH: usize = 50;
const LENGTHS: [usize; 3] = [10, 100, 1000];

/// The cost of a hand-off while so many wait behind: the line is that much longer than the stretch, and stops there.
fn handing_over(bench: &Bench, behind: usize) -> Result<Traffic, Box<dyn Error>> {
    // With the ttl this long nobody asks but for the hand-offs.
    let scene = Scene::new(bench, Lock::Dlock, &format!("line-{behind}"), &["--ttl=1h"])?;
    let mut gate = scene.gate()?;
    scene.until("a holder", || scene.is_held())?;
    let mut crowd = Crowd(Vec::with_capacity(STRETCH + behind));
    scene.wait(&mut crowd, STRETCH - 1)?;
    let mut stop = scene.gate()?;
    scene.until("the one that stops the line", || Ok(scene.waiting()? == STRETCH))?;
    scene.wait(&mut crowd, behind)?;
    std::thread::sleep(Duration::from_millis(500));
    let traffic = Traffic::of(bench, || {
        gate.open();
        gate.end()?;
        scene.until("the stretch", || Ok(scene.stamps()?.len() == STRETCH))?;
        // The last of these hand-offs is still on its way.
        std::thread::sleep(Duration::from_millis(200));
        Ok(())
    })?;
    if scene.waiting()? != behind {
        return Err(format!("{} wait, not {behind}", scene.waiting()?).into());
    }
    stop.open();
    stop.end()?;
    crowd.end()?;
    Ok(traffic.per(STRETCH))
}

/// Requests of the holder and of those who wait, in their order, per ttl of the same lock.
fn waiting(bench: &Bench, ttl: Duration, ttls: u32) -> Result<Vec<f64>, Box<dyn Error>> {
    let ttl_option = format!("--ttl={}s", ttl.as_secs());
    let options = [ttl_option.as_str()];
    let scene = Scene::new(bench, Lock::Dlock, "line-waiting", &options)?;
    // Who comes first is seen first.
    let greetings = Requests::watch(bench)?;
    let gate = scene.gate()?;
    scene.until("a holder", || scene.is_held())?;
    let mut crowd = Crowd(Vec::new());
    for _ in 0..5 {
        scene.wait(&mut crowd, 1)?;
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
    crowd.end()?;
    let of = |client: &String| seen.iter().filter(|request| request.client == *client).count();
    Ok(clients.iter().map(|client| of(client) as f64 / f64::from(ttls)).collect())
}

/// Requests in all of one who waits behind others whose commands take a second each.
fn slow_commands(bench: &Bench, waiters: usize) -> Result<f64, Box<dyn Error>> {
    let scene = Scene::new(bench, Lock::Dlock, "line-slow", &["--ttl=1h"])?;
    let mut command = scene.command(&["/usr/bin/sleep", "1"]);
    let requests = Requests::watch(bench)?;
    let mut crowd = Crowd(Vec::new());
    for _ in 0..=waiters {
        crowd.0.push(command.spawn()?);
    }
    crowd.end()?;
    Ok(requests.end(bench)?.len() as f64 / (waiters + 1) as f64)
}

/// Hand-offs at three lengths of the line, then a line that stands still, then a slow one.
pub fn line(bench: &Bench) -> Result<(), Box<dyn Error>> {
    println!("line: one hand-off on redis, mean of {STRETCH}, by those who wait behind");
    println!("  {:<16} {:>9} {:>11} {:>13}", "", "requests", "bytes read", "bytes written");
    let mut costs = Vec::new();
    for behind in LENGTHS {
        let cost = handing_over(bench, behind)?;
        let Traffic { requests, read, written } = cost;
        println!("  {:<16} {requests:>9.2} {read:>11.0} {written:>13.0}", format!("{behind} wait"));
        costs.push(cost);
    }
    let grows = |of: fn(&Traffic) -> f64| of(&costs[costs.len() - 1]) / of(&costs[0]);
    let most = grows(|cost| cost.requests).max(grows(|cost| cost.read)).max(grows(|cost| cost.written));
    println!(
        "  from {} to {} waiters: x {most:.2} at most, target 1: {}",
        LENGTHS[0],
        LENGTHS[2],
        verdict(most <= 1.1)
    );

    let per_ttl = waiting(bench, Duration::from_secs(2), 5)?;
    let names = ["holder", "first", "second", "third", "fourth", "fifth"];
    if per_ttl.len() != names.len() {
        return Err(format!("{} clients were seen, not {}", per_ttl.len(), names.len()).into());
    }
    let shown: Vec<String> =
        names.iter().zip(&per_ttl).map(|(name, count)| format!("{name} {count:.1}")).collect();
    println!("  requests per ttl: {}", shown.join(", "));
    let most = |counts: &[f64]| counts.iter().copied().fold(0.0, f64::max);
    let (front, behind) = (most(&per_ttl[1..3]), most(&per_ttl[3..]));
    println!("    first two {front:.1}, target <= 6: {}", verdict(front <= 6.0));
    println!("    those behind {behind:.1}, target <= 1: {}", verdict(behind <= 1.0));
    let slow = slow_commands(bench, 8)?;
    println!("  commands of 1 s, 8 wait: {slow:.2} requests per waiter in all (no target)");
    Ok(())
}
