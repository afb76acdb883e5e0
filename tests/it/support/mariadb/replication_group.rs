//! Members of a group of MySQL's Group Replication.

use super::{DATABASE, MariaDb, Plan};
use crate::support::server::free_port;
use crate::support::wait::until;
use std::time::Duration;

/// How many members of a group accept writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    SinglePrimary,
    MultiPrimary,
}

/// A group whose members follow each other. The first one is its primary at first.
#[derive(Debug)]
pub struct ReplicationGroup {
    members: Vec<MariaDb>,
}

/// Within this time a member has joined, or another one is the primary.
const ELECTION: Duration = Duration::from_secs(60);

impl ReplicationGroup {
    /// Starts a group of this number of members.
    pub fn start(mode: Mode, count: usize) -> Self {
        let ports: Vec<u16> = (0..count).map(|_| free_port()).collect();
        let plans = (0..count).map(|number| plan(mode, &ports, number));
        let members = std::thread::scope(|scope| {
            let starting: Vec<_> = plans.map(|plan| scope.spawn(move || MariaDb::start_with(plan))).collect();
            starting.into_iter().map(|member| member.join().expect("a member")).collect()
        });
        let group = Self { members };
        group.members[0].sql(
            "SET GLOBAL group_replication_bootstrap_group = ON; START GROUP_REPLICATION USER = 'root'; SET GLOBAL \
             group_replication_bootstrap_group = OFF",
        );
        for number in 1..count {
            // It gets the database of the group in place of its own.
            group.members[number].sql(&format!(
                "DROP DATABASE {DATABASE}; RESET BINARY LOGS AND GTIDS; START GROUP_REPLICATION USER = 'root'"
            ));
            group.await_online(number + 1);
        }
        group
    }

    /// One of its members.
    pub fn member(&self, number: usize) -> &MariaDb {
        &self.members[number]
    }

    /// Makes a member the only primary, as an operator does it, and waits until it is.
    pub fn promote(&self, number: usize) {
        let member = &self.members[number];
        member.sql("SELECT group_replication_set_as_primary(@@server_uuid)");
        until(ELECTION, "a new primary", || member.sql("SELECT @@GLOBAL.read_only") == "0\n");
    }

    fn await_online(&self, count: usize) {
        let sql =
            "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'";
        let expected = format!("{count}\n");
        until(ELECTION, "members of a group", || {
            self.members[..count].iter().all(|member| member.sql(sql) == expected)
        });
    }
}

fn plan(mode: Mode, ports: &[u16], number: usize) -> Plan {
    let seeds: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    let mut args = vec![
        format!("--server-id={}", number + 1),
        format!("--group-replication-local-address={}", seeds[number]),
        format!("--group-replication-group-seeds={}", seeds.join(",")),
    ];
    args.extend(
        [
            "--gtid-mode=ON",
            "--enforce-gtid-consistency=ON",
            "--report-host=127.0.0.1",
            "--plugin-load-add=group_replication.so",
            "--group-replication-group-name=6d1b5e2c-3f0a-4c57-9b7e-2a5d8c1f4e90",
            "--group-replication-start-on-boot=OFF",
            "--group-replication-recovery-get-public-key=ON",
            match mode {
                Mode::SinglePrimary => "--group-replication-single-primary-mode=ON",
                Mode::MultiPrimary => "--group-replication-single-primary-mode=OFF",
            },
        ]
        .map(str::to_owned),
    );
    Plan { args, ..Plan::current() }
}
