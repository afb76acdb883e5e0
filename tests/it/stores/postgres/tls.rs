//! `sslmode`: real servers with TLS. What all stores have in common is in `stores::tls`.

use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::postgres::{Plan, Postgres};
use crate::support::proxy::Proxy;
use crate::support::running::Exit;
use crate::support::tls::{Certificates, Flaw};

/// A server that accepts connections with TLS only.
fn secure(flaw: Flaw) -> (tempfile::TempDir, Certificates, Postgres) {
    let directory = tempfile::tempdir().unwrap();
    let files = Certificates::make(directory.path(), flaw);
    let access = Some("local all all trust\nhostssl all all all trust\n".to_owned());
    let server = Postgres::start_with(Plan { certificates: Some(files.clone()), access, ..Plan::default() });
    (directory, files, server)
}

fn url(server: &Postgres, options: &str) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres{options}", server.port())
}

#[test]
fn a_server_is_verified_when_asked_for() {
    let (_directory, files, server) = secure(Flaw::None);
    let run = |options: &str| Dlock::run().backend(url(&server, options)).sh("echo ran").output();
    let verified = run(&format!("?sslmode=verify-full&sslrootcert={}", files.ca.display()));
    assert_eq!(verified.outcome(), (Exit::Code(0), "ran\n", ""));
    let unverified = run("?sslmode=require");
    assert_eq!((unverified.exit, unverified.stdout.as_str()), (Exit::Code(0), "ran\n"));
    assert!(unverified.stderr.contains("the server's certificate is not checked"), "{}", unverified.stderr);
    let plain = run("?sslmode=disable");
    assert_eq!((plain.exit, plain.stdout.as_str()), (Exit::Code(77), ""));
    assert!(plain.stderr.contains("no encryption"), "{}", plain.stderr);
    // The default, and that of libpq.
    for options in ["", "?sslmode=prefer"] {
        assert_eq!(run(options).outcome(), (Exit::Code(0), "ran\n", ""), "{options}");
    }
}

/// Such as one whose certificate MySQL or an administrator has made without subjectAltName.
#[test]
fn the_authority_alone_is_verified_when_asked_for() {
    let (_directory, files, server) = secure(Flaw::WrongHost);
    let run = |options: &str| Dlock::run().backend(url(&server, options)).sh("echo ran").output();
    let ca = files.ca.display();
    for mode in ["verify-ca", "require"] {
        let verified = run(&format!("?sslmode={mode}&sslrootcert={ca}"));
        assert_eq!(verified.outcome(), (Exit::Code(0), "ran\n", ""), "{mode}");
    }
    let without = run("?sslmode=verify-ca");
    assert_eq!((without.exit, without.stdout.as_str()), (Exit::Code(78), ""));
    assert!(without.stderr.contains("everyone with a certificate"), "{}", without.stderr);
}

#[test]
fn a_server_of_another_authority_is_rejected() {
    let (directory, _files, server) = secure(Flaw::WrongHost);
    let other = directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let other = Certificates::make(&other, Flaw::None).ca;
    for mode in ["verify-ca", "require"] {
        let options = format!("?sslmode={mode}&sslrootcert={}", other.display());
        let output = Dlock::run().backend(url(&server, &options)).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(69), ""));
        assert!(output.stderr.contains("signed by an unknown authority"), "{}", output.stderr);
    }
}

/// pg_hba.conf has no entry for connections with TLS: libpq tries again without, too.
#[test]
fn a_role_that_may_not_use_tls_does_without_unless_it_is_required() {
    let directory = tempfile::tempdir().unwrap();
    let files = Certificates::make(directory.path(), Flaw::None);
    let access = Some("local all all trust\nhostnossl all all all trust\n".to_owned());
    let server = Postgres::start_with(Plan { certificates: Some(files), access, ..Plan::default() });
    let run = |options: &str| Dlock::run().backend(url(&server, options)).sh("echo ran").output();
    assert_eq!(run("").outcome(), (Exit::Code(0), "ran\n", ""));
    assert_eq!(run("?sslmode=require").exit, Exit::Code(77));
}

/// F60: whoever terminates TLS without proving its identity may be anyone.
#[test]
fn the_password_itself_is_for_a_verified_server_or_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let files = Certificates::make(directory.path(), Flaw::None);
    let ca = files.ca.display().to_string();
    let access = "local all postgres trust\nlocal all all password\nhost all all all password\n".to_owned();
    let plan = Plan { certificates: Some(files), access: Some(access), ..Plan::default() };
    let server = Postgres::start_with(plan);
    server.sql("CREATE ROLE web LOGIN PASSWORD 's3cret'; GRANT CREATE ON SCHEMA public TO web");
    let at = format!("postgres://web@127.0.0.1:{}/postgres", server.port());
    let socket = format!("postgres:///postgres?host={}&port={}", server.directory().display(), server.port());
    let run = |url: &str| Dlock::run().backend(url).env("PGPASSWORD", "s3cret").sh("echo ran").output();
    for mode in ["", "?sslmode=disable", "?sslmode=prefer", "?sslmode=require"] {
        let output = run(&format!("{at}{mode}"));
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{mode}: {}", output.stderr);
        let sentence = format!(
            "dlock: x on {at}: the server asks for the password itself, which is sent only over a Unix socket or to a server that has proved its identity: use sslmode=verify-full (or verify-ca), and name its authority by sslrootcert=; the command did not run\n"
        );
        assert!(output.stderr.ends_with(&sentence), "{mode}: {}", output.stderr);
    }
    let verified = ["verify-full", "verify-ca"].map(|mode| format!("{at}?sslmode={mode}&sslrootcert={ca}"));
    for url in verified.iter().chain([&format!("{socket}&username=web")]) {
        assert_eq!(run(url).outcome(), (Exit::Code(0), "ran\n", ""), "{url}");
    }
}

/// The server has neither TLS nor scruples.
#[test]
fn the_password_is_not_sent_to_whoever_asks_for_it() {
    let thief = Fake::saying(b"NR\0\0\0\x08\0\0\0\x03".as_slice());
    let url = format!("postgres://web:s3cret@127.0.0.1:{}/app", thief.port());
    let output = Dlock::run().env("DLOCK_BACKEND", url).no_backend().sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{}", output.stderr);
    let heard = thief.heard();
    assert!(heard.windows(3).any(|text| text == b"web"), "the role");
    assert!(!heard.windows(6).any(|text| text == b"s3cret"));
}

/// Whoever has set them relies on them.
#[test]
fn the_variables_of_libpq_are_followed_or_refused() {
    let (directory, files, server) = secure(Flaw::None);
    let other = directory.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let other = Certificates::make(&other, Flaw::None).ca.display().to_string();
    let ca = files.ca.display().to_string();
    let run = |options: &str, set: &[(&str, &str)]| {
        let run = Dlock::run().backend(url(&server, options));
        set.iter().fold(run, |run, (name, value)| run.env(name, value)).sh("echo ran").output()
    };
    for set in [
        &[("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", &ca)][..],
        &[("PGSSLMODE", "verify-ca"), ("PGSSLROOTCERT", &ca)],
        &[("PGREQUIREAUTH", "!password"), ("PGCHANNELBINDING", "prefer"), ("PGSSLCRL", "")],
        &[("PGSSLMINPROTOCOLVERSION", "TLSv1.2"), ("PGSSLNEGOTIATION", "postgres")],
    ] {
        assert_eq!(run("", set).outcome(), (Exit::Code(0), "ran\n", ""), "{set:?}");
    }
    for (set, code, words) in [
        (&[("PGSSLMODE", "disable")][..], 77, "no encryption"),
        (&[("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", &other)], 69, "unknown authority"),
        (&[("PGSSLMODE", "require"), ("PGSSLROOTCERT", &other)], 69, "unknown authority"),
        (&[("PGSSLMODE", "verify-full"), ("PGSSLROOTCERT", "system")], 69, "unknown authority"),
        (
            &[("PGREQUIREAUTH", "scram-sha-256")],
            77,
            "the server does not ask for authentication, which require_auth",
        ),
        (
            &[("PGSSLMODE", "allow")],
            78,
            "PGSSLMODE=allow: sslmode= is disable, prefer, require, verify-ca or verify-full",
        ),
        (&[("PGSSLROOTCERT", &ca)], 78, "'ca_file' needs a server that is verified: add sslmode=verify-full"),
        (
            &[("PGCHANNELBINDING", "require")],
            78,
            "PGCHANNELBINDING=require: channel binding is not supported",
        ),
        (&[("PGREQUIREAUTH", "scram")], 78, "PGREQUIREAUTH=scram: require_auth= takes methods"),
        (&[("PGSSLCRL", "/x")], 78, "PGSSLCRL=/x is not supported: unset it for dlock"),
        (&[("PGSSLMINPROTOCOLVERSION", "TLSv1.3")], 78, "PGSSLMINPROTOCOLVERSION=TLSv1.3 is not supported"),
        (&[("PGREQUIREPEER", "postgres")], 78, "PGREQUIREPEER=postgres is not supported"),
    ] {
        let output = run("", set);
        assert_eq!(
            (output.exit, output.stdout.as_str()),
            (Exit::Code(code), ""),
            "{set:?} {}",
            output.stderr
        );
        assert!(output.stderr.contains(words), "{set:?} {}", output.stderr);
    }
    // The URL comes first.
    let output = run(&format!("?sslmode=verify-full&sslrootcert={ca}"), &[("PGSSLMODE", "disable")]);
    assert_eq!(output.outcome(), (Exit::Code(0), "ran\n", ""));
    // As for libpq, TLS is for networks.
    let socket = format!("postgres:///postgres?host={}&port={}", server.directory().display(), server.port());
    let run = Dlock::run().backend(format!("{socket}&username=postgres"));
    let run = run.env("PGSSLMODE", "verify-full").env("PGSSLROOTCERT", &other);
    assert_eq!(run.sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

/// What `sslmode=prefer` costs, which is the default, where the server has no TLS; nothing on a Unix socket.
#[test]
fn to_ask_for_tls_takes_one_round_trip() {
    let server = Postgres::lent();
    let flights = |options: &str| {
        let proxy = Proxy::to(server.port());
        let url = format!("postgres://postgres@127.0.0.1:{}/postgres{options}", proxy.port());
        assert_eq!(Dlock::run().backend(url).sh("true").output().exit, Exit::Code(0));
        proxy.flights().len()
    };
    // The table exists from now on.
    flights("");
    assert_eq!(flights(""), flights("?sslmode=disable") + 1);
}
