//! HTTP proxies between dlock and a table. What a proxy refuses is in `stores::consul::proxies`.

use crate::support::dlock::Dlock;
use crate::support::doctor::assert_found;
use crate::support::dynamodb::Dynamo;
use crate::support::fake::Fake;
use crate::support::http_proxy::HttpProxy;
use crate::support::place::Place;
use crate::support::running::{Exit, Output};

/// `me:se cret` in base64.
const LOGIN: &str = "Basic bWU6c2UgY3JldA==";

/// Nobody but the proxy knows this host. The signature of a request covers the host that the client names.
#[test]
fn requests_are_forwarded_with_their_signature_and_doctor_reports_the_proxy() {
    let (place, server) = (Place::new(), Dynamo::lent());
    let proxy = HttpProxy::with_login(server.port(), LOGIN);
    let variable = format!("http://me:se%20cret@127.0.0.1:{}", proxy.port());
    let url = server.url().replace(&format!("127.0.0.1:{}", server.port()), "table.invalid:9000");
    let run = place.run().backend(&url).env("http_proxy", &variable);
    assert_eq!(run.sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
    let heads = proxy.heads();
    let is_forwarded = |head: &String| {
        head.starts_with("POST http://table.invalid:9000/ ") && head.contains("host: table.invalid:9000")
    };
    assert!(heads.len() >= 3 && heads.iter().all(is_forwarded), "{heads:?}");
    let doctor = place.bare().args(["doctor", "-b", &url, "--json"]).env("http_proxy", &variable).output();
    let reached =
        format!("table.invalid:9000 is reached through the proxy 127.0.0.1:{} (http_proxy)", proxy.port());
    assert_found(&doctor, "ok", "proxy", &reached);
    assert_found(&doctor, "ok", "lock", "taken, renewed and given back in");
}

/// Nothing is known of the way behind a proxy.
#[test]
fn a_server_that_is_not_one_of_dynamodb_is_not_probed_past_the_proxy() {
    let (proxy, server) =
        (Fake::answering_once("HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"), Fake::silent());
    let output = refused(&format!("http://127.0.0.1:{}", server.port()), &proxy);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
    assert!(output.stderr.contains("the server does not reply as DynamoDB does"), "{}", output.stderr);
    assert_eq!(server.connections(), 0);
}

#[test]
fn a_silent_proxy_is_named() {
    let proxy = Fake::silent();
    let output = refused("http://table.invalid:9000", &proxy);
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""), "{}", output.stderr);
    let named = format!(" ms through the proxy 127.0.0.1:{} (http_proxy)", proxy.port());
    assert!(output.stderr.contains(&named), "{}", output.stderr);
}

/// A run through a proxy. A key in the environment is not on the command line.
fn refused(endpoint: &str, proxy: &Fake) -> Output {
    let url = format!("dynamodb://key:secret@abc/p?endpoint={endpoint}");
    let run = Dlock::run().no_backend().env("DLOCK_BACKEND", url);
    let run = run.env("http_proxy", format!("127.0.0.1:{}", proxy.port()));
    run.args(["--connect-timeout", "2s"]).sh("echo ran").output()
}
