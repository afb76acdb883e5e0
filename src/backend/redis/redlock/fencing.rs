//! Which fencing token a majority of nodes has given: pure.

/// What to do with the numbers that the nodes gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A majority gave this one: it is the claim's fencing token.
    Established(u64),
    /// Ask the nodes that gave another number to give this one, which is the largest; then take the next step with what
    /// they answer.
    WriteBack(u64),
}

/// Decides with the numbers that the claim has at the nodes which granted it the lock. `None`: those are less than `quorum`.
pub(super) fn step(answered: &[u64], quorum: usize) -> Option<Step> {
    let largest = *answered.iter().max().filter(|_| answered.len() >= quorum)?;
    let agreed =
        answered.iter().find(|number| answered.iter().filter(|other| other == number).count() >= quorum);
    Some(agreed.map_or(Step::WriteBack(largest), |number| Step::Established(*number)))
}
