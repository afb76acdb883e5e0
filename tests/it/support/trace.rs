//! The system calls of a process and its children, as strace(1) writes them.

use std::collections::HashMap;
use std::path::Path;

/// A system call that has returned, or the end of a process.
#[derive(Debug, Clone)]
pub struct Call {
    /// The thread.
    pub thread: i32,
    /// Its name; `exit` for the end of a thread.
    pub name: String,
    /// Its arguments, as strace shows them.
    pub arguments: String,
    /// Its result, with the name of the error.
    pub result: String,
}

impl Call {
    /// Returns whether it failed.
    pub fn failed(&self) -> bool {
        self.result.starts_with('-')
    }

    /// Returns the string in quotes that comes first.
    pub fn text(&self) -> &str {
        self.arguments.split('"').nth(1).unwrap_or_default()
    }
}

/// Returns the calls in a file that `strace -f -q -o` has written, in the order in which they began.
pub fn read(file: &Path) -> Vec<Call> {
    let text = std::fs::read_to_string(file).expect("a trace");
    let mut calls: Vec<Call> = Vec::new();
    let mut unfinished: HashMap<i32, usize> = HashMap::new();
    for line in text.lines() {
        let (thread, rest) = line.split_once(' ').expect("a thread");
        let thread: i32 = thread.parse().expect("a number");
        let rest = rest.trim_start();
        if let Some(resumed) = rest.strip_prefix("<... ") {
            let Some(index) = unfinished.remove(&thread) else { continue };
            let rest = resumed.split_once("resumed>").map_or("", |(_, rest)| rest);
            let (arguments, result) = rest.rsplit_once(" = ").unwrap_or((rest, ""));
            calls[index].arguments.push_str(arguments);
            result.clone_into(&mut calls[index].result);
        } else if rest.starts_with("+++") {
            let (name, arguments, result) = ("exit".to_owned(), String::new(), rest.to_owned());
            calls.push(Call { thread, name, arguments, result });
        } else if let Some((name, rest)) = rest.split_once('(') {
            let (arguments, result) = match rest.strip_suffix(" <unfinished ...>") {
                Some(arguments) => {
                    unfinished.insert(thread, calls.len());
                    (arguments, "")
                }
                None => rest.rsplit_once(" = ").unwrap_or((rest, "")),
            };
            calls.push(Call {
                thread,
                name: name.to_owned(),
                arguments: arguments.trim_end().to_owned(),
                result: result.to_owned(),
            });
        }
    }
    calls
}
