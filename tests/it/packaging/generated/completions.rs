//! Completion scripts, each in its real shell.

use std::path::Path;
use std::process::{Command, Stdio};

use super::shell::{Shell, TAB};
use crate::support::place::Place;
use crate::support::running::Exit;
use crate::support::store::Store;

#[test]
fn the_committed_scripts_match_the_output_of_dlock() {
    let place = Place::new();
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("completions");
    let mut committed: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    committed.sort();
    assert_eq!(committed, ["_dlock", "_dlock.ps1", "dlock.bash", "dlock.elv", "dlock.fish"]);
    for (shell, file) in [
        ("bash", "dlock.bash"),
        ("zsh", "_dlock"),
        ("fish", "dlock.fish"),
        ("powershell", "_dlock.ps1"),
        ("elvish", "dlock.elv"),
    ] {
        let script = std::fs::read_to_string(directory.join(file)).unwrap();
        let output = place.bare().args(["completions", shell]).output();
        assert_eq!(output.outcome(), (Exit::Code(0), script.as_str(), ""), "completions/{file}");
    }
}

#[test]
fn a_missing_or_unknown_shell_is_reported() {
    let place = Place::new();
    let missing =
        "dlock: no shell: did you mean: dlock completions bash (or zsh, fish, powershell, elvish)\n";
    let unknown = "dlock: invalid value 'csh' for '[SHELL]'; possible: bash, zsh, fish, powershell, elvish\n";
    assert_eq!(place.bare().arg("completions").output().outcome(), (Exit::Code(64), "", missing));
    assert_eq!(place.bare().args(["completions", "csh"]).output().outcome(), (Exit::Code(64), "", unknown));
}

#[test]
fn every_shell_completes_commands_options_values_and_the_command_after_the_dashes() {
    let place = Place::new();
    for mut shell in Shell::each(&place) {
        place.write("data one.txt", "");
        for (keys, arguments) in [
            ("dlock comple\t", "[completions]"),
            ("dlock run --orp\t", "[run][--orphans]"),
            ("dlock run --orphans w\t", "[run][--orphans][wait]"),
            ("dlock run --orphans=w\t", "[run][--orphans=wait]"),
            ("dlock completions z\t", "[completions][zsh]"),
            ("dlock hist\t", "[history]"),
            ("dlock thaw --verb\t", "[thaw][--verbose]"),
            ("dlock freeze --forev\t", "[freeze][--forever]"),
            ("dlock freeze --for 2h --rea\t", "[freeze][--for][2h][--reason]"),
            ("dlock history --tim\t", "[history][--timeline]"),
            ("dlock history --since 22:00 --unt\t", "[history][--since][22:00][--until]"),
            ("dlock run -w fo\t x", "[run][-w][forever][x]"),
            ("dlock run -b redis://h/0 --orphans w\t", "[run][-b][redis://h/0][--orphans][wait]"),
            ("dlock run x -- backup-n\t", "[run][x][--][backup-now]"),
            ("dlock run x -- cat dat\t", "[run][x][--][cat][data one.txt]"),
        ] {
            assert_eq!(shell.runs(keys), arguments, "{keys:?} in {}", shell.name());
        }
        std::fs::remove_file(place.path("data one.txt")).unwrap();
        // A question mark has to be quoted in most shells.
        let url = if shell.name() == "fish" { r"redis://h/\?insecure=y" } else { "'redis://h/?insecure=y" };
        let arguments = "[run][-b][redis://h/?insecure=yes][x]";
        assert_eq!(shell.runs(&format!("dlock run -b {url}{TAB} x")), arguments, "{}", shell.name());
    }
}

/// Names come out of a store that others can write to.
#[test]
fn a_name_from_the_store_is_text_and_never_executed() {
    for name in [
        "a b",
        "it's",
        "$(touch pwned)",
        "`touch pwned`",
        "x; touch pwned",
        "a|touch pwned",
        "q\"$HOME\"",
        "back\\slash",
        "co:lon:s",
        "equals=x",
        "*",
        "~",
        "#x",
        "{a,b}",
        "n\u{e4}chtlich",
        "a'\"$(touch pwned)\"'b",
    ] {
        let place = Place::new();
        for mut shell in Shell::each(&place) {
            place.write("answer", &format!("values\n{name}\tlock\n"));
            let ran = shell.runs(&format!("dlock run {TAB}"));
            // fish would insert a tilde literally, so it is not offered there.
            let expected =
                if (name, shell.name()) == ("~", "fish") { "[run]".into() } else { format!("[run][{name}]") };
            assert_eq!(ran, expected, "{}", shell.name());
            assert!(!place.path("pwned").exists(), "{name} in {}", shell.name());
        }
    }
}

#[test]
fn every_shell_completes_the_name_of_a_held_lock() {
    for store in Store::each() {
        let run = store.run_with_ttl("30s").name("nightly backup").stdin(Stdio::piped());
        let mut holder = run.sh("echo ready; exec cat").spawn();
        holder.await_ready();
        let place = Place::new();
        for mut shell in Shell::each(&place) {
            let url = store.url();
            let ran = shell.runs(&format!("dlock run -b '{url}' nigh{TAB}"));
            assert_eq!(ran, format!("[run][-b][{url}][nightly backup]"), "{}", shell.name());
        }
    }
}

/// A shell that splits words at colons has to join them again.
#[test]
fn bash_completes_a_partial_name_with_a_colon() {
    let place = Place::new();
    let mut bash = Shell::bash(&place);
    place.write("answer", "values\nteam:nightly job\tlock\n");
    for keys in [
        "dlock run te\t",
        "dlock run team:\t",
        "dlock run team:ni\t",
        "dlock run 'team:ni\t",
        "dlock run \"team:ni\t",
    ] {
        assert_eq!(bash.runs(keys), "[run][team:nightly job]", "{keys:?}");
    }
}

/// With the package bash-completion the command after the dashes is completed by its own completion.
#[test]
fn bash_passes_the_command_on_with_its_cursor_position() {
    let place = Place::new();
    let mut bash = Shell::bash(&place);
    bash.tell("_command_offset() { COMPREPLY=(\"${COMP_WORDS[$1]}-at-$1\"); }");
    // Bash counts redis, the colon and the rest of the URL.
    assert_eq!(
        bash.runs("dlock run -b redis://h/0 x -- rsync -\t"),
        "[run][-b][redis://h/0][x][--][rsync][rsync-at-8]"
    );
    assert_eq!(bash.runs("dlock run x -- rsy\t"), "[run][x][--][rsy-at-4]");
}

/// fish shows all its candidates with their descriptions.
#[test]
fn fish_shows_all_values_with_descriptions() {
    let place = Place::new();
    let mut fish = Command::new("fish");
    let path =
        format!("{}:/usr/bin:/bin", Path::new(crate::support::dlock::BINARY).parent().unwrap().display());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/completions/dlock.fish");
    let text = format!("source {script}; complete -C 'dlock run --orphans '");
    fish.args(["--no-config", "-c", &text]).env("PATH", path).env("HOME", place.home());
    let output = fish.output().unwrap_or_else(|error| panic!("fish: {error}: apt-get install fish"));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "leave\tLeave them running without the lock\nwait\tHold the lock until they have ended\n\
         kill\tKill them, then release the lock\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// PowerShell is not available in Debian: its script is only inspected.
#[test]
fn the_powershell_script_evaluates_nothing_and_quotes_its_insertions() {
    let script = Place::new().bare().args(["completions", "powershell"]).output().stdout;
    assert!(script.contains("Register-ArgumentCompleter -Native -CommandName dlock"), "{script}");
    assert!(script.contains("__complete \"=$current\" @before 2>$null"), "{script}");
    assert!(script.contains("EscapeSingleQuotedStringContent($value)"), "{script}");
    assert!(!script.contains("Invoke-Expression") && !script.contains("iex "), "{script}");
    for (open, close) in [('{', '}'), ('(', ')'), ('[', ']')] {
        let count = |letter| script.matches(letter).count();
        assert_eq!(count(open), count(close), "{open}{close}");
    }
}
