//! `memcacheds://`. What all stores with TLS have in common is in `stores::tls` and `redis::tls`.

use crate::support::dlock::Dlock;
use crate::support::memcached::Memcached;
use crate::support::running::Exit;
use crate::support::tls::{Certificates, Flaw};

#[test]
fn a_server_with_a_known_authority_is_trusted_and_the_protocols_do_not_mix() {
    let directory = tempfile::Builder::new().prefix("it-tls-").tempdir().expect("a directory");
    let files = Certificates::make(directory.path(), Flaw::None);
    let (secure, plain) = (Memcached::start_with_tls(&files), Memcached::start());
    let run = |url: &str| Dlock::run().backend(url).arg("-q").sh("echo ran").output();
    assert_eq!(run(&secure.url()).outcome(), (Exit::Code(0), "ran\n", ""));
    let authority = format!("?ca_file={}", files.ca.display());
    for (url, query, found) in [
        (format!("memcached://127.0.0.1:{}", secure.port()), "", "the server uses TLS: use memcacheds://"),
        (
            format!("memcacheds://127.0.0.1:{}", plain.port()),
            authority.as_str(),
            "the server does not use TLS: use memcached://",
        ),
    ] {
        let expected = format!("dlock: x on {url}: {found}; the command did not run\n");
        assert_eq!(run(&format!("{url}{query}")).outcome(), (Exit::Code(78), "", expected.as_str()));
    }
}
