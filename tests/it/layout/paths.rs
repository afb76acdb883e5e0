//! The modules of a crate, and the paths in each that lead to others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// How often a name may be passed on from module to module. A name may be passed on as itself, from outside.
const DEEPEST: usize = 8;

/// The names from the root of the crate, which has none.
pub type Module = Vec<String>;

/// What each module names of others.
pub struct Modules {
    named: BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>,
}

/// The text of a module.
struct Source {
    /// The names that `use` declares, with their paths, and whether they are for other modules.
    uses: Vec<Use>,
    /// The text without comments, strings, tests and `use`.
    code: String,
}

struct Use {
    name: String,
    path: Vec<String>,
    is_public: bool,
}

impl Modules {
    /// Reads the modules of `src/`.
    pub fn read() -> Modules {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => folders.push(path),
                    false if path.extension().is_some_and(|extension| extension == "rs") => {
                        let name = path.strip_prefix(&root).unwrap().display().to_string();
                        files.push((name, fs::read_to_string(path).unwrap()));
                    }
                    false => {}
                }
            }
        }
        assert!(files.len() > 200, "{} files", files.len());
        Modules::of(files)
    }

    /// Reads modules, each a path below `src/` and its text.
    pub fn of(files: impl IntoIterator<Item = (String, String)>) -> Modules {
        let files = files.into_iter().filter(|(path, _)| path != "main.rs");
        let sources: BTreeMap<Module, Source> =
            files.map(|(path, text)| (module_of(&path), Source::of(&text))).collect();
        let named = sources.keys().map(|module| (module.clone(), named_in(module, &sources))).collect();
        Modules { named }
    }

    pub fn all(&self) -> impl Iterator<Item = &Module> {
        self.named.keys()
    }

    /// The modules that have others below them.
    pub fn folders(&self) -> BTreeSet<Module> {
        self.all()
            .filter(|module| !module.is_empty())
            .map(|module| module[..module.len() - 1].to_vec())
            .collect()
    }

    /// The other modules that a module names, with the names.
    pub fn named_by(&self, module: &[String]) -> &BTreeMap<Module, BTreeSet<String>> {
        &self.named[module]
    }
}

/// The name of the outermost module.
pub fn top(module: &[String]) -> &str {
    module.first().map_or("", String::as_str)
}

fn module_of(path: &str) -> Module {
    let names = path.trim_end_matches(".rs").split('/').map(str::to_owned);
    let mut module: Module = names.collect();
    if module.last().is_some_and(|last| last == "mod" || (last == "lib" && module.len() == 1)) {
        module.pop();
    }
    module
}

fn named_in(module: &Module, sources: &BTreeMap<Module, Source>) -> BTreeMap<Module, BTreeSet<String>> {
    let source = &sources[module];
    let mut named: BTreeMap<Module, BTreeSet<String>> = BTreeMap::new();
    let paths = paths(&source.code);
    let is_used = |name: &str| words(&source.code).any(|word| word == name);
    // What is only passed on is not used here.
    let uses = source.uses.iter().filter(|one| !one.is_public || is_used(&one.name));
    let all =
        uses.map(|one| (one.name.clone(), &one.path)).chain(paths.iter().map(|path| (path.join("::"), path)));
    for (name, path) in all {
        if let Some(other) = resolve(module, path, sources, 0).filter(|other| other != module) {
            named.entry(other).or_default().insert(name);
        }
    }
    named
}

/// Returns the module that a path in `module` leads to: the one that defines what it names.
fn resolve(
    module: &Module,
    path: &[String],
    sources: &BTreeMap<Module, Source>,
    depth: usize,
) -> Option<Module> {
    if depth > DEEPEST {
        return None;
    }
    let supers = path.iter().take_while(|name| *name == "super").count();
    let (mut at, mut rest) = match path.first()?.as_str() {
        "crate" => (Module::new(), &path[1..]),
        "self" => (module.clone(), &path[1..]),
        "super" => (module[..module.len().checked_sub(supers)?].to_vec(), &path[supers..]),
        first if sources.contains_key(&below(module, first)) => (module.clone(), path),
        first => {
            let declared = sources[module].uses.iter().find(|one| one.name == first && one.path != path)?;
            return resolve(module, &[&declared.path, &path[1..]].concat(), sources, depth + 1);
        }
    };
    while let [name, others @ ..] = rest {
        let next = below(&at, name);
        if sources.contains_key(&next) {
            (at, rest) = (next, others);
            continue;
        }
        let passed_on = sources.get(&at)?.uses.iter().find(|one| one.name == *name);
        let Some(passed_on) = passed_on else { break };
        let path = [&passed_on.path, others].concat();
        return resolve(&at, &path, sources, depth + 1).or(Some(at));
    }
    Some(at)
}

fn below(module: &Module, name: &str) -> Module {
    [module.as_slice(), &[name.to_owned()]].concat()
}

impl Source {
    fn of(text: &str) -> Source {
        let mut source = Source { uses: Vec::new(), code: String::new() };
        let text = plain(text);
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let line = line.trim();
            if line == "#[cfg(test)]" {
                // The tests are the end of a file.
                match lines.next() {
                    Some(next) if next.contains("mod ") && next.ends_with('{') => break,
                    _ => continue,
                }
            }
            let (is_public, line) = match line.strip_prefix("pub") {
                Some(rest) if rest.starts_with('(') => {
                    (true, rest.split_once(") ").map_or("", |(_, rest)| rest))
                }
                Some(rest) => (true, rest.trim_start()),
                None => (false, line),
            };
            let Some(declaration) = line.strip_prefix("use ") else {
                source.code.push_str(line);
                source.code.push('\n');
                continue;
            };
            let mut tree = declaration.to_owned();
            while !tree.contains(';') {
                tree.push_str(lines.next().expect("`use` ends with a semicolon"));
            }
            let tree = tree.split(';').next().unwrap_or_default();
            declared(tree, &[], &mut |path, name| {
                source.uses.push(Use { name, path, is_public });
            });
        }
        source
    }
}

/// Calls `each` with every path of the tree in a `use`, and the name that it declares.
fn declared(tree: &str, prefix: &[String], each: &mut impl FnMut(Vec<String>, String)) {
    let tree = tree.trim();
    let path_of = |text: &str| -> Vec<String> {
        let names = text
            .split("::")
            .map(str::trim)
            .filter(|name| !name.is_empty() && *name != "self" || prefix.is_empty());
        prefix.iter().cloned().chain(names.filter(|name| !name.is_empty()).map(str::to_owned)).collect()
    };
    if let Some((before, list)) = tree.split_once('{') {
        let prefix = path_of(before);
        let (mut depth, mut item) = (0_u32, String::new());
        for c in list.chars() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                _ => {}
            }
            match c {
                ',' if depth == 0 => declared(&std::mem::take(&mut item), &prefix, each),
                c => item.push(c),
            }
        }
        declared(&item, &prefix, each);
    } else if !tree.is_empty() {
        let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = path_of(path);
        let last = path.last().cloned().unwrap_or_default();
        each(path, if name.is_empty() { last } else { name.trim().to_owned() });
    }
}

/// Returns a text without comments and without the content of strings and characters.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let raw =
            rest.strip_prefix('r').map(|raw| raw.trim_start_matches('#')).filter(|raw| raw.starts_with('"'));
        let is_word = plain.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = raw.filter(|_| !is_word) {
            let hashes = rest.len() - raw.len() - 1;
            let end = format!("\"{}", "#".repeat(hashes));
            let start = hashes + 2;
            start + rest[start..].find(&end).expect("the end of a string") + end.len()
        } else if c == '"' {
            quoted(rest, '"').expect("the end of a string")
        } else if c == '\'' {
            // Otherwise a lifetime.
            quoted(rest, '\'')
                .filter(|length| rest.starts_with("'\\") || rest[..*length].chars().count() == 3)
                .unwrap_or(0)
        } else {
            0
        };
        if length == 0 {
            plain.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            rest = &rest[length..];
        }
    }
    plain
}

/// Returns the length of a quoted text at the beginning.
fn quoted(text: &str, quote: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_')
}

/// Returns the paths of more than one name in a text.
fn paths(code: &str) -> Vec<Vec<String>> {
    let parts = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    let path = |part: &str| -> Option<Vec<String>> {
        let names: Vec<String> = part.trim_end_matches(':').split("::").map(str::to_owned).collect();
        (names.len() > 1 && names.iter().all(|name| !name.is_empty() && !name.contains(':'))).then_some(names)
    };
    parts.filter_map(path).collect()
}
