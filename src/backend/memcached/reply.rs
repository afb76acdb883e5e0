//! The replies to meta commands (`doc/protocol.txt` of Memcached, "Meta Commands").

/// A line of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// `HD`: it was done, and this is what was asked of the item.
    Done(Item),
    /// `NS`: there is an item already.
    NotStored,
    /// `EX`: the item has another CAS value.
    Changed,
    /// `NF` or `EN`: the item does not exist.
    Missing,
    /// `VA`: an item, and the length of its value, which follows.
    Item(Item, usize),
    /// `STAT`
    Figure(String, String),
    /// `MN`: all requests before have been replied to.
    Nothing,
    /// `STORED`
    Stored,
    /// `END`
    End,
    /// An error, with the server's text.
    Error(Failure, String),
}

/// An item as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Item {
    /// 0 if it was not asked for, or if the server has no CAS values.
    pub cas: u64,
    /// The time in seconds until it expires; 0 if it does not.
    pub remaining: u64,
    /// Its size in bytes, if that was asked for.
    pub size: u64,
    /// The client flags, which are stored with the value, if they were asked for.
    pub flags: u64,
    /// Empty if it is longer than anything that dlock stores.
    pub value: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// `ERROR`: the command is not known.
    Unknown,
    /// `CLIENT_ERROR`
    OfClient,
    /// `SERVER_ERROR`
    OfServer,
}

impl Line {
    /// Parses a line without its end; `None` if Memcached sends no such line.
    pub fn parse(line: &str) -> Option<Line> {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let flag = |letter: char| rest.split(' ').find_map(|flag| flag.strip_prefix(letter));
        let number = |letter| flag(letter).and_then(|number| number.parse().ok());
        let item = || Item {
            cas: number('c').unwrap_or_default(),
            // It is -1 without expiry.
            remaining: number('t').unwrap_or_default(),
            size: number('s').unwrap_or_default(),
            flags: number('f').unwrap_or_default(),
            value: Vec::new(),
        };
        Some(match first {
            "HD" => Line::Done(item()),
            "NS" => Line::NotStored,
            "EX" => Line::Changed,
            "NF" | "EN" => Line::Missing,
            "VA" => {
                let length = rest.split(' ').next()?.parse().ok()?;
                number('c')?;
                Line::Item(item(), length)
            }
            "STAT" => {
                let (name, figure) = rest.split_once(' ')?;
                Line::Figure(name.to_owned(), figure.to_owned())
            }
            "MN" => Line::Nothing,
            "STORED" => Line::Stored,
            "END" => Line::End,
            "ERROR" => Line::Error(Failure::Unknown, rest.to_owned()),
            "CLIENT_ERROR" => Line::Error(Failure::OfClient, rest.to_owned()),
            "SERVER_ERROR" => Line::Error(Failure::OfServer, rest.to_owned()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_parsed() {
        let item = |cas, remaining| Item { cas, remaining, ..Item::default() };
        for (line, expected) in [
            ("HD", Line::Done(Item::default())),
            ("HD c7", Line::Done(item(7, 0))),
            ("HD s30 t5", Line::Done(Item { size: 30, ..item(0, 5) })),
            ("NS c0", Line::NotStored),
            ("EX", Line::Changed),
            ("NF", Line::Missing),
            ("EN", Line::Missing),
            ("VA 3 c2 t5", Line::Item(item(2, 5), 3)),
            ("VA 0 c18446744073709551615 t-1", Line::Item(item(u64::MAX, 0), 0)),
            ("STAT evictions on", Line::Figure("evictions".into(), "on".into())),
            ("MN", Line::Nothing),
            ("ERROR", Line::Error(Failure::Unknown, String::new())),
            ("SERVER_ERROR out of memory", Line::Error(Failure::OfServer, "out of memory".into())),
        ] {
            assert_eq!(Line::parse(line), Some(expected), "{line}");
        }
        for line in
            ["", "-ERR unknown command", "HTTP/1.1 400 Bad Request", "VA", "VA x c1 t1", "VA 1 t1", "STAT x"]
        {
            assert_eq!(Line::parse(line), None, "{line}");
        }
    }
}
