//! The machine that is measured, and the programs on it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

/// A program in the PATH of this process, and the Debian package that has it.
pub fn find(program: &str, package: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|program| program.is_file())
        .ok_or_else(|| format!("{program}: apt-get install {package}"))
}

/// psql itself. On Debian the one in PATH is a Perl script that chooses a version, which takes longer than psql.
pub fn find_psql() -> Result<PathBuf, String> {
    let psql = find("psql", "postgresql-client")?;
    let is_wrapper = psql.canonicalize().is_ok_and(|program| program.ends_with("pg_wrapper"));
    let wrapped = is_wrapper.then(|| newest_postgres("psql")).flatten();
    Ok(wrapped.unwrap_or(psql))
}

/// A program of the newest PostgreSQL that Debian has installed.
pub fn newest_postgres(program: &str) -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let mut found: Vec<(Option<u32>, PathBuf)> = versions
        .map(|entry| (version(&entry.path()), entry.path().join("bin").join(program)))
        .filter(|(_, program)| program.is_file())
        .collect();
    found.sort();
    found.pop().map(|(_, program)| program)
}

/// The processor, the memory and the kernel.
pub fn describe() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?.to_owned();
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    json!({
        "cpus": std::thread::available_parallelism().map_or(1, usize::from),
        "cpu": value(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        "memory": value(&read("/proc/meminfo"), "MemTotal"),
        "kernel": format!("Linux {}", read("/proc/sys/kernel/osrelease").trim_end()),
    })
}

/// The processor and the kernel of [`describe`], for people.
pub fn line(machine: &Value) -> String {
    let text = |key: &str| machine[key].as_str().unwrap_or("?").to_owned();
    format!("{} CPUs ({}), {}", machine["cpus"], text("cpu"), text("kernel"))
}

/// The first line that each program prints about its version; nothing for one that is not here.
pub fn versions(python: Option<&Path>) -> Vec<String> {
    let first_line = |program: &Path, args: &[&str]| {
        let output = Command::new(program).args(args).env("ETCDCTL_API", "3").output().ok()?;
        String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned)
    };
    let redis_py = ["-c", "import redis; print('redis-py', redis.__version__)"];
    let psql = find_psql()
        .ok()
        .and_then(|psql| Some(format!("{} ({})", first_line(&psql, &["--version"])?, psql.display())));
    [
        first_line("flock".as_ref(), &["--version"]),
        first_line("timeout".as_ref(), &["--version"]),
        first_line("redis-server".as_ref(), &["--version"])
            .map(|line| line.split(" sha").next().unwrap_or_default().to_owned()),
        python.and_then(|python| first_line(python, &redis_py)),
        first_line("etcdctl".as_ref(), &["version"]),
        newest_postgres("postgres").and_then(|postgres| first_line(&postgres, &["--version"])),
        psql,
        first_line("mariadbd".as_ref(), &["--version"]),
        first_line("mariadb".as_ref(), &["--version"]),
        first_line("dpkg-query".as_ref(), &["-f", "${Package} ${Version}", "-W", "zookeeper"]),
    ]
    .into_iter()
    .flatten()
    .collect()
}
