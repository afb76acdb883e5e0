//! Which checks run on which form of a store.
//!
//! **Every check runs on the main form of each store**: in memory, `file:`, one Redis, PostgreSQL, MariaDB, etcd,
//! ZooKeeper, each of this system's version and with its usual recipe. (Memcached and the programs' own locks of
//! MariaDB and PostgreSQL can do less; what they can do is listed with them.)
//!
//! **A further form runs the checks that depend on an [`Aspect`] in which it differs from the main form**: TLS, Sentinel,
//! Cluster, Redlock, other versions and products, poolers, ensembles, recipes. It names these aspects where its tests
//! are made, such as `every_check!(TlsRig::new; Request)`.
//!
//! The list of checks names the aspects of each. One without any depends only on what a lock means, which the code decides
//! that all forms of a store have in common. An aspect belongs to a check if a form that differs in nothing else could
//! fail this check and pass all others with that aspect. What a disturbance can change, see [`super::selections`], is
//! chosen for each disturbance, together with the moment.

/// In what a form of a store may differ from the main form, and what a check may depend on.
pub enum Aspect {
    /// How a request and its reply travel, and whether the server accepts it: each kind of request once. TLS, a login with
    /// the least rights, other versions and products.
    Request,
    /// What a session of a server keeps between two requests of a client. Poolers.
    Pooling,
    /// What another server has to know, and what a client has to set up again there. Sentinel, ensembles.
    Failover,
    /// On which server and under which key something is. Cluster.
    Placement,
    /// An answer composed of those of several nodes. Redlock.
    Majority,
    /// Each step that reads or writes a part of the stored lock. Recipes that store it otherwise, and versions that may lack
    /// a command of the scripts.
    Data,
    /// What other programs see of a lock, and what is seen of theirs. Recipes.
    Foreign,
    /// What is decided before the ledger is asked, by a lock of another program that has one holder. `GET_LOCK`, advisory
    /// locks, ShedLock.
    Gate,
}

/// The tests of one store on some topics: those that depend on one of the aspects, or all if there are none.
macro_rules! tiered {
    ($rig:path, $aspects:tt;
     $($topic:ident $(by $prove:ident)? { $($check:ident: $($aspect:ident)*;)+ })+) => {
        $(crate::stores::conformance::tiers::tiered_topic! {
            $rig, $aspects, $topic, [$($prove)?]; $($check: [$($aspect)*];)+
        })+
    };
}
pub(super) use tiered;

/// The same on one topic.
macro_rules! tiered_topic {
    ($rig:path, $aspects:tt, $topic:ident, $prove:tt; $($check:ident: $of_check:tt;)+) => {
        $(crate::stores::conformance::tiers::if_shared! { $aspects, $of_check,
            crate::stores::conformance::tiers::check! { $rig, $topic, $prove, $check }
        })+
    };
}
pub(super) use tiered_topic;

/// One test.
macro_rules! check {
    ($rig:path, $topic:ident, [], $check:ident) => {
        crate::stores::conformance::checks! { $rig; $topic { $check } }
    };
    ($rig:path, $topic:ident, [$prove:ident], $check:ident) => {
        crate::stores::conformance::checks! { $rig; $topic by $prove { $check } }
    };
}
pub(super) use check;

/// The item, if the form differs in an aspect that the check depends on, or if it is the main form: `[]`.
macro_rules! if_shared {
    ([], [$($of_check:ident)*], $($item:tt)+) => {
        // There are no other aspects.
        const _: &[crate::stores::conformance::tiers::Aspect] =
            &[$(crate::stores::conformance::tiers::Aspect::$of_check),*];
        $($item)+
    };
    ([$($of_form:ident)+], [], $($item:tt)+) => {};
    ([$($of_form:ident)+], [$first:ident $($rest:ident)*], $($item:tt)+) => {
        crate::stores::conformance::tiers::if_listed! { $first, [$($of_form)+], { $($item)+ } else {
            crate::stores::conformance::tiers::if_shared! { [$($of_form)+], [$($rest)*], $($item)+ }
        } }
    };
}
pub(super) use if_shared;

/// One of two items, depending on whether an aspect is in a list.
macro_rules! if_listed {
    (Request, [Request $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    (Pooling, [Pooling $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    (Failover, [Failover $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    (Placement, [Placement $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    (Majority, [Majority $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    (Data, [Data $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    (Foreign, [Foreign $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    (Gate, [Gate $($rest:ident)*], { $($then:tt)+ } else $otherwise:tt) => { $($then)+ };
    ($aspect:ident, [], $then:tt else { $($otherwise:tt)* }) => { $($otherwise)* };
    ($aspect:ident, [$another:ident $($rest:ident)*], $then:tt else $otherwise:tt) => {
        crate::stores::conformance::tiers::if_listed! { $aspect, [$($rest)*], $then else $otherwise }
    };
}
pub(super) use if_listed;
