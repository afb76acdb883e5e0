//! The messages of a waiter.

use super::fixture::{Queue, assert_ran};
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{throughout, until};
use std::time::Duration;

/// A waiter that reports its wait.
struct VerboseWaiter {
    run: Running,
}

impl VerboseWaiter {
    fn start(run: Dlock) -> Self {
        let mut run = run.spawn();
        run.await_stderr("; waiting");
        Self { run }
    }

    /// Asserts what it has printed so far, and waits for the next message.
    #[track_caller]
    fn await_lines(&mut self, expected: &[String]) {
        until(SOON, "so many lines", || self.run.stderr().lines().count() >= expected.len());
        assert_eq!(without_ages(&self.run.stderr()), expected);
    }
}

/// The line that names a holder and a queue position.
fn held_by(holder: &Running, position: usize) -> String {
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().unwrap().name;
    format!(
        "dlock: x is held by {host} (pid {}, {user}, sh) for AGE; waiting at position {position}",
        holder.pid()
    )
}

/// What `-v` reports of a run that was granted the lock, without the wait and the token.
const GRANTED: &str = "dlock: x was granted after AGE, fencing token N";
/// And after its command.
const RELEASED: &str = "dlock: x was released";

/// The lines without the age of the holder or the wait, which must be a duration, and without the fencing token.
#[track_caller]
fn without_ages(text: &str) -> Vec<String> {
    let without = |line: &str| {
        if line == RELEASED {
            return line.to_owned();
        }
        let (before, end) = if line.contains(" was granted ") { (" after ", ',') } else { (" for ", ';') };
        let (front, back) = line.split_once(before).unwrap_or_else(|| panic!("no age: {line:?}"));
        let (age, back) = back.split_once(end).unwrap();
        assert!(
            age.starts_with(|first: char| first.is_ascii_digit()) && age.ends_with(['s', 'm', 'h']),
            "{age:?}"
        );
        let back = match back.strip_prefix(" fencing token ") {
            Some(token) => format!(" fencing token {}", token.parse::<u64>().map_or("not a number", |_| "N")),
            None => back.to_owned(),
        };
        format!("{front}{before}AGE{end}{back}")
    };
    text.lines().map(without).collect()
}

#[test]
fn verbose_reports_the_wait_and_changes_of_the_holder() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let mut a = queue.keeper("a");
        let mut verbose = VerboseWaiter::start(queue.passing(queue.run().arg("-v"), "b"));
        let mut in_ci = VerboseWaiter::start(queue.passing(queue.run().env("CI", "1"), "c"));
        let mut in_json =
            VerboseWaiter::start(queue.passing(queue.run().args(["-v", "--log-format", "json"]), "d"));
        verbose.await_lines(&[held_by(&holder, 2)]);
        in_ci.await_lines(&[held_by(&holder, 3)]);
        let object: serde_json::Value = serde_json::from_str(&in_json.run.stderr()).unwrap();
        let text = format!("dlock: {}", object["message"].as_str().unwrap());
        assert_eq!(without_ages(&text), [held_by(&holder, 4)]);
        assert_eq!((&object["version"], &object["level"]), (&1.into(), &"info".into()));
        queue.let_go("holder");
        assert_ran([&mut holder]);
        let both = [held_by(&holder, 2), held_by(&a, 1)];
        verbose.await_lines(&both);
        queue.let_go("a");
        assert_ran([&mut a]);
        let output = verbose.run.wait();
        let all = [&both[..], &[GRANTED.to_owned(), RELEASED.to_owned()]].concat();
        assert_eq!((output.exit, without_ages(&output.stderr)), (Exit::Code(0), all));
        for reporter in [&mut in_ci, &mut in_json] {
            assert_eq!(reporter.run.wait().exit, Exit::Code(0));
        }
        queue.assert_turns(&["holder", "a", "b", "c", "d"]);
    }
}

#[test]
fn without_verbose_or_with_quiet_no_wait_is_reported() {
    for queue in Queue::each() {
        let mut holder = queue.holder("holder");
        let silent = [
            queue.passing(queue.run(), "plain"),
            queue.passing(queue.run().arg("-q"), "quiet"),
            queue.passing(queue.run().args(["-q", "-v"]), "both"),
            queue.passing(queue.run().arg("-q").env("CI", "1"), "quiet-in-ci"),
        ];
        let mut silent = silent.map(|run| queue.joined(run));
        queue.let_go("holder");
        assert_ran([&mut holder]);
        // Each of them has seen the holder change.
        silent.iter_mut().for_each(|run| assert_ran([run]));
        queue.assert_turns(&["holder", "plain", "quiet", "both", "quiet-in-ci"]);
    }
}

/// One line, however often the holder renews its lease meanwhile, and however often the waiter sends a request.
#[test]
fn an_unchanged_holder_is_reported_once() {
    for queue in Queue::each() {
        let queue = queue.ttl("6s");
        let mut holder = queue.holder("holder");
        let mut reporter = VerboseWaiter::start(queue.passing(queue.run().arg("-v"), "a"));
        throughout(Duration::from_secs(6), "one line", || reporter.run.stderr().lines().count() == 1);
        reporter.await_lines(&[held_by(&holder, 1)]);
        queue.let_go("holder");
        assert_ran([&mut holder]);
        let output = reporter.run.wait();
        let all = [&held_by(&holder, 1), GRANTED, RELEASED].map(str::to_owned);
        assert_eq!((output.exit, without_ages(&output.stderr)), (Exit::Code(0), all.to_vec()));
    }
}

#[test]
fn a_foreign_holder_is_reported_as_such() {
    let queue = Queue::of(Store::redis());
    let space = queue.store.space();
    space.command(&["SET", &space.key("x"), "somebody else's", "PX", "600000"]);
    let mut reporter = VerboseWaiter::start(queue.passing(queue.run().arg("-v"), "a"));
    let said = reporter.run.stderr();
    let expected = format!(
        "dlock: x is held by another program on {} (not a dlock, for another AGE at most); waiting at position 1",
        queue.store.url()
    );
    let (front, back) =
        said.trim_end().split_once("another 9").or(said.trim_end().split_once("another 10")).unwrap();
    let back = back.split_once(" at most").unwrap().1;
    assert_eq!(format!("{front}another AGE at most{back}"), expected);
    space.command(&["DEL", &space.key("x")]);
    let output = reporter.run.wait();
    assert_eq!(output.exit, Exit::Code(0));
    let granted = output.stderr.strip_prefix(&said).expect("the same, and more");
    assert_eq!(without_ages(granted), [GRANTED, RELEASED]);
}

/// Its clock runs thirty times as fast, so that a minute passes soon, but not while it is late.
#[test]
fn the_wait_is_reported_again_each_minute() {
    use crate::run::faults::shim::Clocks;
    let queue = Queue::of(Store::file());
    let mut holder = queue.holder("holder");
    let clocks = Clocks::new(&queue.store.place);
    clocks.set_rate(29_000_000);
    let begun = std::time::Instant::now();
    let mut reporter = VerboseWaiter::start(clocks.of(queue.passing(queue.run().arg("-v"), "a")));
    until(SOON, "four lines", || reporter.run.stderr().lines().count() >= 4);
    // Three minutes later, by its own clock.
    assert!(begun.elapsed() >= Duration::from_secs(5), "{:?}", begun.elapsed());
    queue.let_go("holder");
    assert_ran([&mut holder]);
    let output = reporter.run.wait();
    assert_eq!(output.exit, Exit::Code(0));
    let lines = without_ages(&output.stderr);
    let (waiting, rest) = lines.split_at(lines.len() - 2);
    for (minutes, line) in waiting.iter().enumerate() {
        let expected = held_by(&holder, 1);
        let waited = line.strip_prefix(expected.as_str()).expect("the same holder");
        // How long it has waited is rounded to a second, and it may be late.
        let waited = waited.strip_prefix(" for ").and_then(|waited| waited.split_once('m'));
        assert_eq!(waited.map_or("0", |(minutes, _)| minutes), minutes.to_string(), "{lines:?}");
    }
    assert_eq!(rest, [GRANTED, RELEASED]);
}
