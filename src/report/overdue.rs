//! What `dlock status --overdue` says: for people, for Nagios and for programs.
//!
//! Called by `commands/overdue`. What always holds: all three show the same locks.

use std::time::Duration;

use serde_json::{Value, json};

use super::{milliseconds, printable, time};
use crate::duration::{exact, show_distance};
use crate::exit::{Exit, Failure};
use crate::lock::overdue::{AgeLimits, Checked, LastSuccess, Severity};

/// The maximum number of locks that are named in one line.
const MOST_NAMED: usize = 10;

/// The locks that were checked.
pub struct Overdue<'a> {
    pub store: &'a str,
    pub limits: AgeLimits,
    pub locks: &'a [Checked],
    /// The patterns that no lock with a success matches.
    pub unmatched: &'a [String],
    /// What is to be known of the store, for those who read only this line.
    pub notices: &'a [String],
}

impl Overdue<'_> {
    /// Returns how overdue the worst of them is. A pattern without a match stands for a lock without a success.
    pub fn severity(&self) -> Severity {
        let of_pattern = self.unmatched.iter().map(|_| self.limits.severity(None));
        self.locks.iter().map(|lock| lock.severity).chain(of_pattern).max().unwrap_or(Severity::Fine)
    }

    /// Returns the exit status, which is that of a Nagios plug-in.
    pub fn exit(&self) -> Exit {
        match self.severity() {
            Severity::Fine => Exit::SUCCESS,
            Severity::Warning => Exit::OVERDUE,
            Severity::Critical => Exit::LONG_OVERDUE,
        }
    }

    /// Returns a line for each lock that is overdue.
    pub fn text(&self) -> String {
        self.problems().into_iter().map(|(_, problem)| problem + "\n").collect()
    }

    /// Returns what is overdue, each with its severity.
    fn problems(&self) -> Vec<(Severity, String)> {
        let overdue = self.locks.iter().filter(|lock| lock.severity != Severity::Fine);
        let locks = overdue.map(|lock| {
            let name = printable(lock.name.as_str());
            let problem = match (&lock.last, lock.age) {
                (Some(last), Some(age)) => {
                    let limit = match lock.severity {
                        Severity::Critical => self.limits.critical.unwrap_or(self.limits.warning),
                        _ => self.limits.warning,
                    };
                    format!("{name}: {}, more than {} ago", succeeded(last, age), exact(limit))
                }
                _ => format!("{name}: no success is known"),
            };
            (lock.severity, problem)
        });
        let unmatched = self.unmatched.iter().map(|pattern| {
            let problem = format!("{}: no matching lock has a recorded success", printable(pattern));
            (self.limits.severity(None), problem)
        });
        locks.chain(unmatched).collect()
    }

    /// Returns the line that Nagios and Icinga read: the status, what is overdue, and the performance data.
    pub fn nagios(&self) -> String {
        let mut problems = self.problems();
        problems.sort_by_key(|(severity, _)| std::cmp::Reverse(*severity));
        let named: Vec<&str> =
            problems.iter().take(MOST_NAMED).map(|(_, problem)| problem.as_str()).collect();
        let mut text = named.join("; ");
        if problems.len() > named.len() {
            text.push_str(&format!("; and {} more", problems.len() - named.len()));
        }
        if problems.is_empty() {
            text = match self.locks {
                [lock] => format!(
                    "{}: {}",
                    printable(lock.name.as_str()),
                    lock.last
                        .as_ref()
                        .zip(lock.age)
                        .map_or_else(String::new, |(last, age)| succeeded(last, age))
                ),
                locks => format!("{} locks succeeded within {}", locks.len(), exact(self.limits.warning)),
            };
        }
        let status = match self.severity() {
            Severity::Fine => "OK",
            Severity::Warning => "WARNING",
            Severity::Critical => "CRITICAL",
        };
        let limit =
            |limit: Option<Duration>| limit.map_or_else(String::new, |limit| limit.as_secs().to_string());
        let oldest = self.locks.iter().filter_map(|lock| lock.age).max().map(|age| {
            let (warning, critical) = (limit(Some(self.limits.warning)), limit(self.limits.critical));
            format!(" oldest={}s;{warning};{critical};0", age.as_secs())
        });
        let counts = format!("locks={} overdue={}", self.locks.len(), problems.len());
        let notices: String = self.notices.iter().map(|notice| format!("; {}", printable(notice))).collect();
        let text = format!("{text} on {}{notices}", printable(self.store));
        plugin_line(status, &text, &format!(" | {counts}{}", oldest.unwrap_or_default()))
    }

    /// Returns one JSON object.
    pub fn json(&self) -> String {
        let lock = |lock: &Checked| {
            json!({
                "name": lock.name.as_str(),
                "overdue": severity_name(lock.severity),
                "age_ms": lock.age.map(milliseconds),
                "last_success": lock.last.as_ref().map(|last| json!({
                    "granted_at": time(Duration::from_millis(last.began)),
                    "host": last.host,
                    "pid": last.pid,
                    "user": last.user,
                })),
            })
        };
        super::json::line(&json!({
            "version": 1,
            "backend": self.store,
            "overdue": severity_name(self.severity()),
            "locks": self.locks.iter().map(lock).collect::<Value>(),
            "unmatched": self.unmatched,
        }))
    }
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "no",
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

fn succeeded(last: &LastSuccess, age: Duration) -> String {
    let (user, host) = (printable(&last.user), printable(&last.host));
    format!("last success of {user}@{host} began {} ago", show_distance(age))
}

/// Returns the line that Nagios and Icinga read when the locks could not be checked.
pub fn nagios_unknown(failure: &Failure) -> String {
    plugin_line("UNKNOWN", &printable(&failure.message), "")
}

/// A plug-in's line. What follows a bar is read as performance data.
fn plugin_line(status: &str, text: &str, data: &str) -> String {
    format!("DLOCK {status} - {}{data}\n", text.replace('|', "\\u{7c}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::FailureKind;
    use crate::lock::LockName;

    const HOUR: u64 = 3600;

    fn hours(hours: u64) -> Duration {
        Duration::from_secs(hours * HOUR)
    }

    fn checked(limits: AgeLimits, name: &str, age: Option<u64>) -> Checked {
        let now = 1_000 * HOUR * 1000;
        let began = |age: u64| LastSuccess {
            began: now - age * HOUR * 1000,
            host: "web-1".into(),
            pid: 7,
            user: "ops".into(),
        };
        limits.check(LockName::new(name).expect("a name"), age.map(began), now)
    }

    #[test]
    fn each_form_names_what_is_overdue() {
        let limits = AgeLimits { warning: hours(26), critical: Some(hours(50)) };
        let locks: Vec<Checked> = [("a|b", Some(27)), ("fine", Some(3)), ("never", None), ("old", Some(60))]
            .map(|(name, age)| checked(limits, name, age))
            .into();
        let unmatched = ["week*".to_owned()];
        let overdue = Overdue { store: "s", limits, locks: &locks, unmatched: &unmatched, notices: &[] };
        assert_eq!(
            overdue.text(),
            "a|b: last success of ops@web-1 began 1d3h ago, more than 1d2h ago\n\
             never: no success is known\n\
             old: last success of ops@web-1 began 2d12h ago, more than 2d2h ago\n\
             week*: no matching lock has a recorded success\n"
        );
        assert_eq!(
            overdue.nagios(),
            "DLOCK CRITICAL - never: no success is known; old: last success of ops@web-1 began 2d12h ago, more than 2d2h \
             ago; week*: no matching lock has a recorded success; a\\u{7c}b: last success of ops@web-1 began 1d3h ago, more \
             than 1d2h ago on s | locks=4 overdue=4 oldest=216000s;93600;180000;0\n"
        );
        assert_eq!(overdue.exit(), Exit::LONG_OVERDUE);
        let fine = Overdue { locks: &locks[1..2], unmatched: &[], ..overdue };
        assert_eq!((fine.text().as_str(), fine.exit()), ("", Exit::SUCCESS));
        assert_eq!(
            fine.nagios(),
            "DLOCK OK - fine: last success of ops@web-1 began 3h ago on s | locks=1 overdue=0 \
             oldest=10800s;93600;180000;0\n"
        );
    }

    #[test]
    fn a_line_names_ten_locks_at_most() {
        let limits = AgeLimits { warning: hours(1), critical: None };
        let locks: Vec<Checked> =
            (0..12).map(|number| checked(limits, &format!("job-{number}"), None)).collect();
        let line = Overdue { store: "s", limits, locks: &locks, unmatched: &[], notices: &[] }.nagios();
        assert!(line.starts_with("DLOCK WARNING - job-0: no success is known; job-1"), "{line}");
        assert!(
            line.ends_with("job-9: no success is known; and 2 more on s | locks=12 overdue=12\n"),
            "{line}"
        );
    }

    #[test]
    fn a_failure_is_one_line_without_performance_data() {
        let failure = Failure::new(FailureKind::Unavailable, "a\n|b");
        assert_eq!(nagios_unknown(&failure), "DLOCK UNKNOWN - a\\u{a}\\u{7c}b\n");
    }
}
