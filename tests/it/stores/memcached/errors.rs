//! What is wrong with the server or the URL, in a sentence.

use crate::stores::refusal::{assert_invalid, assert_refused};
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::running::Exit;
use std::os::unix::fs::PermissionsExt;

/// The replies to the requests that every connection begins with.
const BEGIN: &str = "HD c7\r\nEX\r\nHD t300000000\r\n";

#[test]
fn a_url_names_one_server_and_nothing_else() {
    let one = "takes one server, such as";
    let why = "clients that know different lists of servers would not exclude each other";
    assert_invalid([
        ("memcached://", format!("memcached:// {one} memcached://h1: {why}")),
        ("memcacheds://h1,h2", format!("memcacheds:// {one} memcacheds://h1: {why}")),
        ("memcached://h/locks", "memcached:// has no path: set the prefix of keys with prefix=".to_owned()),
        (
            "memcached://h?recipe=x",
            "unknown option 'recipe' for memcached:// (known: prefix, username, password_file, ca_file, cert_file, \
             key_file, server_name, insecure, require_verified_tls)"
                .to_owned(),
        ),
        ("memcached://h?ca_file=/x", "'ca_file' needs TLS: use memcacheds:// instead of memcached://".to_owned()),
        (
            "memcached://me@h",
            "a username without a password: add it to the URL, or as password_file=".to_owned(),
        ),
        ("memcached://h?password_file=/x", "a password without a username: Memcached requires both, add username=".to_owned()),
    ]);
}

#[test]
fn a_server_without_meta_commands_is_recognised() {
    for (reply, text) in [("ERROR", ""), ("CLIENT_ERROR invalid flag", " (invalid flag)")] {
        let old = Fake::answering_once(format!("{reply}\r\n").repeat(5));
        let url = format!("memcached://127.0.0.1:{}", old.port());
        let message = format!(
            "x on {url}: the server does not know the meta commands that dlock needs{text}: use memcached 1.6.18 or later; \
             the command did not run"
        );
        assert_refused(&url, 78, &message);
    }
}

/// Without CAS a lock that was lost could be renewed.
#[test]
fn a_server_without_cas_is_refused() {
    let memcached = Memcached::start_with(&["-C"]);
    let message = format!(
        "x on {}: the server does not compare CAS values (memcached -C, or a proxy): locks need them; the command did \
         not run",
        memcached.url()
    );
    assert_refused(&memcached.url(), 78, &message);
    assert_eq!(memcached.get("dlock:x"), None);
    // A proxy that ignores the values.
    let proxy = Fake::saying(*b"HD c7\r\nHD c8\r\nHD t300000000\r\n");
    let url = format!("memcached://127.0.0.1:{}", proxy.port());
    assert_refused(&url, 78, &message.replace(&memcached.url(), &url));
}

#[test]
fn a_full_server_is_named() {
    let memcached = Memcached::start_with(&["-M", "-m", "2"]);
    memcached.fill();
    let message = format!(
        "x on {}: the server is full (out of memory storing object): see dlock doctor; the command did not run, see \
         --retry",
        memcached.url()
    );
    assert_refused(&memcached.url(), 69, &message);
}

/// A server whose items are smaller than the record of a lock.
#[test]
fn a_record_that_is_too_long_is_named() {
    let refused = "SERVER_ERROR object too large for cache\r\nEN\r\nHD t300000000\r\n";
    let small = Fake::in_turns([BEGIN, refused]);
    let url = format!("memcached://127.0.0.1:{}", small.port());
    let message = format!(
        "x on {url}: the server accepts no item as long as the record of the lock (object too large for cache): raise \
         memcached -I; the command did not run"
    );
    assert_refused(&url, 78, &message);
}

#[test]
fn a_password_is_sent_to_a_server_that_requires_it_and_to_no_other() {
    let place = Place::new();
    let users = place.write("users", "me:s3cret\n");
    std::fs::set_permissions(&users, std::fs::Permissions::from_mode(0o600)).unwrap();
    let memcached = Memcached::start_with(&["-Y", users.to_str().unwrap()]);
    let at = |user: &str| memcached.url().replace("://", &format!("://{user}"));
    let run =
        |url: &str| place.run().backend(url).env("DLOCK_BACKEND", url).arg("-q").sh("echo ran").output();
    assert_eq!(run(&at("me:s3cret@")).outcome(), (Exit::Code(0), "ran\n", ""));
    place.write("password", "s3cret\n");
    let file = format!("{}?password_file={}", at("me@"), place.arg("password"));
    assert_eq!(run(&file).outcome(), (Exit::Code(0), "ran\n", ""));
    // Any other server would store it as an item.
    let open = Memcached::start();
    let url = open.url().replace("://", "://me:s3cret@");
    assert_eq!(run(&url).outcome(), (Exit::Code(0), "ran\n", ""));
    let is_ours = |key: &String| key == "dlock#clock" || key.starts_with("dlock#history:");
    assert!(open.keys().iter().all(is_ours), "{:?}", open.keys());
}

#[test]
fn a_name_that_cannot_be_a_key_is_encoded() {
    let memcached = Memcached::start();
    for (name, key) in
        [("a b%", "dlock#name:dlock:a%20b%25".to_owned()), ("50%/größe", "dlock:50%/größe".to_owned())]
    {
        let run = Dlock::run().backend(memcached.url()).name(name);
        let mut holder = run.sh("echo ready; exec sleep 600").spawn();
        holder.await_ready();
        assert!(memcached.get(&key).is_some(), "{name}: {:?}", memcached.keys());
        holder.signal(nix::sys::signal::Signal::SIGTERM);
        holder.wait();
        assert_eq!(memcached.get(&key), None);
    }
}

/// A proxy that repeats a reply: it was the reply to the next request, and granted a lock that somebody else held.
#[test]
fn a_repeated_reply_is_not_that_of_the_next_request() {
    let repeating = Fake::in_turns([format!("{BEGIN}HD c8\r\n"), "NS\r\n".to_owned()]);
    let url = format!("memcached://127.0.0.1:{}", repeating.port());
    let message =
        format!("x on {url}: the server sent more than was requested; the command did not run, see --retry");
    assert_refused(&url, 69, &message);
}

/// Lengths that no server has, and one that is not that of the value.
#[test]
fn a_wrong_length_is_refused() {
    for length in ["18446744073709551615", "18446744073709551614", "1073741825", "3"] {
        let server = Fake::in_turns([
            BEGIN.to_owned(),
            format!("NS\r\nVA {length} c7 t5\r\n{}\r\nHD t300000000\r\n", "x".repeat(100)),
        ]);
        let url = format!("memcached://127.0.0.1:{}", server.port());
        let message =
            format!("x on {url}: the server does not speak the Memcached protocol; the command did not run");
        assert_refused(&url, 78, &message);
    }
}

#[test]
fn figures_without_end_are_refused() {
    let server = Fake::in_turns([BEGIN.to_owned(), "STAT name 1\r\n".repeat(100_000)]);
    let url = format!("memcached://127.0.0.1:{}", server.port());
    let output = Place::new().bare().args(["doctor", "-b", &url]).output();
    let message = format!("dlock: {url}: the server does not speak the Memcached protocol\n");
    assert_eq!((output.exit, output.stderr), (Exit::Code(78), message));
}
