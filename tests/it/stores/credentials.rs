//! Wrong and missing passwords: a table of the stores whose servers require one.

use super::etcd::users::with_user;
use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_refused, doctor};
use crate::support::mariadb::MariaDb;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::redis::Redis;
use crate::support::running::Exit;
use std::os::unix::fs::PermissionsExt;

/// What a store says.
struct Messages {
    /// A wrong password, ...
    wrong: &'static str,
    /// ... and what `dlock doctor` advises then.
    remedy: &'static str,
    /// No password.
    missing: &'static str,
}

/// Runs and examinations with a wrong password, of which nothing is shown, and runs without one are refused (77); those with
/// the right one are not. The URLs contain `USER`, and the messages a URL.
#[track_caller]
fn assert_told_apart(url: &str, user: &str, shown_without: &str, messages: &Messages) {
    let run = |login: &str| {
        // A password on the command line is warned of.
        let run = Dlock::run().no_backend().env("DLOCK_BACKEND", url.replace("USER@", login)).arg("-q");
        run.sh("echo ran").output()
    };
    let refused = |shown: &str, what: &str| {
        format!("dlock: x on {}: {what}; the command did not run\n", url.replace("USER@", shown))
    };
    let shown = if user.is_empty() { String::new() } else { format!("{user}@") };
    let wrong = run(&format!("{user}:wr0ng@"));
    assert_eq!(wrong.outcome(), (Exit::Code(77), "", refused(&shown, messages.wrong).as_str()));
    let missing = run(shown_without);
    assert_eq!(missing.outcome(), (Exit::Code(77), "", refused(shown_without, messages.missing).as_str()));
    assert_eq!(run(&format!("{user}:secret@")).outcome(), (Exit::Code(0), "ran\n", ""));
    let report = doctor(&url.replace("USER@", &format!("{user}:wr0ng@")));
    assert_eq!(report.exit, Exit::Code(1), "{report:?}");
    assert_refused(&report, "authentication", 77, messages.remedy);
    assert!(!report.stdout.contains("wr0ng"), "{report:?}");
}

mod a_wrong_and_a_missing_password_are_told_apart {
    use super::*;

    #[test]
    fn redis() {
        let redis = Redis::start_with_args(&["--requirepass", "secret"]);
        let url = format!("redis://USER@127.0.0.1:{}/0", redis.port());
        let messages = Messages {
            wrong: "wrong username or password: see the user in the URL, password_file= and REDISCLI_AUTH",
            remedy: "REDISCLI_AUTH",
            missing: "a password is needed: set password_file= or REDISCLI_AUTH",
        };
        assert_told_apart(&url, "", "", &messages);
    }

    #[test]
    fn memcached() {
        let place = Place::new();
        let users = place.write("users", "me:secret\n");
        std::fs::set_permissions(&users, std::fs::Permissions::from_mode(0o600)).unwrap();
        let memcached = Memcached::start_with(&["-Y", users.to_str().unwrap()]);
        let url = format!("memcached://USER@127.0.0.1:{}", memcached.port());
        let messages = Messages {
            wrong: "wrong username or password: check the URL and password_file=",
            remedy: "check the username and password",
            missing: "the server requires a username and password: see password_file=",
        };
        assert_told_apart(&url, "me", "", &messages);
    }

    #[test]
    fn etcd() {
        let etcd = with_user();
        let url = format!("etcd://USER@{}", etcd.hosts());
        let messages = Messages {
            wrong: "wrong username or password: check the URL, password_file= and ETCDCTL_USER",
            remedy: "check the username and password",
            missing: "the cluster requires a username and password: see password_file= and ETCDCTL_USER",
        };
        assert_told_apart(&url, "dlock", "", &messages);
    }

    #[test]
    fn postgres() {
        let access = "local all all trust\nhost all all all scram-sha-256\n".to_owned();
        let server = Postgres::start_with(Plan { access: Some(access), ..Plan::default() });
        server.sql("CREATE ROLE web LOGIN PASSWORD 'secret'; GRANT CREATE ON SCHEMA public TO web");
        let url = format!("postgres://USER@127.0.0.1:{}/postgres", server.port());
        let messages = Messages {
            wrong: "password authentication failed for user \"web\"",
            remedy: "check the role and its password",
            missing: "the server requires a password: add it to the URL, as password_file=, as PGPASSWORD, or to ~/.pgpass",
        };
        assert_told_apart(&url, "web", "web@", &messages);
    }

    #[test]
    fn mysql() {
        let server = MariaDb::lent();
        server.create_user("me", "secret", "ALL ON locks.*");
        let url = server.url().replace("root@", "USER@");
        let messages = Messages {
            wrong: "the server rejected the user or the password (error 1045: Access denied for user 'me'@'127.0.0.1' (using \
                    password: YES)): see password_file=, MYSQL_PWD and ~/.my.cnf",
            remedy: "check the user and password",
            missing: "the server rejected the user or the password (error 1045: Access denied for user 'me'@'127.0.0.1' (using \
                      password: NO)): see password_file=, MYSQL_PWD and ~/.my.cnf",
        };
        assert_told_apart(&url, "me", "me@", &messages);
    }
}
