//! README.md and the texts of the man pages: every command in them is run literally by a test.
//!
//! The fenced blocks are read from the files themselves, so that text and test cannot drift apart. What a reader has
//! and a test has not is replaced by the tables of [`sandbox`], and by nothing else. A fence in a language that no test
//! runs is an error.

mod captures;
mod commands;
mod demo;
mod migration;
mod pipelines;
pub mod sandbox;

use std::sync::LazyLock;

pub use sandbox::Sandbox;

/// The languages of the blocks, each of which has a test.
const LANGUAGES: &[&str] =
    &["acl", "console", "crontab", "message", "migration", "sh", "text", "toml", "yaml"];

/// A fenced block.
#[derive(Clone)]
pub struct Block {
    pub language: &'static str,
    pub lines: Vec<&'static str>,
    /// The file and the number of the first line.
    pub place: String,
}

impl Block {
    pub fn text(&self) -> String {
        self.lines.join("\n")
    }
}

/// A document: its path in the repository, and its text.
struct Document {
    path: String,
    text: &'static str,
}

static DOCUMENTS: LazyLock<Vec<Document>> = LazyLock::new(|| {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = std::fs::read_dir(root.join("packaging/manual/pages")).unwrap();
    let mut paths: Vec<_> = pages.map(|page| page.unwrap().path()).collect();
    paths.push(root.join("README.md"));
    paths.sort();
    let document = |path: std::path::PathBuf| Document {
        text: std::fs::read_to_string(&path).unwrap().leak(),
        path: path.strip_prefix(root).unwrap().display().to_string(),
    };
    paths.into_iter().map(document).collect()
});

/// The blocks of all documents in a language.
pub fn blocks(language: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = DOCUMENTS.iter().flat_map(blocks_of).collect();
    blocks.retain(|block| block.language == language);
    assert!(!blocks.is_empty(), "no document has a block of {language}");
    blocks
}

/// The blocks of the documents whose path ends with `page`, in a language.
pub fn blocks_in(page: &str, language: &str) -> Vec<Block> {
    let mut blocks = blocks(language);
    blocks.retain(|block| block.place.rsplit_once(':').is_some_and(|(path, _)| path.ends_with(page)));
    blocks
}

fn blocks_of(document: &Document) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (index, line) in document.text.lines().enumerate() {
        match (line.strip_prefix("```"), inside) {
            (Some(language), false) => {
                let place = format!("{}:{}", document.path, index + 1);
                blocks.push(Block { language, lines: Vec::new(), place });
                inside = true;
            }
            (Some(_), true) => inside = false,
            (None, true) => blocks.last_mut().expect("we are inside one").lines.push(line),
            (None, false) => {}
        }
    }
    assert!(!inside, "{} ends inside a block", document.path);
    blocks
}

#[test]
fn every_block_is_in_a_language_that_a_test_runs() {
    for block in DOCUMENTS.iter().flat_map(blocks_of) {
        assert!(LANGUAGES.contains(&block.language), "{}: {:?}", block.place, block.language);
    }
}

/// Text in code style that looks like an option must be one.
#[test]
fn every_option_that_a_document_names_exists() {
    use std::process::Command;
    let help: String = ["run", "acquire", "renew", "release", "check", "doctor", "status", "break", "freeze"]
        .iter()
        .map(|command| {
            Command::new(crate::support::dlock::BINARY).args([command, "--help"]).output().unwrap().stdout
        })
        .map(|help| String::from_utf8(help).unwrap())
        .collect();
    for document in DOCUMENTS.iter() {
        let words =
            document.text.split(|c: char| c.is_whitespace() || "`'\"(),;|".contains(c)).filter(|word| {
                word.strip_prefix("--").is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
            });
        // Those of other programs.
        let others = ["--locked", "--path", "--profile", "--help", "--rm"];
        let unknown: Vec<_> = words
            .map(|word| word.trim_end_matches('.'))
            .map(|word| word.split_once('=').map_or(word, |(name, _)| name))
            .filter(|word| !others.contains(word) && !help.contains(word))
            .collect();
        assert!(unknown.is_empty(), "{}: in no help: {unknown:?}", document.path);
    }
}

/// Commands have to be in blocks, so that tests run them.
#[test]
fn no_command_of_a_page_is_outside_of_a_block() {
    for document in DOCUMENTS.iter() {
        let mut inside = false;
        for (index, line) in document.text.lines().enumerate() {
            inside ^= line.starts_with("```");
            assert!(inside || !line.starts_with("    "), "{}:{}: {line}", document.path, index + 1);
        }
    }
}
