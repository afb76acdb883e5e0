//! What is wrong with the servers or the URL, in a sentence.

use crate::stores::refusal::assert_invalid;
use crate::support::SOON;
use crate::support::dlock::Dlock;
use crate::support::process;
use crate::support::running::Exit;
use crate::support::wait::until;
use crate::support::zookeeper::{Ensemble, Plan, ZooKeeper};

#[track_caller]
fn assert_refused(url: &str, code: i32, message: &str) {
    let output = Dlock::run().backend(url).args(["--connect-timeout", "10s"]).sh("echo ran").output();
    let shown = url.replace("someone:secret@", "someone@");
    let warning = match url.contains("secret") {
        true => {
            "dlock: a password on the command line can be read by every user of this host: use password_file= or DLOCK_BACKEND\n"
        }
        false => "",
    };
    let expected = format!("{warning}dlock: x on {shown}: {message}\n");
    assert_eq!(output.outcome(), (Exit::Code(code), "", expected.as_str()));
}

#[test]
fn a_root_that_does_not_exist_is_not_created() {
    let zookeeper = ZooKeeper::lent();
    let url = format!("{}/jobs", zookeeper.url());
    let message =
        "the node /jobs in the URL does not exist: create it, or change the URL; the command did not run";
    assert_refused(&url, 78, message);
    assert_eq!(zookeeper.session().children("/jobs").unwrap(), [""; 0]);
}

#[test]
fn the_nodes_of_another_user_are_refused() {
    let zookeeper = ZooKeeper::lent();
    let url = zookeeper.url();
    let with = |user: &str| url.replace("//", &format!("//{user}@"));
    let output = Dlock::run().backend(with("me:mine")).sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
    let message =
        "permission denied for /dlock/x: check its ACL, see dlock doctor --policy; the command did not run";
    assert_refused(&with("someone:secret"), 77, message);
    let mut session = zookeeper.session();
    session.authenticate("me:mine");
    session.delete_all("/dlock").unwrap();
}

#[test]
fn a_session_that_is_too_short_is_refused() {
    let zookeeper =
        ZooKeeper::start_with(&Plan { lines: vec!["maxSessionTimeout=600".to_owned()], ..Plan::default() });
    let message = "the server limits sessions to 600 ms, too short to stop a command in time: raise its \
                   maxSessionTimeout to 1000 ms or more; the command did not run";
    assert_refused(&zookeeper.url(), 78, message);
}

#[test]
fn a_session_that_the_server_shortens_counts() {
    let zookeeper =
        ZooKeeper::start_with(&Plan { lines: vec!["maxSessionTimeout=12000".to_owned()], ..Plan::default() });
    let mut run =
        Dlock::run().backend(zookeeper.url()).args(["--ttl", "60s"]).sh("echo ready; exec sleep 600").spawn();
    run.await_ready();
    let command = run.command();
    zookeeper.daemon(0).stop();
    let began = std::time::Instant::now();
    until(SOON, "the end of the command", || !process::alive(command));
    let took = began.elapsed();
    let output = run.wait();
    zookeeper.daemon(0).resume();
    assert_eq!(output.exit, Exit::Code(76), "{}", output.stderr);
    assert!(took < std::time::Duration::from_secs(12), "stopped after {took:?}");
}

#[test]
fn a_connection_that_is_reset_is_reported_as_in_every_store() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A connection that is closed with bytes unread is reset (RFC 2525, section 2.17).
            let _ = stream.peek(&mut [0]);
        }
    });
    let message =
        "connection reset by peer (no quorum?): see dlock doctor; the command did not run, see --retry";
    assert_refused(&format!("zookeeper://127.0.0.1:{port}"), 69, message);
}

/// F01: what a server does that runs is reported, and not that others do not run.
#[test]
fn an_ensemble_without_a_quorum_is_unavailable() {
    let mut ensemble = Ensemble::lent();
    let zookeeper = &mut ensemble.0;
    (0..2).for_each(|member| zookeeper.kill(member));
    let message = "the server closed the connection (no quorum?): see dlock doctor; the command did not run, see --retry";
    // Until it has noticed, it is silent.
    until(SOON, "the loss of the quorum", || {
        let url = format!("zookeeper://127.0.0.1:{}", zookeeper.port(2));
        Dlock::run().backend(url).sh("echo ran").output().stderr.contains("no quorum?")
    });
    assert_refused(&zookeeper.url(), 69, message);
    // A server that has searched for a leader for a while sends its vote rarely: all of them start anew.
    zookeeper.restart_all();
}

#[test]
fn a_name_with_a_slash_is_one_node() {
    let zookeeper = ZooKeeper::lent();
    let output = Dlock::run().backend(zookeeper.url()).name("a/b").sh("echo ran").output();
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    let mut nodes = zookeeper.session().children("/dlock").unwrap();
    nodes.sort();
    assert_eq!(nodes, ["a%2Fb", "dlock#beside"]);
}

#[test]
fn a_url_names_the_servers_and_a_path() {
    let invalid = |path: &str, why: &str| format!("{path} is not a valid ZooKeeper path: {why}");
    let urls = [
        ("//", "zookeeper:// takes the servers of an ensemble, such as zookeeper://h1,h2,h3".to_owned()),
        ("//h/a//b", invalid("/a//b/dlock/", "it contains an empty component, '.' or '..'")),
        ("//h/a/../b", invalid("/a/../b/dlock/", "it contains an empty component, '.' or '..'")),
        ("//h/zookeeper", invalid("/zookeeper/dlock/", "/zookeeper is reserved for the server")),
        ("//h?prefix=/a//b/", invalid("/a//b/", "it contains an empty component, '.' or '..'")),
        ("//h?prefix=%01", invalid("/\\u{1}", "it contains a character that ZooKeeper does not allow")),
        ("//h?recipe=x", "recipe= is curator, curator-rw or kazoo, not 'x'".to_owned()),
        (
            "//h?db=1",
            "unknown option 'db' for zookeeper:// (known: recipe, prefix, username, password_file, ca_file, cert_file, \
             key_file, server_name, insecure, require_verified_tls)"
                .to_owned(),
        ),
        ("//h?ca_file=/x", "'ca_file' needs TLS: use zookeepers:// instead of zookeeper://".to_owned()),
    ];
    assert_invalid(urls.map(|(url, message)| (format!("zookeeper:{url}"), message)));
}
