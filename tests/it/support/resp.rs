//! The subset of the Redis protocol that the tests need.

use std::io::{BufRead, Error, ErrorKind, Read, Result};

/// One reply of a server.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Null, in any of its encodings.
    Nil,
    /// `:1`
    Int(i64),
    /// `+OK` or a string with a length.
    Text(String),
    /// `-ERR ...`
    Error(String),
    /// A list, a set, a push, or a map as the list of its keys and values.
    List(Vec<Value>),
}

impl Value {
    /// The text, or the number as a text.
    #[track_caller]
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            other => panic!("a text was expected, not {other:?}"),
        }
    }

    /// The number.
    #[track_caller]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            other => panic!("a number was expected, not {other:?}"),
        }
    }

    /// The texts of a list.
    #[track_caller]
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::List(items) => items.iter().map(Self::text).collect(),
            other => panic!("a list was expected, not {other:?}"),
        }
    }
}

/// The bytes of a command, as clients send it.
pub fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// The bytes of a RESP2 reply.
pub fn old_reply(value: &Value) -> Vec<u8> {
    match value {
        Value::Nil => b"$-1\r\n".to_vec(),
        Value::Int(number) => format!(":{number}\r\n").into_bytes(),
        Value::Text(text) => bulk(text),
        Value::Error(text) => format!("-{text}\r\n").into_bytes(),
        Value::List(items) => {
            let head = format!("*{}\r\n", items.len()).into_bytes();
            items.iter().fold(head, |mut bytes, item| {
                bytes.extend(old_reply(item));
                bytes
            })
        }
    }
}

/// The bytes of a bulk string.
pub fn bulk(text: &str) -> Vec<u8> {
    format!("${}\r\n{text}\r\n", text.len()).into_bytes()
}

/// Reads one reply.
pub fn read_value(from: &mut impl BufRead) -> Result<Value> {
    let line = read_line(from)?;
    let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed("an empty line"))?;
    let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
    Ok(match kind {
        "+" | "," | "(" => Value::Text(rest.to_owned()),
        "#" => Value::Int(i64::from(rest == "t")),
        "-" => Value::Error(rest.to_owned()),
        ":" => Value::Int(number()?),
        "_" => Value::Nil,
        "$" | "=" => match usize::try_from(number()?) {
            Ok(length) => Value::Text(read_text(from, length)?),
            Err(_) => Value::Nil,
        },
        "*" | "~" | ">" => match number()? {
            -1 => Value::Nil,
            count => Value::List((0..count).map(|_| read_value(from)).collect::<Result<_>>()?),
        },
        "%" => Value::List((0..2 * number()?).map(|_| read_value(from)).collect::<Result<_>>()?),
        _ => return Err(malformed(&line)),
    })
}

/// Reads one command of a client.
pub fn read_command(from: &mut impl BufRead) -> Result<Vec<String>> {
    match read_value(from)? {
        Value::List(items) => Ok(items.iter().map(Value::text).collect()),
        other => Err(malformed(&format!("{other:?}"))),
    }
}

fn read_line(from: &mut impl BufRead) -> Result<String> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn read_text(from: &mut impl Read, length: usize) -> Result<String> {
    let mut bytes = vec![0; length + 2];
    from.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn malformed(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not the Redis protocol: {what}"))
}

/// Splits a stream of bytes, in pieces of any size, into the commands that a client sent.
#[derive(Debug, Default)]
pub struct Commands(Vec<u8>);

impl Commands {
    /// Takes more bytes, and returns the commands that are now complete.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Vec<String>> {
        self.0.extend_from_slice(bytes);
        let mut commands = Vec::new();
        loop {
            let mut rest = self.0.as_slice();
            let Ok(command) = read_command(&mut rest) else { return commands };
            let used = self.0.len() - rest.len();
            self.0.drain(..used);
            commands.push(command);
        }
    }
}
