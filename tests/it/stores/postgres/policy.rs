//! `dlock doctor --policy`, as an administrator uses it.

use crate::support::dlock::Dlock;
use crate::support::doctor::{assert_found, doctor};
use crate::support::place::Place;
use crate::support::postgres::Postgres;
use crate::support::running::Exit;

/// Nobody has a right by default.
#[test]
fn the_printed_statements_give_a_new_role_all_that_it_needs() {
    let server = Postgres::start();
    server.sql("REVOKE ALL ON DATABASE postgres FROM PUBLIC; REVOKE ALL ON SCHEMA public FROM PUBLIC");
    for (role, options) in [
        ("web", ""),
        ("Ann-1", "?table=Jobs.locks"),
        ("adv", "?recipe=advisory"),
        ("sched", "?recipe=shedlock&clock=db-utc&shedlock_table=app.shedlock"),
    ] {
        // Without a password, which an administrator does not have.
        let url = format!("postgres://{role}@127.0.0.1:{}/postgres{options}", server.port());
        let policy = Place::new().bare().args(["doctor", "-q", "--policy", "-b", &url]).output();
        assert_eq!((policy.exit, policy.stderr.as_str()), (Exit::Code(0), ""));
        server.sql(&policy.stdout);
        let place = Place::new();
        let bare = |args: &[&str]| place.bare().args(args).args(["-b", &url]).output();
        let ran = Dlock::run().backend(&url).args(["--wait", "1s"]).sh("echo ran").output();
        assert_eq!(ran.outcome(), (Exit::Code(0), "ran\n", ""), "{url}");
        for args in [&["status", "x"][..], &["status", "--history"], &["break", "--yes", "x"], &["status"]] {
            let output = bare(args);
            assert_eq!(output.exit, Exit::Code(0), "{url} {args:?}: {}", output.stderr);
        }
        let report = doctor(&url);
        assert_eq!(report.exit, Exit::Code(0), "{}", report.stdout);
        assert_found(&report, "ok", "race", "had one winner each");
        assert!(!report.stdout.contains("act as a superuser"), "{}", report.stdout);
    }
    let left = "SELECT (SELECT count(*) FROM public.dlock_locks WHERE name <> 'x') + (SELECT count(*) FROM \"Jobs\".locks WHERE \
                name <> 'x') + (SELECT count(*) FROM app.shedlock WHERE name <> 'x')";
    assert_eq!(server.sql(left), "0", "the scratch lock of doctor");
}
