//! The sources of the scripts. Each consists of the files that its operations need, from the state of the lock to the reply.

macro_rules! source {
    ($($file:literal)+) => { concat!($(include_str!($file)),+) };
}

/// Claims a lock, and tries the rights of the user.
pub const CLAIM: &str = source!(
    "lock.lua" "members.lua" "queue.lua" "tokens.lua" "freeze.lua" "grant.lua" "claim.lua" "reply.lua"
);

/// Renews and releases a hold.
pub const HOLD: &str = source!("lock.lua" "members.lua" "queue.lua" "history.lua" "hold.lua" "reply.lua");

/// What operators, and the nodes of a Redlock, do with a lock that others hold.
pub const ADMINISTER: &str = source!(
    "lock.lua" "members.lua" "queue.lua" "tokens.lua" "freeze.lua" "history.lua" "administer.lua" "reply.lua"
);

/// Inspects locks.
pub const LOOK: &str = include_str!("look.lua");
