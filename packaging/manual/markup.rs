//! The markup of the man page texts, and its translation to roff.
//!
//! Blocks are separated by empty lines:
//!
//! | block | meaning |
//! |---|---|
//! | `# TEXT`, `## TEXT` | a section, a subsection |
//! | lines between ```` ```LANGUAGE ```` and ```` ``` ```` | an example, verbatim; a test runs it |
//! | a line, and below it `: TEXT` | a term and its definition |
//! | `- TEXT` | an item of a list |
//! | anything else | a paragraph |
//!
//! A line that begins with two spaces continues the block. `` `TEXT` `` is bold, `*TEXT*` is italic.

use roff::{Inline, Roff, bold, italic, roman};

/// Keeps every line of the page within 80 bytes.
const WIDTH: usize = 80;

/// A roff writer that remembers whether a heading was written last.
pub struct Writer {
    roff: Roff,
    /// A heading was written last: the paragraph after it needs no mark.
    fresh: bool,
}

impl Writer {
    /// Begins a page.
    pub fn new(title: [&str; 5]) -> Writer {
        let mut roff = Roff::new();
        roff.control("TH", title);
        Writer { roff, fresh: true }
    }

    /// The whole page.
    pub fn finish(self) -> String {
        self.roff.render()
    }

    pub fn section(&mut self, title: &str) {
        self.roff.control("SH", [title]);
        self.fresh = true;
    }

    pub fn part(&mut self, title: &str) {
        self.roff.control("SS", [title]);
        self.fresh = true;
    }

    pub fn paragraph(&mut self, text: Vec<Inline>) {
        self.mark_paragraph();
        self.fill(text);
    }

    pub fn term(&mut self, term: Vec<Inline>, text: Vec<Inline>) {
        self.roff.control("TP", []);
        self.roff.text(term);
        self.fill(text);
        self.fresh = false;
    }

    /// Writes items below the preceding paragraph or term.
    pub fn items(&mut self, items: Vec<Vec<Inline>>) {
        self.roff.control("RS", []);
        for item in items {
            self.item(item);
        }
        self.roff.control("RE", []);
    }

    fn item(&mut self, text: Vec<Inline>) {
        self.roff.control("IP", ["\\(bu", "3"]);
        self.fill(text);
        self.fresh = false;
    }

    /// Writes lines verbatim, indented.
    pub fn verbatim<'a>(&mut self, lines: impl Iterator<Item = &'a str>) {
        self.mark_paragraph();
        self.roff.control("RS", ["4"]);
        self.lines(lines);
        self.roff.control("RE", []);
    }

    /// Writes lines verbatim.
    pub fn lines<'a>(&mut self, lines: impl Iterator<Item = &'a str>) {
        self.roff.control("nf", []);
        for line in lines {
            self.roff.text([roman(line)]);
        }
        self.roff.control("fi", []);
    }

    /// Writes a text in the markup above.
    pub fn text(&mut self, text: &str) {
        for (index, part) in text.split("\n```").enumerate() {
            // Every second part is an example; it begins with its language.
            if index % 2 == 1 {
                self.verbatim(part.lines().skip(1));
                continue;
            }
            for block in part.trim().split("\n\n").map(|block| block.trim_matches('\n')) {
                self.block(block);
            }
        }
    }

    fn block(&mut self, block: &str) {
        if let Some(title) = block.strip_prefix("## ") {
            self.part(title);
        } else if let Some(title) = block.strip_prefix("# ") {
            self.section(title);
        } else if block.starts_with("- ") {
            for item in joined(block) {
                self.item(inlines(item.strip_prefix("- ").unwrap_or(&item)));
            }
        } else if block.lines().nth(1).is_some_and(|line| line.starts_with(": ")) {
            let lines = joined(block);
            for pair in lines.chunks(2) {
                let text = pair.get(1).and_then(|text| text.strip_prefix(": ")).unwrap_or_default();
                self.term(inlines(&pair[0]), inlines(text));
            }
        } else if !block.is_empty() {
            self.paragraph(inlines(&block.lines().collect::<Vec<_>>().join(" ")));
        }
    }

    fn mark_paragraph(&mut self) {
        if !std::mem::take(&mut self.fresh) {
            self.roff.control("PP", []);
        }
    }

    /// Fills words into lines of at most [`WIDTH`].
    fn fill(&mut self, inlines: Vec<Inline>) {
        let mut line: Vec<Inline> = Vec::new();
        let mut length = 0;
        for word in words(inlines).split(|inline| *inline == roman(" ")) {
            let size: usize = word.iter().map(rendered_length).sum();
            if length > 0 && length + 1 + size > WIDTH {
                self.roff.text(std::mem::take(&mut line));
                length = 0;
            } else if length > 0 {
                line.push(roman(" "));
                length += 1;
            }
            line.extend_from_slice(word);
            length += size;
        }
        if !line.is_empty() {
            self.roff.text(line);
        }
    }
}

/// Joins each line that begins with two spaces to the one before.
fn joined(block: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("  "), lines.last_mut()) {
            (Some(rest), Some(last)) => {
                last.push(' ');
                last.push_str(rest.trim_start());
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines
}

/// Parses the marks of bold and italic text.
pub fn inlines(text: &str) -> Vec<Inline> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*']) {
        let mark = &rest[at..=at];
        let Some(end) = rest[at + 1..].find(mark) else { break };
        found.push(roman(&rest[..at]));
        let marked = &rest[at + 1..at + 1 + end];
        found.push(if mark == "`" { bold(marked) } else { italic(marked) });
        rest = &rest[at + end + 2..];
    }
    found.push(roman(rest));
    found
}

/// Splits the plain text at each space.
fn words(inlines: Vec<Inline>) -> Vec<Inline> {
    let mut found = Vec::new();
    for inline in inlines {
        match inline {
            Inline::Roman(text) => {
                let words = text.split(' ').enumerate();
                found.extend(
                    words.flat_map(|(index, word)| [roman(if index > 0 { " " } else { "" }), roman(word)]),
                );
            }
            other => found.push(other),
        }
    }
    found.retain(|inline| *inline != roman(""));
    found
}

fn rendered_length(inline: &Inline) -> usize {
    let length = |text: &str| text.len() + text.matches(['-', '\\']).count() + 4 * text.matches('\'').count();
    match inline {
        Inline::Roman(text) => length(text),
        Inline::Bold(text) | Inline::Italic(text) => length(text) + 6,
        Inline::LineBreak => 0,
    }
}
