//! `--report`: every outcome, whole, and where it is written.

mod outcomes;
mod planted;
mod stores;
mod targets;

use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::store::Store;

/// The expected content of a report. Times and values that differ between hosts are only distinguished from null.
struct Expected<'a> {
    outcome: &'a str,
    dlock_exit: i32,
    exit_status: Option<i32>,
    signal: Option<i32>,
    names: &'a [&'a str],
    backend: Option<&'a str>,
    /// The locks were held; then whether they were released.
    released: Option<bool>,
    holder: &'a str,
    error: Option<&'a str>,
}

/// A run of `x` on this store that was refused before the store was queried.
fn refused<'a>(outcome: &'a str, dlock_exit: i32, store: &'a Store) -> Expected<'a> {
    let (names, backend) = (&["x"], Some(store.url()));
    Expected {
        outcome,
        dlock_exit,
        exit_status: None,
        signal: None,
        names,
        backend,
        released: None,
        holder: "null",
        error: None,
    }
}

/// A run of `x` on this store whose command ended like this.
fn ran(store: &Store, exit: Exit) -> Expected<'_> {
    let (dlock_exit, exit_status, signal) = match exit {
        Exit::Code(status) => (status, Some(status), None),
        Exit::Signal(signal) => (128 + signal, None, Some(signal)),
    };
    Expected { exit_status, signal, released: Some(true), ..refused("ran", dlock_exit, store) }
}

impl Expected<'_> {
    fn json(&self) -> String {
        let or_null = |value: Option<String>| value.unwrap_or_else(|| "null".into());
        let text = |text: Option<&str>| or_null(text.map(|text| serde_json::Value::from(text).to_string()));
        let granted = self.released.is_some();
        let fencing = if granted { "N" } else { "null" };
        let locks: Vec<String> = self
            .names
            .iter()
            .map(|name| format!("{{\"name\":{},\"fencing_token\":{fencing}}}", text(Some(name))))
            .collect();
        format!(
            "{{\"version\":1,\"outcome\":\"{}\",\"dlock_exit\":{},\"exit_status\":{},\"signal\":{},\"locks\":[{}],\
             \"backend\":{},\"host\":HOST,\"user\":USER,\"started_at\":TIME,\"waited_ms\":MS,\"held_ms\":{},\
             \"renewals\":N,\"released\":{},\"holder\":{},\"reason\":null,\"error\":{},\"done\":null,\"any\":null}}\n",
            self.outcome,
            self.dlock_exit,
            or_null(self.exit_status.map(|status| status.to_string())),
            or_null(self.signal.map(|signal| signal.to_string())),
            locks.join(","),
            text(self.backend),
            if granted { "MS" } else { "null" },
            or_null(self.released.map(|released| released.to_string())),
            self.holder,
            text(self.error),
        )
    }

    /// Asserts that this is the content of the report `r` in the place, and that dlock ended accordingly.
    #[track_caller]
    fn assert(&self, place: &Place, output: &Output) {
        assert_eq!(normal(&place.read("r")), self.json(), "{output:?}");
        let exit = match output.exit {
            Exit::Code(status) => status,
            Exit::Signal(signal) => 128 + signal,
        };
        assert_eq!(exit, self.dlock_exit, "{output:?}");
        assert_nothing_else(place);
        std::fs::remove_file(place.path("r")).unwrap();
    }
}

/// The message of dlock, without its start.
#[track_caller]
fn said(output: &Output) -> &str {
    let line = output.stderr.strip_prefix("dlock: ").and_then(|line| line.strip_suffix('\n'));
    line.filter(|line| !line.contains('\n')).unwrap_or_else(|| panic!("one line: {output:?}"))
}

/// Asserts that no file is left that was only on its way.
#[track_caller]
pub fn assert_nothing_else(place: &Place) {
    let names = std::fs::read_dir(place.path(".")).unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains(".tmp")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A report in which values that differ between runs are replaced by their kind, unless they are null.
fn normal(report: &str) -> String {
    let mut text = report.to_owned();
    for (key, shown) in [
        ("fencing_token", "N"),
        ("host", "HOST"),
        ("user", "USER"),
        ("started_at", "TIME"),
        ("acquired_at", "TIME"),
        ("waited_ms", "MS"),
        ("held_ms", "MS"),
        ("expires_in_ms", "MS"),
        ("renewals", "N"),
    ] {
        let key = format!("\"{key}\":");
        let mut parts = text.split(&key);
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find([',', '}']).unwrap_or(part.len());
            let value = &part[..end];
            check(shown, value);
            replaced += &key;
            replaced += if value == "null" { value } else { shown };
            replaced += &part[end..];
        }
        text = replaced;
    }
    text
}

/// Whether this is such a value at all.
#[track_caller]
fn check(shown: &str, value: &str) {
    let text = value.trim_matches('"');
    let is_good = match shown {
        _ if value == "null" => true,
        "N" | "MS" => value.parse::<u64>().is_ok(),
        // 2026-01-31T02:00:00.123Z
        "TIME" => {
            let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
            shape == "0000-00-00T00:00:00.000Z" && value.len() == text.len() + 2
        }
        "HOST" => text == nix::unistd::gethostname().unwrap().to_string_lossy(),
        _ => value.len() > 2,
    };
    assert!(is_good, "not {shown}: {value}");
}
