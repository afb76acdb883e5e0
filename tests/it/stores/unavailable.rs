//! Servers that nobody can reach, or that accept connections and stay silent (F01): a table of the schemes of all stores
//! but Redlock, whose nodes may fail one by one: see `redis::redlock`.

use crate::stores::refusal::{assert_refused_within, shown};
use crate::support::doctor::{assert_run_agrees, assert_unknown};
use crate::support::fake::Fake;
use crate::support::kubernetes;
use crate::support::wait::side_by_side;

const REFUSED: &str = "connection refused";
const NO_ANSWER: &str = "no answer within 2000 ms";
const NO_CONNECTION: &str = "no connection within 2000 ms";

/// A URL of each kind of store, what a run says of a silent server and of a closed port, and what `dlock doctor` advises
/// about the latter, where it is that of the only server. `HOST` is the address of the server, `FILE` a file with a password.
const STORES: [[&str; 4]; 12] = [
    ["redis://HOST/0", NO_ANSWER, REFUSED, "the server runs and listens there (bind)"],
    [
        "redis-cluster://HOST",
        NO_ANSWER,
        "HOST: connection refused",
        "the server runs and listens there (bind)",
    ],
    [
        "redis-sentinel://HOST/service/0",
        NO_CONNECTION,
        "none of the sentinels can be asked (HOST: connection refused)",
        "",
    ],
    ["memcached://HOST", NO_CONNECTION, REFUSED, "memcached runs and listens there (-l, -p)"],
    ["etcd://HOST", NO_ANSWER, REFUSED, "the member runs and listens there (--listen-client-urls)"],
    ["zookeeper://HOST", NO_ANSWER, REFUSED, "runs and listens there (clientPort, clientPortAddress)"],
    [
        "postgres://me@HOST/app",
        NO_CONNECTION,
        REFUSED,
        "the server runs and listens there (listen_addresses)",
    ],
    ["mysql://me@HOST/db", NO_CONNECTION, REFUSED, "the server runs and listens there (bind_address)"],
    ["consul://HOST", NO_ANSWER, REFUSED, "the agent runs and listens there (client_addr, ports)"],
    [
        "s3://key@b?endpoint=http://HOST&password_file=FILE",
        NO_ANSWER,
        REFUSED,
        "check the region or endpoint=, and that no firewall is in between",
    ],
    [
        "dynamodb://key@abc?endpoint=http://HOST&password_file=FILE",
        NO_CONNECTION,
        REFUSED,
        "check the region or endpoint=, and that no firewall is in between",
    ],
    [KUBERNETES, NO_ANSWER, REFUSED, "check the server of the context (kubectl config view --minify)"],
];

/// Stands for the URL of a Kubernetes whose configuration has the address.
const KUBERNETES: &str = "KUBERNETES";

/// Calls this for all rows at the same time, with the address and the file in their places.
fn for_each(address: &str, check: impl Fn(&[String; 4]) + Sync) {
    let password = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(password.path(), "secret\n").expect("a file");
    let file = password.path().display().to_string();
    let configuration = tempfile::tempdir().expect("a directory");
    let kubernetes = kubernetes::url_of(configuration.path(), &format!("http://{address}"));
    side_by_side(STORES, |row| {
        check(&row.map(|text| {
            text.replace("HOST", address).replace("FILE", &file).replace(KUBERNETES, &kubernetes)
        }));
    });
}

/// A run with this URL is refused for this reason.
#[track_caller]
fn assert_unavailable(url: &str, found: &str) {
    let message = format!("x on {}: {found}; the command did not run, see --retry", shown(url));
    assert_refused_within("2s", url, 69, &message);
}

#[test]
fn a_silent_server_is_unavailable_in_time() {
    let silent = Fake::silent();
    for_each(&format!("127.0.0.1:{}", silent.port()), |[url, found, _, _]| assert_unavailable(url, found));
}

#[test]
fn a_closed_port_is_unavailable() {
    for_each("127.0.0.1:1", |[url, _, found, _]| assert_unavailable(url, found));
}

/// The examination ends with the same status, and answers no question about a server that it does not know.
#[test]
fn doctor_finds_a_closed_port() {
    for_each("127.0.0.1:1", |[url, _, _, remedy]| {
        if !remedy.is_empty() {
            assert_run_agrees(url, "reachability", 69, remedy);
        }
        assert_unknown(url);
    });
}
