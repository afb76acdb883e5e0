//! `--report` and `--metrics-file`: checked before any other action, written after all of them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::sys::stat::{Mode, SFlag};

use super::entry::{Entry, kind};
use super::metrics::Metrics;
use super::outcome::{Outcome, RunReport};
use super::output_file::Target;
use super::{Reporter, reason};
use crate::backend::io_text;
use crate::clock::{Moment, wall_micros};
use crate::exit::Failure;
use crate::input;
use crate::settings::{OutputFiles, Sourced};

/// The mode of a new report, before the umask.
const REPORT_MODE: u32 = 0o666;
/// node_exporter runs as another user.
const METRICS_MODE: u32 = 0o644;
/// The time limit for the lock on the metrics file: each writer takes milliseconds, but there may be many.
const OTHERS_WITHIN: Duration = Duration::from_secs(5);
/// The same limit, and the time limit for a reader, when a signal is to end dlock.
const WITHIN_AFTER_SIGNAL: Duration = Duration::from_millis(50);
/// The time limit for a reader that has stopped or has not opened the FIFO yet.
const READER_WITHIN: Duration = Duration::from_secs(2);
/// The mode of the lock file: any process that can read it could lock it and keep others from updating the
/// metrics.
const LOCK_MODE: Mode = Mode::from_bits_truncate(0o660);
/// The pause between two attempts to lock, from this ...
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// ... to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// What a report begins with.
const REPORT_BEGIN: &[u8] = b"{\"version\":1,\"outcome\":";
/// The maximum length of a metrics file.
const LONGEST_METRICS: u64 = 16 << 20;

#[derive(Debug, Default)]
pub struct Files {
    report: Option<Sourced<Target>>,
    metrics: Option<Sourced<Entry>>,
}

impl Files {
    /// Checks that the files can be written, by creating and removing others in the same directories, and that the
    /// metrics file is one of dlock. Files that were checked before a failure are kept.
    ///
    /// # Errors
    /// A file cannot be written (64, or 78 when a configuration file names it).
    pub fn check(&mut self, wanted: &OutputFiles) -> Result<(), Failure> {
        if let Some(Sourced { value, source }) = &wanted.report {
            let path = if value == "-" { Path::new("/dev/stderr") } else { value };
            let target = Target::find(path).map_err(|error| source.failure(reason(&error)))?;
            self.report = Some(Sourced { value: target, source: source.clone() });
        }
        if let Some(Sourced { value, source }) = &wanted.metrics {
            let entry = check_metrics(value).map_err(|error| source.failure(reason(&error)))?;
            if let Some(Sourced { value: Target::File(report), .. }) = &self.report
                && report.is_same(&entry).unwrap_or(true)
            {
                let both = format!("'{}' is the file of --report too", value.display());
                // The metrics must not be overwritten by the report.
                self.report = None;
                return Err(source.failure(both));
            }
            self.metrics = Some(Sourced { value: entry, source: source.clone() });
        }
        Ok(())
    }

    /// Writes the result of a run. A failure is a warning, and has no other effect.
    pub fn write(&self, report: &RunReport, reporter: &Reporter) {
        if let Some(Sourced { value: target, source }) = &self.report {
            let written = match report.outcome == Outcome::Usage && !is_report(target) {
                // The option may have been meant for the command.
                true => Err(io::Error::other("it is not a report of dlock")),
                false => target.write(report.to_json().as_bytes(), REPORT_MODE, limit(report, READER_WITHIN)),
            };
            if let Err(error) = written {
                reporter.warning(&format!("{source}: cannot write {target}: {}", io_text(&error)));
            }
        }
        if let Some(Sourced { value: entry, source }) = &self.metrics
            && let Err(error) = add_metrics(entry, report)
        {
            reporter.warning(&format!("{source}: this run is not counted: {}", reason(&error)));
        }
    }
}

/// Returns whether the target has nothing but an earlier report.
fn is_report(target: &Target) -> bool {
    let Target::File(entry) = target else { return true };
    let mut begin = Vec::new();
    let read =
        open_regular(entry).and_then(|file| file.take(REPORT_BEGIN.len() as u64).read_to_end(&mut begin));
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    read.as_ref().is_err_and(is_missing) || read.is_ok() && REPORT_BEGIN.starts_with(&begin)
}

fn check_metrics(path: &Path) -> Result<Entry> {
    let Target::File(entry) = Target::find(path)? else {
        bail!("'{}' is not a regular file, which counters need", path.display());
    };
    match open_regular(&lock_entry(&entry)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        lock => drop(lock.with_context(|| format!("cannot use '{}'", path.display()))?),
    }
    read(&entry).with_context(|| format!("'{}'", path.display()))?;
    Ok(entry)
}

/// Reads the current metrics, which the command may have changed since the check.
fn read(entry: &Entry) -> Result<Metrics> {
    let content = match open_regular(entry).and_then(|file| input::read_opened(file, LONGEST_METRICS)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Metrics::default()),
        read => read.context("cannot be read")?,
    };
    let text = String::from_utf8(content).map_err(|_| anyhow!("is not UTF-8"))?;
    Metrics::parse(&text)
        .map_err(|error| anyhow!("is not a metrics file of dlock: {error:#}; it is left unchanged"))
}

fn open_regular(entry: &Entry) -> io::Result<File> {
    match entry.open(OFlag::O_RDONLY)? {
        (file, found) if kind(&found) == SFlag::S_IFREG => Ok(file),
        _ => Err(io::Error::other("not a regular file")),
    }
}

/// Returns a time limit, shortened if a signal is to end dlock. One that killed the command does not count.
fn limit(report: &RunReport, usual: Duration) -> Duration {
    if report.outcome == Outcome::Interrupted { WITHIN_AFTER_SIGNAL } else { usual }
}

fn add_metrics(entry: &Entry, report: &RunReport) -> Result<()> {
    let _lock = lock(entry, limit(report, OTHERS_WITHIN))?;
    let mut metrics = read(entry)?;
    metrics.add(report, Duration::from_micros(wall_micros()));
    let target = Target::File(entry.clone());
    Ok(target.write(metrics.render().as_bytes(), METRICS_MODE, READER_WITHIN)?)
}

/// Locks the file whose flock(2) serializes updates of the metrics. It is never removed: otherwise two
/// processes could lock two different files.
fn lock_entry(metrics: &Entry) -> Entry {
    let mut name = OsString::from(".");
    name.push(metrics.name());
    name.push(".lock");
    metrics.sibling(name)
}

fn make_lock(entry: &Entry) -> io::Result<File> {
    loop {
        // An existing file is only opened: in a world-writable directory, O_CREAT on it can be forbidden
        // (`fs.protected_regular`).
        match open_regular(entry) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        match entry.create(LOCK_MODE) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => return result,
        }
    }
}

fn lock(metrics: &Entry, within: Duration) -> Result<Flock<File>> {
    let until = Moment::now() + within;
    let mut pause = FIRST_PAUSE;
    let mut file = make_lock(&lock_entry(metrics))?;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((file, nix::errno::Errno::EWOULDBLOCK | nix::errno::Errno::EINTR)) => file,
            Err((_, errno)) => return Err(io::Error::from(errno).into()),
        };
        if Moment::now() >= until {
            bail!("other processes keep it locked");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
