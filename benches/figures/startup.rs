//! Start-up: the time from spawn to reap of `true` under a lock, compared with other tools.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::Bench;
use crate::machine::find;
use crate::race::{COLUMNS, Race};
use crate::report::{Section, Target};

/// What is compared. flock is in each, for its ratio.
const HEATS: &[&[&str]] = &[
    &["true", "timeout", "flock", "dlock file", "dlock redis"],
    &["flock", "dlock redis", "dlock etcd", "etcdctl lock"],
    &["flock", "dlock consul", "consul lock"],
    &["flock", "dlock postgres", "psql"],
    &["flock", "dlock mysql", "mariadb"],
    &["flock", "dlock zookeeper"],
    // What the caches are worth.
    &["flock", "dlock file", "dlock redis", "etcdctl lock", "consul lock", "psql", "mariadb"],
];

pub fn startup(bench: &Bench) -> Result<Section, Box<dyn Error>> {
    let mut race = Race::default();
    let mut add = |name: &str, mut command: Command| {
        command.stdout(Stdio::null());
        race.add(name, move |_| {
            let start = Instant::now();
            let status = command.status()?; // posix_spawn(3), then waitpid(2)
            let time = start.elapsed();
            if status.success() { Ok(time) } else { Err(format!("ended with {status}").into()) }
        });
    };
    let other = |program: &Path, args: &[&str]| {
        let mut command = bench.command(program);
        command.args(args);
        command
    };
    add("true", other(&find("true", "coreutils")?, &[]));
    add("timeout", other(&find("timeout", "coreutils")?, &["10", "true"]));
    if let Some(mut flock) = bench.flock() {
        flock.args(["flock-file", "true"]);
        add("flock", flock);
    }
    for (scheme, url) in bench.stores() {
        add(&format!("dlock {scheme}"), bench.dlock(&["-b", &url, "x", "--", "true"]));
    }
    if let Some(mut etcdctl) = bench.etcdctl() {
        etcdctl.args(["lock", "x", "--", "true"]);
        add("etcdctl lock", etcdctl);
    }
    if let Some((program, address)) = bench.servers.consul.as_ref().map(|consul| consul.client()) {
        add("consul lock", other(program, &["lock", &address, "x", "true"]));
    }
    let select = ["-c", "select 1"];
    if let Some((server, psql)) = bench.servers.postgres.as_ref().zip(bench.peers.psql.as_ref()) {
        let port = server.port().to_string();
        let mut psql = other(psql, &["-X", "-h", "127.0.0.1", "-p", &port, "-U", "postgres"]);
        psql.args(select);
        add("psql", psql);
    }
    if let Some((server, mariadb)) = bench.servers.mariadb.as_ref().zip(bench.peers.mariadb.as_ref()) {
        let port = server.port().to_string();
        let mut mariadb = other(mariadb, &["--no-defaults", "-u", "root", "-h", "127.0.0.1", "-P", &port]);
        mariadb.args(["-e", "select 1"]);
        add("mariadb", mariadb);
    }
    race.run(HEATS, 5, bench.runs)?;

    let mut section = Section::new(
        format!(
            "startup: true under a lock, or select 1; spawn to reaped, {} runs each, interleaved with what is compared",
            bench.runs
        ),
        COLUMNS,
    );
    race.show(&mut section);
    for (tool, other, target) in [
        ("dlock file", "flock", Target::AtMost(1.6)),
        ("dlock redis", "flock", Target::AtMost(1.8)),
        ("dlock postgres", "psql", Target::AtMost(1.0)),
        // How many times as long these take.
        ("etcdctl lock", "dlock redis", Target::AtLeast(8.0)),
        ("consul lock", "dlock consul", Target::AtLeast(8.0)),
    ] {
        if let Some(ratio) = race.ratio(tool, other) {
            section.target(&format!("{tool} / {other}"), ratio, target);
        }
    }
    for (tool, other) in [("dlock mysql", "mariadb"), ("etcdctl lock", "dlock etcd")] {
        if let Some(ratio) = race.ratio(tool, other) {
            section.figure(&format!("{tool} / {other}"), ratio);
        }
    }
    let others = ["etcdctl lock", "consul lock", "psql", "mariadb"];
    for tool in ["dlock file", "dlock redis"] {
        let ratios = race.ratios(tool, "flock");
        if let Some(ratio) =
            ratios.last().filter(|_| others.iter().all(|other| race.ratio(other, tool).is_some()))
        {
            section.figure(&format!("{tool} / flock, between the programs of all other stores"), *ratio);
        }
    }
    Ok(section)
}
