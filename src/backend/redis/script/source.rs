//! The sources of the scripts. Each consists of the files that its operations need, from the state of the lock to the reply.

macro_rules! source {
    ($($file:literal)+) => { concat!($(include_str!($file)),+) };
}

/// Claims a lock, and tries the rights of the user; gives a claim at a node of a Redlock its fencing token.
pub const CLAIM: &str = source!(
    "lock.lua" "members.lua" "queue.lua" "tokens.lua" "freeze.lua" "grant.lua" "claim.lua" "reply.lua"
);

/// Renews and releases a hold, leaves the queue, and records runs that did not begin.
pub const HOLD: &str = source!("lock.lua" "members.lua" "queue.lua" "history.lua" "hold.lua" "reply.lua");

/// What operators do with a lock.
pub const ADMINISTER: &str = source!(
    "lock.lua" "members.lua" "queue.lua" "tokens.lua" "freeze.lua" "administer.lua" "reply.lua"
);

/// Inspects locks.
pub const LOOK: &str = include_str!("look.lua");
