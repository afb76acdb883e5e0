//! `recipe=shedlock` on MariaDB, beside the statements that ShedLock itself sends.

use crate::stores::gate_alone::assert_exclusive_only;
use crate::stores::host_clock::assert_the_hosts_clock_does_not_matter;
use crate::support::dlock::Dlock;
use crate::support::mariadb::MariaDb;
use crate::support::place::Place;
use crate::support::running::Exit;

/// As the manual of ShedLock has it.
pub const TABLE: &str = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL, lock_until TIMESTAMP(3) NOT NULL, locked_at \
                     TIMESTAMP(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3), locked_by VARCHAR(255) NOT NULL, PRIMARY KEY (name))";
pub const DB_UTC: &str = "recipe=shedlock&clock=db-utc";

fn run(server: &MariaDb, options: &str) -> Dlock {
    Dlock::run().backend(format!("{}?{options}", server.url()))
}

#[test]
fn a_hosts_clock_that_is_an_hour_wrong_changes_nothing() {
    let server = MariaDb::lent();
    server.sql(TABLE);
    assert_the_hosts_clock_does_not_matter(&["recipe=table", DB_UTC], |options| run(&server, options));
}

#[test]
fn a_missing_table_is_not_created_and_another_one_not_changed() {
    let server = MariaDb::lent();
    let refused = |text: &str| {
        let output = run(&server, DB_UTC).sh("echo ran").output();
        assert_eq!((output.exit, output.stdout.as_str()), (Exit::Code(78), ""), "{}", output.stderr);
        assert!(output.stderr.contains(text), "{}", output.stderr);
    };
    refused("there is no table shedlock");
    server.sql(&TABLE.replace("(3)", ""));
    refused("lock_until is timestamp");
    server.sql("DROP TABLE shedlock");
    let url = format!("{}?{DB_UTC}", server.url());
    let init = Place::new().bare().args(["doctor", "--init", "-b", &url]).output();
    assert_eq!(init.exit, Exit::Code(0), "{}{}", init.stdout, init.stderr);
    assert_eq!(run(&server, DB_UTC).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}

#[test]
fn a_user_without_the_table_has_exclusive_locks_only() {
    let server = MariaDb::lent();
    server.sql(TABLE);
    server.create_user("web", "", "SELECT, INSERT, UPDATE ON locks.shedlock");
    let owner = format!("{}?{DB_UTC}", server.url());
    let web = owner.replace("root", "web");
    for _ in 0..2 {
        assert_exclusive_only(&web, &owner, "without the table dlock_locks a lock has no queue");
        let output = Place::new().bare().args(["doctor", "-b", &web]).output();
        assert_eq!(output.exit, Exit::Code(0), "{}", output.stdout);
        assert!(output.stdout.contains("locks are exclusive only"), "{}", output.stdout);
        // The second time there is a table.
        server.sql("UPDATE shedlock SET lock_until = locked_at");
        assert_eq!(run(&server, DB_UTC).sh("true").output().exit, Exit::Code(0));
    }
}

/// As a scheduler without `usingDbTime()` writes it, in the zone of its JVM.
#[test]
fn local_times_of_a_zone_are_read_and_written() {
    let server = MariaDb::lent();
    server.sql(TABLE);
    let zone = "recipe=shedlock&clock=jvm-zone&zone=Etc/GMT-14";
    let local = "TIMESTAMPADD(HOUR, 14, UTC_TIMESTAMP(3))";
    server
        .sql(&format!("INSERT INTO shedlock VALUES ('x', TIMESTAMPADD(HOUR, 1, {local}), {local}, 'app-1')"));
    let busy = run(&server, zone).args(["--wait", "0"]).sh("echo ran").output();
    assert_eq!((busy.exit, busy.stdout.as_str()), (Exit::Code(75), ""), "{}", busy.stderr);
    server.sql(&format!("UPDATE shedlock SET lock_until = {local}"));
    assert_eq!(run(&server, zone).sh("echo ran").output().outcome(), (Exit::Code(0), "ran\n", ""));
}
