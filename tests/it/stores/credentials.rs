//! Wrong and missing passwords: a table of the stores whose servers require one.

use super::etcd::users::with_user;
use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_refused, doctor};
use crate::support::kubernetes::{Kubernetes, url_with};
use crate::support::mariadb::MariaDb;
use crate::support::memcached::Memcached;
use crate::support::place::Place;
use crate::support::postgres::{Plan, Postgres};
use crate::support::redis::Redis;
use crate::support::running::Exit;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

/// What a store says.
struct Messages<'a> {
    /// A wrong password, ...
    wrong: &'a str,
    /// ... and what `dlock doctor` advises then.
    remedy: &'a str,
    /// No password.
    missing: &'a str,
}

/// The URLs of a store, each with what messages show of it.
struct Urls {
    wrong: [String; 2],
    missing: [String; 2],
    right: String,
}

/// Runs and examinations with a wrong password, of which nothing is shown, and runs without one are refused (77); those with
/// the right one are not.
#[track_caller]
fn assert_urls_told_apart(urls: &Urls, messages: &Messages<'_>) {
    let run = |url: &str| {
        // A password on the command line is warned of.
        let run = Dlock::run().no_backend().env("DLOCK_BACKEND", url).arg("-q");
        run.sh("echo ran").output()
    };
    for ([url, shown], what) in [(&urls.wrong, messages.wrong), (&urls.missing, messages.missing)] {
        let refused = format!("dlock: x on {shown}: {what}; the command did not run\n");
        assert_eq!(run(url).outcome(), (Exit::Code(77), "", refused.as_str()));
    }
    assert_eq!(run(&urls.right).outcome(), (Exit::Code(0), "ran\n", ""));
    let report = doctor(&urls.wrong[0]);
    assert_eq!(report.exit, Exit::Code(1), "{report:?}");
    assert_refused(&report, "authentication", 77, messages.remedy);
    assert!(!report.stdout.contains("wr0ng"), "{report:?}");
}

/// The same with passwords in a URL that contains `USER@`.
#[track_caller]
fn assert_told_apart(url: &str, user: &str, shown_without: &str, messages: &Messages<'_>) {
    let at = |login: &str| url.replace("USER@", login);
    let shown = if user.is_empty() { String::new() } else { format!("{user}@") };
    let urls = Urls {
        wrong: [at(&format!("{user}:wr0ng@")), at(&shown)],
        missing: [at(shown_without), at(shown_without)],
        right: at(&format!("{user}:secret@")),
    };
    assert_urls_told_apart(&urls, messages);
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

    /// The password is a token in the configuration.
    #[test]
    fn kubernetes() {
        let server = Kubernetes::secure("secret,me\n");
        let directory = server.daemon().directory();
        let cluster = json!({
            "server": format!("https://127.0.0.1:{}", server.port()), "certificate-authority": directory.join("ca.pem"),
        });
        let url = |user: &Value| url_with(directory, &cluster, user);
        let both = |user: &Value| [url(user), url(user)];
        let urls = Urls {
            wrong: both(&json!({ "token": "wr0ng" })),
            missing: both(&json!({})),
            right: url(&json!({ "token": "secret" })),
        };
        let (_, file) = urls.wrong[0].split_once("kubeconfig=").expect("a file");
        let messages = Messages {
            wrong: &format!(
                "the server does not accept the credentials ({file}: context 'test'): Unauthorized"
            ),
            remedy: "use credentials with the rights that dlock doctor --policy prints",
            missing: "leases.coordination.k8s.io \"x\" is forbidden: User \"system:anonymous\" cannot get resource \
                      \"leases\" in API group \"coordination.k8s.io\" in the namespace \"default\" (dlock doctor --policy \
                      prints the rights that dlock needs)",
        };
        assert_urls_told_apart(&urls, &messages);
    }
}
