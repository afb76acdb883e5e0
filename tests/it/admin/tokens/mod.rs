//! Leases without a process: `dlock acquire`, `renew`, `release` and `check`.

mod check;
mod delivery;
mod lifecycle;
mod queue;
mod refusals;

use crate::support::dlock::Dlock;
use crate::support::store::Store;

/// `dlock COMMAND` on a store; options and the name follow.
fn dlock(store: &Store, command: &str) -> Dlock {
    store.place.bare().arg(command).args(["--backend", store.url()])
}

mod on_redis {
    use super::dlock;
    use crate::support::resp::Value;
    use crate::support::running::{Exit, Output};
    use crate::support::store::Store;

    /// `dlock acquire` of the lock `x`.
    pub(crate) fn acquire(store: &Store, ttl: &str) -> crate::support::dlock::Dlock {
        dlock(store, "acquire").args(["--ttl", ttl, "x"])
    }

    /// Acquires the lock `x`, and returns its token.
    #[track_caller]
    pub(crate) fn token(store: &Store, ttl: &str) -> String {
        printed(&acquire(store, ttl).output())
    }

    /// The printed token, alone.
    #[track_caller]
    pub(crate) fn printed(output: &Output) -> String {
        let token = output.stdout.strip_suffix('\n').unwrap_or_default();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""), "{}", output.stdout);
        assert!(token.len() == 32 && token.chars().all(|c| c.is_ascii_hexdigit()), "{}", output.stdout);
        token.to_owned()
    }

    /// `dlock COMMAND x` with this token.
    pub(crate) fn with(store: &Store, token: &str, command: &str, options: &[&str]) -> Output {
        dlock(store, command).args(options).arg("x").env("DLOCK_TOKEN", token).output()
    }

    /// The remaining lease of `x`, in ms; -2 when it is not held.
    pub(crate) fn left(store: &Store) -> i64 {
        match store.space().command(&["PTTL", &store.space().key("x")]) {
            Value::Int(left) => left,
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that the lock `x` is free, and has no waiters.
    #[track_caller]
    pub(crate) fn assert_free(store: &Store) {
        let space = store.space();
        let side = |what: &str| format!("dlock#{what}:{{{}}}", space.key("x"));
        for key in [space.key("x"), side("holder"), side("queue"), side("waiters")] {
            assert_eq!(space.command(&["EXISTS", &key]), Value::Int(0), "{key}");
        }
    }
}
