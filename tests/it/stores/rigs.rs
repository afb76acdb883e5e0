//! Tests of the test support itself, on which all other tests depend.

mod entries;

use crate::support::place::Place;
use crate::support::process;
use crate::support::pty::{CTRL_C, CTRL_Z, Terminal};
use crate::support::wait::until;
use crate::support::{SOON, probe};
use std::process::Command;

#[test]
fn an_inherited_lock_is_held_until_the_last_of_a_tree_is_dead() {
    let place = Place::new();
    let inherited_lock = place.inherited_lock();
    let pids = place.arg("pids");
    let args = ["--inherited-lock", inherited_lock.path(), "tree", "3", &pids, "exit", "0"];
    let mut command = Command::new(probe::path());
    command
        .stdout(std::process::Stdio::null())
        .args(args)
        .env(process::Marker::VARIABLE, place.marker().value());
    assert!(command.status().unwrap().success());
    let members: Vec<i32> = place.read("pids").lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(members.len(), 3);
    assert!(members.iter().all(|pid| process::alive(*pid)));
    // Those between them may still be about to end.
    until(SOON, "the end of all others", || place.marker().bearers().len() == 3);
    assert!(!inherited_lock.is_free());
    place.marker().kill_all();
    inherited_lock.await_free();
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
    fn each_test_has_its_own_keyspace() {
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
    fn a_persistent_server_keeps_its_data_over_a_kill() {
        let mut redis = Redis::start_with(Options { persistent: true, ..Options::default() });
        redis.command(&["SET", "k", "v"]);
        redis.restart();
        assert_eq!(redis.command(&["GET", "k"]), Value::Text("v".into()));
    }

    #[test]
    fn a_server_uses_tls() {
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
        let names: Vec<_> = proxy.flights().iter().map(crate::support::flight::Flight::names).collect();
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
    fn fake_servers_send_the_scripted_replies() {
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

mod groups {
    use crate::support::SOON;
    use crate::support::cluster::{self, Cluster};
    use crate::support::masters::{self, Masters};
    use crate::support::pool::Group;
    use crate::support::redis::Redis;
    use crate::support::resp::Value;
    use crate::support::sentinels::{self, Sentinels};
    use crate::support::wait::until;

    fn ok() -> Value {
        Value::Text("OK".into())
    }

    fn count_of_keys(server: &Redis) -> i64 {
        server.command(&["DBSIZE"]).int()
    }

    #[test]
    fn masters_are_independent_and_lose_or_keep_their_data() {
        let mut masters = Masters::start_with(masters::Plan::default());
        assert_eq!((masters.count(), masters.quorum()), (5, 3));
        for (number, node) in masters.living().enumerate() {
            assert_eq!(node.command(&["SET", "k", &number.to_string()]), ok());
        }
        masters.restart(1);
        masters.restart_empty(2);
        masters.kill(3);
        let known: Vec<Value> = masters.command(&["GET", "k"]);
        let text = |text: &str| Value::Text(text.into());
        assert_eq!(known, [text("0"), text("1"), Value::Nil, text("4")]);
        masters.restart_empty(1);
        masters.restart_empty(3);
        assert_eq!(masters.node(1).command(&["GET", "k"]), Value::Nil, "what was saved is read once");
        assert!(masters.renew());
        assert!(masters.living().count() == 5 && masters.living().all(|node| count_of_keys(node) == 0));
        let url = masters.url_of(&[4, 0]);
        let ports = [masters.node(4).port(), masters.node(0).port()];
        assert_eq!(url, format!("redlock://127.0.0.1:{},127.0.0.1:{}/0", ports[0], ports[1]));
    }

    #[test]
    fn a_group_in_use_is_not_lent_again() {
        let mut masters = Masters::lent();
        let _user = masters.node(2).connect();
        assert!(!masters.renew());
    }

    #[test]
    fn a_failover_keeps_replicated_data_and_a_crash_leads_to_another_master() {
        let mut group = Sentinels::lent();
        assert_eq!(group.command(&["SET", "k", "v"]), ok());
        let first = group.master_number();
        group.fail_over();
        let second = group.master_number();
        assert_ne!(first, second);
        assert_eq!(group.command(&["GET", "k"]), Value::Text("v".into()));
        assert_eq!(group.command(&["SET", "k", "w"]), ok());
        group.await_replicas();
        assert!(
            group.replicas().iter().all(|replica| replica.command(&["GET", "k"]) == Value::Text("w".into()))
        );
        assert_eq!(group.crash(), second);
        assert_ne!(group.master_number(), second);
        assert_eq!(group.command(&["GET", "k"]), Value::Text("w".into()));
        assert!(!group.renew(), "one of them is dead");
        group.restart_as_replica(second);
        assert_eq!(group.server(second).command(&["GET", "k"]), Value::Text("w".into()));
        assert!(group.renew());
        assert_eq!(group.command(&["DBSIZE"]), Value::Int(0));
    }

    #[test]
    fn sentinels_use_tls_and_require_their_password() {
        let plan = sentinels::Plan {
            password: Some("s3cret".into()),
            sentinel_password: Some("sent1nel".into()),
            tls: true,
            ..sentinels::Plan::default()
        };
        let group = Sentinels::start_with(plan);
        assert!(group.url().starts_with("rediss-sentinel://:s3cret@127.0.0.1:"), "{}", group.url());
        let named = group.sentinel(2).command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", sentinels::SERVICE]);
        assert_eq!(
            named.texts(),
            ["127.0.0.1".to_owned(), group.master().port().to_string()],
            "the port with TLS"
        );
        group.fail_over();
        assert_eq!(group.command(&["SET", "k", "v"]), ok());
        group.await_replicas();
    }

    #[test]
    fn a_slot_moves_from_node_to_node_with_its_keys() {
        let cluster = Cluster::lent();
        for (key, node) in [("b", 0), ("foo", 2), ("hello", 0), ("a", 2)] {
            assert_eq!(cluster.node_of(key), node, "{key}");
            assert_eq!(cluster.command_at(key, &["SET", key, "v"]), ok());
        }
        let (one, other) = ("{b}one", "{b}other");
        let moving = cluster.begin("b", 1);
        assert_eq!(cluster.node_of("b"), 0);
        assert_eq!(cluster.left(moving), ["b"]);
        // Missing keys are created on the target node.
        assert_eq!(cluster.command_at(one, &["SET", one, "v"]), ok());
        assert_eq!(cluster.left(moving), ["b"]);
        cluster.abort(moving);
        assert_eq!(cluster.node_of(one), 0);
        assert_eq!(cluster.command_at(one, &["GET", one]), Value::Nil);
        let moving = cluster.begin("b", 1);
        assert_eq!(cluster.command_at(other, &["SET", other, "v"]), ok());
        cluster.migrate(moving, &["b"]);
        assert_eq!(cluster.command_at("b", &["GET", "b"]), Value::Text("v".into()));
        cluster.finish(moving);
        cluster.await_agreement();
        assert_eq!(cluster.node_of("b"), 1);
        assert_eq!(cluster.command_at("b", &["GET", "b"]), Value::Text("v".into()));
        cluster.move_slot("b", 0);
        cluster.await_agreement();
        assert_eq!(cluster.command_at(other, &["GET", other]), Value::Text("v".into()));
        assert_eq!(cluster.keys(), ["a", "b", "foo", "hello", "{b}one", "{b}other"]);
    }

    #[test]
    fn a_node_of_a_cluster_comes_back_and_a_replica_takes_its_place() {
        let plan = cluster::Plan {
            replicas: true,
            password: Some("s3cret".into()),
            tls: true,
            ..cluster::Plan::default()
        };
        let mut cluster = Cluster::start_with(plan);
        assert!(cluster.url().starts_with("rediss-cluster://:s3cret@127.0.0.1:"), "{}", cluster.url());
        assert_eq!(cluster.command_at("b", &["SET", "b", "v"]), ok());
        cluster.move_slot("b", 2);
        cluster.await_agreement();
        cluster.move_slot("b", 0);
        cluster.await_agreement();
        until(SOON, "what is replicated", || count_of_keys(cluster.node(3)) == 1);
        // Not before: a node that stood still would lose its place.
        let set = cluster.command_on_all(&["CONFIG", "SET", "cluster-node-timeout", "1000"]);
        assert!(set.iter().all(|reply| *reply == ok()), "{set:?}");
        cluster.node_mut(0).kill();
        assert_eq!(cluster.node_of("b"), 3, "the replica in the master's place");
        until(SOON, "a cluster that works", || {
            cluster.command_at("b", &["GET", "b"]) == Value::Text("v".into())
        });
    }
}
