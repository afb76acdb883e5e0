//! The checks of persistence: which locks survive a restart of the server.

use super::Info;
use crate::backend::diagnosis::Finding;

impl Info {
    pub(super) fn persistence(&self) -> Finding {
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
}
