//! The position of a claim in the queues of the nodes: pure.
//!
//! Each node has its own queue, ordered by the numbers that it gives. To give all queues the same order, a claim takes
//! the largest of its numbers as its ticket, and has each node use that. A claim that begins to wait when a majority
//! uses the ticket gets a larger number from one of these nodes, because two majorities have a node in common, and so a
//! larger ticket. Mutual exclusion does not depend on any of this.

/// The ticket of a claim, and its number at each node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct QueueTicket {
    ticket: Option<u64>,
    /// The claim's number at each node, as last reported.
    numbers: Vec<Option<u64>>,
    /// The claim was first at a majority in the last report.
    pub(super) is_first: bool,
}

impl QueueTicket {
    /// The number that a node has to use, if its number was another one or none. A node that had the ticket is not sent
    /// it again: a claim that missed its turn has lost its position, and must not regain it by a later request.
    pub(super) fn ticket_for(&self, node: usize) -> Option<u64> {
        self.ticket.filter(|ticket| self.numbers.get(node).copied().flatten() != Some(*ticket))
    }

    /// Returns the number that the nodes have agreed on.
    pub(super) fn number(&self) -> Option<u64> {
        self.ticket
    }

    /// Records the numbers that the nodes have for the claim, and returns the nodes that have to use another one. The
    /// ticket is lost, and chosen anew, when most of the nodes where the claim is queued have another number.
    pub(super) fn update(&mut self, numbers: Vec<Option<u64>>, quorum: usize) -> Vec<usize> {
        let queued = numbers.iter().flatten().count();
        let agreed = numbers.iter().flatten().filter(|number| Some(**number) == self.ticket).count();
        let is_lost = self.ticket.is_none() || (queued - agreed) * 2 > queued;
        if is_lost && queued >= quorum {
            self.ticket = numbers.iter().flatten().max().copied();
        }
        self.numbers = numbers;
        let differs = |node: &usize| self.numbers[*node].is_some() && self.ticket_for(*node).is_some();
        (0..self.numbers.len()).filter(|_| queued >= quorum).filter(differs).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_is_the_ticket_of_all_until_most_nodes_have_another() {
        let mut ticket = QueueTicket::default();
        for (numbers, expected, corrected) in [
            // Too few nodes.
            ([5, 6, 0, 0, 0], None, &[][..]),
            ([3, 5, 4, 5, 1], Some(5), &[0, 2, 4]),
            ([5, 5, 5, 0, 0], Some(5), &[]),
            // A node was restarted.
            ([5, 5, 9, 5, 0], Some(5), &[2]),
            // The claim has missed its turn.
            ([8, 8, 9, 5, 8], Some(9), &[0, 1, 3, 4]),
        ] {
            let reported = numbers.map(|number: u64| (number > 0).then_some(number)).to_vec();
            assert_eq!(ticket.update(reported, 3), corrected, "{numbers:?}");
            for (node, number) in numbers.into_iter().enumerate() {
                let is_sent = expected.filter(|expected| number != *expected);
                assert_eq!(ticket.ticket_for(node), is_sent, "{numbers:?}");
            }
        }
    }
}
