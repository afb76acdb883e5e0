//! Start-up: the time from spawn to reap of `true` under a lock, compared with other tools.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Bench;
use crate::stats::{Rng, Sample, median, ms, verdict};

struct Peer {
    name: &'static str,
    command: Command,
    times: Vec<Duration>,
}

/// Runs all peers once per round, in random order, so that a slow phase of the machine affects all of them.
pub fn startup(bench: &Bench) -> Result<(), Box<dyn Error>> {
    let file = bench.file_url();
    let redis = bench.redis.url();
    let lock_file = bench.dir.join("flock-file");
    let lock_file = lock_file.to_str().ok_or("the build directory's path is not UTF-8")?;
    let other = |program: &str, args: &[&str]| {
        let mut command = bench.command(Path::new(program));
        command.args(args);
        command
    };
    let mut etcdctl = other("/usr/bin/etcdctl", &["lock", "x", "--", "true"]);
    etcdctl.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", bench.etcd.endpoint());
    let mut peers: Vec<Peer> = [
        ("true", other("/usr/bin/true", &[])),
        ("flock f true", other("/usr/bin/flock", &[lock_file, "true"])),
        ("timeout 10 true", other("/usr/bin/timeout", &["10", "true"])),
        ("dlock file:", bench.dlock(&["-b", &file, "x", "--", "true"])),
        ("dlock redis:", bench.dlock(&["-b", &redis, "x", "--", "true"])),
        ("etcdctl lock", etcdctl),
    ]
    .into_iter()
    .map(|(name, command)| Peer { name, command, times: Vec::with_capacity(bench.runs) })
    .collect();
    for peer in &mut peers {
        peer.command.stdout(Stdio::null());
    }

    let warm_up = 5;
    let mut rng = Rng::new();
    let mut order: Vec<usize> = (0..peers.len()).collect();
    for round in 0..warm_up + bench.runs {
        rng.shuffle(&mut order);
        for &turn in &order {
            let peer = &mut peers[turn];
            let start = Instant::now();
            let status = peer.command.status()?; // posix_spawn(3), then waitpid(2)
            let time = start.elapsed();
            if !status.success() {
                return Err(format!("{} ended with {status}", peer.name).into());
            }
            if round >= warm_up {
                peer.times.push(time);
            }
        }
    }

    println!("startup: spawn to reaped, {} runs each, interleaved", bench.runs);
    println!("  {:<16} {:>8} {:>8} {:>8}", "", "p50 ms", "p99 ms", "x flock");
    // Each run is compared with the flock of the same round: a slow phase of the machine affects both.
    let ratios: Vec<f64> = peers
        .iter()
        .map(|peer| {
            median(peer.times.iter().zip(&peers[1].times).map(|(time, flock)| ms(*time) / ms(*flock)))
        })
        .collect();
    let samples: Vec<Sample> =
        peers.iter_mut().map(|peer| Sample::new(std::mem::take(&mut peer.times))).collect();
    for ((peer, sample), ratio) in peers.iter().zip(&samples).zip(&ratios) {
        println!("  {:<16} {:>8.2} {:>8.2} {:>8.2}", peer.name, ms(sample.p50()), ms(sample.p99()), ratio);
    }
    let (file, redis) = (ratios[3], ratios[4]);
    let etcd = ms(samples[5].p50()) / ms(samples[4].p50());
    println!("  file:  {file:.2} x flock, target <= 1.3: {}", verdict(file <= 1.3));
    println!("  redis: {redis:.2} x flock, target <= 1.7: {}", verdict(redis <= 1.7));
    println!("  redis: {etcd:.1} x faster than etcdctl lock, target >= 7: {}", verdict(etcd >= 7.0));
    Ok(())
}
