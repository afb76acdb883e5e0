//! When and how the process tree of the command has to be stopped: a pure state machine over values. The guard acts on
//! its decisions.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::deadlines::Deadlines;
use super::signals::StopSignal;
use crate::clock::Moment;

/// What happens to background processes when the command has ended by itself (`--orphans`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Orphans {
    /// They live on without the lock.
    Leave,
    /// The lock is kept until they end.
    Wait,
    /// They are stopped, then the lock is released.
    Kill,
}

/// How the tree is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopOptions {
    /// `--orphans`
    pub orphans: Orphans,
    /// `--stop-signal`
    pub signal: StopSignal,
    /// The time between this signal and SIGKILL (`--grace`).
    pub grace: Duration,
}

/// An event of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// The command may run, until these moments if there is a lease.
    Start(Option<Deadlines>),
    /// A renewal was acknowledged.
    Arm(Deadlines),
    /// The tree needs this much time to die, in addition to what every tree gets.
    Reserve(Duration),
    /// The stop signal now, SIGKILL at the given moment at the latest.
    Terminate {
        /// When SIGKILL follows.
        kill_at: Moment,
    },
    /// SIGKILL now.
    Kill,
    /// dlock is gone: nothing renews the lease any more.
    PeerGone,
    /// Time has passed.
    Tick,
    /// The command itself ended.
    CommandEnded {
        /// It was neither killed by a signal nor had dlock forwarded one that ends it.
        by_itself: bool,
    },
    /// No process of the tree is left.
    TreeGone,
}

/// An action of the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Report to dlock that the deadline came without a renewal.
    ReportDeadline,
    /// Send the stop signal and SIGCONT to every process of the tree.
    Terminate,
    /// Send SIGKILL to every process of the tree, repeatedly until it is gone.
    Kill,
    /// Report the end and exit.
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Parked,
    Running,
    /// The command has ended; the lock is kept for its background processes.
    Lingering,
    Terminating {
        kill_at: Moment,
        accepts_renewals: bool,
    },
    Killing,
    Done,
}

/// The state machine that decides when the tree is stopped.
#[derive(Debug)]
pub struct Stop {
    orphans: Orphans,
    grace: Duration,
    deadlines: Option<Deadlines>,
    /// How much earlier than usual the tree must be stopped, because it is large.
    reserve: Duration,
    phase: Phase,
    ended: bool,
}

impl Stop {
    /// Starts with a command that may not run yet.
    pub fn new(orphans: Orphans, grace: Duration) -> Stop {
        Stop { orphans, grace, deadlines: None, reserve: Duration::ZERO, phase: Phase::Parked, ended: false }
    }

    /// Returns when [`Input::Tick`] is due.
    pub fn wake(&self) -> Option<Moment> {
        match self.phase {
            Phase::Running | Phase::Lingering => {
                self.deadlines.map(|deadlines| deadlines.term_for(self.reserve).min(deadlines.kill))
            }
            Phase::Terminating { kill_at, .. } => Some(self.last_moment(kill_at)),
            Phase::Parked | Phase::Killing | Phase::Done => None,
        }
    }

    /// Returns from when on, and how often, the tree is to be measured: a renewal is late, and SIGTERM may have to come
    /// earlier.
    pub fn measure_from(&self) -> Option<(Moment, Duration)> {
        let is_late = matches!(self.phase, Phase::Running | Phase::Lingering);
        self.deadlines.filter(|_| is_late).map(|deadlines| deadlines.measure_from())
    }

    /// Returns how much earlier than usual the tree must be stopped, because it is large.
    pub fn reserve(&self) -> Duration {
        self.reserve
    }

    /// Returns until when the lease allows the tree to live, if there is one.
    pub fn deadlines(&self) -> Option<Deadlines> {
        self.deadlines
    }

    /// Returns until when SIGTERM may be sent: then SIGKILL is due. `None` if SIGTERM has not been decided.
    pub fn kill_at(&self) -> Option<Moment> {
        match self.phase {
            Phase::Terminating { kill_at, .. } => Some(self.last_moment(kill_at)),
            _ => None,
        }
    }

    /// Returns whether the command may not run yet.
    pub fn is_parked(&self) -> bool {
        self.phase == Phase::Parked
    }

    /// Returns whether SIGKILL has been decided and the tree is not gone yet.
    pub fn is_killing(&self) -> bool {
        self.phase == Phase::Killing
    }

    /// Returns whether the tree is being stopped.
    pub fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Terminating { .. } | Phase::Killing)
    }

    /// Returns whether the tree has ended.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Processes an event and returns the actions to take, in order.
    pub fn on(&mut self, now: Moment, input: Input) -> Vec<Output> {
        match input {
            Input::Start(deadlines) => {
                self.deadlines = deadlines;
                self.phase = Phase::Running;
                self.tick(now)
            }
            Input::Arm(deadlines) => {
                let is_accepted = match self.phase {
                    // Also while it is killed: whether it is dead in time depends on them.
                    Phase::Running | Phase::Lingering | Phase::Killing => true,
                    Phase::Terminating { accepts_renewals, .. } => accepts_renewals,
                    Phase::Parked | Phase::Done => false,
                };
                if is_accepted {
                    self.deadlines = Some(deadlines);
                }
                self.tick(now)
            }
            Input::Reserve(reserve) => {
                self.reserve = reserve;
                self.tick(now)
            }
            Input::Tick => self.tick(now),
            Input::Terminate { kill_at } => self.terminate(now, kill_at),
            Input::Kill | Input::PeerGone => self.kill(),
            Input::CommandEnded { by_itself } => self.command_ended(now, by_itself),
            Input::TreeGone if self.ended && self.phase != Phase::Done => self.finish(),
            Input::TreeGone => vec![],
        }
    }

    fn tick(&mut self, now: Moment) -> Vec<Output> {
        match (self.phase, self.deadlines) {
            (Phase::Running | Phase::Lingering, Some(deadlines))
                if now >= deadlines.kill_for(self.reserve) =>
            {
                self.phase = Phase::Killing;
                vec![Output::ReportDeadline, Output::Kill]
            }
            (Phase::Running | Phase::Lingering, Some(deadlines))
                if now >= deadlines.term_for(self.reserve) =>
            {
                self.phase = Phase::Terminating { kill_at: deadlines.kill, accepts_renewals: false };
                vec![Output::ReportDeadline, Output::Terminate]
            }
            (Phase::Terminating { kill_at, .. }, _) if now >= self.last_moment(kill_at) => self.kill(),
            _ => vec![],
        }
    }

    fn terminate(&mut self, now: Moment, kill_at: Moment) -> Vec<Output> {
        match &mut self.phase {
            Phase::Running | Phase::Lingering => {
                self.phase = Phase::Terminating { kill_at, accepts_renewals: true };
                let mut actions = vec![Output::Terminate];
                actions.extend(self.tick(now));
                actions
            }
            Phase::Terminating { kill_at: planned, .. } => {
                *planned = kill_at.min(*planned);
                self.tick(now)
            }
            Phase::Parked => self.kill(),
            Phase::Killing | Phase::Done => vec![],
        }
    }

    fn kill(&mut self) -> Vec<Output> {
        match self.phase {
            Phase::Killing | Phase::Done => vec![],
            _ => {
                self.phase = Phase::Killing;
                vec![Output::Kill]
            }
        }
    }

    fn command_ended(&mut self, now: Moment, by_itself: bool) -> Vec<Output> {
        self.ended = true;
        match (self.phase, self.orphans) {
            (Phase::Running, Orphans::Leave) if by_itself => self.finish(),
            (Phase::Running, Orphans::Wait) if by_itself => {
                self.phase = Phase::Lingering;
                vec![]
            }
            (Phase::Running, _) => self.terminate(now, now + self.grace),
            _ => vec![],
        }
    }

    fn finish(&mut self) -> Vec<Output> {
        self.phase = Phase::Done;
        vec![Output::Finish]
    }

    /// SIGKILL never comes later than the lease allows.
    fn last_moment(&self, kill_at: Moment) -> Moment {
        self.deadlines.map_or(kill_at, |deadlines| kill_at.min(deadlines.kill_for(self.reserve)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::from_boot(Duration::from_secs(seconds))
    }

    fn lease(term: u64, kill: u64) -> Deadlines {
        Deadlines { earliest: at(term / 2), term: at(term), kill: at(kill), dead: at(kill + 1) }
    }

    fn running(orphans: Orphans) -> Stop {
        let mut stop = Stop::new(orphans, Duration::from_secs(5));
        assert_eq!(stop.on(at(0), Input::Start(Some(lease(20, 25)))), vec![]);
        stop
    }

    #[test]
    fn without_renewal_term_then_kill_before_the_lease_ends() {
        let mut stop = running(Orphans::Leave);
        assert_eq!(stop.wake(), Some(at(20)));
        assert_eq!(stop.on(at(19), Input::Tick), vec![]);
        assert_eq!(stop.on(at(20), Input::Tick), vec![Output::ReportDeadline, Output::Terminate]);
        assert_eq!(stop.on(at(21), Input::Arm(lease(40, 45))), vec![], "a late renewal does not save it");
        assert_eq!(stop.wake(), Some(at(25)));
        assert_eq!(stop.on(at(25), Input::Tick), vec![Output::Kill]);
        assert_eq!(stop.on(at(26), Input::CommandEnded { by_itself: false }), vec![]);
        assert_eq!(stop.on(at(26), Input::TreeGone), vec![Output::Finish]);
        assert!(stop.is_done());
    }

    #[test]
    fn a_renewal_moves_both_moments() {
        let mut stop = running(Orphans::Leave);
        assert_eq!(stop.on(at(10), Input::Arm(lease(30, 35))), vec![]);
        assert_eq!(stop.on(at(29), Input::Tick), vec![]);
        assert_eq!(stop.wake(), Some(at(30)));
    }

    #[test]
    fn a_large_tree_is_stopped_earlier_but_not_before_a_renewal_had_its_chance() {
        let mut stop = running(Orphans::Leave);
        assert_eq!(stop.on(at(10), Input::Reserve(Duration::from_secs(4))), vec![]);
        assert_eq!(stop.wake(), Some(at(16)));
        assert_eq!(stop.on(at(16), Input::Tick), vec![Output::ReportDeadline, Output::Terminate]);
        assert_eq!(stop.kill_at(), Some(at(21)));
        let mut stop = running(Orphans::Leave);
        assert_eq!(stop.on(at(9), Input::Reserve(Duration::from_secs(14))), vec![]);
        assert_eq!(stop.wake(), Some(at(10)));
        assert_eq!(stop.on(at(10), Input::Tick), vec![Output::ReportDeadline, Output::Terminate]);
        assert_eq!(stop.kill_at(), Some(at(11)));
    }

    #[test]
    fn waking_too_late_kills_at_once() {
        let mut stop = running(Orphans::Leave);
        assert_eq!(stop.on(at(90), Input::Tick), vec![Output::ReportDeadline, Output::Kill]);
    }

    #[test]
    fn a_lease_that_has_expired_at_the_start_kills_at_once() {
        let mut stop = Stop::new(Orphans::Leave, Duration::from_secs(5));
        assert_eq!(
            stop.on(at(30), Input::Start(Some(lease(20, 25)))),
            vec![Output::ReportDeadline, Output::Kill]
        );
    }

    #[test]
    fn max_runtime_is_bounded_by_its_grace_and_by_the_lease() {
        let mut stop = running(Orphans::Leave);
        assert_eq!(stop.on(at(18), Input::Terminate { kill_at: at(60) }), vec![Output::Terminate]);
        assert_eq!(stop.wake(), Some(at(25)), "the lease ends first");
        assert_eq!(stop.on(at(19), Input::Arm(lease(70, 75))), vec![]);
        assert_eq!(stop.wake(), Some(at(60)), "renewals go on while the command is being stopped");
        assert_eq!(stop.on(at(60), Input::Tick), vec![Output::Kill]);
    }

    #[test]
    fn a_lost_peer_kills_at_once() {
        for orphans in [Orphans::Leave, Orphans::Wait, Orphans::Kill] {
            assert_eq!(running(orphans).on(at(1), Input::PeerGone), vec![Output::Kill]);
        }
    }

    #[test]
    fn orphans_of_a_command_that_ended_by_itself() {
        let ended = Input::CommandEnded { by_itself: true };
        assert_eq!(running(Orphans::Leave).on(at(1), ended), vec![Output::Finish]);
        assert_eq!(running(Orphans::Kill).on(at(1), ended), vec![Output::Terminate]);
        let mut wait = running(Orphans::Wait);
        assert_eq!(wait.on(at(1), ended), vec![]);
        assert_eq!(wait.wake(), Some(at(20)), "the lease is watched while lingering");
        assert_eq!(wait.on(at(2), Input::TreeGone), vec![Output::Finish]);
    }

    #[test]
    fn what_is_left_after_a_fatal_signal_is_still_the_command() {
        let mut stop = running(Orphans::Leave);
        assert_eq!(stop.on(at(1), Input::CommandEnded { by_itself: false }), vec![Output::Terminate]);
        assert_eq!(stop.wake(), Some(at(6)));
        assert_eq!(stop.on(at(6), Input::Tick), vec![Output::Kill]);
        assert_eq!(stop.on(at(6), Input::TreeGone), vec![Output::Finish]);
    }

    #[test]
    fn tree_gone_before_the_command_ended_is_ignored() {
        assert_eq!(running(Orphans::Leave).on(at(1), Input::TreeGone), vec![]);
    }
}
