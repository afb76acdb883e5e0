//! A host without CPU time, or without memory, for dlock.

use super::fixture::Fixture;
use crate::support::SOON;
use crate::support::process::Marker;
use crate::support::wait::until;
use std::process::{Child, Command};
use std::time::Instant;

/// Processes that only use CPU time.
struct BusyProcesses(Vec<Child>);

impl BusyProcesses {
    fn start(fixture: &Fixture, count: usize) -> Self {
        let hog = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            // So that they are found and killed even when this test is killed.
            command.env(Marker::VARIABLE, fixture.place().marker().value());
            command.spawn().expect("a shell")
        };
        Self((0..count).map(hog).collect())
    }
}

impl Drop for BusyProcesses {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

/// F25
#[test]
fn a_host_without_a_free_processor_loses_no_lease_and_kills_in_time() {
    let fixture = Fixture::new();
    let hogs = BusyProcesses::start(&fixture, 8);
    let witness = fixture.witness();
    // More than a lease.
    fixture.await_renewals(4);
    fixture.assert_survived(witness);
    let run = fixture.ticker();
    let next_holder = fixture.next_holder();
    fixture.await_renewals(1);
    fixture.proxy.hold_both();
    fixture.store.await_death_under_lock(&fixture.inherited_lock);
    fixture.assert_killed_in_time(run);
    drop(hogs);
    fixture.assert_inherits(next_holder);
}

/// F25
#[test]
fn a_dlock_paged_out_repeatedly_loses_no_lease_and_kills_in_time() {
    let fixture = Fixture::new().ttl(5);
    // A process that may lock memory has locked it before it could be paged out.
    let may_not = ["prlimit", "--memlock=0:0", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"];
    let run = fixture.ticker_of(fixture.run().wrapped_by(may_not));
    let halves = [run.pid(), run.guard()];
    let begun = Instant::now();
    let mut taken = 0;
    until(SOON, "two leases", || {
        taken += halves.into_iter().map(page_out).sum::<usize>();
        begun.elapsed() > 2 * fixture.ttl
    });
    assert!(taken > 0, "no memory could be taken away");
    assert!(fixture.is_held() && !fixture.inherited_lock.is_free());
    fixture.proxy.hold_both();
    until(SOON, "the death of the tree", || {
        let _ = halves.map(page_out);
        fixture.inherited_lock.is_free()
    });
    fixture.assert_killed_in_time(run);
    fixture.assert_succession();
}

/// Pages out all memory of a process that can be read again from its file (process_madvise(2)), as a host
/// short of memory does. Returns the number of bytes for which that succeeded.
fn page_out(pid: i32) -> usize {
    const MADV_PAGEOUT: i32 = 21;
    let Ok(maps) = std::fs::read_to_string(format!("/proc/{pid}/maps")) else { return 0 };
    // SAFETY: pidfd_open(2) has no requirements; the descriptor is closed below.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let mut bytes = 0;
    for line in maps.lines().filter(|line| line.contains(" /")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((from, to)) = range else { continue };
        let number = |text| usize::from_str_radix(text, 16).expect("an address");
        let (from, to) = (number(from), number(to));
        let area = libc::iovec { iov_base: std::ptr::without_provenance_mut(from), iov_len: to - from };
        // SAFETY: the kernel reads one iovec; the advice changes where memory is, not its content.
        let advised =
            unsafe { libc::syscall(libc::SYS_process_madvise, pidfd, &raw const area, 1, MADV_PAGEOUT, 0) };
        bytes += usize::try_from(advised).unwrap_or(0);
    }
    // SAFETY: our own descriptor, or -1.
    unsafe { libc::close(i32::try_from(pidfd).unwrap_or(-1)) };
    bytes
}
