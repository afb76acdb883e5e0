//! The names of the nodes below a lock: those of the recipe that other programs use, with the mode in a part of the name
//! that their parsers skip.

use crate::lock::Mode;

/// Which programs take the same locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recipe {
    /// `InterProcessMutex` of Apache Curator, which sorts nodes by what follows the last `lock-`.
    Curator,
    /// `InterProcessReadWriteLock` of Apache Curator, which looks for `__READ__` and `__WRIT__`.
    CuratorRw,
    /// `Lock` of kazoo, which matches `__lock__` and ten digits.
    Kazoo,
}

impl Recipe {
    /// By the names that the option has for them.
    pub(super) const ALL: [(&str, Recipe); 3] =
        [("curator", Recipe::Curator), ("curator-rw", Recipe::CuratorRw), ("kazoo", Recipe::Kazoo)];

    /// Returns the text by which a client finds its own node: `id` is 32 hexadecimal digits.
    pub(super) fn mark(self, id: &str) -> String {
        match self {
            Recipe::Kazoo => id.to_owned(),
            // Curator's "protection": the form of a UUID.
            Recipe::Curator | Recipe::CuratorRw => {
                format!("_c_{}-{}-{}-{}-{}", &id[..8], &id[8..12], &id[12..16], &id[16..20], &id[20..])
            }
        }
    }

    /// Returns the name of a node, to which the server adds its number.
    pub(super) fn node(self, id: &str, mode: Mode) -> String {
        let mark = self.mark(id);
        let mode_part = match mode {
            Mode::Exclusive => String::new(),
            Mode::Shared if self == Recipe::CuratorRw => return format!("{mark}-__READ__"),
            Mode::Shared => "-s".to_owned(),
            Mode::Slots(slots) => format!("-n{slots}"),
        };
        match self {
            Recipe::Curator => format!("{mark}{mode_part}-lock-"),
            Recipe::CuratorRw => format!("{mark}{mode_part}-__WRIT__"),
            Recipe::Kazoo => format!("{mark}{mode_part}__lock__"),
        }
    }
}

/// Returns the number of a node and the mode that it asks for; `None` for one without a number. A node of an unknown
/// recipe counts as an exclusive one.
pub(super) fn parse(node: &str) -> Option<(i64, Mode)> {
    const DIGITS: usize = 10;
    let digits = node.len().checked_sub(DIGITS).and_then(|begin| node.get(begin..))?;
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    let name = &node[..node.len() - DIGITS];
    if name.ends_with("__READ__") || name.ends_with("__rlock__") {
        return Some((number, Mode::Shared));
    }
    let marked = ["-lock-", "-__WRIT__", "__lock__"].iter().find_map(|end| name.strip_suffix(end));
    let mode = match marked.and_then(|marked| marked.rsplit_once('-')) {
        Some((_, "s")) => Mode::Shared,
        Some((_, part)) => match part.strip_prefix('n').and_then(|slots| slots.parse().ok()) {
            Some(slots) => Mode::of_slots(slots),
            None => Mode::Exclusive,
        },
        None => Mode::Exclusive,
    };
    Some((number, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_stands_in_the_name() {
        let id = "0123456789abcdef0123456789abcdef";
        for (_, recipe) in Recipe::ALL {
            for mode in [Mode::Exclusive, Mode::Shared, Mode::Slots(3)] {
                let node = format!("{}0000000017", recipe.node(id, mode));
                assert!(node.starts_with(&recipe.mark(id)), "{node}");
                assert_eq!(parse(&node), Some((17, mode)), "{node}");
            }
        }
        assert_eq!(parse("read-0000000002"), Some((2, Mode::Exclusive)));
        assert_eq!(parse(&format!("{id}__rlock__0000000002")), Some((2, Mode::Shared)));
        assert_eq!(parse("leases"), None);
        assert_eq!(parse("é0000000"), None);
    }
}
