//! A claim's place in the lines of the nodes: pure.
//!
//! Each node has a line of its own, in the order of numbers that it gives. So that the lines have the same order, a claim
//! takes the largest of its numbers for its ticket, and has each node use that. Whoever begins to wait when a majority uses
//! the ticket gets a larger number from one of these, because two majorities have a node in common, and so a larger
//! ticket. Nobody's exclusion hangs on any of this.

/// What is known of a claim's place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    ticket: Option<u64>,
    /// Its number at each node, as it was last told.
    known: Vec<Option<u64>>,
    /// It was first at a majority when that was last told.
    pub(super) is_first: bool,
}

impl Line {
    /// The number that a node is to use, where it uses another one or none. Where it had the ticket it is not told: a claim
    /// that let its turn pass has lost its place, and is not to get it back by asking.
    pub(super) fn ticket_for(&self, node: usize) -> Option<u64> {
        self.ticket.filter(|ticket| self.known.get(node).copied().flatten() != Some(*ticket))
    }

    /// Takes note of the numbers that the nodes have for the claim, and returns those that are to use another one. A ticket
    /// that most of them do not know any more is lost.
    pub(super) fn hear(&mut self, numbers: Vec<Option<u64>>, quorum: usize) -> Vec<usize> {
        let in_line = numbers.iter().flatten().count();
        let agreed = numbers.iter().flatten().filter(|number| Some(**number) == self.ticket).count();
        let is_lost = self.ticket.is_none() || (in_line - agreed) * 2 > in_line;
        if is_lost && in_line >= quorum {
            self.ticket = numbers.iter().flatten().max().copied();
        }
        self.known = numbers;
        let others = |node: &usize| self.known[*node].is_some() && self.ticket_for(*node).is_some();
        (0..self.known.len()).filter(|_| in_line >= quorum).filter(others).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    fn in_line(numbers: [u64; 5]) -> Vec<Option<u64>> {
        numbers.into_iter().map(|number| (number > 0).then_some(number)).collect()
    }

    #[test]
    fn the_largest_number_is_the_ticket_of_all() {
        let mut line = Line::default();
        assert_eq!(line.ticket_for(0), None);
        assert_eq!(line.hear(in_line([3, 5, 4, 5, 1]), 3), [0, 2, 4]);
        assert_eq!((line.ticket_for(0), line.ticket_for(1)), (Some(5), None));
        assert_eq!(line.hear(in_line([5; 5]), 3), NONE);
    }

    #[test]
    fn a_node_that_comes_back_is_told_of_the_ticket() {
        let mut line = Line::default();
        assert_eq!(line.hear(in_line([5, 5, 5, 0, 0]), 3), NONE);
        assert_eq!(line.ticket_for(3), Some(5), "it was down");
        assert_eq!(line.hear(in_line([5, 5, 9, 5, 0]), 3), [2], "it was restarted");
        assert_eq!(line.ticket_for(2), Some(5));
    }

    #[test]
    fn a_place_that_was_lost_stays_lost() {
        let mut line = Line::default();
        line.hear(in_line([5; 5]), 3);
        assert_eq!(line.hear(in_line([8, 8, 9, 5, 8]), 3), [0, 1, 3, 4]);
        assert_eq!(line.ticket_for(0), Some(9));
    }

    #[test]
    fn too_few_nodes_give_no_ticket() {
        let mut line = Line::default();
        assert_eq!(line.hear(in_line([5, 6, 0, 0, 0]), 3), NONE);
        assert_eq!(line.ticket_for(2), None);
    }
}
