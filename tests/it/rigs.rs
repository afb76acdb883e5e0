//! The rigs themselves work: what a test of dlock proves is worth no more than what it stands on.

use crate::support::place::Place;
use crate::support::process;
use crate::support::pty::{CTRL_C, CTRL_Z, Terminal};
use crate::support::wait::until;
use crate::support::{SOON, probe};
use std::process::Command;

#[test]
fn a_leash_is_held_until_the_last_of_a_tree_is_dead() {
    let place = Place::new();
    let leash = place.leash();
    let pids = place.arg("pids");
    let args = ["--leash", leash.path(), "tree", "3", &pids, "exit", "0"];
    let mut command = Command::new(probe::path());
    command
        .stdout(std::process::Stdio::null())
        .args(args)
        .env(process::Marker::VARIABLE, place.marker().value());
    assert!(command.status().unwrap().success());
    let members: Vec<i32> = place.read("pids").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(members.len(), 3);
    assert!(members.iter().all(|pid| process::alive(*pid)));
    assert_eq!(place.marker().bearers().len(), 3);
    assert!(!leash.is_free());
    place.marker().kill_all();
    leash.await_free();
    assert!(!members.iter().any(|pid| process::alive(*pid)));
}

#[test]
fn a_shell_on_a_terminal_has_job_control() {
    let place = Place::new();
    let mut terminal = Terminal::bash(&place);
    terminal.line("sleep 1000");
    let sleep = terminal.process("sleep");
    until(SOON, "sleep in the foreground", || terminal.foreground() == sleep);
    terminal.type_keys(CTRL_Z);
    terminal.expect("Stopped");
    assert!(process::stopped(sleep));
    terminal.line("fg");
    until(SOON, "sleep in the foreground again", || {
        terminal.foreground() == sleep && !process::stopped(sleep)
    });
    terminal.type_keys(CTRL_C);
    until(SOON, "the shell in the foreground", || terminal.foreground() == terminal.leader());
    assert!(!process::alive(sleep));
    terminal.line("echo status=$?");
    terminal.expect("status=130\n");
}

#[cfg(feature = "redis")]
mod servers {
    use crate::support::fake::Fake;
    use crate::support::proxy::{Proxy, Way};
    use crate::support::redis::{Connection, Keyspace, Options, Redis};
    use crate::support::resp::Value;
    use crate::support::tls::Flaw;
    use crate::support::wait::until;
    use crate::support::{SOON, process};
    use std::io::Write;
    use std::time::{Duration, Instant};

    #[test]
    fn a_keyspace_is_a_tests_own() {
        let (mine, yours) = (Keyspace::new(), Keyspace::new());
        assert_eq!(mine.command(&["SET", &mine.key("k"), "1"]), Value::Text("OK".into()));
        assert_eq!(mine.keys(), [mine.key("k")]);
        assert_eq!(yours.keys(), [""; 0]);
    }

    #[test]
    fn a_private_server_stops_resumes_and_restarts_on_its_port() {
        let mut redis = Redis::start_with_args(&["--requirepass", "secret"]);
        assert!(matches!(redis.command(&["GET", "k"]), Value::Error(text) if text.starts_with("NOAUTH")));
        redis.stop();
        assert!(process::stopped(redis.pid()));
        redis.resume();
        let port = redis.port();
        redis.kill();
        assert!(Connection::to(port).is_err());
        redis.restart();
        assert_eq!(redis.port(), port);
        assert_eq!(redis.connect().command(&["AUTH", "secret"]), Value::Text("OK".into()));
    }

    #[test]
    fn a_persistent_server_remembers_over_a_kill() {
        let mut redis = Redis::start_with(Options { persistent: true, ..Options::default() });
        redis.command(&["SET", "k", "v"]);
        redis.restart();
        assert_eq!(redis.command(&["GET", "k"]), Value::Text("v".into()));
    }

    #[test]
    fn a_server_speaks_tls() {
        for flaw in [Flaw::None, Flaw::Expired, Flaw::WrongHost] {
            let redis = Redis::start_with(Options { tls: Some(flaw), ..Options::default() });
            assert!(redis.url().starts_with("rediss://127.0.0.1:"));
        }
    }

    #[test]
    fn the_proxy_logs_flights_and_delays_holds_and_drops() {
        let space = Keyspace::new();
        let proxy = Proxy::to(space.port());
        let mut client = Connection::to(proxy.port()).unwrap();
        client.command(&["PING"]);
        client.command(&["get", &space.key("k")]);
        let names: Vec<_> =
            proxy.flights().iter().map(super::super::support::flight::Flight::names).collect();
        assert_eq!(names, [["PING"], ["GET"]]);

        proxy.delay(Way::Down, Duration::from_millis(50));
        let before = Instant::now();
        client.command(&["PING"]);
        assert!(before.elapsed() >= Duration::from_millis(50));

        proxy.heal();
        proxy.hold(Way::Down);
        let replies = proxy.replies();
        let healer = std::thread::spawn(move || {
            until(SOON, "a held reply", || proxy.replies() > replies);
            proxy.heal();
            proxy
        });
        client.command(&["PING"]);
        let proxy = healer.join().unwrap();

        proxy.duplicate_next(Way::Down);
        assert_eq!(client.command(&["ECHO", "twice"]), Value::Text("twice".into()));
        assert_eq!(client.command(&["PING"]), Value::Text("twice".into()));

        proxy.refuse();
        assert!(Connection::to(proxy.port()).and_then(|mut client| client.try_command(&["PING"])).is_err());
    }

    #[test]
    fn fakes_answer_what_they_are_told() {
        let scripted = Fake::scripted(|words| Some(format!("+{}\r\n", words.join(" ")).into_bytes()));
        assert_eq!(Connection::to(scripted.port()).unwrap().command(&["a", "b"]), Value::Text("a b".into()));
        assert_eq!(scripted.commands(), [["a", "b"]]);

        let silent = Fake::silent();
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", silent.port())).unwrap();
        stream.write_all(b"hello").unwrap();
        until(SOON, "what was said", || silent.heard() == b"hello");
        assert_eq!(silent.connections(), 1);
    }
}
