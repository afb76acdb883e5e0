//! Time that counts through suspend. The only module that reads the operating system's clocks.
//!
//! `std::time::Instant` is `CLOCK_MONOTONIC`, which stands still while a host is suspended (rust-lang/rust#87906), so
//! that a lease would end at the store long before it ends here. Deadlines are therefore kept on `CLOCK_BOOTTIME`.

use std::io;
use std::ops::{Add, Sub};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::readiness::Readiness;

const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;

/// A moment on the clock that counts through suspend: the time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment(Duration);

impl Moment {
    /// Reads the clock.
    pub fn now() -> Moment {
        let time = clock_gettime(CLOCK).expect("the boot-time clock can always be read");
        Moment(Duration::from(time))
    }

    /// Returns the moment this long after boot.
    pub const fn from_boot(since: Duration) -> Moment {
        Moment(since)
    }

    /// Returns the time from boot to this moment.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns this moment moved towards boot, at most to boot itself.
    pub fn saturating_sub(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(by))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(by))
    }
}

impl Sub<Moment> for Moment {
    type Output = Duration;
    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    fn sub(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Returns the microseconds of the wall clock since 1970; only ever a seed for a counter, never a deadline.
pub fn wall_micros() -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME)
        .map(|time| Duration::from(time).as_micros().try_into().unwrap_or(u64::MAX))
        .unwrap_or(0)
}

/// Returns the id of the boot that [`Moment`]s count from (`random(4)`, `boot_id`); empty if the system has none.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// A timer on the clock that counts through suspend, as a descriptor that becomes readable.
pub struct Timer(TimerFd);

impl Timer {
    /// Creates an unset timer, close-on-exec and non-blocking.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Timer> {
        Timer::on(timerfd::ClockId::CLOCK_BOOTTIME)
    }

    fn on(clock: timerfd::ClockId) -> io::Result<Timer> {
        Ok(Timer(TimerFd::new(clock, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?))
    }

    /// Sets the timer to one moment (immediately if that is past), or unsets it.
    ///
    /// # Errors
    /// See `timerfd_settime(2)`.
    pub fn set(&self, at: Option<Moment>) -> io::Result<()> {
        match at {
            None => self.0.unset()?,
            // A zero time would disarm the timer; one nanosecond after boot is past as well.
            Some(at) => self.0.set(
                Expiration::OneShot(TimeSpec::from(at.since_boot().max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::TFD_TIMER_ABSTIME,
            )?,
        }
        Ok(())
    }

    /// Returns whether the timer has expired since it was last set; reading clears that.
    pub fn take_expiry(&self) -> bool {
        self.0.wait().is_ok()
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A [`Timer`] for the event loop.
pub struct Alarm(Option<(Timer, Readiness)>);

impl Alarm {
    /// Creates an alarm on the current runtime.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Alarm> {
        let timer = Timer::new()?;
        let readiness = Readiness::of(&timer)?;
        Ok(Alarm(Some((timer, readiness))))
    }

    /// Creates an alarm that needs no descriptor. It may be up to a second late after a suspend.
    pub fn without_descriptor() -> Alarm {
        Alarm(None)
    }

    /// Waits until the moment is past. Dropping the future leaves nothing behind: each call sets the timer anew.
    pub async fn until(&self, at: Moment) {
        loop {
            let now = Moment::now();
            if now >= at {
                return;
            }
            match &self.0 {
                Some((timer, readiness)) if timer.set(Some(at)).is_ok() => {
                    readiness.wait().await;
                    timer.take_expiry();
                }
                // The runtime's clock stands still while the host is suspended.
                _ => tokio::time::sleep((at - now).min(Duration::from_secs(1))).await,
            }
        }
    }
}

/// Reports when the wall clock was set (`timerfd_create(2)`, `TFD_TIMER_CANCEL_ON_SET`): the only sign that a
/// paused virtual machine shows when its host corrects the clock after the pause.
pub struct WallClockWatch(Option<(Timer, Readiness)>);

impl WallClockWatch {
    /// Starts to watch. If the kernel does not support it, [`WallClockWatch::was_set`] never resolves.
    pub fn start() -> WallClockWatch {
        let timer = Timer::on(timerfd::ClockId::CLOCK_REALTIME);
        let watch = timer.and_then(|timer| Readiness::of(&timer).map(|readiness| (timer, readiness)));
        let watch = WallClockWatch(watch.ok());
        watch.arm();
        watch
    }

    fn arm(&self) {
        if let Some((timer, _)) = &self.0 {
            let far = TimeSpec::from(Duration::from_secs(1 << 40));
            let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
            // A kernel that refuses leaves the timer unset: then nothing is ever reported.
            let _ = timer.0.set(Expiration::OneShot(far), flags);
        }
    }

    /// Waits until the wall clock is set. Dropping the future loses nothing.
    pub async fn was_set(&self) {
        let Some((timer, readiness)) = &self.0 else { return std::future::pending().await };
        loop {
            readiness.wait().await;
            // The timer never expires, so the wait ends with ECANCELED (which nix reports as success).
            if timer.take_expiry() {
                self.arm();
                return;
            }
        }
    }
}
