//! What is wrong with the server, the table or the URL, in a sentence.

use crate::stores::refusal::assert_invalid;
use crate::support::dlock::Dlock;
use crate::support::fake::Fake;
use crate::support::mariadb::{DATABASE, MariaDb, Plan};
use crate::support::running::Exit;

#[track_caller]
fn assert_refused(url: &str, code: i32, message: &str) {
    let run = Dlock::run().backend(url).args(["--connect-timeout", "10s"]).env("MYSQL_PWD", "secret");
    let output = run.sh("echo ran").output();
    let expected = format!("dlock: x on {url}: {message}\n");
    assert_eq!(output.outcome(), (Exit::Code(code), "", expected.as_str()));
}

#[test]
fn a_database_that_does_not_exist_is_not_created() {
    let server = MariaDb::lent();
    let url = server.url().replace(DATABASE, "jobs").replace("root", "me");
    server.create_user("me", "secret", "ALL ON *.*");
    let message =
        "error 1049: Unknown database 'jobs': create it, or change the URL; the command did not run";
    assert_refused(&url, 78, message);
    assert_eq!(server.sql("SHOW DATABASES LIKE 'jobs'"), "");
}

#[test]
fn a_user_that_may_not_create_the_table_is_told_what_to_run() {
    let server = MariaDb::lent();
    server.create_user("me", "secret", "SELECT, INSERT, UPDATE ON locks.*");
    let message = "there is no table dlock_locks, and a right is missing (error 1142: CREATE command denied to user \
                   'me'@'127.0.0.1' for table `locks`.`dlock_locks`): see dlock doctor --policy; the command did not run";
    assert_refused(&server.url().replace("root", "me"), 77, message);
    assert_eq!(server.sql("SHOW TABLES"), "");
}

#[test]
fn a_table_of_another_shape_is_not_touched() {
    let server = MariaDb::lent();
    server.create_user("me", "secret", "ALL ON locks.*");
    let url = server.url().replace("root", "me");
    server.sql("CREATE TABLE dlock_locks (name varchar(20) PRIMARY KEY, owner text); INSERT INTO dlock_locks VALUES ('x', 'y')");
    let output = Dlock::run().backend(&url).env("MYSQL_PWD", "secret").sh("echo ran").output();
    assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
    assert!(output.stderr.contains("dlock_locks is not a table of dlock's (error 1054"), "{}", output.stderr);
    assert_eq!(server.sql("SELECT * FROM dlock_locks"), "x\ty\n");
}

/// Also for a user that could write to it.
#[test]
fn a_replica_is_refused() {
    let server = MariaDb::lent();
    server.create_user("me", "secret", "ALL ON *.*");
    let url = server.url().replace("root", "me");
    server.sql("SET GLOBAL read_only = 1");
    let message =
        "the server is read-only: name the primary, not a replica; the command did not run, see --retry";
    assert_refused(&url, 69, message);
    assert_eq!(server.sql("SHOW TABLES"), "");
    server.sql("SET GLOBAL read_only = 0");
}

/// The only node of a cluster.
pub fn galera_node() -> MariaDb {
    let port = crate::support::server::free_port();
    let args = [
        "--wsrep-on=ON".to_owned(),
        "--wsrep-provider=/usr/lib/galera/libgalera_smm.so".to_owned(),
        "--wsrep-cluster-address=gcomm://".to_owned(),
        "--wsrep-node-address=127.0.0.1".to_owned(),
        format!("--wsrep-provider-options=base_port={port};gmcast.listen_addr=tcp://127.0.0.1:{port}"),
        "--binlog-format=ROW".to_owned(),
        "--innodb-autoinc-lock-mode=2".to_owned(),
    ];
    MariaDb::start_with(Plan { args: args.to_vec(), ..Plan::default() })
}

#[test]
fn a_node_of_a_galera_cluster_is_refused_without_confirmation() {
    let server = galera_node();
    server.create_user("me", "secret", "ALL ON locks.*");
    let url = server.url().replace("root", "me");
    let message = "the server belongs to a Galera cluster (wsrep_on), which can lose locks: use another server, or, if all \
                   clients write to one node, single_writer=yes; the command did not run";
    assert_refused(&url, 78, message);
    let run = |value: &str| {
        let confirmed = format!("{url}?single_writer={value}");
        Dlock::run().backend(&confirmed).env("MYSQL_PWD", "secret").sh("echo ran").output()
    };
    // A configuration file has `single_writer = true`.
    for yes in ["yes", "true"] {
        let output = run(yes);
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(0), "ran\n"));
        assert!(output.stderr.contains("efficiency"), "{}", output.stderr);
    }
    assert_eq!(run("no").exit, Exit::Code(78));
}

/// It says nothing to a second client, which would recognize what it is.
#[test]
fn a_greeting_of_another_protocol_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let greeter = std::thread::spawn(move || {
        use std::io::Write;
        let (mut client, _) = listener.accept().unwrap();
        client.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        client
    });
    let message = "the server does not speak the protocol of MySQL and MariaDB; the command did not run";
    assert_refused(&format!("mysql://me@127.0.0.1:{port}/db"), 78, message);
    drop(greeter.join().unwrap());
}

#[test]
fn a_version_that_is_too_old_is_refused() {
    for (version, shown) in [
        ("5.6.51-log", "5.6.51-log"),
        ("5.7.4-m14", "5.7.4-m14"),
        ("5.5.5-10.0.1-MariaDB", "10.0.1-MariaDB"),
        ("5.5.5-10.1.48-MariaDB", "10.1.48-MariaDB"),
    ] {
        let mut greeting = vec![10];
        greeting.extend(version.as_bytes());
        greeting.extend(b"\0\x01\0\0\0abcdefgh\0\xff\xf7\x2d\x02\0\x0f\x80\x15");
        greeting.extend([0; 10]);
        greeting.extend(b"ijklmnopqrst\0mysql_native_password\0");
        let mut bytes = vec![u8::try_from(greeting.len()).unwrap(), 0, 0, 0];
        bytes.extend(greeting);
        let fake = Fake::saying(bytes);
        for recipe in ["", "?recipe=get_lock"] {
            let url = format!("mysql://me@127.0.0.1:{}/db{recipe}", fake.port());
            let message =
                format!("the server is too old ({shown}): see dlock man mysql; the command did not run");
            assert_refused(&url, 78, &message);
        }
    }
}

#[test]
fn a_url_names_one_host_and_a_database() {
    assert_invalid([
        ("mysql://", "mysql:// takes a host, such as mysql://user@host/database, or socket="),
        ("mariadb://h", "mariadb:// takes a database, such as mariadb://user@host/database"),
        ("mysql://h/a/b", "mysql:// takes a database, such as mysql://user@host/database"),
        ("mysql://h,i/db", "mysql:// takes one host: that of the primary"),
        ("mysql://h/db?socket=/s", "mysql:// takes a host or socket=, not both"),
        ("mysql:///db?socket=s", "socket= takes an absolute path"),
        ("mysql://h/db?recipe=x", "recipe= is table, get_lock or shedlock, not 'x'"),
        ("mysql://h/db?ssl_ca=/x&ca_file=/y", "ssl_ca= and ca_file= are the same option: give one of them"),
        ("mysql://h/db?single_writer=maybe", "single_writer= is yes or no, not 'maybe'"),
        (
            "mysql://h/db?ssl_mode=x",
            "ssl_mode= is disabled, preferred, required, verify_ca or verify_identity, not 'x'",
        ),
        (
            "mysql://h/db?ssl_mode=disabled&ca_file=/x",
            "'ca_file' needs TLS: use another ssl_mode= than disabled",
        ),
        (
            "mysql://h/db?charset=x",
            "unknown option 'charset' for mysql:// (known: socket, recipe, clock, zone, prefix, single_writer, ssl_mode, \
             ssl_ca, ssl_cert, ssl_key, username, password_file, ca_file, cert_file, key_file, server_name, insecure, \
             require_verified_tls)",
        ),
    ]);
}
