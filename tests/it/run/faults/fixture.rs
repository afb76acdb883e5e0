//! A command under a lease, whose dlock reaches the store through a proxy that records what was sent
//! and when: from that follows the time by which the command must be dead.

use crate::support::dlock::Dlock;
use crate::support::flight::Flight;
use crate::support::inherited_lock::InheritedLock;
use crate::support::place::Place;
use crate::support::probe;
use crate::support::proxy::{Proxy, Way};
use crate::support::redis::Redis;
use crate::support::running::{Exit, Output, Running};
use crate::support::store::Store;
use crate::support::wait::{eventually, until};
use crate::support::{SOON, process};
use std::path::Path;
use std::time::Duration;

/// One lock for one test only, and the proxy in front of it.
pub struct Fixture {
    /// The store of the lock.
    pub store: Store,
    /// The proxy.
    pub proxy: Proxy,
    /// The inherited lock of every command of the test.
    pub inherited_lock: InheritedLock,
    pub(super) ttl: Duration,
    user: String,
    password: Option<String>,
    query: String,
}

impl Fixture {
    /// On the Redis that the tests share, with a lease of 6 s.
    pub fn new() -> Self {
        Self::of(Store::redis())
    }

    /// On a Redis for one test only, with a lease of 6 s.
    pub fn on(redis: &Redis) -> Self {
        Self::of(Store::on(redis))
    }

    fn of(store: Store) -> Self {
        let proxy = Proxy::to(store.space().port());
        let inherited_lock = store.place.inherited_lock();
        Self {
            store,
            proxy,
            inherited_lock,
            // A command is started within half of it, and a renewal may be late by 2.5 s, for a busy machine.
            ttl: Duration::from_secs(6),
            user: String::new(),
            password: None,
            query: String::new(),
        }
    }

    /// With another lease.
    pub fn ttl(mut self, seconds: u64) -> Self {
        self.ttl = Duration::from_secs(seconds);
        self
    }

    /// Over RESP2, where the server cannot push.
    pub fn without_push(mut self) -> Self {
        self.query = "&protocol=resp2".to_owned();
        self
    }

    /// As a user with this password.
    pub fn logged_in(mut self, user: &str, password: &str) -> Self {
        self.user = format!("{user}@");
        self.password = Some(password.to_owned());
        self
    }

    /// As a user whose password is in a file.
    pub fn logged_in_by_file(mut self, user: &str, file: &Path) -> Self {
        self.user = format!("{user}@");
        self.password = None;
        self.query = format!("&password_file={}", file.display());
        self
    }

    /// The place of the runs.
    pub fn place(&self) -> &Place {
        &self.store.place
    }

    /// The key of the lock `x`.
    pub fn key(&self) -> String {
        self.store.space().key("x")
    }

    /// Runs one command on the store itself.
    pub fn command(&self, words: &[&str]) -> crate::support::resp::Value {
        self.store.space().command(words)
    }

    /// Whether the lock is held.
    pub fn is_held(&self) -> bool {
        self.store.is_held()
    }

    fn run_at(&self, port: u16, ttl: Duration) -> Dlock {
        let url = self.store.space().url_at(port).replace("//", &format!("//{}", self.user)) + &self.query;
        let run = self.place().run().backend(url).args(["--ttl", &format!("{}ms", ttl.as_millis())]);
        match &self.password {
            Some(password) => run.env("REDISCLI_AUTH", password),
            None => run,
        }
    }

    /// The store behind the proxy, as messages name it.
    pub fn proxied_url(&self) -> String {
        self.store.space().url_at(self.proxy.port())
    }

    /// `dlock run` on the lock through the proxy.
    pub fn run(&self) -> Dlock {
        self.run_at(self.proxy.port(), self.ttl)
    }

    /// `dlock run` on the lock without the proxy. The fault is not for it, so its lease is long.
    pub fn direct(&self) -> Dlock {
        self.run_at(self.store.space().port(), self.ttl.max(Duration::from_secs(20)))
    }

    /// A probe that writes its fencing token to a file first.
    pub fn recording(&self, run: Dlock, args: &[&str]) -> Dlock {
        let mut command = vec![
            "sh".to_owned(),
            "-c".to_owned(),
            "echo \"$DLOCK_FENCING_TOKEN\" >>\"$0\"; unset LD_PRELOAD; exec \"$@\"".to_owned(),
            self.place().arg("tokens"),
            probe::path().to_str().expect("a path in UTF-8").to_owned(),
        ];
        command.extend(args.iter().map(|arg| (*arg).to_owned()));
        run.command(command)
    }

    /// The same, with the inherited lock.
    pub fn with_inherited_lock(&self, run: Dlock, args: &[&str]) -> Dlock {
        let words: Vec<&str> = ["--inherited-lock", self.inherited_lock.path()]
            .into_iter()
            .chain(args.iter().copied())
            .collect();
        self.recording(run, &words)
    }

    /// A command that writes the time to a file repeatedly and ignores every signal it can. It ticks when
    /// this returns.
    #[track_caller]
    pub fn ticker(&self) -> Running {
        self.ticker_of(self.run())
    }

    /// The same, under this run.
    #[track_caller]
    pub fn ticker_of(&self, run: Dlock) -> Running {
        let mut run = self.with_inherited_lock(run, &["tick", &self.place().arg("tick")]).spawn();
        run.await_ready();
        run
    }

    /// A command that reports each signal, and exits with status 5 on request. It is ready when
    /// this returns.
    #[track_caller]
    pub fn witness(&self) -> Running {
        self.witness_of(self.run())
    }

    /// The same, under this run.
    #[track_caller]
    pub fn witness_of(&self, run: Dlock) -> Running {
        let go = format!("leave:{}=5", self.place().arg("go"));
        let mut run = self.with_inherited_lock(run, &["signals", &go]).spawn();
        run.await_ready();
        run
    }

    /// A witness without the proxy, which does not have the inherited lock: it belongs to another client.
    #[track_caller]
    pub fn stranger(&self) -> Running {
        let go = format!("leave:{}=5", self.place().arg("go"));
        let mut run = self.recording(self.direct().args(["--wait", "forever"]), &["signals", &go]).spawn();
        run.await_ready();
        run
    }

    /// Makes the witnesses exit.
    pub fn go(&self) {
        self.place().write("go", "");
    }

    /// Makes the witness exit, and asserts that it was undisturbed: no signal, no message of
    /// dlock, the lock free afterwards.
    #[track_caller]
    pub fn assert_undisturbed(&self, mut run: Running) {
        run.assert_running();
        self.go();
        assert_eq!(run.wait().outcome(), (Exit::Code(5), "ready\n", ""));
        assert!(!self.is_held(), "the lock is left");
        self.assert_succession();
    }

    /// The same after a fault that leaves less than half of the lease, or may do so on a busy machine: dlock is right then
    /// to warn that it cannot renew the lock.
    #[track_caller]
    pub fn assert_survived(&self, mut run: Running) {
        run.assert_running();
        self.go();
        let output = run.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(5), "ready\n"), "{}", output.stderr);
        assert_eq!(output.after_renewal_warnings(), [""; 0], "{}", output.stderr);
        assert!(!self.is_held(), "the lock is left");
        self.assert_succession();
    }

    /// Waits until the tree is dead, asserts that this was in time, and that dlock reports it.
    #[track_caller]
    pub fn assert_killed_in_time(&self, mut run: Running) -> Output {
        self.inherited_lock.await_free();
        self.assert_last_tick_in_time();
        let output = run.wait();
        self.assert_reports_loss(&output);
        output
    }

    /// The same where the store still replies, but `renewal` was the last one that it granted.
    #[track_caller]
    pub fn assert_killed_in_time_after(&self, mut run: Running, renewal: &Flight) -> Output {
        self.inherited_lock.await_free();
        let (last, deadline) = (self.last_tick(), self.deadline_after(renewal));
        assert!(last <= deadline, "the command ran {} ns past its deadline", last - deadline);
        let output = run.wait();
        self.assert_reports_loss(&output);
        output
    }

    /// Asserts that dlock ended as after the loss of its lock, and that no process is left.
    #[track_caller]
    pub fn assert_reports_loss(&self, output: &Output) {
        assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
        assert_eq!(output.stdout.lines().next(), Some("ready"), "{}", output.stdout);
        assert_one_loss(output);
        assert!(self.inherited_lock.is_free(), "somebody is left");
    }

    /// A dlock that waits without the proxy, and whose command reports whether every process with the inherited lock is
    /// dead. It is waiting when this returns.
    #[track_caller]
    pub fn next_holder(&self) -> Running {
        let run = self.direct().args(["-v", "--wait", "forever"]);
        let mut next_holder = self.recording(run, &["next-holder", self.inherited_lock.path()]).spawn();
        next_holder.await_stderr("waiting");
        next_holder
    }

    /// Asserts that the next_holder got the lock when all other processes were dead, with a larger fencing token.
    #[track_caller]
    pub fn assert_inherits(&self, mut next_holder: Running) {
        let output = next_holder.wait();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "clean\n"), "{}", output.stderr);
        self.assert_tokens_grow();
    }

    /// Asserts that the next run gets the lock, while no process is alive, with a larger fencing token.
    #[track_caller]
    pub fn assert_succession(&self) {
        let run = self.direct().args(["--wait", "forever"]);
        let output = self.recording(run, &["next-holder", self.inherited_lock.path()]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "clean\n", ""));
        self.assert_tokens_grow();
    }

    /// The fencing tokens of all commands so far.
    pub fn tokens(&self) -> Vec<u64> {
        let text = self.place().read("tokens");
        text.lines().map(|line| line.parse().expect("a fencing token")).collect()
    }

    /// Asserts that each fencing token is larger than the earlier ones, and below 2^53.
    #[track_caller]
    pub fn assert_tokens_grow(&self) {
        let tokens = self.tokens();
        assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]), "{tokens:?}");
        assert!(tokens.iter().all(|token| (1..1 << 53).contains(token)), "{tokens:?}");
    }

    /// The remaining lifetime of the key in milliseconds.
    pub fn pttl(&self) -> i64 {
        self.command(&["PTTL", &self.key()]).int()
    }

    /// Stops dlock when the reply to its request for the lock has arrived, but was not read.
    #[track_caller]
    pub fn stopped_before_the_grant(&self, run: Dlock) -> Running {
        use nix::sys::signal::Signal;
        self.proxy.hold(Way::Down);
        let run = run.spawn();
        until(SOON, "a lock at the store", || self.is_held());
        run.signal(Signal::SIGSTOP);
        until(SOON, "a stopped dlock", || process::stopped(run.pid()));
        self.proxy.heal();
        eventually(SOON, "an answer handed over", || self.leases().first()?.answered);
        run
    }
}

/// Asserts that the loss was reported in one line, after at most one warning.
#[track_caller]
pub fn assert_one_loss(output: &Output) {
    let [loss] = output.after_renewal_warnings()[..] else { panic!("{}", output.stderr) };
    assert!(loss.starts_with("dlock: x on redis://"), "{}", output.stderr);
    let warnings = usize::from(loss.contains(": the lock could not be renewed in time"));
    assert!(output.stderr.lines().count() <= 1 + warnings, "{}", output.stderr);
}
