//! Parts of the suite for stores of which another form runs all of it, and what many waiters cost: a server at a
//! hand-off, and the next waiter when those ahead die.

#[cfg(any(feature = "etcd", feature = "postgres", feature = "zookeeper"))]
use super::client::Client;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use super::rig::Rig;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use super::suite::queue_of_runs::waiting_with_ttl;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use crate::support::{process, running::Exit};
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use nix::sys::signal::Signal;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
use std::time::{Duration, Instant};

/// What ten hand-offs cost a server with this many waiters: the growth of a figure of the server.
#[cfg(any(feature = "etcd", feature = "postgres", feature = "zookeeper"))]
pub async fn ten_hand_offs(client: impl Fn() -> Client, waiters: usize, figure: impl Fn() -> u64) -> u64 {
    const HAND_OFFS: usize = 10;
    let mut holder = client();
    holder.acquire().await;
    let mut waiting = Vec::new();
    for _ in 0..waiters + HAND_OFFS {
        waiting.push(client().wait_beside().await);
    }
    let before = figure();
    for next in waiting.drain(..HAND_OFFS) {
        holder.release().await;
        (holder, _) = next.granted().await;
    }
    figure() - before
}

/// F51: the holder and the first three of 200 waiters are killed together. The next one waits for the longest of their
/// leases: not for one after another, and not for its own.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub async fn killed_together_they_cost_the_longest_lease(rig: &mut dyn Rig) {
    const WAITERS: usize = 200;
    const LONGEST: Duration = Duration::from_secs(6);
    /// The delay of a busy machine. Another lease would cost more.
    const DELAY: Duration = Duration::from_secs(4);
    let mut holder = rig.run().args(["--ttl", "6s"]).sh("echo ready; exec sleep 600").spawn();
    holder.await_ready();
    let leases = ["5s", "6s", "5s"];
    let waiting =
        leases.iter().enumerate().map(|(ahead, ttl)| waiting_with_ttl(rig, ttl, ahead + 1, "killed"));
    let mut killed = vec![holder];
    killed.extend(waiting);
    let mut next = waiting_with_ttl(rig, "60s", killed.len(), "next");
    let mut others = Vec::new();
    for _ in killed.len()..WAITERS {
        others.push(Client::new(rig, "x").elsewhere().wait_beside().await);
    }
    assert_eq!(rig.waiters("x"), WAITERS);
    let processes: Vec<i32> =
        killed.iter().flat_map(|run| run.marker().bearers()).map(|process| process.pid).collect();
    processes.iter().for_each(|pid| process::send(*pid, Signal::SIGKILL));
    let began = Instant::now();
    for run in &mut killed {
        assert_eq!(run.wait().exit, Exit::by(Signal::SIGKILL));
    }
    assert_eq!(next.wait().exit, Exit::Code(0));
    let took = began.elapsed();
    assert_eq!(rig.place().read("log"), "next\n");
    assert!(took < rig.end_of_lease(LONGEST) + DELAY, "{took:?}");
}

/// The tests of one store that differs from another only in the names of its entries, or in the number of servers.
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
macro_rules! essential_checks {
    ($rig:path) => {
        crate::stores::conformance::topics! { $rig;
            exclusion {
                a_held_lock_excludes_others
                release_frees_the_lock
                a_run_and_another_client_exclude_each_other
                of_many_runs_one_holds_at_a_time
                the_lock_ends_with_its_owner
            }
            ownership {
                a_replaced_lock_is_lost_and_not_touched
                a_repeated_request_is_recognised
            }
            fencing {
                fencing_tokens_grow_with_every_grant
                fencing_tokens_grow_over_a_restart
            }
            queue {
                waiters_are_served_first_come_first_served
                a_release_by_a_foreign_client_is_noticed
                a_dead_waiter_is_skipped_without_delay
            }
            queue_of_runs {
                runs_are_served_first_come_first_served
                a_run_waits_for_a_foreign_client
            }
            sharing {
                a_writer_and_readers_exclude_each_other
                a_waiting_writer_blocks_later_readers
                a_foreign_client_is_excluded_until_the_last_reader_has_left
            }
            slots by prove_slots {
                slots_limit_the_number_of_holders
                exclusive_waits_for_every_slot
                a_foreign_client_is_excluded_until_the_last_slot_is_free
            }
            several_locks {
                removing_one_lock_loses_all
            }
            nesting {
                a_nested_run_enters_at_once
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases
                a_foreign_lock_is_removed_only_where_the_store_keeps_it
            }
        }
    };
}
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) use essential_checks;

/// Some checks of one store with a failover at another moment of each, after the given number of actions.
#[cfg(feature = "net")]
macro_rules! disturbed_by_a_failover {
    ($rig:path) => {
        crate::stores::conformance::disturbed! { $rig;
            exclusion {
                a_held_lock_excludes_others after 2
                release_frees_the_lock after 6
            }
            ownership {
                a_stale_owner_cannot_release after 3
                another_token_cannot_renew after 2
                a_replaced_lock_is_lost_and_not_touched after 1
                a_repeated_request_is_recognised after 1
                renewal_keeps_the_lock after 2
            }
            fencing {
                fencing_tokens_grow_with_every_grant after 50
            }
            queue {
                waiters_are_served_first_come_first_served after 17
                later_clients_do_not_overtake_waiters after 5
                a_release_by_a_foreign_client_is_noticed after 2
            }
            queue_positions {
                a_repeated_request_keeps_the_queue_position after 5
            }
            sharing {
                readers_share after 4
                a_waiting_writer_blocks_later_readers after 4
                every_reader_at_the_head_is_notified after 4
            }
            slots {
                slots_limit_the_number_of_holders after 4
                a_hold_keeps_its_slot after 4
            }
            revocation {
                a_revoked_holder_is_notified_and_keeps_the_lock_until_it_releases after 3
                all_nested_holds_are_notified after 2
            }
        }
    };
}
#[cfg(feature = "net")]
pub(super) use disturbed_by_a_failover;

/// Some checks of one store that is disturbed after the given number of actions.
#[cfg(feature = "net")]
macro_rules! disturbed {
    ($rig:path; $($topic:ident { $($check:ident after $moment:literal)+ })+) => {
        $($(
            #[test]
            fn $check() {
                crate::stores::conformance::rig::prove($rig($moment), crate::stores::conformance::suite::$topic::$check);
            }
        )+)+
    };
}
#[cfg(feature = "net")]
pub(super) use disturbed;
