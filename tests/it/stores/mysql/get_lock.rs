//! Locks of `GET_LOCK`: their sessions, their names, and users without the table.

use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::mariadb::{DATABASE, MariaDb, Plan};
use crate::support::multiplexer;
use crate::support::place::Place;
use crate::support::process;
use crate::support::running::{Exit, Running};
use nix::sys::signal::Signal;
use std::process::Stdio;

fn url(server: &MariaDb) -> String {
    format!("{}?recipe=get_lock", server.url())
}

fn run(url: &str) -> Dlock {
    Dlock::run().backend(url)
}

/// Starts a run that holds the lock.
fn holder(url: &str, ttl: &str) -> Running {
    let mut run = run(url).args(["--ttl", ttl]).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    run
}

/// The connection that holds a lock.
fn connection(server: &MariaDb, name: &str) -> Option<u64> {
    server.sql(&format!("SELECT IS_USED_LOCK('{name}')")).trim().parse().ok()
}

#[test]
fn a_killed_connection_stops_the_command_at_once() {
    let server = MariaDb::lent();
    // The next renewal would be due in 200 s.
    let mut run = holder(&url(&server), "10m");
    let command = run.command();
    let id = connection(&server, "x").expect("a holder");
    server.sql(&format!("KILL {id}"));
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains("the lock was lost"), "{}", output.stderr);
    assert!(!process::alive(command));
    server.await_free("x");
}

/// dlock does not wait for the server to return.
#[test]
fn the_end_of_the_server_stops_the_command_at_once() {
    let mut server = MariaDb::start_with(Plan::default());
    let mut run = holder(&url(&server), "10m");
    let command = run.command();
    server.kill();
    let output = run.wait_within(SOON);
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(output.stderr.contains("the lock was lost"), "{}", output.stderr);
    assert!(!process::alive(command));
}

/// The server's own limit is shorter than the time between two renewals.
#[test]
fn the_idle_limit_of_the_server_does_not_matter() {
    let args = ["--wait-timeout=1", "--interactive-timeout=1"].map(str::to_owned).to_vec();
    let server = MariaDb::start_with(Plan { args, ..Plan::default() });
    let text = "echo ready; sleep 3; echo done";
    let mut holder = run(&url(&server)).args(["--ttl", "1m"]).sh(text).spawn();
    holder.await_ready();
    let mut waiter = run(&url(&server)).args(["--wait", "1m"]).sh("echo ran").spawn();
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\ndone\n", ""));
    assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// A client that has vanished without a word, as one that has lost its network.
#[test]
fn the_session_of_a_silent_client_ends_with_its_lease() {
    let (server, place) = (MariaDb::lent(), Place::new());
    let mut run =
        place.run().backend(url(&server)).args(["--ttl", "6s"]).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let id = connection(&server, "x").expect("a holder");
    let limit = "SELECT time_ms < 6000 FROM information_schema.processlist WHERE id =";
    assert_eq!(server.sql(&format!("{limit} {id}")), "1\n", "it has been heard of within its lease");
    let stopped: Vec<i32> = run.marker().bearers().iter().map(|process| process.pid).collect();
    stopped.iter().for_each(|pid| process::send(*pid, Signal::SIGSTOP));
    server.await_free("x");
    stopped.iter().for_each(|pid| process::send(*pid, Signal::SIGCONT));
    let output = run.wait();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
}

#[test]
fn a_killed_dlock_keeps_the_lock_until_its_tree_is_dead() {
    let (server, place) = (MariaDb::lent(), Place::new());
    let inherited_lock = place.inherited_lock();
    let args = ["--inherited-lock", inherited_lock.path(), "ignore-term"];
    let mut run = place.run().backend(url(&server)).args(["--ttl", "1m"]).probe(args).spawn();
    run.await_ready();
    let mut other = server.session();
    // It waits in the server, and gets the lock as soon as it is free.
    other.send("SELECT GET_LOCK('x', 600)");
    run.signal(Signal::SIGKILL);
    assert_eq!(other.row(), "1");
    assert!(inherited_lock.is_free(), "the lock was free before the command was dead");
    assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
}

#[test]
fn a_session_cannot_be_acquired_without_a_process() {
    let server = MariaDb::lent();
    let url = url(&server);
    let output = Place::new().bare().args(["acquire", "--ttl", "1m", "-b", &url, "x"]).output();
    let message = format!(
        "dlock: {url} holds a lock only as long as a process does: use dlock run, or a store that keeps leases, such as -b \
         redis://HOST\n"
    );
    assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()));
    for mode in ["--shared", "--slots=2"] {
        let output = run(&url).arg(mode).sh("echo ran").output();
        let option = mode.split('=').next().unwrap();
        let message = format!(
            "dlock: {option}: {url}: GET_LOCK has one holder: take the lock exclusively, or use recipe=table\n"
        );
        assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()));
    }
}

#[test]
fn other_programs_take_the_same_names() {
    let server = MariaDb::lent();
    let (url, mut other) = (url(&server), server.session());
    let longest = "n".repeat(64);
    for name in ["nightly", "Nightly", "a b", "app/nightly", longest.as_str(), "n\u{e4}chtlich"] {
        let literal: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(other.ask(&format!("SELECT GET_LOCK(x'{literal}', 0)")), "1");
        let refused = run(&url).name(name).sh("echo ran").output();
        assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(75), ""), "{name}");
        assert_eq!(other.ask(&format!("SELECT RELEASE_LOCK(x'{literal}')")), "1");
        let text = format!(
            "echo held by $(mariadb --no-defaults -N -S '{}' -u root -e \"SELECT IS_FREE_LOCK(x'{literal}')\")",
            server.socket().display()
        );
        let output = run(&url).name(name).sh(&text).output();
        assert_eq!(output.outcome(), (Exit::Code(0), "held by 0\n", ""), "{name}");
    }
    // With a prefix, the locks of one application have names of their own.
    let prefixed = format!("{url}&prefix=app.");
    assert_eq!(other.ask("SELECT GET_LOCK('app.nightly', 0)"), "1");
    assert_eq!(run(&prefixed).name("nightly").sh("true").output().exit, Exit::Code(75));
    assert_eq!(run(&url).name("nightly").sh("true").output().exit, Exit::Code(0));
}

/// Each is a lock of its own, in the table too.
#[test]
fn a_long_name_is_shortened_and_stays_unique() {
    let server = MariaDb::lent();
    let (one, other) = (format!("{}a", "x".repeat(64)), format!("{}b", "x".repeat(64)));
    let start = |name: &str| {
        let mut run = run(&url(&server)).name(name).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
        run.await_ready();
        run
    };
    let holders = [start(&one), start(&other), start(&"x".repeat(64)), start(&"X".repeat(64))];
    let names = server.sql("SELECT name FROM dlock_locks ORDER BY LENGTH(name), name");
    assert_eq!(names, format!("{}\n{}\n{one}\n{other}\n", "X".repeat(64), "x".repeat(64)));
    let refused = run(&url(&server)).name(&one).sh("true").output();
    assert_eq!(refused.exit, Exit::Code(75));
    assert!(refused.stderr.contains(&one), "{}", refused.stderr);
    for mut holder in holders {
        drop(holder.take_stdin());
        assert_eq!(holder.wait().exit, Exit::Code(0));
    }
}

/// A user that may not even see the database.
#[test]
fn a_user_without_the_table_has_exclusive_locks_only() {
    let server = MariaDb::lent();
    let place = Place::new();
    assert_eq!(run(&url(&server)).sh("true").output().exit, Exit::Code(0));
    for (user, rights) in
        [("nobody", "USAGE ON *.*"), ("reader", "SELECT ON locks.*"), ("other", "SELECT ON locks.jobs")]
    {
        if user == "other" {
            server.sql("CREATE TABLE jobs (id integer)");
        }
        server.create_user(user, "", rights);
        let url = url(&server).replace("root", user);
        let text = "echo ready; echo token=$DLOCK_FENCING_TOKEN; exec cat";
        let mut holder =
            place.run().backend(&url).args(["--ttl", "6s"]).stdin(Stdio::piped()).sh(text).spawn();
        holder.await_ready();
        assert!(connection(&server, "x").is_some(), "{user}");
        assert_eq!(place.run().backend(&url).sh("true").output().exit, Exit::Code(75), "{user}");
        let owner = run(&self::url(&server)).sh("true").output();
        assert_eq!(owner.exit, Exit::Code(75), "{user}: {}", owner.stderr);
        let mut waiter = place.run().backend(&url).args(["--wait", "1m"]).sh("echo ran").spawn();
        drop(holder.take_stdin());
        assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\ntoken=\n", ""), "{user}");
        assert_eq!(waiter.wait().outcome(), (Exit::Code(0), "ran\n", ""), "{user}");
        let once = place.run().backend(&url).args(["--once-per", "1h"]).sh("echo ran").output();
        assert_eq!((once.exit, once.stdout.as_str()), (Exit::Code(64), ""), "{user}: {}", once.stderr);
        let beginning = "without the table dlock_locks a lock has no queue, no nested runs, no tokens, no --once-per and no history";
        assert!(once.stderr.contains(beginning), "{}", once.stderr);
        assert!(once.stderr.contains("see dlock doctor --policy"), "{}", once.stderr);
        server.await_free("x");
        let doctor = place.bare().args(["doctor", "-b", &url]).output();
        assert_eq!(doctor.exit, Exit::Code(0), "{user}: {}", doctor.stdout);
        assert!(doctor.stdout.contains("locks are exclusive only"), "{}", doctor.stdout);
    }
    assert_eq!(server.sql("SELECT name FROM dlock_locks"), "x\n");
}

#[test]
fn status_names_the_connection_of_another_program() {
    let server = MariaDb::lent();
    let mut other = server.session();
    assert_eq!(other.ask("SELECT GET_LOCK('x', 0)"), "1");
    let output = Place::new()
        .bare()
        .args(["status", "-b", &url(&server), "--wide", "x"])
        .env("COLUMNS", "400")
        .output();
    let expected = format!("connection {} of root@localhost", other.id());
    assert!(output.exit == Exit::Code(0) && output.stdout.contains(&expected), "{}", output.stdout);
}

/// Other dlocks see from the row that the lock is kept; for other programs it ends with the process that stays.
#[test]
fn min_hold_lasts_for_other_programs_as_long_as_the_run_stays() {
    let server = MariaDb::lent();
    let mut run = run(&url(&server)).args(["--ttl", "5s", "--min-hold", "10m"]).sh("echo ready").spawn();
    run.await_ready();
    // The session outlasts its idle limit.
    std::thread::sleep(std::time::Duration::from_secs(7));
    run.assert_running();
    assert!(connection(&server, "x").is_some());
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait().exit, Exit::Code(0));
    server.await_free("x");
    let refused = self::run(&url(&server)).sh("true").output();
    assert_eq!(refused.exit, Exit::Code(75), "{}", refused.stderr);
    assert!(refused.stderr.contains("by --min-hold"), "{}", refused.stderr);
}

#[test]
fn doctor_says_what_ends_a_session() {
    let server = MariaDb::lent();
    let doctor = || Place::new().bare().args(["doctor", "--init", "-b", &url(&server)]).output();
    let output = doctor();
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    let text = output.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "20 races of 8 connections for a free lock had one winner each",
        "with its session: when the server is restarted",
        "the connection is one to the server itself",
        "is free when its connection ends",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(server.sql("SELECT COUNT(*) FROM dlock_locks"), "0\n", "left behind");
    let policy = Place::new().bare().args(["doctor", "-q", "--policy", "-b", &url(&server)]).output();
    assert!(policy.stdout.contains("GRANT SELECT, INSERT, UPDATE, DELETE ON"), "{}", policy.stdout);
}

#[test]
fn a_node_of_a_galera_cluster_is_refused_without_confirmation() {
    let server = super::errors::galera_node();
    let url = url(&server);
    let refused = run(&url).sh("echo ran").output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(78), ""), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("the server belongs to a Galera cluster (wsrep_on)"),
        "{}",
        refused.stderr
    );
    let confirmed = run(&format!("{url}&single_writer=yes")).sh("echo ran").output();
    assert_eq!((confirmed.exit, confirmed.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", confirmed.stderr);
    assert!(confirmed.stderr.contains("is for efficiency only"), "{}", confirmed.stderr);
}

/// The connection that a statement goes over may be another one each time, or that of another client.
#[test]
fn a_proxy_that_shares_connections_is_refused() {
    let server = MariaDb::lent();
    let port = multiplexer::start(server.port(), true);
    let table = format!("mysql://root@127.0.0.1:{port}/{DATABASE}");
    let url = format!("{table}?recipe=get_lock");
    let message = format!(
        "dlock: x on {url}: a proxy shares the connections of the server among its clients, so that a lock of GET_LOCK is \
         not that of one client: name the server itself, or use recipe=table; the command did not run\n"
    );
    for _ in 0..3 {
        assert_eq!(run(&url).sh("echo ran").output().outcome(), (Exit::Code(78), "", message.as_str()));
    }
    let doctor = Place::new().bare().args(["doctor", "-b", &url]).output();
    assert_eq!(doctor.exit, Exit::Code(1), "{}", doctor.stdout);
    assert!(doctor.stdout.contains("a proxy shares the connections"), "{}", doctor.stdout);
    assert_eq!(run(&table).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_proxy_that_keeps_a_connection_for_each_client_works() {
    let server = MariaDb::lent();
    let url = format!(
        "mysql://root@127.0.0.1:{}/{DATABASE}?recipe=get_lock",
        multiplexer::start(server.port(), false)
    );
    let mut holder = run(&url).args(["--ttl", "6s"]).stdin(Stdio::piped()).sh("echo ready; exec cat").spawn();
    holder.await_ready();
    assert!(connection(&server, "x").is_some());
    assert_eq!(run(&url).sh("true").output().exit, Exit::Code(75));
    drop(holder.take_stdin());
    assert_eq!(holder.wait().outcome(), (Exit::Code(0), "ready\n", ""));
    let doctor = Place::new().bare().args(["doctor", "-b", &url]).output();
    assert_eq!(doctor.exit, Exit::Code(0), "{}", doctor.stdout);
    let text = doctor.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("a proxy keeps a connection to a server for each client"), "{text}");
}
