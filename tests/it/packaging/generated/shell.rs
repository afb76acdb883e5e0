//! An interactive shell that has loaded its completion script, and its keyboard.

use std::process::Command;

use crate::support::dlock::BINARY;
use crate::support::place::Place;
use crate::support::pty::{PROMPT, Terminal};

pub const TAB: &str = "\t";

/// A shell on a terminal, with a `dlock` in its PATH that prints its arguments. Requests of its completion script go to
/// the real one, or are replied to from the file `answer` if it exists.
pub struct Shell {
    name: String,
    terminal: Terminal,
}

impl Shell {
    /// The shells available here. PowerShell is not: its script is only inspected.
    pub fn each(place: &Place) -> Vec<Shell> {
        vec![Shell::bash(place), Shell::zsh(place), Shell::fish(place), Shell::elvish(place)]
    }

    pub fn bash(place: &Place) -> Shell {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "--noprofile", "-i"]).env("PS1", PROMPT).env("INPUTRC", "/dev/null");
        Shell::start(place, bash, "source dlock.bash")
    }

    pub fn zsh(place: &Place) -> Shell {
        let mut zsh = Command::new("zsh");
        zsh.args(["-f", "-i", "-o", "no_prompt_sp"]).env("PS1", PROMPT);
        Shell::start(place, zsh, "autoload -U compinit && compinit -u -D && source ./_dlock")
    }

    pub fn fish(place: &Place) -> Shell {
        let mut fish = Command::new("fish");
        let prompt = format!("function fish_prompt; echo -n '{PROMPT}'; end; set fish_greeting");
        fish.args(["--no-config", "-i", "-C", &prompt]);
        Shell::start(place, fish, "source dlock.fish")
    }

    pub fn elvish(place: &Place) -> Shell {
        place.write(
            "rc.elv",
            &format!("set edit:prompt = {{ put '{PROMPT}' }}\nset edit:rprompt = {{ put '' }}\n"),
        );
        let mut elvish = Command::new("elvish");
        elvish.args(["-rc", "rc.elv", "-db", &place.arg("elvish.db")]);
        Shell::start(place, elvish, "eval (slurp <dlock.elv)")
    }

    fn start(place: &Place, mut shell: Command, setup: &str) -> Shell {
        for name in ["bash", "zsh", "fish", "powershell", "elvish"] {
            let script = place.bare().args(["completions", name]).output();
            let file = match name {
                "zsh" => "_dlock".to_owned(),
                "elvish" => "dlock.elv".to_owned(),
                name => format!("dlock.{name}"),
            };
            place.write(&file, &script.stdout);
        }
        std::fs::create_dir_all(place.path("bin")).unwrap();
        place.script("bin/dlock", WRAPPER);
        place.script("bin/backup-now", "#!/bin/sh\n");
        let _ = std::fs::remove_file(place.path("answer"));
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"DLOCK_") {
                shell.env_remove(name);
            }
        }
        shell
            .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", place.path("bin").display()))
            .env("REAL", BINARY)
            .env("ANSWER", place.path("answer"))
            .env("DLOCK_BACKEND", place.url())
            .env("LC_ALL", "C.UTF-8")
            .env("HISTFILE", "/dev/null")
            .env("XDG_CONFIG_HOME", place.path("home"))
            .env("XDG_DATA_HOME", place.path("home"))
            .current_dir(place.path("."));
        let name = shell.get_program().to_string_lossy().into_owned();
        let mut terminal = Terminal::start(place, shell);
        terminal.expect(PROMPT);
        terminal.line(setup);
        terminal.line("dlock ready");
        terminal.expect("ran:[ready]:end");
        terminal.expect(PROMPT);
        Shell { name, terminal }
    }

    /// Which one it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Types a command without output.
    #[track_caller]
    pub fn tell(&mut self, line: &str) {
        self.terminal.line(line);
        self.terminal.expect(PROMPT);
    }

    /// The arguments of dlock after these keys and the one that ends the line, as `[run][x]`.
    #[track_caller]
    pub fn runs(&mut self, keys: &str) -> String {
        self.terminal.line(keys);
        if self.name == "elvish" {
            // Where it had to quote a value, the first one only accepts it.
            self.terminal.line("");
        }
        self.terminal.expect("ran:");
        let arguments = self.terminal.expect(":end");
        self.terminal.expect(PROMPT);
        arguments
    }
}

const WRAPPER: &str = r#"#!/bin/sh
if [ "$1" = __complete ]; then
    [ ! -e "$ANSWER" ] || exec cat "$ANSWER"
    exec "$REAL" "$@"
fi
printf 'ran:'
printf '[%s]' "$@"
printf ':end\n'
"#;
