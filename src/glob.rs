//! Patterns of lock names: `*` matches any text, including `/`, `?` any character, `[a-z]` one of these and `[!a-z]`
//! any other character; a backslash makes the next character literal. Everything else stands for itself, as in a shell.

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    One(char),
    AnyOne,
    AnyText,
    Of { negated: bool, ranges: Vec<(char, char)> },
}

/// The characters that a backslash makes literal.
const SPECIAL: &[char] = &['*', '?', '[', '\\'];

impl Pattern {
    /// Parses a text. Every text is a pattern: a `[` without `]` and a final backslash stand for themselves.
    pub fn new(text: &str) -> Pattern {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            rest = &rest[first.len_utf8()..];
            let part = match first {
                '?' => Part::AnyOne,
                '*' if parts.last() == Some(&Part::AnyText) => continue,
                '*' => Part::AnyText,
                '[' => match set(rest) {
                    Some((set, after)) => {
                        rest = after;
                        set
                    }
                    None => Part::One('['),
                },
                '\\' => match rest.chars().next() {
                    Some(escaped) => {
                        rest = &rest[escaped.len_utf8()..];
                        Part::One(escaped)
                    }
                    None => Part::One('\\'),
                },
                other => Part::One(other),
            };
            parts.push(part);
        }
        Pattern(parts)
    }

    /// Returns the only text that the pattern matches; `None` if there may be others.
    pub fn literal(&self) -> Option<String> {
        let one = |part: &Part| match part {
            Part::One(one) => Some(*one),
            _ => None,
        };
        self.0.iter().map(one).collect()
    }

    /// Returns the pattern that matches this text alone.
    pub fn escaped(text: &str) -> String {
        let escape = |letter: char| if SPECIAL.contains(&letter) { vec!['\\', letter] } else { vec![letter] };
        text.chars().flat_map(escape).collect()
    }

    /// Returns the name that a text means where no pattern is allowed: `\\*` is a literal `*`. `None` if a `*`, `?` or `[`
    /// in it is not escaped.
    pub fn exact(text: &str) -> Option<String> {
        let mut exact = String::new();
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '*' | '?' | '[' => return None,
                '\\' => exact.push(letters.next_if(|next| SPECIAL.contains(next)).unwrap_or(letter)),
                _ => exact.push(letter),
            }
        }
        Some(exact)
    }

    /// Returns whether the whole text matches. Takes at most as many steps as the product of both lengths.
    pub fn matches(&self, text: &str) -> bool {
        let parts = &self.0;
        let (mut at, mut rest) = (0, text);
        // The position after the last `*`, and the rest of the text if that `*` matches nothing more: longer matches
        // are tried from here, and no earlier `*` ever needs to be tried again.
        let mut retry: Option<(usize, &str)> = None;
        loop {
            let next = rest.chars().next();
            match (parts.get(at), next) {
                (Some(Part::AnyText), _) => {
                    at += 1;
                    retry = Some((at, rest));
                    continue;
                }
                (Some(part), Some(c)) if part.matches_char(c) => {
                    at += 1;
                    rest = &rest[c.len_utf8()..];
                    continue;
                }
                (None, None) => return true,
                _ => {}
            }
            let Some((after, from)) = retry else { return false };
            let Some(taken) = from.chars().next() else { return false };
            rest = &from[taken.len_utf8()..];
            at = after;
            retry = Some((after, rest));
        }
    }
}

impl Part {
    fn matches_char(&self, c: char) -> bool {
        match self {
            Part::One(one) => *one == c,
            Part::AnyOne => true,
            Part::AnyText => false,
            Part::Of { negated, ranges } => {
                ranges.iter().any(|(first, last)| (*first..=*last).contains(&c)) != *negated
            }
        }
    }
}

/// Parses the set after a `[`, and returns it with the text after its `]`; `None` without a `]`. A `]` at the beginning
/// is part of the set, as is a `-` at either end.
fn set(text: &str) -> Option<(Part, &str)> {
    let negated = text.starts_with(['!', '^']);
    let begin = usize::from(negated);
    let mut ranges = Vec::new();
    let mut members = text[begin..].char_indices().peekable();
    while let Some((at, c)) = members.next() {
        if c == ']' && at > 0 {
            return Some((Part::Of { negated, ranges }, &text[begin + at + 1..]));
        }
        let first = if c == '\\' { members.next()?.1 } else { c };
        let mut ahead = members.clone();
        let last = match (ahead.next(), ahead.next()) {
            (Some((_, '-')), Some((_, last))) if last != ']' => {
                members = ahead;
                if last == '\\' { members.next()?.1 } else { last }
            }
            _ => first,
        };
        ranges.push((first, last));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_text_is_that_text_alone() {
        for text in ["a*b", "[a]?", "\\", "\\*", "a\\b", "plain", ""] {
            let escaped = Pattern::escaped(text);
            assert_eq!(Pattern::new(&escaped).literal().as_deref(), Some(text), "{escaped}");
            assert_eq!(Pattern::exact(&escaped).as_deref(), Some(text), "{escaped}");
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, fits, does_not) in [
            ("nightly", &["nightly"][..], &["", "nightl", "nightly2", "Nightly"][..]),
            ("", &[""], &["a"]),
            ("*", &["", "a", "a/b", "größe 🔒"], &[]),
            ("nightly-*", &["nightly-", "nightly-a", "nightly-a/b"], &["nightly", "a-nightly-b"]),
            ("*-db", &["-db", "a-db", "a-db-db"], &["a-dbx"]),
            ("a*b*c", &["abc", "a--b--c", "abbcc", "abcbc"], &["ab", "acb", "abcd"]),
            ("**a**", &["a", "bab"], &["b"]),
            ("?", &["a", "/", "ß", "🔒"], &["", "ab"]),
            ("a??", &["abc"], &["ab", "abcd"]),
            ("[abc]", &["a", "b", "c"], &["d", "", "ab"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "-x"]),
            ("[!a-c]", &["d", "-"], &["a", "b", ""]),
            ("[^a]", &["b"], &["a"]),
            ("[]]", &["]"], &["[", ""]),
            ("[!]]", &["a"], &["]"]),
            ("[-a]", &["-", "a"], &["b"]),
            ("[a-]", &["-", "a"], &["b"]),
            ("[\\]a]", &["]", "a"], &["\\", "b"]),
            ("[z-a]", &[], &["z", "a", "m"]),
            ("[ä-ü]", &["ö"], &["o"]),
            ("[*]", &["*"], &["a"]),
            ("[a", &["[a"], &["a"]),
            ("x[", &["x["], &["x"]),
            ("\\*", &["*"], &["a", "\\*"]),
            ("\\[a]", &["[a]"], &["a"]),
            ("a\\", &["a\\"], &["a"]),
            ("\\\\", &["\\"], &["\\\\"]),
        ] {
            let parsed = Pattern::new(pattern);
            for text in fits {
                assert!(parsed.matches(text), "{pattern:?} and {text:?}");
            }
            for text in does_not {
                assert!(!parsed.matches(text), "{pattern:?} and {text:?}");
            }
        }
    }

    #[test]
    fn what_stands_for_itself_is_not_a_pattern() {
        for literal in ["", "a", "a/b", "[a", "a]", "\\*", "\\[a]", "a\\", "-", "!x"] {
            assert!(Pattern::new(literal).literal().is_some(), "{literal}");
        }
        for pattern in ["*", "a?", "[a]", "[!a]x", "\\**"] {
            assert_eq!(Pattern::new(pattern).literal(), None, "{pattern}");
        }
    }

    /// Each `*` that could match anywhere multiplies the steps of a matcher that tries them all.
    #[test]
    fn many_stars_take_no_longer_than_one() {
        let pattern = Pattern::new(&"*a".repeat(100));
        assert!(!pattern.matches(&format!("{}b", "a".repeat(20_000))));
        assert!(pattern.matches(&"a".repeat(20_000)));
    }

    #[test]
    fn agrees_with_the_plain_definition_of_a_match() {
        fn plain(parts: &[Part], text: &[char]) -> bool {
            match (parts, text) {
                ([], []) => true,
                ([Part::AnyText, rest @ ..], _) => (0..=text.len()).any(|taken| plain(rest, &text[taken..])),
                ([part, rest @ ..], [c, text @ ..]) => part.matches_char(*c) && plain(rest, text),
                _ => false,
            }
        }
        let alphabet: Vec<char> = "ab*?[]!-\\".chars().collect();
        let letters: Vec<char> = "ab-]".chars().collect();
        let mut random = crate::random::Xorshift::new();
        for _ in 0..50_000 {
            let pattern = Pattern::new(&random.text(&alphabet, 10));
            let text = random.text(&letters, 8);
            let expected = plain(&pattern.0, &text.chars().collect::<Vec<_>>());
            assert_eq!(pattern.matches(&text), expected, "{pattern:?} and {text:?}");
        }
    }
}
