//! A server that replies, but in a state in which it does not serve: at each of the three requests of a run.
//! `faults::server_states` has the real ones; here each state is simulated, independent of what causes it in a real
//! server.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::redis::{Connection, Redis};
use crate::support::resp::{Value, old_reply};
use crate::support::running::{Exit, Running};
use crate::support::wait::until;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};

/// A proxy that replaces replies of a server.
struct Relay {
    redis: Redis,
    fake: Fake,
    place: Place,
    fault: Arc<Mutex<Fault>>,
}

/// The command that is not executed, the reply instead, and how often that remains so, and was.
#[derive(Default)]
struct Fault {
    operation: &'static str,
    line: &'static str,
    times: usize,
    met: usize,
}

const FOR_EVER: usize = usize::MAX;

impl Relay {
    fn new() -> Self {
        let redis = Redis::start();
        let fault: Arc<Mutex<Fault>> = Arc::default();
        let behind = Mutex::new(Connection::to(redis.port()).unwrap());
        let given = Arc::clone(&fault);
        let fake = Fake::scripted(move |words| {
            if ["HELLO", "CLIENT", "SUBSCRIBE"].contains(&words[0].as_str()) {
                return Some(b"-ERR unknown command\r\n".to_vec());
            }
            let mut fault = given.lock().unwrap();
            if fault.times > 0
                && words
                    .get(4)
                    .is_some_and(|asked| asked.contains(&format!("\"operation\":\"{}\"", fault.operation)))
            {
                fault.times -= 1;
                fault.met += 1;
                return Some(format!("-{}\r\n", fault.line).into_bytes());
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Some(old_reply(&behind.lock().unwrap().command(&words)))
        });
        Self { redis, fake, place: Place::new(), fault }
    }

    fn fault(&self) -> MutexGuard<'_, Fault> {
        self.fault.lock().unwrap()
    }

    fn refuse(&self, operation: &'static str, line: &'static str, times: usize) {
        *self.fault() = Fault { operation, line, times, met: 0 };
    }

    fn run(&self) -> Dlock {
        self.place.run().backend(format!("redis://127.0.0.1:{}/0", self.fake.port()))
    }

    fn holder(&self, args: &[&str]) -> Running {
        let mut holder = self.run().args(args).stdin(Stdio::piped()).sh("echo ready; cat; exit 3").spawn();
        holder.await_ready();
        holder
    }
}

/// Waiting helps: 69 once the wait has expired.
fn passes(line: &'static str) {
    let code = line.split(' ').next().unwrap();
    let relay = Relay::new();
    // Acquire.
    relay.refuse("acquire", line, FOR_EVER);
    let output = relay.run().sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains(code), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    relay.refuse("acquire", line, 3);
    let patient = relay.run().args(["--retry", "1h"]).sh("echo ran").output();
    assert_eq!(patient.outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(relay.fault().met, 3);
    // Renew, for a while.
    let mut run = relay.holder(&["--ttl", "6s"]);
    relay.refuse("renew", line, 3);
    until(SOON, "three renewals", || relay.fault().met == 3);
    let left = || relay.redis.command(&["PTTL", "dlock:x"]).int();
    until(SOON, "a renewal that succeeds", || left() > 4_500);
    // Release.
    relay.refuse("release", line, 1);
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(3), "ready\n"), "{}", output.stderr);
    // On a busy machine, a renewal may take until half of the lease has passed.
    assert_eq!(output.after_renewal_warnings(), [""; 0]);
    assert_eq!(left(), -2, "released after all");
    // Permanently.
    ends_a_hold_in_time(&relay, line);
}

/// F05: the command is dead before the lease can end; and a refused release causes a warning.
fn ends_a_hold_in_time(relay: &Relay, line: &'static str) {
    let code = line.split(' ').next().unwrap();
    relay.refuse("nothing", line, 0);
    let mut run = relay.holder(&["--ttl", "6s"]);
    relay.refuse("renew", line, FOR_EVER);
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains(code), "the reason: {}", output.stderr);
    until(SOON, "the end of the lease", || relay.redis.command(&["EXISTS", "dlock:x"]) == Value::Int(0));
    let mut run = relay.holder(&["--ttl", "6s"]);
    relay.refuse("release", line, FOR_EVER);
    drop(run.take_stdin());
    let output = run.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(3), "ready\n"), "{}", output.stderr);
    assert!(
        output.stderr.contains("could not be released") && output.stderr.contains(code),
        "{}",
        output.stderr
    );
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
}

/// Waiting does not help: the configuration is wrong.
fn is_a_wrong_url(line: &'static str) {
    let code = line.split(' ').next().unwrap();
    let relay = Relay::new();
    relay.refuse("acquire", line, FOR_EVER);
    let output = relay.run().args(["--wait", "forever"]).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
    assert!(output.stderr.contains(code) && output.stderr.contains("redis-cluster://"), "{}", output.stderr);
    // With either protocol.
    assert!(relay.fault().met <= 2, "it goes on asking");
    ends_a_hold_in_time(&relay, line);
}

macro_rules! each {
    ($claim:ident: $($name:ident = $line:literal;)+) => { $(
        #[test]
        fn $name() {
            $claim($line);
        }
    )+ };
}

// F27, F31: with the error texts of Redis 7.
each! { passes:
    loading = "LOADING Redis is loading the dataset in memory";
    readonly = "READONLY You can't write against a read only replica.";
    masterdown = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
    busy = "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.";
    out_of_memory = "OOM command not allowed when used memory > 'maxmemory'.";
    misconf = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.";
    noreplicas = "NOREPLICAS Not enough good replicas to write.";
    clusterdown = "CLUSTERDOWN The cluster is down";
    tryagain = "TRYAGAIN Multiple keys request during rehashing of slot";
}

// F28 without the URL of a cluster.
each! { is_a_wrong_url:
    moved = "MOVED 3999 127.0.0.1:6381";
    ask = "ASK 3999 127.0.0.1:6381";
    crossslot = "CROSSSLOT Keys in request don't hash to the same slot";
}

/// F27: a real one, which refuses to select the database as well.
#[test]
fn a_busy_server_is_unavailable_in_every_database() {
    let (redis, place) = (Redis::start_with_args(&["--lua-time-limit", "1"]), Place::new());
    let port = redis.port();
    std::thread::spawn(move || {
        Connection::to(port).and_then(|mut client| client.try_command(&["EVAL", "while true do end", "0"]))
    });
    until(
        SOON,
        "a busy server",
        || matches!(redis.command(&["PING"]), Value::Error(text) if text.starts_with("BUSY ")),
    );
    for database in ["0", "2", "2?protocol=resp2"] {
        let url = format!("redis://127.0.0.1:{port}/{database}");
        let output = place.run().backend(url).args(["--connect-timeout", "1s"]).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
        assert!(output.stderr.contains("BUSY "), "{}", output.stderr);
    }
    redis.command(&["SCRIPT", "KILL"]);
}

/// F30: a server that loses the script each time, renewals and release included.
#[test]
fn noscript_costs_one_more_request_each_time() {
    let relay = Relay::new();
    let mut run = relay.holder(&["--ttl", "6s"]);
    for _ in 0..3 {
        relay.refuse("renew", "NOSCRIPT No matching script. Please use EVAL.", 1);
        until(SOON, "a renewal by digest", || relay.fault().met == 1);
    }
    relay.refuse("release", "NOSCRIPT No matching script. Please use EVAL.", 1);
    drop(run.take_stdin());
    assert_eq!(run.wait().outcome(), (Exit::Code(3), "ready\n", ""));
    assert_eq!(relay.fault().met, 1);
    assert_eq!(relay.redis.command(&["EXISTS", "dlock:x"]), Value::Int(0));
}

fn demote(redis: &Redis, port: &str) {
    assert_eq!(redis.command(&["REPLICAOF", "127.0.0.1", port]), Value::Text("OK".into()));
}

fn promote(redis: &Redis) {
    assert_eq!(redis.command(&["REPLICAOF", "NO", "ONE"]), Value::Text("OK".into()));
}

/// F26: it copies the data of its new master, which has none.
#[test]
fn a_server_demoted_to_a_replica_without_the_lock_loses_it_at_once() {
    let (redis, other, place) = (Redis::start(), Redis::start(), Place::new());
    let run = place.run().backend(redis.url()).args(["--ttl", "1h", "--grace", "1s"]);
    let mut run = run.sh("echo ready; exec sleep 3600").spawn();
    run.await_ready();
    demote(&redis, &other.port().to_string());
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    // The next run gets the reason why there is no lock here.
    let next = place.run().backend(redis.url()).command(["true"]).output();
    assert_eq!(next.exit, Exit::Code(69), "{}", next.stderr);
    assert!(
        next.stderr.contains("the server is a replica, which takes no writes: name its master"),
        "{}",
        next.stderr
    );
}

/// F27: meanwhile the lock of another client ends.
#[test]
fn waiters_outlast_a_demotion_of_their_server() {
    let (redis, place) = (Redis::start(), Place::new());
    redis.command(&["SET", "dlock:x", "somebody else", "PX", "3600000"]);
    let run = || place.run().backend(redis.url());
    let mut patient = run().args(["-v", "--wait", "forever"]).sh("echo ran").spawn();
    patient.await_stderr("waiting");
    let mut impatient = run().args(["-v", "--wait", "6s"]).sh("echo ran").spawn();
    impatient.await_stderr("waiting");
    // It ends after the demotion. At no time before is there no lock.
    redis.command(&["PEXPIRE", "dlock:x", "2000"]);
    demote(&redis, "1");
    // It sends requests until its wait expires, and reports the state and not that the lock is held.
    let output = impatient.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    assert!(output.stderr.contains("READONLY"), "{}", output.stderr);
    assert!(patient.poll().is_none(), "{}", patient.stderr());
    promote(&redis);
    let output = patient.wait();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", output.stderr);
}
