//! The password file of libpq: `PGPASSFILE`, or `~/.pgpass` (PostgreSQL manual, "The Password File").

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::backend::url::Environment;
use crate::backend::{StoreError, io_text};
use crate::{input, name_services, secret};

/// Several times the size of one with thousands of lines.
const LONGEST_FILE: u64 = 1 << 20;

/// Where the password file is.
#[derive(Clone)]
pub(super) struct PassFile {
    path: PathBuf,
    /// It has to exist.
    is_required: bool,
}

impl PassFile {
    /// Returns the file that an option, the environment or the home directory names.
    pub(super) fn of(option: Option<String>, environment: Environment<'_>) -> Option<PassFile> {
        if let Some(path) = option {
            return Some(PassFile { path: PathBuf::from(path), is_required: true });
        }
        let named = environment("PGPASSFILE").filter(|path| !path.is_empty());
        let path = named.map(PathBuf::from).or_else(|| {
            let home = name_services::home(environment("HOME").as_deref().map(AsRef::as_ref))?;
            Some(home.join(".pgpass"))
        })?;
        Some(PassFile { path, is_required: false })
    }

    /// Returns the password of the first line that matches. The file is read again for every connection.
    ///
    /// # Errors
    /// It cannot be read, or other users may read it.
    pub(super) fn password(
        &self,
        host: &str,
        port: u16,
        database: &str,
        user: &str,
    ) -> Result<Option<String>, StoreError> {
        let wrong = |why: &str| StoreError::Config(format!("password file {}: {why}", self.path.display()));
        let file: File = match input::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.is_required => return Ok(None),
            file => file.map_err(|error| wrong(&io_text(&error)))?,
        };
        let mode = file.metadata().map_err(|error| wrong(&io_text(&error)))?.mode();
        if mode & 0o077 != 0 {
            return Err(wrong(&format!("others may read it (mode {:04o}): chmod 0600 it", mode & 0o7777)));
        }
        let content = input::read_opened(file, LONGEST_FILE).map_err(|error| wrong(&io_text(&error)))?;
        let text = String::from_utf8(content).map_err(|_| wrong("not valid UTF-8"))?;
        let password = find(&text, &[host, &port.to_string(), database, user]);
        if let Some(password) = &password {
            secret::keep(password);
        }
        Ok(password)
    }
}

fn find(text: &str, wanted: &[&str]) -> Option<String> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(fields).find_map(|fields| {
        let (password, patterns) = fields.split_last()?;
        let is_match = patterns.len() == wanted.len()
            && patterns.iter().zip(wanted).all(|(pattern, wanted)| pattern == "*" || pattern == wanted);
        is_match.then(|| password.clone())
    })
}

/// Splits a line at its colons, of which a backslash escapes one.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut().expect("one field").extend(characters.next()),
            other => fields.last_mut().expect("one field").push(other),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_matching_line_counts() {
        let text = "# host:port:db:user:password\nbroken\ndb1:5432:app:web:one\n*:*:app:web:t\\:w\\\\o\n*:*:*:*:any:colon\n";
        let find = |host, port, database, user| find(text, &[host, port, database, user]);
        assert_eq!(find("db1", "5432", "app", "web").as_deref(), Some("one"));
        assert_eq!(find("db1", "5433", "app", "web").as_deref(), Some("t:w\\o"));
        assert_eq!(find("db2", "5432", "app", "other").as_deref(), Some("any:colon"));
    }
}
