//! A held lock, its waiters, and the record of their turns.

use crate::support::dlock::Dlock;
use crate::support::process;
use crate::support::running::{Exit, Running};
use crate::support::store::Store;
use crate::support::wait::{eventually, until};
use crate::support::{SOON, probe};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::time::Duration;

/// The cost of a dlock that is stopped or killed at the head of the queue for the next one: half a second, and
/// the delay of a busy machine. Every lease here is much longer.
pub const SHORTLY: Duration = Duration::from_secs(10);

/// The lock `x` of a store, and its queue.
pub struct Queue {
    /// The store of the lock.
    pub store: Store,
    ttl: &'static str,
}

/// One line of the record that the commands write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `start`, `end`, or `overlap` with another one.
    pub what: String,
    /// The name of the process.
    pub pid: i32,
    /// On the clock that counts through suspend.
    pub ns: u64,
}

impl Queue {
    /// With a lease of a minute, longer than any test waits.
    pub fn of(store: Store) -> Self {
        Self { store, ttl: "60s" }
    }

    /// One on each kind of store.
    pub fn each() -> Vec<Self> {
        Store::each().into_iter().map(Self::of).collect()
    }

    /// With another lease.
    pub fn ttl(self, ttl: &'static str) -> Self {
        Self { ttl, ..self }
    }

    /// The same queue through another port.
    pub fn behind(&self, port: u16) -> Self {
        Self { store: self.store.behind(port), ttl: self.ttl }
    }

    /// `dlock run` that waits without a limit.
    pub fn run(&self) -> Dlock {
        self.store.run_with_ttl(self.ttl).args(["--wait", "forever"])
    }

    /// A command that records its name and its turn, and keeps the lock until it is [let go](Queue::let_go).
    pub fn keeping(&self, run: Dlock, name: &str) -> Dlock {
        self.taking_turn(run, name, &format!("until '{}'", self.store.place.arg(&format!("go-{name}"))))
    }

    /// A command that records its name and its turn, and ends.
    pub fn passing(&self, run: Dlock, name: &str) -> Dlock {
        self.taking_turn(run, name, "for 0")
    }

    fn taking_turn(&self, run: Dlock, name: &str, how_long: &str) -> Dlock {
        let (order, log) = (self.store.place.arg("order"), self.store.place.arg("log"));
        let probe = probe::path();
        run.sh(&format!(
            "unset LD_PRELOAD; echo {name} >>'{order}'; exec '{}' hold '{log}' {how_long}",
            probe.display()
        ))
    }

    /// A holder that keeps the lock until it is let go.
    #[track_caller]
    pub fn holder(&self, name: &str) -> Running {
        let mut holder = self.keeping(self.store.run_with_ttl(self.ttl), name).spawn();
        holder.await_ready();
        holder
    }

    /// A waiter whose command ends at once.
    #[track_caller]
    pub fn waiter(&self, name: &str) -> Running {
        self.joined(self.passing(self.run(), name))
    }

    /// A waiter whose command keeps the lock until it is let go.
    #[track_caller]
    pub fn keeper(&self, name: &str) -> Running {
        self.joined(self.keeping(self.run(), name))
    }

    /// Starts it, and waits until it is in the queue. If this process has the privilege, busy processors do not make it
    /// miss the half second in which it may claim the lock.
    #[track_caller]
    pub fn joined(&self, run: Dlock) -> Running {
        let run = run.before_exec(raise_priority).spawn();
        until(SOON, "one more waiter", || self.pids().last() == Some(&run.pid()));
        run
    }

    /// Lets the process of this name go.
    pub fn let_go(&self, name: &str) {
        self.store.place.write(&format!("go-{name}"), "");
    }

    fn is_redis(&self) -> bool {
        self.store.url().starts_with("redis:")
    }

    /// The queue in the store: the process ids of the dlocks, in order.
    pub fn pids(&self) -> Vec<i32> {
        if self.is_redis() {
            return self.pids_in_redis();
        }
        let sidecar = self.sidecar();
        let queue = sidecar["line"].as_array().cloned().unwrap_or_default();
        queue.iter().map(|waiter| pid_of(&waiter["identity"])).collect()
    }

    fn pids_in_redis(&self) -> Vec<i32> {
        let [queue, waiters] = ["queue", "waiters"].map(|what| self.side_key(what));
        // In one step: between two steps a waiter might leave.
        let script = "return {redis.call('ZRANGE', KEYS[1], 0, -1), redis.call('HGETALL', KEYS[2])}";
        let reply = self.store.space().command(&["EVAL", script, "2", &queue, &waiters]);
        let crate::support::resp::Value::List(lists) = reply else { panic!("{reply:?}") };
        let fields = lists[1].texts();
        let identity = |token: &String| {
            let at = fields.iter().step_by(2).position(|field| field == token).expect("a note of each");
            let text = fields[2 * at + 1].splitn(6, ' ').nth(5).expect("who it is").to_owned();
            pid_of(&serde_json::from_str(&text).expect("an identity"))
        };
        lists[0].texts().iter().map(identity).collect()
    }

    /// The tickets of the waiters.
    pub fn numbers(&self) -> Vec<u64> {
        if self.is_redis() {
            let range = ["ZRANGE", &self.side_key("queue"), "0", "-1", "WITHSCORES"];
            let scores = self.store.space().command(&range).texts();
            return scores.chunks(2).map(|pair| pair[1].parse().expect("a number")).collect();
        }
        let queue = self.sidecar()["line"].as_array().cloned().unwrap_or_default();
        queue.iter().filter_map(|waiter| waiter["ticket"].as_u64()).collect()
    }

    /// The name of a key beside the lock's own.
    pub fn side_key(&self, what: &str) -> String {
        format!("dlock#{what}:{{{}}}", self.store.space().key("x"))
    }

    /// The sidecar, null if there is none.
    #[track_caller]
    fn sidecar(&self) -> serde_json::Value {
        let exists = || self.store.place.locks().join("x.dlock").exists();
        eventually(SOON, "a sidecar that is not being written", || {
            Some(self.store.place.noted("x")).filter(|noted| !noted.is_null() || !exists())
        })
    }

    /// Waits until exactly these are in the queue, in this order.
    #[track_caller]
    pub fn await_order(&self, expected: &[&Running]) {
        let expected: Vec<i32> = expected.iter().map(|run| run.pid()).collect();
        let mut seen = Vec::new();
        until(SOON, &format!("{expected:?} queued"), || {
            seen = self.pids();
            seen == expected
        });
    }

    /// Waits until the command of this name has the lock.
    #[track_caller]
    pub fn await_turn(&self, name: &str) {
        until(SOON, &format!("the turn of {name}"), || {
            let order = self.order();
            // Recorded before the probe runs.
            order.iter().any(|had| had == name) && self.count("start") == order.len()
        });
    }

    fn count(&self, what: &str) -> usize {
        self.events().iter().filter(|event| event.what == what).count()
    }

    /// The holders so far.
    pub fn order(&self) -> Vec<String> {
        self.store.place.read("order").lines().map(str::to_owned).collect()
    }

    /// The record so far.
    pub fn events(&self) -> Vec<Event> {
        let log = self.store.place.read("log");
        let read = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            Some(Event {
                what: (*words.first()?).to_owned(),
                pid: words.get(1)?.parse().ok()?,
                ns: words.get(2)?.parse().ok()?,
            })
        };
        log.lines().filter_map(read).collect()
    }

    /// When the command of this name began.
    #[track_caller]
    pub fn start_of(&self, name: &str) -> u64 {
        self.await_turn(name);
        let turn = self.order().iter().position(|had| had == name).expect("its turn");
        self.events().iter().filter(|event| event.what == "start").nth(turn).expect("its start").ns
    }

    /// From the end of one command to the start of the next, for consecutive holders.
    #[track_caller]
    pub fn hand_off(&self, from: &str, to: &str) -> Duration {
        let begin = self.start_of(to);
        let turn = self.order().iter().position(|had| had == from).expect("its turn");
        let end =
            self.events().into_iter().filter(|event| event.what == "end").nth(turn).expect("its end").ns;
        Duration::from_nanos(begin.checked_sub(end).expect("one after the other"))
    }

    /// Asserts that these had the lock, in this order, one at a time and once.
    #[track_caller]
    pub fn assert_turns(&self, expected: &[&str]) {
        assert_eq!(self.order(), expected);
        let events = self.events();
        assert_eq!(events.len(), 2 * expected.len(), "{events:#?}");
        for turn in events.chunks(2) {
            let whats = (turn[0].what.as_str(), turn[1].what.as_str());
            assert_eq!((whats, turn[0].pid), (("start", "end"), turn[1].pid), "{events:#?}");
        }
    }

    /// Asserts that the store knows no holder and no waiter: only the counter of fencing tokens
    /// is left.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        if self.is_redis() {
            let space = self.store.space();
            let left = space.command(&["KEYS", &format!("*{}*", space.key("x"))]).texts();
            assert!(left.iter().all(|key| crate::support::redis::is_memory(key)), "{left:?}");
            assert!(left.contains(&self.side_key("fencing")), "{left:?}");
            // The server notices the end of a process a moment later.
            until(SOON, "the end of all listening", || {
                let channels = space.command(&["PUBSUB", "CHANNELS", &format!("*{}*", space.key("x"))]);
                channels.texts().is_empty()
            });
            return;
        }
        let sidecar = self.sidecar();
        let empty = serde_json::Value::Array(Vec::new());
        assert_eq!((&sidecar["members"], &sidecar["line"]), (&empty, &empty), "{sidecar}");
        assert!(!self.store.is_held());
    }
}

/// Gives the calling process the highest priority, if it may have that.
fn raise_priority() -> std::io::Result<()> {
    // SAFETY: setpriority(2) takes integers; 0 is the calling process.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    Ok(())
}

fn pid_of(identity: &serde_json::Value) -> i32 {
    identity["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a process id")
}

/// Stops a dlock as a terminal or a shell would: its whole process group.
#[track_caller]
pub fn stop(run: &Running) {
    killpg(Pid::from_raw(run.pid()), Signal::SIGSTOP).expect("a process group");
    until(SOON, "a stopped dlock", || process::stopped(run.pid()));
}

/// Continues it.
pub fn go_on(run: &Running) {
    killpg(Pid::from_raw(run.pid()), Signal::SIGCONT).expect("a process group");
}

/// Asserts that each of them runs its command to its end, without a message.
#[track_caller]
pub fn assert_ran<const N: usize>(runs: [&mut Running; N]) {
    for run in runs {
        let output = run.wait();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{}", output.stdout);
    }
}

/// Kills dlock itself, and waits until everything that it had started has ended.
#[track_caller]
pub fn kill(run: &mut Running) {
    run.signal(Signal::SIGKILL);
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    eventually(SOON, "the end of its other half", || run.marker().bearers().is_empty().then_some(()));
}
