//! The performance figures of dlock, measured on this machine and compared with other tools: `cargo bench`.
//!
//! Builds dlock as packaging/build.sh does, starts a Redis and an etcd on 127.0.0.1, prints the tables and stops both.
//! Nothing is asserted, because the figures depend on the machine; each is printed next to its target.
//!
//! `DLOCK_FIGURES_BIN` measures another binary; `DLOCK_FIGURES_RUNS` sets the number of runs (200); `DLOCK_TEST_PYTHON`
//! is an interpreter that has redis-py.
//! With an argument (`cargo bench -- memory`), only the sections whose name contains it are measured.

mod death;
mod footprint;
mod redlock;
mod servers;
mod startup;
mod stats;
mod waiting;

/// What every section needs: the binary, the stores, and the number of runs.
pub struct Bench {
    /// The dlock under test, a copy whose path no other process runs.
    dlock: std::path::PathBuf,
    redis: servers::Redis,
    etcd: servers::Etcd,
    /// An empty directory on the file system of the build.
    dir: std::path::PathBuf,
    runs: usize,
}

impl Bench {
    fn file_url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// A command whose environment has only PATH and HOME.
    fn command(&self, program: &std::path::Path) -> std::process::Command {
        let mut command = std::process::Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &self.dir).current_dir(&self.dir);
        command.stdin(std::process::Stdio::null());
        command
    }

    fn dlock(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.command(&self.dlock);
        command.arg("run").args(args);
        command
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // This program is also the command that runs under dlock.
    let outcome = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["spin", rounds] => footprint::spin(rounds),
        ["tree", fifo] => death::tree(fifo),
        ["stamp", file] => waiting::stamp(file),
        _ => measure(&args.into_iter().filter(|arg| !arg.starts_with("--")).collect::<Vec<_>>()),
    };
    if let Err(error) = outcome {
        eprintln!("figures: {error}");
        std::process::exit(1);
    }
}

fn measure(only: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let runs = match std::env::var("DLOCK_FIGURES_RUNS") {
        Ok(runs) => runs.parse()?,
        Err(_) => 200,
    };
    let built = match std::env::var_os("DLOCK_FIGURES_BIN") {
        Some(path) => std::path::PathBuf::from(path),
        None => build()?,
    };
    let dir = tempfile::Builder::new().prefix("figures").tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let dlock = dir.path().join("dlock");
    std::fs::copy(&built, &dlock)?;
    let store = dir.path().join("store");
    std::fs::create_dir(&store)?;
    let bench = Bench {
        dlock,
        redis: servers::Redis::start(dir.path())?,
        etcd: servers::Etcd::start(dir.path())?,
        dir: store,
        runs,
    };
    println!("dlock   {} ({} bytes)", built.display(), std::fs::metadata(&built)?.len());
    println!("machine {} CPUs, {}", std::thread::available_parallelism()?, servers::kernel()?);
    println!("peers   {}", servers::versions());
    type Section = fn(&Bench) -> Result<(), Box<dyn std::error::Error>>;
    let sections: [(&str, Section); 10] = [
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
    for (name, section) in sections {
        if only.is_empty() || only.iter().any(|part| name.contains(part.as_str())) {
            println!();
            section(&bench).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    Ok(())
}

/// Builds the binary to measure with the flags of a release, which are in packaging/build.sh.
fn build() -> Result<std::path::PathBuf, Box<dyn std::error::Error>> {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("figures");
    let status = std::process::Command::new("packaging/build.sh")
        .arg("--binary")
        .arg(&directory)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdout(std::process::Stdio::null())
        .status()?;
    if !status.success() {
        return Err("packaging/build.sh --binary failed".into());
    }
    Ok(directory.join("dlock"))
}
