//! `--min-hold` across hosts: one job a minute, although their clocks differ by seconds.

mod network;
mod on_one_host;
mod on_two_hosts;

use crate::support::SOON;
use crate::support::place::Place;
use crate::support::running::Running;
use crate::support::wait::until;
use std::time::Duration;

/// How far the second clock is behind, counted from the end of the first run.
const LATE: Duration = Duration::from_secs(2);

/// The options in the crontab besides the lock's place and the command.
const LINE: [&str; 4] = ["-n", "-q", "-E", "0"];
const MIN_HOLD: [&str; 2] = ["--min-hold", "50s"];

/// The clock of the second host is behind: nothing happens in the meantime.
fn be_late() {
    std::thread::sleep(LATE);
}

/// Waits until the command itself, a shell, has ended.
#[track_caller]
fn await_end_of_command(run: &Running, place: &Place) {
    until(SOON, "the last act of the command", || place.path("ended").exists());
    until(SOON, "the end of the command", || {
        !run.marker().bearers().iter().any(|stat| stat.comm == "sh" || stat.comm == "sleep")
    });
}
