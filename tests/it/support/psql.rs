//! A session of `psql`, as any client of the database keeps one.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A session that is open until it is dropped.
#[derive(Debug)]
pub struct Psql {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Psql {
    /// Opens a session at this URL, which may have options of dlock.
    #[track_caller]
    pub fn open(url: &str) -> Self {
        let url = url.split('?').next().unwrap_or(url);
        let mut child = Command::new("psql")
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-d", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("psql: {error}: install the Debian package postgresql-client"));
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, input, output }
    }

    /// Runs a query that returns one value.
    #[track_caller]
    pub fn ask(&mut self, query: &str) -> String {
        self.send(query);
        self.reply()
    }

    /// Sends a query.
    #[track_caller]
    pub fn send(&mut self, query: &str) {
        writeln!(self.input, "{query};").expect("psql reads");
    }

    /// Waits for the value of a query.
    #[track_caller]
    pub fn reply(&mut self) -> String {
        let mut line = String::new();
        assert_ne!(self.output.read_line(&mut line).expect("text"), 0, "psql has ended");
        line.trim_end().to_owned()
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
