//! `dlock status --overdue`: how long ago the last run that succeeded began.

use super::admin::{name, seen};
use crate::stores::conformance::client::Client;
use crate::stores::conformance::rig::Rig;
use crate::support::SOON;
use crate::support::running::{Exit, Output};
use crate::support::wait::eventually;
use dlock::backend::admin::Revoked;
use dlock::backend::{Ending, Release};
use dlock::lock::record::RecordKind;
use dlock::lock::{Record, Revocation};
use std::time::Duration;

fn overdue(rig: &dyn Rig, words: &[&str]) -> Output {
    let status = rig.place().bare().args(["status", "--overdue"]).args(words);
    status.env("DLOCK_BACKEND", rig.url()).output()
}

/// However often it failed since.
pub async fn the_last_success_outlives_later_failures(rig: &mut dyn Rig) {
    assert_eq!(overdue(rig, &["1h", "x"]).outcome(), (Exit::Code(1), "x: no success is known\n", ""));
    assert_eq!(rig.run().sh("exit 0").output().outcome(), (Exit::Code(0), "", ""));
    let mut client = Client::new(rig, "x");
    client.backend.connect().await.unwrap();
    let failed =
        Record { outcome: "ran".into(), exit_status: Some(1), held_ms: Some(1), ..Record::default() };
    for _ in 0..25 {
        client.backend.add_record(&name("x"), &failed).await.unwrap();
    }
    assert_eq!(overdue(rig, &["1h", "x"]).outcome(), (Exit::Code(0), "", ""));
    let late = eventually(SOON, "a success that is older than a second", || {
        let output = overdue(rig, &["1s", "x"]);
        (output.exit != Exit::Code(0)).then_some(output)
    });
    let host = dlock::identity::host();
    assert_eq!((late.exit, late.stderr.as_str()), (Exit::Code(1), ""));
    assert!(
        late.stdout.starts_with("x: last success of ") && late.stdout.contains(&format!("@{host} began "))
    );
    assert!(late.stdout.ends_with(" ago, more than 1s ago\n"), "{late:?}");
    if rig.has_list() {
        assert_eq!(overdue(rig, &["1h", "*"]).outcome(), (Exit::Code(0), "", ""));
        let unmatched = "y*: no matching lock has a recorded success\n";
        assert_eq!(overdue(rig, &["1h", "x", "y*"]).outcome(), (Exit::Code(1), unmatched, ""));
    }
}

/// Also where dlock itself keeps the lock for that time.
pub async fn a_success_counts_while_the_minimum_hold_time_lasts(rig: &mut dyn Rig) {
    let mut keeper = rig.run().args(["--min-hold", "1h"]).sh("exit 0").spawn();
    let succeeded = || (overdue(rig, &["1h", "x"]).exit == Exit::Code(0)).then_some(());
    eventually(SOON, "a success", succeeded);
    let freed = rig.place().bare().args(["break", "--yes", "x"]).env("DLOCK_BACKEND", rig.url()).output();
    assert_eq!(freed.exit, Exit::Code(0), "{}", freed.stderr);
    assert_eq!(keeper.wait().exit, Exit::Code(0));
    assert_eq!(overdue(rig, &["1h", "x"]).outcome(), (Exit::Code(0), "", ""));
    let history = rig.open().history(&name("x")).await.unwrap();
    let runs = history.iter().filter(|(_, record)| record.outcome == "ran");
    assert_eq!(runs.count(), 1, "it is recorded once: {history:?}");
}

/// Neither does that of a hold that is gone.
pub async fn a_success_of_a_revoked_hold_does_not_count(rig: &mut dyn Rig) {
    for (is_revoked, expected) in [(true, RecordKind::Held), (false, RecordKind::Succeeded)] {
        let (exit_status, held_ms, waited_ms) = (Some(0), Some(1), u64::from(is_revoked));
        let record = Record { outcome: "ran".into(), exit_status, held_ms, waited_ms, ..Record::default() };
        let mut owner = Client::new(rig, "x");
        owner.acquire().await;
        if is_revoked {
            let holder = seen(rig, "x").await.holders.remove(0);
            let revocation = Revocation { by: "root@web-9".into(), reason: None };
            let mut overseer = rig.open();
            let revoked = overseer.revoke(&name("x"), &holder, &revocation).await.unwrap();
            assert_eq!(revoked, Revoked::Notified(1));
        }
        let ending = Ending::with_record(Some(&record));
        let mut end = async || owner.backend.release(&owner.claim, Duration::ZERO, ending).await.unwrap();
        assert_eq!(end().await, Release::Released);
        let last = async || rig.open().history(&name("x")).await.unwrap().remove(0).1.kind();
        assert_eq!(last().await, expected);
        assert_eq!(end().await, Release::NotHeld);
    }
    let history = rig.open().history(&name("x")).await.unwrap();
    let succeeded = history.iter().filter(|(_, record)| record.kind() == RecordKind::Succeeded);
    assert_eq!(succeeded.count(), 1);
}
