//! The table of README.md for users of other tools: every dlock line in it is run here literally,
//! and every line of `flock(1)`, which is available on every Linux.

use crate::packaging::readme::{README, Sandbox, script_of};
use std::process::{Child, Command, Stdio};

const SECTION: &str = "\n## Coming from another tool\n";

/// A row: the line of the other tool, and that of dlock.
struct Row {
    before: String,
    now: String,
}

impl Row {
    fn is_of_flock(&self) -> bool {
        self.before.starts_with("flock ") || self.before.starts_with("(flock ")
    }

    /// The lock file in the line of `flock`.
    fn file(&self) -> &str {
        let mut words = self.before.split([' ', '>']);
        words.find(|word| word.starts_with("/srv/locks/")).expect("a lock file")
    }

    fn gives_up(&self) -> bool {
        self.before.contains(" -n ")
    }
}

fn rows() -> Vec<Row> {
    let (_, section) = README.split_once(SECTION).expect("the section");
    let (section, _) = section.split_once("\n## ").expect("a section behind it");
    let table = section.lines().filter(|line| line.starts_with("| `"));
    let rows = table.map(|line| {
        // A `|` within a cell is written `\|`.
        let line = line.replace("\\|", "\u{0}");
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [before, now, _remark] = cells[..] else { panic!("not three cells: {line}") };
        let code = |cell: &str| {
            let code = cell.trim().strip_prefix('`').and_then(|cell| cell.strip_suffix('`'));
            code.unwrap_or_else(|| panic!("not code: {cell}")).replace('\u{0}', "|")
        };
        Row { before: code(before), now: code(now) }
    });
    let rows: Vec<Row> = rows.collect();
    assert_eq!(rows.len(), section.matches("dlock run ").count(), "the rows, and the lines of dlock in them");
    rows
}

/// Holds a lock file with `flock(1)` until it is dropped.
struct Held(Child);

impl Held {
    fn hold(sandbox: &Sandbox, file: &str) -> Self {
        let mut flock = Command::new("flock");
        flock
            .args([&sandbox.replace(file), "sh", "-c", "echo held; read line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut flock = flock.spawn().expect("flock can be started, package util-linux");
        let mut answer = [0; 5];
        std::io::Read::read_exact(flock.stdout.as_mut().unwrap(), &mut answer).expect("flock gets the lock");
        Self(flock)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn both_lines_of_a_row_run_the_same_script() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    let mut of_flock = 0;
    for row in rows() {
        let mut lines = vec![&row.now];
        if row.is_of_flock() {
            lines.push(&row.before);
            of_flock += 1;
        }
        for line in lines {
            let output = sandbox.run(line);
            let seen = (output.status.code(), sandbox.take_ran(), String::from_utf8(output.stderr).unwrap());
            assert_eq!(seen, (Some(0), script_of(&row.before), String::new()), "{line}");
        }
        assert_ne!(script_of(&row.before), "", "{}", row.before);
    }
    assert!(of_flock >= 7, "{of_flock} rows of flock");
}

#[test]
fn both_lines_of_a_row_give_up_while_flock_holds_the_file() {
    let sandbox = Sandbox::new();
    sandbox.place.write("go", "");
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.is_of_flock() && row.gives_up()).collect();
    assert!(rows.len() >= 4, "{} rows", rows.len());
    for row in rows {
        let held = Held::hold(&sandbox, row.file());
        let chosen = row.now.contains(" -E 0 ");
        let of_flock = if row.before.contains("exit 75") { 75 } else { 1 };
        for (line, otherwise) in [(&row.before, of_flock), (&row.now, 75)] {
            let status = sandbox.run(line).status.code();
            let expected = if chosen { 0 } else { otherwise };
            assert_eq!((status, sandbox.take_ran()), (Some(expected), String::new()), "{line}");
        }
        drop(held);
    }
}
