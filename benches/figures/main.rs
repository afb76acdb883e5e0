//! The performance figures of dlock, measured on this machine and compared with other tools: `cargo bench`, see
//! benches/README.md. Nothing is asserted, because the figures depend on the machine; each is printed next to its target.

mod death;
mod footprint;
mod machine;
mod plots;
mod race;
mod redlock;
mod report;
mod servers;
mod startup;
mod stats;
mod svg;
mod waiting;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use self::report::Section;

/// What every section needs: the binary, the stores, the other tools, and the number of runs.
pub struct Bench {
    /// The dlock under test, a copy whose path no other process runs.
    dlock: PathBuf,
    servers: servers::Servers,
    peers: Peers,
    /// An empty directory on the file system of the build.
    dir: PathBuf,
    runs: usize,
}

/// The tools that dlock is compared with, unless they are left out.
struct Peers {
    flock: Option<PathBuf>,
    etcdctl: Option<PathBuf>,
    psql: Option<PathBuf>,
    mariadb: Option<PathBuf>,
    /// An interpreter that has redis-py.
    python: Option<PathBuf>,
}

impl Peers {
    fn find(leave_out: &mut impl FnMut(String)) -> Self {
        let mut found = |program: Result<PathBuf, String>| program.map_err(&mut *leave_out).ok();
        Peers {
            flock: found(machine::find("flock", "util-linux")),
            etcdctl: found(machine::find("etcdctl", "etcd-client")),
            psql: found(machine::find_psql()),
            mariadb: found(machine::find("mariadb", "mariadb-client")),
            python: found(waiting::find_redis_py()),
        }
    }
}

impl Bench {
    fn file_url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// The Redis; sections that are only about Redis are left out without it.
    fn redis(&self) -> Result<&servers::Redis, NoRedis> {
        self.servers.redis.as_ref().ok_or(NoRedis)
    }

    /// The scheme and the URL of each store.
    fn stores(&self) -> Vec<(&'static str, String)> {
        let mut stores = vec![("file", self.file_url())];
        stores.extend(self.servers.urls());
        stores
    }

    /// A command whose environment has only PATH and HOME.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &self.dir).current_dir(&self.dir);
        command.stdin(Stdio::null());
        command
    }

    fn dlock(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.dlock);
        command.arg("run").args(args);
        command
    }

    /// `flock(1)`, unless it is left out.
    fn flock(&self) -> Option<Command> {
        self.peers.flock.as_ref().map(|flock| self.command(flock))
    }

    /// etcdctl for the etcd, unless either is left out.
    fn etcdctl(&self) -> Option<Command> {
        let (etcd, etcdctl) = self.servers.etcd.as_ref().zip(self.peers.etcdctl.as_ref())?;
        let mut command = self.command(etcdctl);
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", etcd.endpoint());
        Some(command)
    }
}

#[derive(Debug)]
struct NoRedis;

impl std::fmt::Display for NoRedis {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("it needs redis-server")
    }
}

impl Error for NoRedis {}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // This program is also the command that runs under dlock.
    let outcome = match args.iter().map(String::as_str).filter(|arg| *arg != "--bench").collect::<Vec<_>>()[..]
    {
        ["spin", rounds] => footprint::spin(rounds),
        ["tree", fifo] => death::tree(fifo),
        ["stamp", file] => waiting::stamp(file, "/dev/stdin"),
        // etcdctl gives its commands no standard input.
        ["stamp-under-etcdctl", file] => {
            waiting::stamp(file, &format!("/proc/{}/fd/0", std::os::unix::process::parent_id()))
        }
        ["plot"] => plots::write(&directory()),
        ref only => measure(only),
    };
    if let Err(error) = outcome {
        eprintln!("figures: {error}");
        std::process::exit(1);
    }
}

/// Where the figures and the plots are written.
fn directory() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/figures");
    std::env::var_os("DLOCK_FIGURES_DIR").map_or_else(default, PathBuf::from)
}

type Measure = fn(&Bench) -> Result<Section, Box<dyn Error>>;
const SECTIONS: [(&str, Measure); 10] = [
    ("startup", startup::startup),
    ("memory", footprint::memory),
    ("requests", footprint::requests),
    ("slowdown", footprint::slowdown),
    ("sigkill", death::sigkill),
    ("sigstop", death::sigstop),
    ("handoff", waiting::handoff),
    ("drain", waiting::drain),
    ("queue", waiting::queue),
    ("redlock", redlock::redlock),
];

fn measure(only: &[&str]) -> Result<(), Box<dyn Error>> {
    let runs = match std::env::var("DLOCK_FIGURES_RUNS") {
        Ok(runs) => runs.parse()?,
        Err(_) => 200,
    };
    let built = match std::env::var_os("DLOCK_FIGURES_BIN") {
        Some(path) => PathBuf::from(path),
        None => build()?,
    };
    let dir = tempfile::Builder::new().prefix("figures").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let dlock = dir.path().join("dlock");
    std::fs::copy(&built, &dlock)?;
    let store = dir.path().join("store");
    std::fs::create_dir(&store)?;

    let mut left_out: Vec<String> = Vec::new();
    let mut leave_out = |what: String| {
        println!("left out: {what}");
        left_out.push(what);
    };
    let peers = Peers::find(&mut leave_out);
    let servers = servers::Servers::start(dir.path(), &mut leave_out);
    let bench = Bench { dlock, servers, peers, dir: store, runs };
    let (machine, versions) = (machine::describe(), machine::versions(bench.peers.python.as_deref()));
    let bytes = std::fs::metadata(&built)?.len();
    let date = jiff::Timestamp::now().strftime("%F").to_string();
    println!("dlock   {} ({bytes} bytes)", built.display());
    println!("machine {}", machine::line(&machine));
    versions.iter().for_each(|version| println!("peer    {version}"));

    let mut sections = Map::new();
    for (name, section) in SECTIONS {
        if !only.is_empty() && !only.iter().any(|part| name.contains(part)) {
            continue;
        }
        println!();
        match section(&bench) {
            Ok(section) => _ = sections.insert(name.to_owned(), section.into_json()),
            Err(error) if error.is::<NoRedis>() => leave_out(format!("section {name}: {error}")),
            Err(error) => return Err(format!("{name}: {error}").into()),
        }
    }
    let figures = json!({
        "date": date, "machine": machine, "versions": versions, "dlock_bytes": bytes, "runs": runs,
        "left_out": left_out, "sections": Value::from(sections),
    });
    std::fs::create_dir_all(directory())?;
    std::fs::write(directory().join("figures.json"), format!("{figures:#}\n"))?;
    println!();
    plots::write(&directory())
}

/// Builds the binary to measure with the flags of a release, which are in packaging/build.sh.
fn build() -> Result<PathBuf, Box<dyn Error>> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures");
    let status = Command::new("packaging/build.sh")
        .arg("--binary")
        .arg(&directory)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        return Err("packaging/build.sh --binary failed".into());
    }
    Ok(directory.join("dlock"))
}
