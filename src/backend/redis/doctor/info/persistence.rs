//! What a restart of a server leaves of its locks.

use super::Info;
use crate::backend::diagnosis::Finding;

impl Info {
    pub(super) fn persistence(&self) -> Finding {
        let check = "persistence";
        let says = |field: &str| self.field(field);
        if says("aof_last_write_status") == Some("err") {
            return Finding::problem(
                check,
                "the append-only file could not be written",
                "the server takes no writes (MISCONF): no lock can be taken or renewed, and running commands are stopped",
                "make room on the server's disk, see its log",
            );
        }
        let snapshots = self.setting("save").map(|save| !save.is_empty());
        if says("rdb_last_bgsave_status") == Some("err")
            && snapshots != Some(false)
            && self.setting("stop-writes-on-bgsave-error") != Some("no")
        {
            return Finding::problem(
                check,
                "the last snapshot failed",
                "the server takes no writes (MISCONF): no lock can be taken or renewed, and running commands are stopped",
                "make room on the server's disk, see its log; or set stop-writes-on-bgsave-error no",
            );
        }
        let lost = "their commands are stopped within a third of the ttl, and others may start before that";
        match (says("aof_enabled"), self.setting("appendfsync")) {
            (Some("1"), Some("always")) => {
                Finding::ok(check, "append-only file, synced at every write: a crash loses no lock")
            }
            (Some("1"), Some("no")) => Finding::warning(
                check,
                "append-only file, synced when the system pleases (appendfsync no)",
                format!(
                    "when the server's host crashes, the locks of the last half minute may be lost: {lost}"
                ),
                "set appendfsync everysec or always",
            ),
            (Some("1"), _) => Finding::ok(
                check,
                "append-only file, synced every second: only a crash of its host loses locks, those of the last second",
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
                "the server does not tell",
                format!("a restart may lose all locks: {lost}"),
                "see that appendonly is yes",
            ),
        }
    }
}
