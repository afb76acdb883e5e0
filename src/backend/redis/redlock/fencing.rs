//! Which fencing token a majority of nodes has given: pure.
//!
//! Each node numbers what it grants. A claim asks all nodes for the lock, and those that grant it answer with the number
//! that they gave it. The rules, of which [`step`] is the client's part and the script the node's:
//!
//! 1. A node gives each number at most once, and only numbers larger than all that it gave before: its counter plus one,
//!    but no less than the time in microseconds since which it remembers everything. Where it finds no counter it begins
//!    with its time.
//! 2. The token of a claim is T when a majority of nodes has given it T. If they gave it several numbers, those that gave
//!    less than the largest, T, are asked to give it T (write-back). A node does so if the claim's token holds the lock
//!    there and T is larger than its counter; then its counter is T. Otherwise it gives the claim its counter plus one. A
//!    node that has given T already says so again. Whatever it gives stands from then on in the claim's entry, so that
//!    every answer to the claim is the number that it has there; with these the client takes the next step.
//! 3. A node that gets back an entry it has lost, of a claim that has its token, or whose grant came when that was decided
//!    already, notes T in the entry, and its counter becomes T unless it is larger. This gives nobody anything.
//!
//! No token is given twice, because two majorities have a node in common, and that node gives T once. A claim whose first
//! request is sent when T is decided gets more than T: of the majority that it needs, one node has given T, and gives
//! larger numbers from then on. None of this says that the locks exclude each other: tokens stay unique and ordered when
//! leases end too soon, clocks jump, and, for those who share a lock, when many hold it at once. As long as a node lets
//! one hold at a time and no request arrives twice, T is larger than every counter that it is written back to, and one
//! write-back is enough. Where claims share the lock, another may have been given T at some node: then it takes more.
//!
//! All of this rests on rule 1, which needs something from outside only where a node forgets. One that comes back without
//! a counter, or with an older one (a snapshot, `appendfsync everysec`), begins with the time of its return. That is later
//! than all times in its past, and the numbers that it took over from others are ahead of its time by no more than the
//! clocks differ. So what has to be true is: **between the last number of a node that forgets and its next one more time
//! passes than the nodes' clocks differ**, no clock is set back, and no name is granted more than once a microsecond.
//!
//! Nothing published was found for this. The theory is that of registers that many may write (Attiya, Bar-Noy and Dolev,
//! "Sharing memory robustly in message-passing systems", 1995, and Lynch and Shvartsman, 1997): read the largest from a
//! majority, write it back to a majority. The tests explore every interleaving of small configurations with this very
//! [`step`] (`explored`), and show the shortest failure that comes of leaving out a rule, or the assumption.

/// What to do with the numbers that the nodes gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A majority gave this one: it is the claim's fencing token.
    Established(u64),
    /// Ask the nodes that gave another number to give this one, which is the largest; then take the next step with what
    /// they answer.
    WriteBack(u64),
}

/// Decides with the numbers that the claim has at the nodes which granted it the lock, one of each node, in any order.
/// `None`: those are less than `quorum`, which is more than half of all nodes. May be asked again with every answer.
pub(super) fn step(answered: &[u64], quorum: usize) -> Option<Step> {
    if answered.len() < quorum {
        return None;
    }
    let gave = |number: u64| answered.iter().filter(|other| **other == number).count();
    let agreed = answered.iter().find(|number| gave(**number) >= quorum);
    match agreed {
        Some(number) => Some(Step::Established(*number)),
        None => answered.iter().max().map(|largest| Step::WriteBack(*largest)),
    }
}

#[cfg(test)]
mod explored;
#[cfg(test)]
mod explorer;
#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_a_majority_decides() {
        for (answered, quorum, expected) in [
            (&[][..], 0, None),
            (&[], 2, None),
            (&[7], 2, None),
            (&[7], 1, Some(Step::Established(7))),
            (&[7, 7], 2, Some(Step::Established(7))),
            (&[7, 8], 2, Some(Step::WriteBack(8))),
            (&[7, 8, 8], 2, Some(Step::Established(8))),
            (&[8, 7, 7], 2, Some(Step::Established(7))),
            (&[7, 7, 8], 3, Some(Step::WriteBack(8))),
            (&[7, 8, 8, 6, 8], 3, Some(Step::Established(8))),
            (&[7, 8, 8, 7, 9], 3, Some(Step::WriteBack(9))),
        ] {
            assert_eq!(step(answered, quorum), expected, "{answered:?} of {quorum}");
        }
    }
}
