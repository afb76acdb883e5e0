//! `dlock doctor --fencing-floor`: what is refused, and what remains. That tokens grow from there is checked on every
//! store.

use crate::stores::consul::rights;
use crate::stores::etcd::users::require_login;
use crate::support::doctor::init;
use crate::support::etcd::Etcd;
use crate::support::kubernetes::{Kubernetes, url_with};
use crate::support::mariadb::{self, MariaDb};
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::running::Exit;
use crate::support::store::Store;
use crate::support::zookeeper::ZooKeeper;
use serde_json::json;

#[test]
fn bad_input_is_refused() {
    let place = Place::new();
    let largest = "9007199254740990";
    let number = "expected a positive integer below 9007199254740991, which leaves a larger token";
    for (arguments, message) in [
        (
            &["--fencing-floor", "0", "x"][..],
            format!("invalid value '0' for '--fencing-floor <N>': {number}"),
        ),
        (&["--fencing-floor", "-1", "x"], format!("invalid value '-1' for '--fencing-floor <N>': {number}")),
        (
            &["--fencing-floor", "9007199254740992", "x"],
            format!("invalid value '9007199254740992' for '--fencing-floor <N>': {number}"),
        ),
        (
            &["--fencing-floor", "9007199254740991", "x"],
            format!("invalid value '9007199254740991' for '--fencing-floor <N>': {number}"),
        ),
        (
            &["--fencing-floor", "7"],
            "--fencing-floor: of which lock? dlock doctor --fencing-floor N nightly".into(),
        ),
        (
            &["--fencing-floor", "7", "x", "y"],
            "--fencing-floor: one NAME is needed, not 2: repeat it for each lock".into(),
        ),
        (
            &["x"],
            "doctor checks a store, and takes no NAME: for the state of a lock, see dlock status NAME".into(),
        ),
        (
            &["-b", "memcached://127.0.0.1:1", "--fencing-floor", "7", "x"],
            "--fencing-floor: memcached://127.0.0.1:1: Memcached has no fencing tokens: use another store"
                .into(),
        ),
    ] {
        let output = place.bare().arg("doctor").args(arguments).output();
        let message = format!("dlock: {message}\n");
        assert_eq!(output.outcome(), (Exit::Code(64), "", message.as_str()), "{arguments:?}");
    }
    let output = place.bare().args(["doctor", "-b", &place.url(), "--fencing-floor", largest, "x"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "", ""));
    let output =
        place.bare().args(["run", "-b", &place.url(), "x", "-c", "echo $DLOCK_FENCING_TOKEN"]).output();
    assert_eq!(output.outcome(), (Exit::Code(0), "9007199254740991\n", ""));
}

/// A counter that was raised is ahead of the server's time, at which a new one begins: it must not expire.
#[test]
fn a_raised_counter_does_not_expire() {
    let redis = Redis::start();
    let store = Store::on(&redis);
    let expiry = || {
        let keys = redis.command(&["KEYS", "dlock#fencing:*"]).texts();
        assert_eq!(keys.len(), 1, "{keys:?}");
        redis.command(&["PTTL", &keys[0]])
    };
    let expires = || expiry() != Value::Int(-1);
    assert_eq!(store.run_with_ttl("30s").sh("true").output().exit, Exit::Code(0));
    assert!(expires(), "{:?}", expiry());
    let raise = || {
        let url = store.url();
        store.place.bare().args(["doctor", "-b", url, "--fencing-floor", "4503599627370496", "x"]).output()
    };
    assert_eq!(raise().outcome(), (Exit::Code(0), "", ""));
    assert!(!expires(), "{:?}", expiry());
    assert_eq!(store.run_with_ttl("30s").sh("true").output().exit, Exit::Code(0));
    assert!(!expires(), "{:?}", expiry());
}

/// The user may read what there is; on ZooKeeper, not even that is needed. Nor may such a user freeze a lock.
#[test]
fn a_user_who_may_not_write_is_refused() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "none", "on", ">s3cret", "-@all", "+ping"]);
    redis.command(&["ACL", "SETUSER", "read", "on", ">s3cret", "%R~*", "&*", "+@all"]);
    for user in ["none", "read"] {
        assert_may_not(&format!("redis://{user}:s3cret@127.0.0.1:{}/0", redis.port()), &[]);
    }

    let postgres = Postgres::start();
    assert_eq!(init(&postgres.url()).exit, Exit::Code(0));
    postgres.sql("CREATE ROLE viewer LOGIN PASSWORD 's3cret'; GRANT SELECT ON dlock_locks TO viewer");
    assert_may_not(&postgres.url().replace("postgres@", "viewer:s3cret@"), &[]);

    let mariadb = MariaDb::lent();
    assert_eq!(init(&mariadb.url()).exit, Exit::Code(0));
    mariadb.create_user("viewer", "s3cret", &format!("SELECT ON {}.*", mariadb::DATABASE));
    assert_may_not(&mariadb.url().replace("root@", "viewer@"), &[("MYSQL_PWD", "s3cret")]);

    let etcd = Etcd::start();
    let viewer = "etcdctl role add viewer\netcdctl role grant-permission viewer --prefix=true read /\netcdctl user add \
                  viewer:s3cret\netcdctl user grant-role viewer viewer\n";
    require_login(&etcd, viewer);
    assert_may_not(&etcd.url(), &[("ETCDCTL_USER", "viewer:s3cret")]);

    let zookeeper = ZooKeeper::start();
    let mut session = zookeeper.session();
    session.authenticate("me:mine");
    session.create_all("/dlock");
    session.set_acl("/dlock", "auth", "");
    assert_may_not(&zookeeper.url().replace("//", "//viewer:s3cret@"), &[]);

    let (consul, management) = rights::strict();
    let reader = rights::token(&consul, &management, &rights::rules().replace("write", "read"));
    assert_may_not(&consul.url(), &[("CONSUL_HTTP_TOKEN", &reader)]);

    let kubernetes = Kubernetes::start();
    kubernetes.set_users("s3cret,viewer,get,list,watch\n");
    let server = json!({"server": format!("http://127.0.0.1:{}", kubernetes.port())});
    assert_may_not(&url_with(kubernetes.daemon().directory(), &server, &json!({"token": "s3cret"})), &[]);
}

#[track_caller]
fn assert_may_not(url: &str, variables: &[(&str, &str)]) {
    for words in [&["doctor", "--fencing-floor", "7", "x"][..], &["freeze", "--forever", "x"]] {
        let command = Place::new().bare().args(words).env("DLOCK_BACKEND", url);
        let command = variables.iter().fold(command, |command, (name, value)| command.env(name, *value));
        let output = command.output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(77), ""), "{url}: {}", output.stderr);
        let (scheme, _) = url.split_once(':').expect("a scheme");
        assert!(output.stderr.starts_with(&format!("dlock: x on {scheme}:")), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
        let secrets = variables.iter().map(|(_, value)| value.rsplit(':').next().expect("a secret"));
        for secret in secrets.chain(["s3cret"]) {
            assert!(!output.stderr.contains(secret), "{}", output.stderr);
        }
    }
}
