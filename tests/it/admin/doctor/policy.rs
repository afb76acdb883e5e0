//! `dlock doctor --policy`: rights to be pasted, without a contact to the store.

use super::doctor;
use crate::support::place::Place;
use crate::support::running::Exit;

#[track_caller]
fn assert_policy(url: &str, commands: &str, note: &str) {
    let output = doctor(&Place::new(), url).arg("--policy").output();
    assert_eq!(output.outcome(), (Exit::Code(0), commands, format!("dlock: {note}\n").as_str()), "{url}");
    let quiet = doctor(&Place::new(), url).args(["--policy", "-q"]).output();
    assert_eq!(quiet.outcome(), (Exit::Code(0), commands, ""), "{url}");
}

#[test]
fn the_directory_of_a_group_is_created() {
    assert_policy(
        "file:///srv/it's",
        "install -d -m 2770 -g GROUP '/srv/it'\\''s'\n",
        "run this as root, with the group of the users who share locks filled in",
    );
    let place = Place::new();
    let output = place.bare().args(["doctor", "--policy", "-b", "file:"]).output();
    let directory = if nix::unistd::geteuid().is_root() { "/var/lib/dlock".into() } else { place.home() };
    assert!(output.stdout.starts_with(&format!("install -d -m 0700 '{}", directory.display())), "{output:?}");
}

#[test]
fn a_policy_is_not_json() {
    let output = doctor(&Place::new(), "file:").args(["--policy", "--json"]).output();
    let line = "dlock: the argument '--policy' cannot be used with '--json'\n";
    assert_eq!(output.outcome(), (Exit::Code(64), "", line));
}

/// Whoever grants the rights does not know the password. Nothing is contacted: no host of these names exists.
#[test]
fn a_url_with_a_username_needs_no_password() {
    let policies: &[(&str, &str)] = &[
        ("redis://me@h.invalid", "ACL SETUSER me reset on >PASSWORD ~dlock:*"),
        ("redlock://me@a.invalid,b.invalid,c.invalid", "ACL SETUSER me reset on >PASSWORD ~dlock:*"),
        (
            "redis-sentinel://me@a.invalid/locks?sentinel_username=watcher",
            "\nACL SETUSER watcher reset on >SENTINEL_PASSWORD +sentinel|",
        ),
        ("etcd://me@h.invalid", "\netcdctl user grant-role me dlock-me\n"),
        (
            "zookeeper://me@h.invalid",
            "addauth digest me:PASSWORD\ncreate /dlock\nsetAcl /dlock auth:me:cdrwa\n",
        ),
        ("postgres://me@h.invalid/app", "\nCREATE ROLE \"me\" LOGIN"),
        ("mysql://me@h.invalid/app", "\nCREATE USER IF NOT EXISTS 'me'"),
        ("memcached://me@h.invalid", ""),
        ("consul://h.invalid", "consul acl policy create -name dlock"),
        ("s3://b/p?region=x", "\"Resource\": \"arn:aws:s3:::b/p/*\""),
        ("dynamodb://abc?region=cn-x", "\"Resource\": \"arn:aws-cn:dynamodb:cn-x:*:table/abc\""),
        ("k8s://jobs", "  verbs: [\"get\", \"create\", \"update\", \"watch\", \"list\"]"),
    ];
    for (url, commands) in policies {
        let output = doctor(&Place::new(), url).args(["--policy", "-q"]).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{url}");
        assert!(format!("\n{}", output.stdout).contains(commands), "{url}: {}", output.stdout);
    }
}

/// The username of a table of the configuration, as that of a URL.
#[test]
fn a_table_with_a_username_needs_no_password() {
    let place = Place::new();
    let table = "backend = \"prod\"\n[backends.prod]\nurl = \"etcd://h.invalid\"\nusername = \"me\"\n";
    let file = place.write("config.toml", table);
    let output = place.bare().args(["doctor", "--policy", "-q"]).env("DLOCK_CONFIG", &file).output();
    assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
    assert!(output.stdout.ends_with("etcdctl user grant-role me dlock-me\n"), "{}", output.stdout);
}

mod redis {
    use super::*;
    use crate::admin::doctor::Findings;
    use crate::support::redis::Redis;

    const RULES: &str = "+eval +time +get +set +exists +type +del +pttl +pexpire +hget +hmget +hgetall +hset +hdel \
                         +hexists +hlen +zadd +zrem +zrange +zrank +zscore +zcard +evalsha +publish +subscribe \
                         +client|tracking +zremrangebyscore +zscan +lpush +ltrim +lrange +dump +strlen +memory|usage \
                         +info";
    const KEYS: &str = "~dlock:* ~dlock#* &dlock#call:*";

    /// No host of these names exists.
    #[test]
    fn every_url_has_its_rule_without_a_contact() {
        for (url, user, rules, servers) in [
            ("redis://h.invalid", "dlock", format!("{KEYS} {RULES}"), "the server"),
            ("rediss://me:secret@h.invalid/3", "me", format!("{KEYS} {RULES} +select"), "the server"),
            (
                "redis://h.invalid?recipe=redisson&prefix=a*b",
                "dlock",
                format!(
                    "~a\\*b* ~dlock#* &dlock#call:* ~redisson_lock_token:* ~redisson_lock_queue:* \
                     &redisson_lock__channel:* {RULES} +spublish"
                ),
                "the server",
            ),
            (
                "redis://h.invalid?recipe=python-redis-lock",
                "dlock",
                format!("~lock:* ~dlock#* &dlock#call:* ~lock-signal:* {RULES}"),
                "the server",
            ),
            (
                "redis-cluster://a.invalid,b.invalid",
                "dlock",
                format!("{KEYS} {RULES} +asking +cluster|slots"),
                "every node of the cluster",
            ),
            ("redlock://a.invalid,b.invalid,c.invalid", "dlock", format!("{KEYS} {RULES}"), "every node"),
            (
                "redis-sentinel://a.invalid/locks?wait_replicas=1",
                "dlock",
                format!("{KEYS} {RULES} +wait"),
                "the master and its replicas",
            ),
        ] {
            let old = if rules.contains("+spublish") { "; before Redis 7, leave out +spublish" } else { "" };
            assert_policy(
                url,
                &format!("ACL SETUSER {user} reset on >PASSWORD {rules}\n"),
                &format!(
                    "run this as an administrator on {servers}, with the passwords filled in, then ACL SAVE{old}"
                ),
            );
        }
        let place = Place::new();
        let password = place.write("password", "s3cret\n");
        let output = doctor(
            &place,
            &format!(
                "redis-sentinel://a.invalid/locks?sentinel_username=watcher&sentinel_password_file={}",
                password.display()
            ),
        )
        .args(["--policy", "-q"])
        .output();
        let sentinels = "ACL SETUSER watcher reset on >SENTINEL_PASSWORD +sentinel|get-master-addr-by-name \
                         +sentinel|master +sentinel|masters +sentinel|replicas +sentinel|ckquorum";
        let master = format!("ACL SETUSER dlock reset on >PASSWORD {KEYS} {RULES}");
        assert_eq!(output.outcome(), (Exit::Code(0), format!("{master}\n{sentinels}\n").as_str(), ""));
    }

    /// Each of them is missed when it is absent: `rights::each_forbidden_command_is_named_with_its_consequence`.
    #[test]
    fn no_right_is_superfluous() {
        let sorted = |rules: Vec<&'static str>| rules.into_iter().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(sorted(RULES.split(' ').collect()), sorted(crate::admin::doctor::rights::ALL.to_vec()));
    }

    /// The rule is pasted as it is, and nothing is missing then.
    #[test]
    fn a_user_with_the_pasted_rule_has_all_rights() {
        for query in ["", "?prefix=a%20\"b%5B", "?recipe=redisson", "?recipe=python-redis-lock"] {
            let (redis, place) = (Redis::start(), Place::new());
            let url = |user: &str| format!("redis://{user}127.0.0.1:{}/3{query}", redis.port());
            let policy = doctor(&place, &url("")).args(["--policy", "-q"]).output().stdout;
            let port = redis.port().to_string();
            let pasted = std::process::Command::new("sh")
                .args(["-c", "printf %s \"$1\" | redis-cli -p \"$2\"", "sh"])
                .args([policy.replace(">PASSWORD", ">s3cret").as_str(), &port])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8_lossy(&pasted.stdout), "OK\n", "{policy}");
            let found = Findings::of(doctor(&place, &url("dlock:s3cret@")));
            found.only("rights", "ok");
            found.only("lock", "ok");
            found.only("race", "ok");
        }
    }
}
