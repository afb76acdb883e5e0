//! `dlock config show`: prints the values in effect and their sources, and contacts no store.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::report::{Reporter, printable};
use crate::settings::{ConfigArguments, ConfigCommand, ShowArguments, Shown, ShownTable, ShownValue, Source};

pub fn config(arguments: &ConfigArguments) -> Exit {
    let ConfigCommand::Show(arguments) = &arguments.command;
    match Shown::new(arguments) {
        Ok(shown) => super::print(&printed(&shown, arguments)),
        Err(failure) => Reporter::of(&arguments.common).failure(&failure),
    }
}

fn printed(shown: &Shown, arguments: &ShowArguments) -> String {
    match arguments.json {
        true => serde_json::to_string(&object(shown)).unwrap_or_default() + "\n",
        false => text(shown),
    }
}

/// Formats the values like a configuration file, each line with its source.
fn text(shown: &Shown) -> String {
    let mut text = match shown.files.as_slice() {
        [] => "# no configuration file was read\n".to_owned(),
        files => files.iter().map(|file| format!("# {}\n", printable(file))).collect(),
    };
    for backend in &shown.backends {
        let head = format!("[backends.{}]", key(&backend.name));
        text.push_str(&lines(&head, "", backend));
    }
    for (index, table) in shown.locks.iter().enumerate() {
        let is_last = index + 1 == shown.locks.len();
        let remark = match (&shown.name, &shown.table) {
            (Some(_), Some((pattern, source))) => {
                format!("by [locks.{}], {}", quoted(pattern), printable(&source.to_string()))
            }
            (Some(_), None) => "no table matches".to_owned(),
            (None, _) if is_last => "every lock that no other table matches".to_owned(),
            (None, _) => String::new(),
        };
        text.push_str(&lines(&format!("[locks.{}]", quoted(&table.name)), &remark, table));
    }
    text
}

fn lines(head: &str, remark: &str, table: &ShownTable) -> String {
    let widest = table.values.iter().map(|known| key(&known.key).chars().count()).max().unwrap_or(0);
    let mut rows = Vec::new();
    let mut unset = Vec::new();
    rows.push((head.to_owned(), remark.to_owned()));
    for known in &table.values {
        let Some(value) = &known.value else {
            unset.push(known.key.as_str());
            continue;
        };
        let name = key(&known.key);
        let padding = " ".repeat(widest - name.chars().count());
        rows.push((format!("{name}{padding} = {}", toml(value)), origin(known)));
    }
    let width = rows.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
    let mut text = String::from("\n");
    for (line, remark) in rows {
        let padding = " ".repeat(width - line.chars().count());
        let remark = if remark.is_empty() { remark } else { format!("{padding}  # {remark}") };
        text.push_str(&format!("{line}{remark}\n"));
    }
    if !unset.is_empty() {
        text.push_str(&format!("# not set: {}\n", unset.join(", ")));
    }
    text
}

fn origin(known: &ShownValue) -> String {
    let overridden = known.overridden.as_ref();
    let instead = overridden.map(|source| format!(", overridden by {source}")).unwrap_or_default();
    printable(&format!("{}{instead}", known.source))
}

/// A key, quoted where TOML requires it.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { quoted(name) }
}

/// A TOML string; characters that are not safe for a terminal are escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if printable(c.encode_utf8(&mut [0; 4])).starts_with("\\u") => {
                quoted.push_str(&format!("\\U{:08X}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

fn toml(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// The keys in this order, "version" first.
#[derive(Serialize)]
struct Object<'a> {
    version: u8,
    files: &'a [String],
    name: &'a Option<String>,
    table: Option<&'a str>,
    backends: Map<String, Value>,
    locks: Map<String, Value>,
}

fn object(shown: &Shown) -> Object<'_> {
    let values = |table: &ShownTable| -> Map<String, Value> {
        table.values.iter().map(|known| (known.key.clone(), entry(known))).collect()
    };
    let tables = |tables: &[ShownTable]| -> Map<String, Value> {
        tables.iter().map(|table| (table.name.clone(), values(table).into())).collect()
    };
    Object {
        version: 1,
        files: &shown.files,
        name: &shown.name,
        table: shown.table.as_ref().map(|(pattern, _)| pattern.as_str()),
        backends: tables(&shown.backends),
        locks: tables(&shown.locks),
    }
}

fn entry(known: &ShownValue) -> Value {
    let mut entry = match &known.source {
        Source::Default => json!({ "source": "default" }),
        Source::Flag(flag) => json!({ "source": "flag", "flag": flag }),
        Source::Environment(name) => json!({ "source": "environment", "variable": name }),
        Source::File(place) => json!({ "source": "file", "file": &*place.file, "line": place.line }),
    };
    entry["value"] = json!(known.value);
    if let Some(source) = &known.overridden {
        entry["overridden_by"] = source.to_string().into();
    }
    entry
}
