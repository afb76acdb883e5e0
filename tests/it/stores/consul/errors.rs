//! What is wrong with the agent or the URL, in a sentence.

use crate::stores::refusal::{assert_invalid, assert_refused};
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::web::Web;

#[test]
fn a_url_names_one_agent_and_nothing_else() {
    assert_invalid([
        ("consul://h1,h2", "consul:// takes one agent, such as consul://127.0.0.1:8500"),
        ("consuls://h/locks", "consuls:// has no path: set the prefix of keys with prefix="),
        ("consul+unix:", "consul+unix: takes the path of a socket: consul+unix:///run/consul.sock"),
        ("consul://h?ca_file=/x", "'ca_file' needs TLS: use consuls:// instead of consul://"),
        (
            "consul://me:secret@h",
            "consul:// has no username: a token stands after a colon, as in consul://:TOKEN@HOST",
        ),
        ("consul://h?recipe=mutex", "recipe= is lock or semaphore, not 'mutex'"),
    ]);
}

#[test]
fn what_a_session_cannot_do_is_refused_before_an_agent_is_asked() {
    let (url, semaphore) = ("consul://127.0.0.1:1", "consul://127.0.0.1:1?recipe=semaphore");
    let no_slots = "this lock of Consul has one holder: use recipe=semaphore, or take it exclusively";
    let not_shared = "Consul has no shared locks: take it exclusively, or use another store";
    let too_short = "Consul's sessions last at least 10s";
    for (url, option, message) in [
        (url, &["--shared"][..], not_shared),
        (url, &["--slots", "2"], no_slots),
        (url, &["--ttl", "9s"], too_short),
        (semaphore, &["--shared"], not_shared),
        (semaphore, &["--slots", "2", "--ttl", "9s"], too_short),
    ] {
        let output = Dlock::run().backend(url).args(option).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(64), ""), "{}", output.stderr);
        assert!(output.stderr.contains(message), "{}", output.stderr);
    }
    let acquired = Dlock::bare().args(["acquire", "-b", url, "--ttl", "10m", "x"]).output();
    assert_eq!(acquired.exit, Exit::Code(64), "{}", acquired.stderr);
}

#[test]
fn replies_that_are_not_those_of_consul_are_named() {
    let page = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>";
    let redirect = "HTTP/1.1 301 Moved\r\nLocation: https://h/ui\r\nContent-Length: 0\r\n\r\n";
    let gateway = "HTTP/1.1 502 Bad\r\nContent-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>";
    let leaderless = "HTTP/1.1 500 Bad\r\nContent-Length: 17\r\n\r\nNo cluster leader";
    let end = "; the command did not run";
    for (reply, code, message) in [
        (page, 78, format!("the server does not reply as Consul does: check the host and the port{end}")),
        (redirect, 78, format!("the server redirects to https://h/ui: name the server itself{end}")),
        (
            gateway,
            69,
            format!(
                "the server replies 502 Bad Gateway: a web page: another server or a proxy has answered{end}, see --retry"
            ),
        ),
        (
            leaderless,
            69,
            format!("the server replies 500 Internal Server Error: No cluster leader{end}, see --retry"),
        ),
    ] {
        let fake = Fake::answering_once(reply.repeat(20));
        let url = format!("consul://127.0.0.1:{}", fake.port());
        assert_refused(&url, code, &format!("x on {url}: {message}"));
    }
}

/// The agent passes the session on with the name of its own node.
#[test]
fn a_session_in_another_datacenter_needs_a_node_of_the_agents_name() {
    let web = Web::start(|asked| {
        let index = vec![("X-Consul-Index", "1".to_owned())];
        Some(match asked.path.starts_with("/v1/kv/") {
            true => (404, index, String::new()),
            false => (500, Vec::new(), "rpc error making call: Missing node registration".to_owned()),
        })
    });
    let url = format!("consul://127.0.0.1:{}", web.port());
    let elsewhere = format!("{url}?datacenter=dc2");
    let message = "the agent's node is not registered in the datacenter dc2; if that is another one than the agent's, name an \
                   agent of it in the URL; the command did not run, see --retry";
    assert_refused(&elsewhere, 69, &format!("x on {elsewhere}: {message}"));
    let message = "the server replies 500 Internal Server Error: rpc error making call: Missing node registration; the command \
                   did not run, see --retry";
    assert_refused(&url, 69, &format!("x on {url}: {message}"));
}

#[test]
fn the_environment_names_the_agent_and_the_url_goes_first() {
    let (place, consul) = (Place::new(), Consul::lent());
    let address = format!("127.0.0.1:{}", consul.port());
    let run = |url: &str, address: &str| {
        place.run().backend(url).env("CONSUL_HTTP_ADDR", address).sh("echo ran").output()
    };
    for address in [address.clone(), format!("http://{address}")] {
        assert_eq!(run("consul://", &address).outcome(), (Exit::Code(0), "ran\n", ""));
    }
    assert_eq!(run(&consul.url(), "127.0.0.1:1").outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run("consul://", "127.0.0.1:1").exit, Exit::Code(69));
    assert_eq!(run("consul://", "ftp://h").exit, Exit::Code(78));
}
