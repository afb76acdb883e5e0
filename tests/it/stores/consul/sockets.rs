//! `consul+unix:`.

use crate::support::consul::Consul;
use crate::support::dlock::Dlock;
use crate::support::running::Exit;
use serde_json::json;

#[test]
fn a_unix_socket_is_used() {
    let directory = tempfile::Builder::new().prefix("it-consul-socket-").tempdir().expect("a directory");
    let socket = directory.path().join("consul.sock");
    let addresses = json!({"addresses": {"http": format!("127.0.0.1 unix://{}", socket.display())}});
    let _consul = Consul::start_with(&addresses, None);
    let run = |url: &str| Dlock::run().backend(url);
    let url = format!("consul+unix://{}", socket.display());
    assert_eq!(run(&url).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    let named = run("consul://").env("CONSUL_HTTP_ADDR", format!("unix://{}", socket.display()));
    assert_eq!(named.sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}
