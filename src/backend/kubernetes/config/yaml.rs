//! YAML as JSON, which is how Kubernetes reads it: the first document of a text.

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// How deep collections may be nested.
const DEEPEST: usize = 64;

/// Returns the first document of a text; null without one. Numbers are texts.
///
/// # Errors
/// It is not YAML, has an alias, or is too deep. The reason does not repeat the text.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    // The collections that have begun, each with the key of the next value.
    let mut open: Vec<(Value, Option<String>)> = Vec::new();
    for event in Parser::new_from_iter(text.chars()) {
        let (event, span) =
            event.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        let wrong = |why: &str| Err(format!("line {}: {why}", span.start.line()));
        let value = match event {
            _ if open.len() > DEEPEST => return wrong("too many levels"),
            Event::MappingStart(..) => Err(Value::Object(Map::new())),
            Event::SequenceStart(..) => Err(Value::Array(Vec::new())),
            Event::MappingEnd | Event::SequenceEnd => {
                Ok(open.pop().map(|(value, _)| value).unwrap_or_default())
            }
            Event::Scalar(text, style, ..) => Ok(match (&*text, style == ScalarStyle::Plain) {
                ("" | "~" | "null", true) => Value::Null,
                ("true" | "false", true) => (text == "true").into(),
                _ => text.into_owned().into(),
            }),
            Event::Alias(_) => return wrong("an alias (*), which dlock does not read"),
            Event::DocumentEnd => break,
            _ => continue,
        };
        match (value, open.last_mut()) {
            (Err(collection), _) => open.push((collection, None)),
            (Ok(value), None) => return Ok(value),
            (Ok(value), Some((Value::Array(items), _))) => items.push(value),
            (Ok(value), Some((collection, key @ Some(_)))) => {
                collection[key.take().unwrap_or_default()] = value
            }
            (Ok(Value::String(name)), Some((_, key))) => *key = Some(name),
            (Ok(_), Some(_)) => return wrong("a key that is not a text"),
        }
    }
    Ok(Value::Null)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_is_read_as_json() {
        for (text, expected) in [
            ("", Value::Null),
            ("# nothing\n---\n", Value::Null),
            (
                "apiVersion: v1\nclusters:\n- cluster:\n    server: https://h:6443  # here\n    insecure: true\n  name: 'it''s'\n- {}\n",
                json!({"apiVersion": "v1", "clusters": [{"cluster": {"server": "https://h:6443", "insecure": true}, "name": "it's"}, {}]}),
            ),
            (
                r#"{"a": [1, "1", null, ~], "b": "\u00e9\n"}"#,
                json!({"a": ["1", "1", null, null], "b": "é\n"}),
            ),
            ("a: >-\n  one\n  two\nb: |\n  x\n  y\n", json!({"a": "one two", "b": "x\ny\n"})),
            (
                "a: yes\nb: 0123\nc:\nd: ''\n1: x\n",
                json!({"a": "yes", "b": "0123", "c": null, "d": "", "1": "x"}),
            ),
            ("a: 1\n---\na: 2\n", json!({"a": "1"})),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn an_error_says_the_line_and_not_the_text() {
        for text in [
            "a: b\nsecret: 'hunter2",
            "a:\n  secret: hunter2\n hunter2",
            "a: &hunter2 1\nb: *hunter2",
            "a: b\n[hunter2]: c",
            &"[".repeat(1000),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with("line ") && !error.contains("hunter2"), "{error}");
        }
    }
}
