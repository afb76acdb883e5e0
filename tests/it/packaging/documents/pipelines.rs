//! The CI steps of the documents run. Those of the action and of the template are run literally by
//! `tests/pipelines.py`.

use super::sandbox::{Sandbox, scripts_of};
use super::{Block, blocks_in};

#[test]
fn the_ci_steps_run() {
    let sandbox = Sandbox::new();
    let steps: Vec<Block> = blocks_in("README.md", "yaml");
    assert_eq!(steps.len(), 1, "GitHub");
    for block in steps {
        let mut shell = sandbox.shell();
        shell.env("CI", "true");
        let mut script = Vec::new();
        for line in &block.lines {
            let Some((key, value)) = line.trim().trim_start_matches("- ").split_once(": ") else {
                // A line of the script, or a key with an object for its value.
                let line = line.trim().trim_start_matches("- ");
                script.extend((!line.ends_with(':')).then_some(line));
                continue;
            };
            match key {
                "name" | "run" => {}
                _ => drop(shell.env(key, sandbox.replace(value))),
            }
        }
        // As the usual runners do.
        let text = script.join("\n");
        let output = shell.args(["-e", "-c", &sandbox.replace(&text)]).output().unwrap();
        assert_eq!((output.status.code(), sandbox.take_ran()), (Some(0), scripts_of(&text)), "{text}");
        assert_ne!(scripts_of(&text), "", "{}: runs no script", block.place);
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
