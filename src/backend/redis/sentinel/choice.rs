//! Which master to choose when sentinels disagree. No I/O.

use crate::backend::net::Address;

/// The view of one sentinel on a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opinion {
    pub master: Address,
    /// The number of the fail-over that made it the master: a later one is larger (Redis Sentinel specification,
    /// "Configuration epochs").
    pub epoch: u64,
}

/// The master that more than half of the `listed` sentinels name, if there is one, with the latest epoch that they know.
pub fn agreed(opinions: &[Opinion], listed: usize) -> Option<&Opinion> {
    let votes = |master: &Address| opinions.iter().filter(|opinion| opinion.master == *master).count();
    let named = opinions.iter().filter(|opinion| votes(&opinion.master) * 2 > listed);
    named.max_by_key(|opinion| opinion.epoch)
}

/// The master of the latest fail-over that any sentinel knows; of several sentinels with the same one the first.
pub fn latest(opinions: &[Opinion]) -> Option<&Opinion> {
    opinions.iter().rev().max_by_key(|opinion| opinion.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::url::Host;

    fn opinions(views: &[(&str, u64)]) -> Vec<Opinion> {
        let host = |name: &str| Host { name: name.to_owned(), port: Some(1) };
        views
            .iter()
            .map(|(name, epoch)| Opinion { master: Address::Tcp(host(name)), epoch: *epoch })
            .collect()
    }

    fn name(opinion: Option<&Opinion>) -> Option<String> {
        opinion.map(|opinion| opinion.master.to_string())
    }

    #[test]
    fn a_majority_is_of_those_that_are_listed() {
        for (views, listed, master) in [
            (&[("a", 0)][..], 1, Some("a:1")),
            (&[("a", 0)], 2, None),
            (&[("a", 0), ("a", 0)], 2, Some("a:1")),
            (&[("a", 0), ("a", 0)], 3, Some("a:1")),
            (&[("a", 0), ("a", 0)], 4, None),
            (&[("b", 9), ("a", 0)], 3, None),
            (&[("b", 9), ("a", 0), ("a", 0)], 3, Some("a:1")),
            (&[], 3, None),
        ] {
            assert_eq!(name(agreed(&opinions(views), listed)).as_deref(), master, "{views:?} of {listed}");
        }
    }

    #[test]
    fn without_a_majority_the_latest_fail_over_counts() {
        for (views, master) in [
            (&[("a", 0)][..], Some("a:1")),
            (&[("a", 3), ("b", 4)], Some("b:1")),
            (&[("b", 4), ("a", 3)], Some("b:1")),
            (&[("a", 3), ("b", 3)], Some("a:1")),
            (&[], None),
        ] {
            assert_eq!(name(latest(&opinions(views))).as_deref(), master, "{views:?}");
        }
    }
}
