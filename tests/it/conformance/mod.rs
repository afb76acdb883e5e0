//! What every store promises, whichever it is.
//!
//! A check is a plain async function over a [`rig::Rig`]. The list below turns each (store x check) into a test of its
//! own, such as `conformance::file::a_stale_owner_cannot_release`. A new store brings a rig, a new promise one function
//! and one line here.

mod client;
mod rig;
mod suite;

mod file;
#[cfg(feature = "redis")]
mod redis;

/// The tests of one store.
macro_rules! every_check {
    ($rig:ty) => {
        crate::conformance::every_check! { $rig;
            exclusion {
                a_held_lock_excludes_others
                release_frees_the_lock
                release_may_be_repeated
                another_lock_is_free
                a_run_excludes_a_run
                a_run_and_another_client_exclude_each_other
                of_many_runs_one_holds_at_a_time
                the_lock_ends_with_its_owner
            }
            ownership {
                a_stale_owner_cannot_renew
                a_stale_owner_cannot_release
                another_token_cannot_renew
                another_token_cannot_release
                the_token_of_one_lock_is_nothing_to_another
                a_deleted_lock_is_gone_and_is_not_created_anew
                a_replaced_lock_is_taken_and_is_not_touched
                a_repeated_request_is_recognised_as_ours
                renewal_keeps_the_lock
                whoever_asks_without_being_granted_leaves_nothing
            }
            fencing {
                fencing_tokens_grow_with_every_grant
                fencing_tokens_grow_over_a_restart
                fencing_tokens_grow_over_a_wiped_store
                fencing_tokens_grow_over_a_deleted_lock
            }
            holder {
                busy_names_the_holder
                busy_names_what_a_run_says_of_itself
                busy_never_tells_a_token
                a_foreign_holder_has_no_name
                display_tells_no_secret
            }
            dropped {
                a_dropped_connect_leaves_the_store_usable
                a_dropped_acquire_leaves_the_store_usable
                a_dropped_renew_leaves_the_store_usable
                a_dropped_release_leaves_the_store_usable
            }
            names {
                different_names_never_meet
                different_names_never_meet_without_prefix_and_suffix
                names_of_what_dlock_itself_stores_are_strangers_or_refused
                what_is_told_of_one_name_is_not_told_of_another
            }
        }
    };
    ($rig:ty; $($topic:ident { $($check:ident)+ })+) => {
        $($(
            #[test]
            fn $check() {
                crate::conformance::rig::prove(<$rig>::new(), crate::conformance::suite::$topic::$check);
            }
        )+)+
    };
}
use every_check;
