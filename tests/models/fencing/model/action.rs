//! The actions of the model, and their description.

use std::fmt;

/// One action of a node or a claim.
#[derive(Clone, Copy)]
pub(crate) enum Action {
    Grants { node: usize, claim: usize, number: u8, repeated: bool },
    Confirms { node: usize, claim: usize, number: u8 },
    Takes { node: usize, claim: usize, requested: u8, number: u8 },
    Decides { claim: usize, token: u8 },
    WritesBack { claim: usize, number: u8 },
    Restores { node: usize, claim: usize },
    Saves { node: usize },
    Restarts { node: usize },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |claim: usize| char::from(b'A' + u8::try_from(claim).unwrap_or(0));
        let node = |node: usize| node + 1;
        match *self {
            Action::Grants { node: n, claim, number, repeated } => {
                let again = if repeated { " again" } else { "" };
                write!(f, "node {} grants {}{again}: {number}", node(n), name(claim))
            }
            Action::Confirms { node: n, claim, number } => {
                write!(f, "node {} confirms to {}: {number}", node(n), name(claim))
            }
            Action::Takes { node: n, claim, requested, number } => {
                write!(f, "node {} is requested to give {} {requested}: {number}", node(n), name(claim))
            }
            Action::Decides { claim, token } => write!(f, "{} has token {token}", name(claim)),
            Action::WritesBack { claim, number } => write!(f, "{} writes back {number}", name(claim)),
            Action::Restores { node: n, claim } => {
                write!(f, "node {} gets {} restored", node(n), name(claim))
            }
            Action::Saves { node: n } => write!(f, "node {} saves a snapshot", node(n)),
            Action::Restarts { node: n } => write!(f, "node {} comes back", node(n)),
        }
    }
}
