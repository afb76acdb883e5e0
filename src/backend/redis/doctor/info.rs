//! The checks of `INFO` and of the server's settings. Sends no requests.

use std::collections::HashMap;
use std::time::Duration;

use redis::{InfoDict, Value, from_redis_value_ref};

use super::super::reply::text;
use crate::backend::diagnosis::{Finding, no_lock};
use crate::duration::show;
use crate::exit::FailureKind;

/// The fields of `INFO`, and those settings (`CONFIG GET`) that this user may see.
#[derive(Debug)]
pub struct Info {
    fields: InfoDict,
    settings: HashMap<&'static str, String>,
}

pub(super) const SETTINGS: &[&str] =
    &["save", "appendfsync", "stop-writes-on-bgsave-error", "min-replicas-to-write", "timeout"];

/// The first major version that supports RESP3 and ACLs.
const OLDEST_MAJOR: u64 = 6;
/// The memory usage from which on a warning is given, in percent.
const NEARLY_FULL: u64 = 90;
/// The longest time in seconds without a request on a connection: a waiter sends one every 30 s, and the default lease
/// is renewed more often.
const QUIET: u64 = 30;
/// The number of replicas of which the lag is read, whatever number the server states.
const MOST_REPLICAS: u64 = 10_000;

impl Info {
    /// Reads a reply to `INFO`, or to another command with such a reply.
    pub fn of(reply: &Value) -> Info {
        let text: String = from_redis_value_ref(reply).unwrap_or_default();
        Info { fields: InfoDict::new(&text), settings: HashMap::new() }
    }

    pub(super) fn set(&mut self, name: &'static str, value: String) {
        self.settings.insert(name, value);
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        text(self.fields.find(&name))
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    pub(super) fn is_sentinel(&self) -> bool {
        self.field("redis_mode") == Some("sentinel")
    }

    pub(super) fn findings(&self) -> Vec<Finding> {
        if self.is_sentinel() {
            return vec![self.version(), sentinel()];
        }
        let all = [
            Some(self.version()),
            Some(self.role()),
            self.cluster(),
            Some(self.eviction()),
            self.memory(),
            Some(self.persistence()),
            self.idle(),
        ];
        all.into_iter().flatten().collect()
    }

    fn version(&self) -> Finding {
        let redis = self.field("redis_version");
        // Valkey still reports the version of Redis that it is compatible with.
        let (product, version) = match (self.field("valkey_version"), redis) {
            (Some(valkey), _) => ("Valkey", Some(valkey)),
            (None, redis) => ("Redis", redis),
        };
        let major = version.and_then(|version| version.split('.').next()?.parse::<u64>().ok());
        match (version, major) {
            (Some(version), Some(major)) if major >= OLDEST_MAJOR => {
                Finding::ok("version", format!("{product} {version}"))
            }
            (Some(version), _) => Finding::warning(
                "version",
                format!("{product} {version}"),
                "a server before version 6 cannot notify waiters: dlock polls it",
                "use Redis 6 or later, or Valkey",
            ),
            (None, _) => Finding::warning(
                "version",
                "the server does not report its version",
                "it may be a server that only resembles Redis; locks need its scripts to be atomic",
                "check that its documentation promises Lua scripts",
            ),
        }
    }

    fn role(&self) -> Finding {
        match self.field("role") {
            Some("master") => self.replicas(),
            Some("slave") => {
                let master = self.field("master_host").zip(self.field("master_port"));
                let master = master.map(|(host, port)| format!("{host}:{port}"));
                Finding::problem(
                    "role",
                    format!("a replica of {}", master.as_deref().unwrap_or("another server")),
                    format!("it does not accept writes: {}", no_lock(FailureKind::Unavailable)),
                    match master {
                        Some(master) => format!("name the master, {master}"),
                        None => "name the master".to_owned(),
                    },
                )
            }
            _ => Finding::warning(
                "role",
                "the server does not report its role",
                "whether a fail-over can lose locks is unknown",
                "let this user run INFO",
            ),
        }
    }

    fn replicas(&self) -> Finding {
        let count = self.number("connected_slaves").unwrap_or(0);
        if count == 0 {
            return Finding::ok("role", "a master without replicas");
        }
        let lag = (0..count.min(MOST_REPLICAS)).filter_map(|replica| {
            let fields = self.field(&format!("slave{replica}"))?;
            fields.split(',').find_map(|field| field.strip_prefix("lag=")?.parse::<u64>().ok())
        });
        let lag = lag.max().filter(|lag| *lag > 1).map(|lag| format!(", {lag}s behind")).unwrap_or_default();
        let least = self.setting("min-replicas-to-write").unwrap_or("0");
        let at_least = match least {
            "0" => String::new(),
            _ => format!(", at least {least} of them in sync when it writes"),
        };
        let noun = if count == 1 { "replica" } else { "replicas" };
        Finding::warning(
            "role",
            format!("a master with {count} {noun}{lag}{at_least}"),
            "replication is asynchronous: a fail-over loses the most recent locks. Their commands are stopped within a \
             third of the ttl, and others may start before that",
            match least {
                "0" => {
                    "set min-replicas-to-write 1, so that an isolated master stops granting locks, and have the systems \
                     that the commands write to check DLOCK_FENCING_TOKEN"
                }
                _ => "have the systems that the commands write to check DLOCK_FENCING_TOKEN",
            },
        )
    }

    /// The problem of a master with fewer replicas than have to confirm a lock.
    pub(super) fn too_few_replicas(&self, wanted: u32) -> Option<Finding> {
        let count = self.number("connected_slaves").unwrap_or(0);
        (u64::from(wanted) > count && self.field("role") == Some("master")).then(|| {
            Finding::problem(
                "replicas",
                format!("{count} are connected, and wait_replicas={wanted} have to confirm a lock"),
                no_lock(FailureKind::Unavailable),
                "start more replicas, or set wait_replicas lower",
            )
        })
    }

    fn cluster(&self) -> Option<Finding> {
        (self.field("cluster_enabled") == Some("1")).then(|| {
            Finding::problem(
                "cluster",
                "the server is a node of a Redis Cluster",
                format!("for locks whose slot is on another node (MOVED), {}", no_lock(FailureKind::Config)),
                "use redis-cluster:// (rediss-cluster:// with TLS)",
            )
        })
    }

    fn eviction(&self) -> Finding {
        let Some(policy) = self.field("maxmemory_policy") else {
            return Finding::warning(
                "eviction",
                "the server does not report its maxmemory-policy",
                "it may remove locks when its memory is full",
                "check that the policy is noeviction",
            );
        };
        if policy == "noeviction" {
            return Finding::ok("eviction", "noeviction: no key is removed when memory is full");
        }
        let remedy = "set maxmemory-policy noeviction; if this is a cache, use a separate server for locks";
        let target = if policy.starts_with("volatile") {
            "keys with an expiry, which includes all locks"
        } else {
            "keys, which includes locks"
        };
        match self.number("maxmemory") {
            Some(0) => Finding::warning(
                "eviction",
                format!("maxmemory-policy {policy}, without a limit (maxmemory 0)"),
                format!("as soon as maxmemory is set, the server may remove {target}"),
                remedy,
            ),
            limit => Finding::problem(
                "eviction",
                match limit {
                    Some(limit) => format!("maxmemory-policy {policy} at {}", size(limit)),
                    None => format!("maxmemory-policy {policy}"),
                },
                format!(
                    "when its memory is full, the server removes {target}: a command is stopped for no reason, or runs at \
                     the same time as another one"
                ),
                remedy,
            ),
        }
    }

    fn memory(&self) -> Option<Finding> {
        let limit = self.number("maxmemory").filter(|limit| *limit > 0)?;
        let used = self.number("used_memory")?;
        let percent = (u128::from(used) * 100 / u128::from(limit)) as u64;
        let found = format!("{percent}% of {} used", size(limit));
        if percent < NEARLY_FULL || self.field("maxmemory_policy") != Some("noeviction") {
            return Some(Finding::ok("memory", found));
        }
        Some(Finding::warning(
            "memory",
            found,
            format!(
                "when it is full (OOM), {}; held locks are still renewed",
                no_lock(FailureKind::Unavailable)
            ),
            "raise maxmemory, or remove what is not needed",
        ))
    }

    /// Which locks survive a restart of the server.
    fn persistence(&self) -> Finding {
        let check = "persistence";
        let field = |name: &str| self.field(name);
        if field("aof_last_write_status") == Some("err") {
            return Finding::problem(
                check,
                "the append-only file could not be written",
                "the server rejects writes (MISCONF): no lock can be taken or renewed, and running commands are stopped",
                "free space on the server's disk, and see its log",
            );
        }
        let snapshots = self.setting("save").map(|save| !save.is_empty());
        if field("rdb_last_bgsave_status") == Some("err")
            && snapshots != Some(false)
            && self.setting("stop-writes-on-bgsave-error") != Some("no")
        {
            return Finding::problem(
                check,
                "the last snapshot failed",
                "the server rejects writes (MISCONF): no lock can be taken or renewed, and running commands are stopped",
                "free space on the server's disk, and see its log; or set stop-writes-on-bgsave-error no",
            );
        }
        let lost = "their commands are stopped within a third of the ttl, and others may start before that";
        match (field("aof_enabled"), self.setting("appendfsync")) {
            (Some("1"), Some("always")) => {
                Finding::ok(check, "append-only file, synced on every write: a crash loses no lock")
            }
            (Some("1"), Some("no")) => Finding::warning(
                check,
                "append-only file, synced by the operating system (appendfsync no)",
                format!(
                    "when the server's host crashes, the locks of the last half minute may be lost: {lost}"
                ),
                "set appendfsync everysec or always",
            ),
            (Some("1"), _) => Finding::ok(
                check,
                "append-only file, synced every second: only a crash of the host loses locks, those of the last second",
            ),
            (Some(_), _) if snapshots == Some(false) => Finding::warning(
                check,
                "nothing is written to disk",
                format!("a restart of the server loses all locks: {lost}"),
                "set appendonly yes",
            ),
            (Some(_), _) => Finding::warning(
                check,
                if snapshots.is_some() { "snapshots only" } else { "no append-only file" },
                format!("a crash of the server loses the locks since the last snapshot, or all: {lost}"),
                "set appendonly yes",
            ),
            (None, _) => Finding::warning(
                check,
                "the server does not report its persistence",
                format!("a restart may lose all locks: {lost}"),
                "check that appendonly is yes",
            ),
        }
    }

    /// Checks whether the server closes idle connections.
    fn idle(&self) -> Option<Finding> {
        let seconds: u64 = self.setting("timeout")?.parse().ok()?;
        let shown = show(Duration::from_secs(seconds));
        match seconds {
            0 => Some(Finding::ok("idle", "idle connections stay open (timeout 0)")),
            _ if seconds > QUIET => {
                Some(Finding::ok("idle", format!("idle connections are closed after {shown}")))
            }
            _ => Some(Finding::warning(
                "idle",
                format!("idle connections are closed after {shown}"),
                "waiters, and holders of a lock with a long ttl, are idle for longer: they have to reconnect each time, and \
                 are notified late of their turn, or of the loss of the lock",
                "set timeout 0",
            )),
        }
    }
}

fn sentinel() -> Finding {
    Finding::problem(
        "role",
        "a Sentinel",
        format!("it monitors servers and stores no keys: {}", no_lock(FailureKind::Config)),
        "name the server that it monitors (SENTINEL MASTERS shows it)",
    )
}

fn size(bytes: u64) -> String {
    match bytes.max(1).ilog2() {
        ..20 => format!("{} KiB", bytes >> 10),
        20..30 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::diagnosis::Level;

    fn level_of(check: &str, fields: &[(&str, &str)], settings: &[(&'static str, &str)]) -> Option<Level> {
        let text: String = fields.iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
        let mut info = Info::of(&Value::SimpleString(format!("# Server\r\n{text}")));
        for (name, value) in settings {
            info.set(name, (*value).to_owned());
        }
        let findings = info.findings();
        let finding = findings.iter().find(|finding| finding.check == check)?;
        assert_eq!(finding.level != Level::Ok, finding.consequence.is_some() && finding.remedy.is_some());
        Some(finding.level)
    }

    #[test]
    fn each_state_of_a_server_has_its_level() {
        use Level::{Ok, Problem, Warning};
        let aof = ("aof_enabled", "1");
        let no_aof = ("aof_enabled", "0");
        let failed = ("rdb_last_bgsave_status", "err");
        for (check, fields, settings, expected) in [
            ("version", &[("redis_version", "7.0.15")][..], &[][..], Some(Ok)),
            ("version", &[("redis_version", "5.0.14")], &[], Some(Warning)),
            ("version", &[("redis_version", "7.2.4"), ("valkey_version", "8.0.1")], &[], Some(Ok)),
            ("version", &[], &[], Some(Warning)),
            ("role", &[("role", "master"), ("connected_slaves", "2")], &[], Some(Warning)),
            ("role", &[("role", "master"), ("connected_slaves", "18446744073709551615")], &[], Some(Warning)),
            ("eviction", &[("maxmemory_policy", "allkeys-lfu")], &[], Some(Problem)),
            ("eviction", &[], &[], Some(Warning)),
            ("memory", &[("maxmemory", "0"), ("used_memory", "95")], &[], None),
            ("persistence", &[aof], &[("appendfsync", "always")], Some(Ok)),
            ("persistence", &[], &[], Some(Warning)),
            ("persistence", &[no_aof, failed], &[], Some(Problem)),
            ("persistence", &[no_aof, failed], &[("save", "")], Some(Warning)),
            ("persistence", &[aof, ("aof_last_write_status", "err")], &[], Some(Problem)),
            (
                "persistence",
                &[aof, failed],
                &[("stop-writes-on-bgsave-error", "no"), ("save", "3600 1")],
                Some(Ok),
            ),
            ("idle", &[], &[], None),
        ] {
            assert_eq!(level_of(check, fields, settings), expected, "{check}: {fields:?} {settings:?}");
        }
    }
}
