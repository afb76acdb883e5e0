//! The only writer to standard error: one line for each message.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use super::{Outcome, describe, describe_none, json, kept_by, printable, shown, time};
use crate::backend::Busy;
use crate::clock::wall_micros;
use crate::duration::{show, show_distance};
use crate::exit::{CONTENDED, Exit, Failure};
use crate::lock::{FencingToken, Holder, LockName, NotDue};
use crate::settings::{CommonArguments, LogFormat};

/// Writes messages, with their level and format.
#[derive(Clone, Debug)]
pub struct Reporter {
    quiet: bool,
    verbose: u8,
    pub(super) format: LogFormat,
    /// Report waiting: on a terminal, with -v, or when `CI` is set.
    pub(super) reports_waiting: bool,
    /// The exit status when another client holds the lock.
    conflict_exit_code: u8,
    /// What messages are about unless they name a lock; the same in all clones.
    subject: Rc<RefCell<Subject>>,
}

/// The only lock, if it is one, and the store.
#[derive(Clone, Debug, Default)]
struct Subject {
    lock: Option<LockName>,
    backend: Option<String>,
}

/// What a line of `--log-format json` contains beside the message. Programs read the event: its words stay the same
/// from version to version.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Details<'a> {
    pub(super) level: &'static str,
    pub(super) event: &'static str,
    pub(super) lock: Option<&'a LockName>,
    pub(super) holder: Option<&'a Holder>,
    pub(super) code: Option<u8>,
}

impl Details<'_> {
    pub(super) fn new(level: &'static str, event: &'static str) -> Self {
        Details { level, event, ..Details::default() }
    }
}

impl Reporter {
    /// Returns the reporter that the command line asks for.
    pub fn of(arguments: &CommonArguments) -> Reporter {
        Reporter::new(arguments.quiet, arguments.verbose, arguments.log_format.unwrap_or_default())
    }

    pub fn new(quiet: bool, verbose: u8, format: LogFormat) -> Reporter {
        let attended =
            nix::unistd::isatty(std::io::stderr()).unwrap_or(false) || crate::input::variable("CI").is_some();
        let reports_waiting = !quiet && (verbose > 0 || attended);
        Reporter {
            quiet,
            verbose,
            format,
            reports_waiting,
            conflict_exit_code: CONTENDED,
            subject: Rc::default(),
        }
    }

    /// Sets what the messages from now on are about.
    pub fn set_subject(&self, names: &[LockName], backend: &str) {
        let lock = if let [name] = names { Some(name.clone()) } else { None };
        *self.subject.borrow_mut() = Subject { lock, backend: Some(backend.to_owned()) };
    }

    /// Returns the same reporter, with `-q` if `quiet` is set: the configuration can set it too.
    pub fn silenced(self, quiet: bool) -> Reporter {
        Reporter { quiet: self.quiet || quiet, reports_waiting: self.reports_waiting && !quiet, ..self }
    }

    /// Returns the same reporter, for a command that exits with this status when another client holds the lock.
    pub fn with_conflict_exit_code(self, conflict_exit_code: u8) -> Reporter {
        Reporter { conflict_exit_code, ..self }
    }

    /// Reports why dlock cannot continue, even with `-q`, and returns the matching exit status.
    pub fn failure(&self, failure: &Failure) -> Exit {
        self.error(failure.kind.into(), failure.kind.into(), &failure.message);
        failure.kind.into()
    }

    /// Writes an error that leads to this exit status, even with `-q`.
    pub fn error(&self, outcome: Outcome, exit: Exit, message: &str) {
        let code = if let Exit::Status(code) = exit { Some(code) } else { None };
        self.write(Details { code, ..Details::new("error", outcome.as_str()) }, message);
    }

    /// Reports that processes of the command could not be stopped, even with `-q`.
    pub fn survivors(&self, message: &str) {
        self.write(Details::new("error", "survivors"), message);
    }

    /// Reports that a lock was lost while its command goes on, even with `-q`.
    pub fn lost(&self, name: &LockName, message: &str) {
        let lock = Some(name);
        self.write(Details { lock, ..Details::new("error", Outcome::Lost.as_str()) }, message);
    }

    /// Writes a warning or notice, or that another client holds the lock; silenced by `-q`.
    pub fn warning(&self, message: &str) {
        if !self.quiet {
            self.write(Details::new("warning", "warning"), message);
        }
    }

    /// Reports that a lock cannot be renewed, even with `-q`.
    pub fn renewal_failing(&self, name: &LockName, message: &str) {
        let lock = Some(name);
        self.write(Details { lock, ..Details::new("warning", "renewal_failing") }, message);
    }

    /// Reports that a lock is renewed again after [`Reporter::renewal_failing`], even with `-q`.
    pub fn renewed(&self, name: &LockName, store: &str) {
        let lock = Some(name);
        let message = format!("{name}: renewed on {store} again");
        self.write(Details { lock, ..Details::new("warning", "renewed") }, &message);
    }

    /// Writes each of these notices; silenced by `-q`.
    pub fn notices(&self, notices: &[String]) {
        for notice in notices.iter().filter(|_| !self.quiet) {
            self.write(Details::new("warning", "notice"), notice);
        }
    }

    /// Writes a prompt to the terminal; the reply is typed after it.
    pub fn question(&self, text: &str) {
        let _ = write!(std::io::stderr(), "dlock: {text} ");
    }

    /// Ends the line of a prompt without a reply.
    pub fn end_of_question(&self) {
        let _ = writeln!(std::io::stderr());
    }

    /// Writes a detail, with `-v` only; silenced by `-q`.
    pub fn detail(&self, message: &str) {
        self.verbose(Details::new("info", "detail"), message);
    }

    fn verbose(&self, details: Details<'_>, message: &str) {
        if self.verbose > 0 && !self.quiet {
            self.write(details, message);
        }
    }

    /// Reports that the lock was granted, with `-v` only.
    pub fn granted(&self, name: &LockName, waited: Duration, fencing: Option<FencingToken>) {
        let token = fencing.map(|token| format!(", fencing token {token}")).unwrap_or_default();
        let message = format!("{name} was granted after {}{token}", show_distance(waited));
        self.verbose(Details { lock: Some(name), ..Details::new("info", "granted") }, &message);
    }

    /// Warns that the store has given a shorter lease than was requested; silenced by `-q`.
    pub fn shorter_lease(&self, name: &LockName, store: &str, requested: Duration, lease: Duration) {
        if !self.quiet {
            // Stores round leases to units of their own.
            let accepted = show(Duration::from_secs(lease.as_secs().max(1)));
            let (lease, requested) = (show(lease), show(requested));
            let message = format!(
                "{name} on {store}: the server limits the lease to {lease}, less than --ttl {requested}: give --ttl \
                 {accepted} to end this warning, or see dlock doctor"
            );
            self.write(Details { lock: Some(name), ..Details::new("warning", "lease") }, &message);
        }
    }

    /// Reports that the store has given another lease than was requested, with `-v` only.
    pub fn other_lease(&self, name: &LockName, requested: Duration, lease: Duration) {
        let message =
            format!("{name}: the server keeps a lease of {}, not --ttl {}", show(lease), show(requested));
        self.verbose(Details { lock: Some(name), ..Details::new("info", "lease") }, &message);
    }

    /// Reports that the lock was released, with `-v` only.
    pub fn released(&self, name: &LockName) {
        let details = Details { lock: Some(name), ..Details::new("info", "released") };
        self.verbose(details, &format!("{name} was released"));
    }

    /// Reports that dlock stays to keep a lock for the rest of the minimum hold time: on a terminal, with `-v`, or when
    /// `CI` is set.
    pub fn stays(&self, name: &LockName, rest: Duration) {
        if self.reports_waiting {
            let rest = show_distance(rest);
            let message = format!(
                "{name}: the command has ended; dlock keeps the lock for another {rest} (--min-hold)"
            );
            self.write(Details { lock: Some(name), ..Details::new("info", "min_hold") }, &message);
        }
    }

    /// Reports that the store keeps a lock for the rest of the minimum hold time, with `-v` only.
    pub fn kept(&self, name: &LockName, rest: Duration) {
        let rest = show_distance(rest);
        let message = format!(
            "{name}: the command has ended; the store keeps the lock for another {rest} (--min-hold)"
        );
        self.verbose(Details { lock: Some(name), ..Details::new("info", "min_hold") }, &message);
    }

    /// Reports that a run with `--once-per` is not due; silenced by `-q`.
    pub fn done(&self, name: &LockName, not_due: &NotDue) {
        if !self.quiet {
            let (ago, due_in) = (show_distance(not_due.ago), show_distance(not_due.due_in));
            let host = &not_due.last.host;
            let message = format!("{name} was done by {host} {ago} ago; not due for another {due_in}");
            let details = Details::new("warning", Outcome::Done.as_str());
            self.write(Details { lock: Some(name), code: Some(0), ..details }, &message);
        }
    }

    /// Reports that other clients hold the lock, or each of those of which one was wanted, and that dlock gives up. Returns
    /// the message.
    pub fn contended(
        &self,
        found: &[(&LockName, &Busy)],
        store: &str,
        waited: Duration,
        will_wait: bool,
    ) -> String {
        let end = match (will_wait, found) {
            (true, _) => format!("gave up after {}", show_distance(waited)),
            (false, [(_, busy)]) if kept_by(busy).is_some() => "not waiting".to_owned(),
            (false, _) => "not waiting, see --wait".to_owned(),
        };
        let line = format!("{}; {end}", describe_none(found, store, describe));
        let (lock, holder) = shown(found);
        self.held(lock, holder, &line);
        line
    }

    /// Reports that another client holds the lock, in these words; silenced by `-q`.
    pub fn held(&self, name: Option<&LockName>, holder: Option<&Holder>, message: &str) {
        if !self.quiet {
            let code = Some(self.conflict_exit_code);
            let details = Details::new("warning", Outcome::Contended.as_str());
            self.write(Details { lock: name, holder, code, ..details }, message);
        }
    }

    /// Returns whether waits are reported: on a terminal, with `-v`, or when `CI` is set; never with `-q`.
    pub fn reports_waiting(&self) -> bool {
        self.reports_waiting
    }

    pub(super) fn write(&self, details: Details<'_>, message: &str) {
        let mut message = printable(message);
        if message.len() > LONGEST_LINE {
            message.truncate(message.floor_char_boundary(LONGEST_LINE));
            message.push_str("...");
        }
        let line = match self.format {
            LogFormat::Text => format!("dlock: {message}\n"),
            LogFormat::Json => {
                let line = self.json(&details, &message);
                // A holder that was written by another program can have any size.
                if line.len() > PIPE_BUF {
                    self.json(&Details { holder: None, ..details }, &message)
                } else {
                    line
                }
            }
        };
        self.emit(&line);
    }

    fn json(&self, details: &Details<'_>, message: &str) -> String {
        let now = Duration::from_micros(wall_micros());
        let subject = self.subject.borrow();
        json::line(&serde_json::json!({
            "version": 1,
            "level": details.level,
            "time": time(now),
            "event": details.event,
            "lock": details.lock.or(subject.lock.as_ref()).map(LockName::as_str),
            "backend": subject.backend,
            "holder": details.holder.map(json::holder),
            "code": details.code,
            "message": message,
        }))
    }

    /// Writes the text in one piece, if standard error takes it.
    pub(super) fn emit(&self, text: &str) {
        if !text.is_empty() && stderr_takes_a_line() {
            // A closed or full standard error changes nothing about the lock.
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    }
}

/// The maximum length of a message: a line fits into one atomic write to a pipe.
const LONGEST_LINE: usize = 3000;
const PIPE_BUF: usize = libc::PIPE_BUF;

/// Whether standard error can be written to without waiting for a stopped reader: a blocked dlock renews
/// nothing. A line is shorter than one atomic write to a pipe (`PIPE_BUF`).
fn stderr_takes_a_line() -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::from(100u16)) != Ok(0)
}
