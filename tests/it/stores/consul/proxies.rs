//! HTTP proxies between dlock and its agent.

use crate::support::SOON;
use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, assert_refused};
use crate::support::fake::Fake;
use crate::support::http_proxy::HttpProxy;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};
use crate::support::tls::{Certificates, Flaw};
use crate::support::wait::until;
use nix::sys::signal::Signal;
use serde_json::json;
use std::time::{Duration, Instant};

/// Nobody but the proxy knows this host.
const AGENT: &str = "agent.invalid:8500";
/// `me:se cret` in base64.
const LOGIN: &str = "Basic bWU6c2UgY3JldA==";

fn run(url: &str, variable: &str, proxy: &str) -> Dlock {
    Dlock::run().backend(url).env(variable, proxy)
}

#[test]
fn requests_without_tls_are_forwarded_and_the_login_is_for_the_proxy_alone() {
    let consul = Consul::lent();
    let proxy = HttpProxy::with_login(consul.port(), LOGIN);
    let url = format!("consul://{AGENT}");
    let variable = format!("http://me:se%20cret@127.0.0.1:{}", proxy.port());
    let mut held = run(&url, "http_proxy", &variable).sh("echo ready; exec sleep 600").spawn();
    held.await_ready();
    let mut waiter = run(&url, "http_proxy", &variable).args(["--wait", "1m", "-v"]).sh("echo ran").spawn();
    waiter.await_stderr("waiting");
    held.signal(Signal::SIGTERM);
    held.wait();
    let waited = waiter.wait();
    assert_eq!((waited.exit, waited.stdout.as_str()), (Exit::Code(0), "ran\n"), "{}", waited.stderr);
    let heads = proxy.heads();
    assert!(heads.iter().all(|head| head.contains(" http://agent.invalid:8500/v1/")), "{heads:?}");
    assert!(heads.iter().all(|head| head.contains("\nhost: agent.invalid:8500")), "{heads:?}");
    assert_eq!((consul.holder("dlock/x/.lock"), consul.sessions()), (None, Vec::new()));
}

#[test]
fn tls_goes_through_a_tunnel_and_proves_the_identity_of_the_agent() {
    let directory = tempfile::Builder::new().prefix("it-proxy-").tempdir().expect("a directory");
    let files = Certificates::make(directory.path(), Flaw::None);
    let consul = Consul::start_with(&json!({}), Some(&files));
    let (_, port) = consul
        .url()
        .split_once('?')
        .unwrap()
        .0
        .rsplit_once(':')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    let proxy = HttpProxy::with_login(port.parse().unwrap(), LOGIN);
    let variable = format!("me:se%20cret@127.0.0.1:{}", proxy.port());
    let url = format!("consuls://{AGENT}?ca_file={}&server_name=localhost", files.ca.display());
    let ran = run(&url, "HTTPS_PROXY", &variable).env("CONSUL_HTTP_TOKEN", "t0ken").sh("echo ran").output();
    // The agent has no ACLs: it ignores the token.
    assert_eq!(ran.outcome(), (Exit::Code(0), "ran\n", ""));
    let heads = proxy.heads();
    assert!(
        !heads.is_empty() && heads.iter().all(|head| head.starts_with("CONNECT agent.invalid:8500 ")),
        "{heads:?}"
    );
    let other = url.replace("localhost", "other.example");
    let refused = run(&other, "HTTPS_PROXY", &variable).sh("echo ran").output();
    assert_eq!((refused.exit, refused.stdout.as_str()), (Exit::Code(69), ""), "{}", refused.stderr);
    assert!(
        refused
            .stderr
            .contains(&format!("through the proxy 127.0.0.1:{} (HTTPS_PROXY): TLS: ", proxy.port())),
        "{}",
        refused.stderr
    );
}

/// `HTTP_PROXY` may come from a request to a CGI program, which can be anyone's.
#[test]
fn the_variables_are_those_of_curl() {
    let (place, consul) = (Place::new(), Consul::lent());
    let dead = "http://127.0.0.1:1";
    let run = |variables: &[(&str, &str)]| {
        let run = place.run().backend(consul.url());
        variables.iter().fold(run, |run, (name, value)| run.env(name, value)).sh("echo ran").output()
    };
    for variables in [
        &[("HTTP_PROXY", dead), ("https_proxy", dead)][..],
        &[("http_proxy", dead), ("NO_PROXY", "other, 127.0.0.0/8")],
        &[("ALL_PROXY", dead), ("no_proxy", "*")],
        &[("http_proxy", "socks5h://me:secret@h"), ("no_proxy", "127.0.0.1")],
    ] {
        assert_eq!(run(variables).outcome(), (Exit::Code(0), "ran\n", ""), "{variables:?}");
    }
    let unreachable = run(&[("ALL_PROXY", dead)]);
    let expected = format!(
        "dlock: x on {}: through the proxy 127.0.0.1:1 (ALL_PROXY): connection refused; the command did not run, see --retry\n",
        consul.url()
    );
    assert_eq!(unreachable.outcome(), (Exit::Code(69), "", expected.as_str()));
    let socks = run(&[("http_proxy", "socks5h://me:secret@h")]);
    let expected = "dlock: --backend: http_proxy: not http://[USER:PASSWORD@]HOST[:PORT], with special characters percent-encoded: \
                    SOCKS and TLS to a proxy are not supported, and NO_PROXY lists the hosts that need none\n";
    assert_eq!(socks.outcome(), (Exit::Code(78), "", expected));
}

/// The output of a run, through this proxy, whose URL and login are left out of it.
fn refused(is_secure: bool, port: u16, login: &str) -> Output {
    let (scheme, variable) = if is_secure { ("consuls", "https_proxy") } else { ("consul", "http_proxy") };
    run(&format!("{scheme}://{AGENT}"), variable, &format!("http://{login}127.0.0.1:{port}"))
        .args(["--connect-timeout", "2s"])
        .sh("echo ran")
        .output()
}

#[test]
fn what_a_proxy_replies_itself_is_explained() {
    let page = "Content-Type: text/html\r\nContent-Length: 6\r\n\r\n<html>";
    for is_secure in [false, true] {
        let variable = if is_secure { "https_proxy" } else { "http_proxy" };
        for (reply, login, code, message) in [
            (
                format!("407 Who\r\n{page}"),
                "",
                77,
                format!(
                    "it requires a login (407 Proxy Authentication Required): set {variable} to http://USER:PASSWORD@127.0.0.1:PORT"
                ),
            ),
            (
                "407 Who\r\nContent-Length: 0\r\n\r\n".to_owned(),
                "me:hunter2hunter2@",
                77,
                format!(
                    "it rejects the user or the password in {variable} (407 Proxy Authentication Required)"
                ),
            ),
            (
                format!("403 No\r\n{page}"),
                "me:hunter2hunter2@",
                77,
                format!(
                    "it does not admit {AGENT} (403 Forbidden): have it admitted, or list the host in NO_PROXY"
                ),
            ),
            (
                format!("200 Yes\r\n{page}"),
                "",
                78,
                format!(
                    "it replies in place of {AGENT} (200 OK): check {variable}, or list the host in NO_PROXY"
                ),
            ),
            (format!("502 Bad\r\n{page}"), "", 69, format!("it cannot reach {AGENT} (502 Bad Gateway)")),
        ] {
            let fake = Fake::answering_once(format!("HTTP/1.1 {reply}"));
            let output = refused(is_secure, fake.port(), login);
            let address = format!("127.0.0.1:{}", fake.port());
            let message = message.replace("127.0.0.1:PORT", &address);
            let found =
                format!(": through the proxy {address} ({variable}): {message}; the command did not run");
            assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(code), ""), "{}", output.stderr);
            assert!(output.stderr.contains(&found), "{}\n{found}", output.stderr);
            assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
        }
    }
}

#[test]
fn what_is_not_a_proxy_is_named_in_time() {
    for is_secure in [false, true] {
        let fake = Fake::answering_once("SSH-2.0-OpenSSH_9.2\r\n");
        let output = refused(is_secure, fake.port(), "");
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
        assert!(output.stderr.contains("not speak HTTP/1.1; the command"), "{}", output.stderr);
        let (silent, began) = (Fake::silent(), Instant::now());
        let output = refused(is_secure, silent.port(), "");
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
        let named = format!(" ms through the proxy 127.0.0.1:{} (", silent.port());
        assert!(output.stderr.contains(&named), "{}", output.stderr);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}

#[test]
fn doctor_reports_the_proxy() {
    let (place, consul) = (Place::new(), Consul::lent());
    let doctor = |proxy: u16| {
        let url = format!("consul://:t0ken@{AGENT}");
        let doctor = place.bare().args(["doctor", "-b", &url, "--json", "--connect-timeout", "5s"]);
        doctor.env("http_proxy", format!("http://me:se%20cret@127.0.0.1:{proxy}")).output()
    };
    let proxy = HttpProxy::with_login(consul.port(), LOGIN);
    let output = doctor(proxy.port());
    assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
    let reached = format!("{AGENT} is reached through the proxy 127.0.0.1:{} (http_proxy)", proxy.port());
    assert_found(&output, "ok", "proxy", &reached);
    assert_found(&output, "warning", "encryption", "the password travels in plain text");
    assert_found(&output, "ok", "lock", "taken, renewed and given back in");
    until(SOON, "the sessions", || consul.sessions().is_empty());
    let other = HttpProxy::with_login(consul.port(), "Basic another");
    assert_refused(&doctor(other.port()), "proxy", 77, "or list the host in NO_PROXY");
}
