//! Invalid backend URLs and variables: one line that names the source of the value, 78, and no effect.

use crate::acquire::refusal::{refused, refused_in, refused_with};
use crate::support::place::Place;
use crate::support::running::Exit;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Backend URLs, and the messages after the source of the value.
const PORT: &str = "the port after a host must be from 1 to 65535 (a password ends with an @)";

const WRONG: &[(&str, &str)] = &[
    (
        "prod",
        "no backend of this name: no configuration file defines any; a URL has a colon, such as file:///srv/locks",
    ),
    ("/var/lock", "'/var/lock' is not a backend URL: did you mean file:///var/lock"),
    ("fiel:///var/lock", "unknown scheme 'fiel': did you mean file:///var/lock"),
    ("://h", "a backend URL begins with a scheme and a colon"),
    ("1file:", "a backend URL begins with a scheme and a colon"),
    ("file:///a b", "a backend URL may not contain spaces or control characters"),
    ("file:///a\nb", "a backend URL may not contain spaces or control characters"),
    ("file:///a#b", "a backend URL has no fragment: write # as %23"),
    ("file:///%zz", "a % in a backend URL is followed by two hex digits; write % as %25"),
    ("file:///%2", "a % in a backend URL is followed by two hex digits; write % as %25"),
    ("file:///%00", "a backend URL may not contain %00"),
    ("file:///%ff", "a backend URL must decode to UTF-8"),
    ("file:x", "file: takes an absolute directory, such as file:///var/lock/jobs"),
    ("file://h/x", "file: has no host: write file:///directory with three slashes"),
    ("file://u:s3cret@/x", "file: has no host: write file:///directory with three slashes"),
    ("file:///x?prefix=a", "unknown option 'prefix' for file:// (known: suffix)"),
    ("file:///x?suffix=a/b", "suffix= may not contain a slash"),
    ("file:///x?suffix=.a&suffix=.b", "the option 'suffix' is given twice"),
];

const WRONG_REDIS: &[(&str, &str)] = &[
    (
        "ftp://h",
        "unknown scheme 'ftp': known are file:, redis://, rediss://, redis+unix:, redis-sentinel://, redis-cluster://, redlock://, etcd://, etcds://, zookeeper://, zookeepers://, postgres://, mysql://, mariadb://, memcached://, memcacheds://, consul://, consuls://, consul+unix:, s3://, dynamodb://, k8s://",
    ),
    ("redis:", "redis:// takes one host, such as redis://localhost:6379"),
    ("redis://", "redis:// takes one host, such as redis://localhost:6379"),
    ("redis://h,k", "redis:// takes one host, such as redis://localhost:6379"),
    ("redis://h,,k", "'' is not a host or host:port"),
    ("redis://h:0", PORT),
    ("redis://h:99999", PORT),
    ("redis://h:", PORT),
    ("redis://h:1:2", PORT),
    ("redis://h:port", PORT),
    ("redis://me:s3cret@h:port", PORT),
    ("redis://[::1", "'[::1' is not a host or host:port"),
    ("redis://[xyz]", "'[xyz]' is not a host or host:port"),
    ("redis://h/x", "'x' is not a database number"),
    ("redis://h/-1", "'-1' is not a database number"),
    ("redis://h/1/2", "'1/2' is not a database number"),
    ("redis://h/99999999999", "'99999999999' is not a database number"),
    ("redis://h?db=x", "'x' is not a database number"),
    ("redis://h/1?db=2", "the database is given twice: as a path and as db="),
    ("redis://h?prefix=a&prefix=b", "the option 'prefix' is given twice"),
    ("redis://h?recipe=symfony", "recipe= is plain, redisson or python-redis-lock, not 'symfony'"),
    (
        "redis://h?recipe=python-redis-lock&prefix=app:",
        "the locks of python-redis-lock begin with 'lock:', so prefix= must too, not 'app:'",
    ),
    ("redis://h?protocol=4", "protocol= is resp3, resp2, 3 or 2, not '4'"),
    ("redis://h?protocol=respresp2", "protocol= is resp3, resp2, 3 or 2, not 'respresp2'"),
    ("redis://h?protocol=", "protocol= is resp3, resp2, 3 or 2, not ''"),
    ("redis://h?password_file=x", "password_file= takes an absolute path"),
    (
        "redis://me@h",
        "a username without a password: add it to the URL, as password_file=, or as REDISCLI_AUTH",
    ),
    ("redis://h?ca_file=/x", "'ca_file' needs TLS: use rediss:// instead of redis://"),
    ("redis://h?server_name=x", "'server_name' needs TLS: use rediss:// instead of redis://"),
    ("redis://h?insecure", "'insecure' needs TLS: use rediss:// instead of redis://"),
    ("redis://h?wait_replicas=all", "wait_replicas= is a number of replicas, not 'all'"),
    ("redis-sentinel://", SENTINELS),
    ("redis-sentinel:///locks", SENTINELS),
    ("redis-sentinel://h", SENTINELS),
    ("redis-sentinel://h,k/", SENTINELS),
    ("redis-sentinel://h,k,h/locks", "h:26379 is named twice"),
    ("redis-sentinel://h,k,h:26379/locks", "h:26379 is named twice"),
    ("redis-sentinel://h/locks/x", "'x' is not a database number"),
    ("redis-sentinel://h/locks/1?db=2", "the database is given twice: as a path and as db="),
    ("redis-sentinel://h/locks?sentinel_password_file=x", "sentinel_password_file= takes an absolute path"),
    (
        "redis-sentinel://h/locks?sentinel_username=x",
        "sentinel_username= without a password: add sentinel_password_file=",
    ),
    (
        "redis-sentinel://h/locks?ca_file=/x",
        "'ca_file' needs TLS: use rediss-sentinel:// instead of redis-sentinel://",
    ),
    ("rediss://h?ca_file=x", "ca_file= takes an absolute path"),
    ("rediss://h?ca_file=", "ca_file= takes an absolute path"),
    ("rediss://h?cert_file=/x", "cert_file= and key_file= are needed together: add the other one"),
    ("rediss://h?key_file=/x", "cert_file= and key_file= are needed together: add the other one"),
    ("rediss://h?insecure=maybe", "insecure= is yes or no, not 'maybe'"),
    (
        "redis://h?prefix=dlock:&recipe=python-redis-lock",
        "the locks of python-redis-lock begin with 'lock:', so prefix= must too, not 'dlock:'",
    ),
    (
        "redlock://h?recipe=redisson",
        "recipe=redisson is for locks on one server, and those of redlock:// are on a majority of several",
    ),
    (
        "redlock://h?recipe=python-redis-lock",
        "recipe=python-redis-lock is for locks on one server, and those of redlock:// are on a majority of several",
    ),
    (
        "redis-sentinel://h/locks?sentinel_password=x",
        "unknown option 'sentinel_password' for redis-sentinel:// (known: db, recipe, prefix, wait_replicas, protocol, username, password_file, ca_file, cert_file, key_file, server_name, insecure, require_verified_tls, sentinel_username, sentinel_password_file)",
    ),
    ("redis-sentinel://h/locks?wait_replicas=-1", "wait_replicas= is a number of replicas, not '-1'"),
    (
        "redis://h?sentinel_password_file=/x",
        "unknown option 'sentinel_password_file' for redis:// (known: db, recipe, prefix, wait_replicas, protocol, username, password_file, ca_file, cert_file, key_file, server_name, insecure, require_verified_tls)",
    ),
    (
        "redis-cluster://",
        "redis-cluster:// takes some of the cluster's nodes, such as redis-cluster://h1,h2,h3",
    ),
    ("redis-cluster://h/1", "a Redis Cluster has no databases: leave it out"),
    ("redis-cluster://h?db=1", "a Redis Cluster has no databases: leave it out"),
    ("redlock://h/1?db=1", "the database is given twice: as a path and as db="),
    ("redis+unix:", SOCKET),
    ("redis+unix://h/run/redis.sock", SOCKET),
    ("redis+unix:redis.sock", SOCKET),
];

const SOCKET: &str = "redis+unix: takes the path of a socket, such as redis+unix:///run/redis.sock";

const SENTINELS: &str = "redis-sentinel:// takes the sentinels and the name of the service, such as redis-sentinel://h1,h2,h3/service";

fn wrong() -> impl Iterator<Item = (&'static str, &'static str)> {
    WRONG.iter().chain(WRONG_REDIS).copied()
}

#[test]
fn an_invalid_backend_is_refused_and_its_source_named() {
    let mut otherwise = Vec::new();
    for (url, why) in wrong() {
        let place = Place::new();
        let variable = place.bare().env("DLOCK_BACKEND", url).args(["run", "x", "--", "touch", "t"]);
        for (source, output) in [
            ("--backend", refused(&["run", "--backend", url, "x", "--", "touch", "t"])),
            ("--backend", refused(&["run", "-b", url, "x", "-c", "touch t"])),
            ("DLOCK_BACKEND", refused_in(&place, variable)),
        ] {
            if output.outcome() != (Exit::Code(78), "", &format!("dlock: {source}: {why}\n")) {
                otherwise.push(format!("{url}: {:?} {}", output.exit, output.stderr));
            }
        }
    }
    assert!(otherwise.is_empty(), "{}", otherwise.join(""));
}

/// Messages have them in lower case.
#[test]
fn the_words_of_options_are_read_in_either_case() {
    let output = refused(&["run", "-b", "redis://127.0.0.1:1?recipe=REDISSON", "x", "--", "touch", "t"]);
    assert_eq!(output.exit, Exit::Code(69));
    assert!(output.stderr.contains("redis://127.0.0.1:1/0?recipe=redisson: "), "{}", output.stderr);
}

#[test]
fn an_unknown_option_of_a_url_is_named_with_the_known_ones() {
    let output = refused(&["run", "-b", "redis://h?ttl=5", "x", "--", "touch", "t"]);
    let line = "dlock: --backend: unknown option 'ttl' for redis:// (known: db, recipe, prefix, wait_replicas, \
                protocol, username, password_file, ca_file, cert_file, key_file, server_name, insecure, require_verified_tls)\n";
    assert_eq!(output.outcome(), (Exit::Code(78), "", line));
}

#[test]
fn an_empty_backend_counts_as_unset() {
    let output = refused(&["run", "-b", "", "x", "--", "touch", "t"]);
    let line = "dlock: --backend: it is empty: name a URL or an alias\n";
    assert_eq!(output.outcome(), (Exit::Code(78), "", line));
}

/// An unset secret of a CI job must not lead to a lock for this host only.
#[test]
fn a_variable_that_is_set_and_empty_is_invalid() {
    for variable in ["DLOCK_BACKEND", "DLOCK_CONFIG"] {
        for options in [&[][..], &["-q"]] {
            let place = Place::new();
            let run = place.bare().env(variable, "").arg("run").args(options).args(["x", "--", "touch", "t"]);
            let output = refused_in(&place, run);
            let line = format!("dlock: {variable}: it is set and empty: set it to a value, or unset it\n");
            assert_eq!(output.outcome(), (Exit::Code(78), "", line.as_str()));
        }
    }
}

#[test]
fn a_backend_that_is_not_text_is_invalid() {
    let url = OsStr::from_bytes(b"file:///\xff");
    let flag = refused_with(|run| run.args(["run", "--backend"]).arg(url).args(["x", "--", "touch", "t"]));
    assert_eq!(flag.outcome(), (Exit::Code(78), "", "dlock: --backend: not valid UTF-8\n"));
    let place = Place::new();
    let run = place.bare().env("DLOCK_BACKEND", url).args(["run", "x", "--", "touch", "t"]);
    let variable = refused_in(&place, run);
    assert_eq!(variable.outcome(), (Exit::Code(78), "", "dlock: DLOCK_BACKEND: not valid UTF-8\n"));
}

/// No name fits into a file name with it.
#[test]
fn a_suffix_too_long_for_any_file_name_is_refused() {
    let place = Place::new();
    let url = format!("{}?suffix={}", place.url(), "s".repeat(300));
    let output = refused_in(&place, place.run().backend(url).command(["touch", "t"]));
    assert_eq!(output.exit, Exit::Code(78), "{}", output.stderr);
    assert!(output.stderr.contains("suffix"), "{}", output.stderr);
}

#[test]
fn a_missing_directory_is_not_created() {
    let place = Place::new();
    let url = format!("file://{}", place.path("no/such").display());
    let output = refused_in(&place, place.run().backend(&url).command(["touch", "t"]));
    let line = format!(
        "dlock: x on {url}: cannot open {}: no such file or directory; the command did not run\n",
        place.path("no/such/x.lock").display()
    );
    assert_eq!(output.outcome(), (Exit::Code(78), "", line.as_str()));
}

/// Files in a URL are checked before a server is contacted.
#[test]
fn missing_files_of_a_url_are_named_before_any_server_is_contacted() {
    use crate::support::fake::Fake;
    let place = Place::new();
    let server = Fake::silent();
    let port = server.port();
    for url in [
        format!("redis://127.0.0.1:{port}?password_file=/no/such/file"),
        format!("rediss://127.0.0.1:{port}?ca_file=/no/such/file"),
        format!("rediss://127.0.0.1:{port}?insecure&cert_file=/no/such/file&key_file=/no/such/file"),
    ] {
        let run = place.run().backend(&url).args(["--connect-timeout", "5s"]).command(["touch", "t"]);
        let output = refused_in(&place, run);
        assert_eq!(output.exit, Exit::Code(78), "{url}: {}", output.stderr);
        assert!(output.stderr.contains("/no/such/file"), "{}", output.stderr);
        assert_eq!(server.connections(), 0, "{url}");
    }
}

/// An invalid server name is refused before a server is contacted.
#[test]
fn an_invalid_server_name_is_refused() {
    use crate::support::fake::Fake;
    let place = Place::new();
    let server = Fake::silent();
    for name in ["", "a%20b", "a/b", "-"] {
        let url = format!("rediss://127.0.0.1:{}?insecure&server_name={name}", server.port());
        let output = refused_in(&place, place.run().backend(&url).arg("-q").command(["touch", "t"]));
        assert_eq!(output.exit, Exit::Code(78), "{name}: {}", output.stderr);
        assert!(output.stderr.contains("server_name"), "{}", output.stderr);
        assert_eq!(server.connections(), 0, "{name}");
    }
}

/// F48
#[test]
fn an_invalid_variable_is_refused_by_name() {
    let duration = "expected a duration like 250ms, 90s, 5m, 1h30m or 1d (a bare number is seconds)";
    for (variable, value, why) in [
        ("DLOCK_TTL", "5M", "unknown unit 'M': known are ms, s, m, h, d".to_owned()),
        ("DLOCK_TTL", "forever", duration.to_owned()),
        ("DLOCK_TTL", "25h", "1d1h is not between 1s and 24h".to_owned()),
        ("DLOCK_TTL", "-1", duration.to_owned()),
        ("DLOCK_WAIT", "never", format!("{duration}, or forever")),
        ("DLOCK_WAIT", "-1", format!("{duration}, or forever")),
        ("DLOCK_WAIT", "99999999d", "longer than a hundred years, or forever".to_owned()),
    ] {
        let output = refused_with(|run| run.env(variable, value).args(["run", "x", "--", "touch", "t"]));
        assert_eq!(output.exit, Exit::Code(78));
        let line = output.stderr;
        assert!(line.starts_with(&format!("dlock: {variable}: ")), "{line}");
        assert!(line.contains(&why) || line.contains(why.trim_end_matches(", or forever")), "{line}");
        // `25h` is shown in the normalised form.
        assert!(line.contains(value) || line.contains("1d1h"), "the value {value} is named: {line}");
    }
    for variable in ["DLOCK_TTL", "DLOCK_WAIT"] {
        let value = OsStr::from_bytes(b"\xff");
        let output = refused_with(|run| run.env(variable, value).args(["run", "x", "--", "touch", "t"]));
        let line = format!("dlock: {variable}: not valid UTF-8\n");
        assert_eq!(output.outcome(), (Exit::Code(78), "", line.as_str()));
    }
}

/// F48: values that a flag overrides are not parsed, and an empty variable counts as unset.
#[test]
fn a_flag_overrides_an_invalid_variable() {
    let place = Place::new();
    let run = || place.run().command(["echo", "ran"]);
    for run in [
        run().env("DLOCK_TTL", "garbage").args(["--ttl", "5s"]),
        run().env("DLOCK_WAIT", "garbage").args(["--wait", "5s"]),
        run().env("DLOCK_WAIT", "garbage").arg("--no-wait"),
        run().env("DLOCK_WAIT", "forever").arg("--no-wait"),
        run().env("DLOCK_BACKEND", "garbage"),
        run().env("DLOCK_TTL", "").env("DLOCK_WAIT", ""),
    ] {
        assert_eq!(run.output().outcome(), (Exit::Code(0), "ran\n", ""));
    }
}

/// The message about a ttl from the environment names the variable.
#[test]
fn a_grace_that_does_not_fit_a_ttl_from_the_environment_names_the_variable() {
    let args = ["run", "--grace", "2s", "x", "--", "touch", "t"];
    let output = refused_with(|run| run.env("DLOCK_TTL", "3s").args(args));
    assert!(matches!(output.exit, Exit::Code(64 | 78)), "{}", output.stderr);
    let line = output.stderr;
    for word in ["--grace", "2s", "DLOCK_TTL", "3s"] {
        assert!(line.contains(word), "{word}: {line}");
    }
}
