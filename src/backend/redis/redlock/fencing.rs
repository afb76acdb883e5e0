//! Which fencing token a majority of nodes has given: pure.
//!
//! Each node numbers its grants. A claim requests the lock from all nodes, and each node that grants it replies with
//! the number that it gave the claim. [`step`] implements the client's part of these rules, and the script the node's
//! part:
//!
//! 1. A node gives each number at most once, and each number is larger than all numbers that it gave before: its
//!    counter plus one, but not less than the time in microseconds since which it remembers everything. A node without
//!    a counter starts with its current time.
//! 2. The token of a claim is T when a majority of nodes has given it T. If the nodes gave different numbers, those
//!    that gave less than the largest, T, are requested to give T (write-back). A node does so if the claim's token
//!    holds the lock there and T is larger than its counter; its counter then becomes T. Otherwise it gives the claim
//!    its counter plus one. A node that has given T already repeats its reply. The number is stored in the claim's
//!    entry, so every later reply to the claim contains that number; with these replies the client takes the next step.
//! 3. If a node lost the entry of a claim that has its token and the entry is restored, or if its grant arrived after
//!    the token was decided, the node stores T in the entry, and its counter becomes T unless it is larger. This gives
//!    no number to any claim.
//!
//! No token is given twice, because two majorities have a node in common, and that node gives T once. A claim whose
//! first request is sent after T is decided gets more than T: in the majority that it needs, one node has given T, and
//! gives larger numbers from then on. None of this depends on mutual exclusion: tokens stay unique and ordered when
//! leases end too early, when clocks jump, and when many clients share a lock. As long as a node grants one hold at a
//! time and no request arrives twice, T is larger than every counter that it is written back to, and one write-back is
//! enough. Where claims share the lock, a node may have given T to another claim: then more write-backs are needed.
//!
//! All of this depends on rule 1, which needs an assumption only where a node loses data. A node that comes back
//! without a counter, or with an older one (a snapshot, `appendfsync everysec`), starts with the time of its return.
//! That is later than all times in its past, and the numbers that it took over from other nodes are ahead of its time
//! by no more than the difference of the clocks. So the assumption is: **between the last number of a node that loses
//! data and its next number, more time passes than the nodes' clocks differ**, no clock is set back, and no name is
//! granted more than once per microsecond.
//!
//! No publication of this algorithm was found. The theory is that of multi-writer registers (Attiya, Bar-Noy and Dolev,
//! "Sharing memory robustly in message-passing systems", 1995, and Lynch and Shvartsman, 1997): read the largest value
//! from a majority, write it back to a majority. `tests/models/fencing.rs` explores every interleaving of small
//! configurations with this same [`step`], and shows the shortest failure that results from omitting a rule, or the
//! assumption.

/// The client's next step, given the numbers of the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A majority gave this number: it is the claim's fencing token.
    Established(u64),
    /// Request this number, which is the largest, from the nodes that gave another one; then take the next step with
    /// their replies.
    WriteBack(u64),
}

/// Decides on the numbers that the claim has at the nodes that granted it the lock, one per node, in any order. Returns
/// `None` if there are fewer than `quorum`, which is more than half of all nodes. May be called again after every
/// reply.
pub(super) fn step(numbers: &[u64], quorum: usize) -> Option<Step> {
    if numbers.len() < quorum {
        return None;
    }
    let count_of = |number: u64| numbers.iter().filter(|other| **other == number).count();
    let agreed = numbers.iter().find(|number| count_of(**number) >= quorum);
    match agreed {
        Some(number) => Some(Step::Established(*number)),
        None => numbers.iter().max().map(|largest| Step::WriteBack(*largest)),
    }
}
