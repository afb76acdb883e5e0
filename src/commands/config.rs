//! `dlock config show`: prints the values in effect and their sources, and contacts no store.

use serde_json::{Map, Value, json};

use crate::exit::Exit;
use crate::report::{Reporter, is_unsafe, json, printable};
use crate::settings::{ConfigArguments, ConfigCommand, Shown, ShownTable, ShownValue, Source, Sourced};

pub fn config(arguments: &ConfigArguments) -> Exit {
    let ConfigCommand::Show(arguments) = &arguments.command;
    match Shown::new(arguments) {
        Ok(shown) if arguments.json => super::print(&json::line(&object(&shown))),
        Ok(shown) => super::print(&text(&shown)),
        Err(failure) => Reporter::of(&arguments.common).failure(&failure),
    }
}

/// Formats the values like a configuration file, each line with its source.
fn text(shown: &Shown) -> String {
    let mut text = match shown.files.as_slice() {
        [] => "# no configuration file was read\n".to_owned(),
        files => files.iter().map(|file| format!("# {}\n", printable(file))).collect(),
    };
    for backend in &shown.backends {
        text.push_str(&lines(format!("[backends.{}]", key(&backend.name)), String::new(), backend));
    }
    for pool in &shown.pools {
        text.push_str(&lines(format!("[pools.{}]", key(&pool.name)), String::new(), pool));
    }
    for (index, table) in shown.locks.iter().enumerate() {
        let is_last = index + 1 == shown.locks.len();
        let remark = match (&shown.name, shown.tables.as_slice()) {
            (Some(_), []) => "no table matches".to_owned(),
            (Some(_), tables) => {
                let one = |(pattern, source): &(String, Source)| format!("{}, {source}", table_name(pattern));
                printable(&format!("by {}", tables.iter().map(one).collect::<Vec<_>>().join("; ")))
            }
            (None, _) if is_last => "every lock; a key of another table that matches overrides it".to_owned(),
            (None, _) => String::new(),
        };
        text.push_str(&lines(format!("[locks.{}]", quoted(&table.name)), remark, table));
    }
    text
}

fn lines(head: String, remark: String, table: &ShownTable) -> String {
    let widest = table.values.iter().map(|known| key(&known.key).chars().count()).max().unwrap_or(0);
    let mut rows = vec![(head, remark)];
    let mut unset = Vec::new();
    for ShownValue { key: name, known, table: of, overridden } in &table.values {
        let Some(Sourced { value, source }) = known else {
            unset.push(name.as_str());
            continue;
        };
        let instead = overridden.as_ref().map(|source| format!(", overridden by {source}"));
        let of = of.as_ref().map(|pattern| format!(", {}", table_name(pattern))).unwrap_or_default();
        let origin = printable(&format!("{source}{of}{}", instead.unwrap_or_default()));
        rows.push((format!("{:widest$} = {}", key(name), toml(value)), origin));
    }
    let width = rows.iter().map(|(line, _)| line.chars().count()).max().unwrap_or(0);
    let mut text = String::from("\n");
    for (line, remark) in rows {
        text.push_str(&match remark.as_str() {
            "" => format!("{line}\n"),
            remark => format!("{line:width$}  # {remark}\n"),
        });
    }
    if !unset.is_empty() {
        text.push_str(&format!("# not set: {}\n", unset.join(", ")));
    }
    text
}

/// The head of the table of the locks that match a pattern.
fn table_name(pattern: &str) -> String {
    format!("[locks.{}]", quoted(pattern))
}

/// A key, quoted where TOML requires it.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(bare) { name.to_owned() } else { quoted(name) }
}

/// A TOML string; characters that are not safe for a terminal are escaped.
fn quoted(text: &str) -> String {
    let escaped = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if is_unsafe(c) => format!("\\U{:08X}", u32::from(c)),
        c => c.to_string(),
    };
    format!("\"{}\"", text.chars().map(escaped).collect::<String>())
}

fn toml(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn object(shown: &Shown) -> Value {
    json!({
        "version": 1,
        "files": shown.files,
        "name": shown.name,
        "table": shown.tables.first().map(|(pattern, _)| pattern),
        "backends": tables(&shown.backends),
        "locks": tables(&shown.locks),
        "pools": tables(&shown.pools),
    })
}

/// Returns the tables by their names, in alphabetical order.
fn tables(tables: &[ShownTable]) -> Value {
    let entries = |table: &ShownTable| -> Map<String, Value> {
        table.values.iter().map(|known| (known.key.clone(), entry(known))).collect()
    };
    let tables = tables.iter().map(|table| (table.name.clone(), entries(table).into()));
    let mut object = Value::Object(tables.collect());
    object.sort_all_objects();
    object
}

fn entry(shown: &ShownValue) -> Value {
    let (value, source) = match &shown.known {
        Some(Sourced { value, source }) => (value, source),
        None => (&Value::Null, &Source::Default),
    };
    let mut entry = match source {
        Source::Default => json!({ "source": "default" }),
        Source::Flag(flag) => json!({ "source": "flag", "flag": flag }),
        Source::Environment(name) => json!({ "source": "environment", "variable": name }),
        Source::File(place) => json!({ "source": "file", "file": &*place.file, "line": place.line }),
    };
    entry["value"] = value.clone();
    if let Some(pattern) = &shown.table {
        entry["table"] = pattern.as_str().into();
    }
    if let Some(source) = &shown.overridden {
        entry["overridden_by"] = source.to_string().into();
    }
    entry
}
