//! The user's option file, from which the clients of MySQL and MariaDB take the user and the password.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::backend::io_text;
use crate::backend::url::UrlError;
use crate::input;

/// Longer than any such file.
const LONGEST: u64 = 64 << 10;

/// What the group `[client]` says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ClientOptions {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
}

impl ClientOptions {
    /// Reads `~/.my.cnf`. One that does not exist, or that everybody may write, is ignored, as those clients do.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read(home: Option<String>) -> Result<ClientOptions, UrlError> {
        let Some(home) = home.filter(|home| home.starts_with('/')) else {
            return Ok(ClientOptions::default());
        };
        let path = Path::new(&home).join(".my.cnf");
        match std::fs::metadata(&path) {
            Ok(found) if found.is_file() && found.mode() & 0o002 == 0 => {}
            _ => return Ok(ClientOptions::default()),
        }
        let bytes = input::read(&path, LONGEST)
            .map_err(|error| UrlError::new(format!("{}: {}", path.display(), io_text(&error))))?;
        Ok(ClientOptions::parse(&String::from_utf8_lossy(&bytes)))
    }

    fn parse(text: &str) -> ClientOptions {
        let (mut options, mut is_ours) = (ClientOptions::default(), false);
        for line in text.lines().map(str::trim) {
            if let Some(group) = line.strip_prefix('[') {
                is_ours = group.split(']').next() == Some("client");
                continue;
            }
            let Some((name, value)) = line.split_once('=').filter(|_| is_ours) else { continue };
            match name.trim() {
                "user" => options.user = Some(unquoted(value.trim())),
                "password" => options.password = Some(unquoted(value.trim())),
                _ => {}
            }
        }
        options
    }
}

/// Returns a value without the quotes around it, and without a comment after it.
fn unquoted(value: &str) -> String {
    let quote = value.chars().next().filter(|first| ['\'', '"'].contains(first));
    let inner = match quote {
        Some(quote) => value[1..].split_once(quote).map_or(&value[1..], |(inner, _)| inner),
        None => value.split(" #").next().unwrap_or_default().trim_end(),
    };
    let (mut text, mut rest) = (String::new(), inner.chars());
    while let Some(c) = rest.next() {
        text.push(match c {
            '\\' => match rest.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some('r') => '\r',
                Some('b') => '\u{8}',
                Some('s') => ' ',
                Some(other) => other,
                None => '\\',
            },
            c => c,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_group_is_read() {
        let read = |text| {
            let options = ClientOptions::parse(text);
            (options.user.unwrap_or_default(), options.password.unwrap_or_default())
        };
        let pair = |user: &str, password: &str| (user.to_owned(), password.to_owned());
        assert_eq!(read("[client]\nuser=me\npassword = a b # c\n"), pair("me", "a b"));
        assert_eq!(read("user=x\n[mysqld]\nuser=mysql\n[client]\n# user=y\n"), pair("", ""));
        assert_eq!(read("[client]\npassword=\"a#b\\\\c\"\n[mysql]\npassword=z"), pair("", "a#b\\c"));
        assert_eq!(read("[client]\npassword='a\\sb"), pair("", "a b"));
        assert_eq!(read("[client]\npassword"), pair("", ""));
    }
}
