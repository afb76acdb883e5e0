//! The options of a URL: a table for each store says which there are, and one parser reads a URL by it.
//!
//! No option has a secret as its value: passwords are in front of the `@`, or in files. The value of an option that is in
//! no table may be one, and is never repeated.

use std::path::PathBuf;
use std::str::FromStr;

use super::url::{Url, UrlError, encoded};

/// The options of a store, in parts that several stores may share.
pub type Table = &'static [&'static [UrlOption]];

/// An option, as the store and the manual know it.
#[derive(Debug)]
pub struct UrlOption {
    /// As in the URL.
    pub name: &'static str,
    /// The form of its value.
    pub value: Value,
    /// It distinguishes locks of the same name: part of the URL in messages, unless it has its default value.
    is_shown: bool,
    /// A sentence of the manual, in its markup.
    pub meaning: &'static str,
}

/// What the value of an option is.
#[derive(Debug)]
pub enum Value {
    /// A text; this one by default.
    Text(&'static str),
    /// The absolute path of a file.
    File,
    /// A number, this one by default, and what to call it. It is checked when it is used.
    Number(&'static str, &'static str),
    /// This word by default; one of these, in either case.
    Word(&'static str, &'static [&'static str]),
    /// One of these words, without a default, and why others are rejected.
    Only(&'static [&'static str], &'static str),
    /// Yes or no; no by default, and yes without a value.
    Switch,
    /// Likewise, but what holds without the option depends on something else.
    Either,
    /// The same as the option of this name.
    Synonym(&'static str),
}

/// The normal forms of a switch.
const ON: &str = "yes";
const OFF: &str = "no";

/// Returns an option that decides which lock a name stands for.
pub const fn of_lock(name: &'static str, value: Value, meaning: &'static str) -> UrlOption {
    UrlOption { name, value, is_shown: true, meaning }
}

/// Returns an option that decides how the servers are reached.
pub const fn of_access(name: &'static str, value: Value, meaning: &'static str) -> UrlOption {
    UrlOption { name, value, is_shown: false, meaning }
}

/// Returns another name of an option.
pub const fn synonym(name: &'static str, of: &'static str) -> UrlOption {
    of_access(name, Value::Synonym(of), "")
}

impl UrlOption {
    /// Returns the value without the option; empty for none.
    pub fn default(&self) -> &'static str {
        match self.value {
            Value::Text(default) | Value::Number(default, _) | Value::Word(default, _) => default,
            Value::File | Value::Only(..) | Value::Switch | Value::Either | Value::Synonym(_) => "",
        }
    }

    /// Returns the words that may be its value, if it takes no other text.
    pub fn words(&self) -> &'static [&'static str] {
        match self.value {
            Value::Word(_, words) | Value::Only(words, _) => words,
            Value::Switch | Value::Either => &[ON, OFF],
            Value::Text(_) | Value::File | Value::Number(..) | Value::Synonym(_) => &[],
        }
    }

    /// Returns its meaning as one line of plain text.
    pub fn summary(&self) -> String {
        self.meaning.chars().filter(|char| !matches!(char, '`' | '*' | '\\')).collect()
    }

    /// Returns a value in its normal form. `name` is the one in the URL.
    fn normal(&self, name: &str, value: &str) -> Result<String, UrlError> {
        match self.value {
            Value::Word(_, words) => {
                let word = words.iter().find(|word| word.eq_ignore_ascii_case(value));
                return word.map(|word| (*word).to_owned()).ok_or_else(|| UrlError::word(name, words, value));
            }
            Value::Only(words, why) if !words.contains(&value) => return Err(UrlError::new(why)),
            Value::File if !value.starts_with('/') => {
                return Err(UrlError::new(format!("{name}= takes an absolute path")));
            }
            Value::Switch | Value::Either => match value {
                "" | ON | "true" | "1" => return Ok(ON.to_owned()),
                OFF | "false" | "0" => return Ok(OFF.to_owned()),
                _ => return Err(UrlError::word(name, &[ON, OFF], value)),
            },
            _ => {}
        }
        Ok(value.to_owned())
    }
}

/// Returns the names of all options of a table.
pub fn names(table: Table) -> Vec<&'static str> {
    table.iter().copied().flatten().map(|option| option.name).collect()
}

/// Returns the options of a table that a URL with these names of options may still have.
pub fn not_given<'a>(table: Table, given: &'a [&str]) -> impl Iterator<Item = &'static UrlOption> + 'a {
    let is_given = move |option: &UrlOption| {
        given.iter().any(|name| match find(table, name).map(|given| &given.value) {
            Some(Value::Synonym(of)) => *of == option.name,
            _ => *name == option.name,
        })
    };
    let all = table.iter().copied().flatten();
    all.filter(move |option| !matches!(option.value, Value::Synonym(_)) && !is_given(option))
}

/// Returns the words in pairs of a word and what it stands for.
pub const fn words<T, const N: usize>(all: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = all[index].0;
        index += 1;
    }
    words
}

/// Returns why a URL cannot have both of these options.
pub fn twice(one: &str, other: &str) -> String {
    format!("{one}= and {other}= are the same option: give one of them")
}

fn find(table: Table, name: &str) -> Option<&'static UrlOption> {
    table.iter().copied().flatten().find(|option| option.name == name)
}

/// The options that a URL has, checked against a table.
#[derive(Debug)]
pub struct Options {
    table: Table,
    given: Vec<Given>,
}

#[derive(Debug)]
struct Given {
    option: &'static UrlOption,
    /// The name in the URL, which may be a synonym.
    name: String,
    value: String,
}

impl Options {
    /// Reads the options of a URL.
    ///
    /// # Errors
    /// One of them is not in the table, or has a value of another form.
    pub fn of(url: &Url, table: Table) -> Result<Options, UrlError> {
        let mut options = Options { table, given: Vec::new() };
        for (name, value) in &url.query {
            if find(table, name).is_none() {
                return Err(UrlError::unknown_option(name, &url.scheme, &names(table)).about(name));
            }
            if let Some(same) = options.find(options.option(name).name) {
                return Err(UrlError::new(twice(&same.name, name)).about(name));
            }
            options.add(name, value).map_err(|error| error.about(name))?;
        }
        Ok(options)
    }

    /// Adds an option of the table, which overrides the URL.
    ///
    /// # Errors
    /// The value is of another form.
    pub fn add(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        let option = self.option(name);
        let value = option.normal(name, value)?;
        self.given.push(Given { option, name: name.to_owned(), value });
        Ok(())
    }

    /// Returns the option of this name, or the one that it is another name of.
    fn option(&self, name: &str) -> &'static UrlOption {
        let option = find(self.table, name).expect("a store asks for options of its own table");
        if let Value::Synonym(of) = option.value { self.option(of) } else { option }
    }

    fn find(&self, name: &str) -> Option<&Given> {
        self.given.iter().rfind(|given| given.option.name == name)
    }

    /// Returns the value of an option, if it is given.
    pub fn given(&self, name: &str) -> Option<&str> {
        self.find(name).map(|given| given.value.as_str())
    }

    /// Returns the value of an option, or its default.
    pub fn get(&self, name: &str) -> &str {
        self.given(name).unwrap_or_else(|| self.option(name).default())
    }

    /// Returns whether a switch is on; `None` if it is not given.
    pub fn switch(&self, name: &str) -> Option<bool> {
        self.given(name).map(|value| value == ON)
    }

    /// Returns what the word of an option stands for.
    pub fn word<T: Copy>(&self, name: &str, all: &[(&'static str, T)]) -> T {
        let word = self.get(name);
        all.iter().find(|(known, _)| *known == word).expect("a word of the table").1
    }

    /// Returns the path of a file, if it is given.
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.given(name).map(PathBuf::from)
    }

    /// Returns what `parse` makes of the value of an option.
    ///
    /// # Errors
    /// Those of `parse`, as errors about the option.
    pub fn parse<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, UrlError>,
    ) -> Result<T, UrlError> {
        let written = self.find(name).map_or(name, |given| &given.name);
        parse(self.get(name)).map_err(|error| error.about(written))
    }

    /// Returns the value of a number, which messages show in its normal form.
    ///
    /// # Errors
    /// It is not a number, or out of range.
    pub fn number<T: FromStr + ToString>(&mut self, name: &str) -> Result<T, UrlError> {
        let expected = match self.option(name).value {
            Value::Number(_, expected) => expected,
            _ => "a number",
        };
        let wrong = |value: &str| UrlError::value(name, expected, value);
        let number: T = self.parse(name, |value| value.parse().map_err(|_| wrong(value)))?;
        self.replace(name, &number.to_string());
        Ok(number)
    }

    /// Rejects options that would have no effect.
    ///
    /// # Errors
    /// One of these is given: `why` says of it why it is rejected.
    pub fn reject(&self, names: &[&str], why: impl Fn(&str) -> String) -> Result<(), UrlError> {
        match names.iter().find_map(|name| self.find(name)) {
            Some(given) => Err(UrlError::new(why(given.option.name)).about(&given.name)),
            None => Ok(()),
        }
    }

    /// Replaces the value of an option that is given, as messages show it: a default value is not shown.
    pub fn replace(&mut self, name: &str, value: &str) {
        let same = self.given.iter_mut().filter(|given| given.option.name == name);
        same.for_each(|given| value.clone_into(&mut given.value));
    }

    /// Returns the end of the URL in messages: the options that distinguish locks, in the order of the table, without
    /// default values.
    pub fn query(&self) -> String {
        let mut query = String::new();
        for option in self.table.iter().copied().flatten().filter(|option| option.is_shown) {
            if let Some(value) = self.given(option.name).filter(|value| *value != option.default()) {
                let mark = if query.is_empty() { '?' } else { '&' };
                query.push_str(&format!("{mark}{}={}", option.name, encoded(value)));
            }
        }
        query
    }
}
