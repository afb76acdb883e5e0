//! `dlock history --timeline`, on a terminal and elsewhere.

use super::planted::{contended, history, plant, ran};
use crate::support::dlock::BINARY;
use crate::support::pty::Terminal;
use crate::support::running::Exit;
use crate::support::store::Store;
use std::process::Command;
use std::time::Duration;

const NIGHT: [&str; 4] = ["--since", "2026-11-26 22:00", "--until", "2026-11-27T06:00+01:00"];

/// Two locks of the same night.
fn plant_night(store: &Store) {
    let nightly =
        [contended("web-10", 90, 30, "web-2"), ran("web-2", 150, 120, 0), ran("web-10", 400, 30, 1)];
    plant(store, "nightly", &nightly);
    plant(store, "deploy", &[ran("ci-7", 60, 20, 0), ran("ci-7", 90, 40, 3)]);
}

const AT_80: &str = "\
2026-11-26 22:00:00 to 2026-11-27 06:00:00 (UTC+01:00)

nightly
web-2       ━━━━━━━━━━━━━━━━━━O
web-10           ────C                                         ━━━━━E
        │22:00   │23:00   │11-27   │01:00   │02:00   │03:00   │04:00   │05:00  │

deploy
ci-7          ━━━O
               ━━━━━━E
        │22:00   │23:00   │11-27   │01:00   │02:00   │03:00   │04:00   │05:00  │

E exit  C contended  O ok  ━ held  ─ waited
";
const AT_120: &str = "\
2026-11-26 22:00:00 to 2026-11-27 06:00:00 (UTC+01:00)

nightly
web-2          ━━━━━━━━━━━━━━━━━━━━━━━━━━━━O
web-10                ───────C                                                                ━━━━━━━E
        │22:00 │22:30 │23:00 │23:30 │11-27 │00:30 │01:00 │01:30 │02:00 │02:30 │03:00 │03:30 │04:00 │04:30 │05:00 │05:30│

deploy
ci-7             ━━━━━O
                   ━━━━━━━━━━E
        │22:00 │22:30 │23:00 │23:30 │11-27 │00:30 │01:00 │01:30 │02:00 │02:30 │03:00 │03:30 │04:00 │04:30 │05:00 │05:30│

E exit  C contended  O ok  ━ held  ─ waited
";
const AT_40: &str = "\
2026-11-26 22:00:00 to 2026-11-27
06:00:00 (UTC+01:00)

nightly
web-2     ━━━━━━━━O
web-10      ──C                 ━━E
        │22:00  │11-27  │02:00  │04:00 │

deploy
ci-7      ━━O
           ━━━E
        │22:00  │11-27  │02:00  │04:00 │

E exit  C contended  O ok  ━ held
─ waited
";

/// What `dlock history --timeline` writes on a terminal of this width.
fn shown(store: &Store, columns: usize, variables: &str) -> String {
    let mut shell = Command::new("sh");
    let text = format!(
        "stty rows 24 cols {columns}; export TERM=xterm TZ=Europe/Berlin {variables}; echo begin; \
         \"$0\" history --timeline \"$@\" nightly deploy; echo ended; cat"
    );
    shell.args(["-c", &text, BINARY]).args(NIGHT).current_dir(store.place.path("."));
    shell.env_remove("NO_COLOR").env("DLOCK_BACKEND", store.url());
    let mut terminal = Terminal::start(&store.place, shell);
    terminal.expect("ended\n");
    let (_, screen) = terminal.screen().split_once("begin\n").expect("its beginning");
    let (text, _) = screen.split_once("ended\n").expect("its end");
    text.strip_prefix(&format!("{}\n", store.url())).expect("the store").to_owned()
}

#[test]
fn the_picture_is_as_wide_as_the_terminal() {
    for store in Store::each() {
        plant_night(&store);
        for (columns, expected) in [(80, AT_80), (120, AT_120), (40, AT_40)] {
            assert_eq!(shown(&store, columns, "NO_COLOR=1"), expected, "{columns}");
        }
        // Elsewhere as at 80 columns.
        let output = history(&store).arg("--timeline").args(NIGHT).args(["nightly", "deploy"]).output();
        let expected = format!("{}\n{AT_80}", store.url());
        assert_eq!(output.outcome(), (Exit::Code(0), &*expected, ""));
    }
}

#[test]
fn outcomes_have_colours_on_a_terminal_unless_they_are_not_wanted() {
    let store = Store::file();
    plant_night(&store);
    let coloured = shown(&store, 80, "");
    for (code, bar) in [(32, "━O"), (31, "━E"), (33, "─C")] {
        let end = format!("{bar}\u{1b}[0m");
        let (before, _) = coloured.split_once(&end).unwrap_or_else(|| panic!("{bar}: {coloured:?}"));
        assert!(before.rsplit("\u{1b}[").next().unwrap().starts_with(&format!("{code}m")), "{coloured:?}");
    }
    let colours = ["0", "31", "32", "33"].map(|code| format!("\u{1b}[{code}m"));
    assert_eq!(colours.iter().fold(coloured, |text, colour| text.replace(colour, "")), AT_80);
    let dumb = shown(&store, 80, "TERM=dumb");
    assert_eq!(dumb, AT_80.replace('━', "=").replace('─', "-").replace('│', "|"));
    assert!(dumb.is_ascii(), "{dumb}");
}

/// Without a window, it is that of what is shown.
#[test]
fn the_picture_begins_and_ends_with_what_is_shown() {
    for store in Store::each() {
        plant_night(&store);
        let output = history(&store).args(["--timeline", "nightly"]).output();
        let span = "2026-11-26 22:30:00 to 2026-11-27 04:40:00 (UTC+01:00)";
        assert_eq!(output.stdout.lines().nth(1), Some(span), "{}", output.stdout);
        let failed = history(&store).args(["--timeline", "--failed", "nightly"]).output();
        let span = "2026-11-27 04:10:00 to 2026-11-27 04:40:00 (UTC+01:00)";
        assert_eq!(failed.stdout.lines().nth(1), Some(span), "{}", failed.stdout);
        assert_eq!(failed.stdout.lines().last(), Some("E exit  ━ held  ─ waited"));
        let nothing = history(&store).args(["--timeline", "--since", "2026-11-28", "nightly"]).output();
        let text = format!("{}\nnightly: no matching runs are recorded\n", store.url());
        assert_eq!(nothing.outcome(), (Exit::Code(0), &*text, ""));
    }
}

/// One row for each that holds at the same time.
#[test]
fn holds_of_one_host_that_overlap_are_in_rows_of_their_own() {
    for store in Store::each() {
        let mut holders: Vec<_> =
            (0..2).map(|_| super::holding(store.run_with_ttl("30s").args(["--slots", "2"]))).collect();
        // Longer than what passes for the imprecision of the times. The last one ends first, so that the first one
        // was noted after all of this time, however late either was.
        std::thread::sleep(Duration::from_millis(1100));
        for holder in holders.iter_mut().rev() {
            drop(holder.take_stdin());
            assert_eq!(holder.wait().exit, Exit::Code(0));
        }
        let text = history(&store).args(["--timeline", "x"]).output().stdout;
        let block = text.split("\nx\n").nth(1).unwrap().split("\n\n").next().unwrap();
        let host = super::host();
        let lines: Vec<&str> = block.lines().collect();
        let label = host.chars().take(10).collect::<String>();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].starts_with(&label) && lines[1].starts_with("  "), "{text}");
        assert!(lines[..2].iter().all(|line| line.ends_with('O')), "{text}");
    }
}

mod on_redis {
    use super::*;
    use crate::support::proxy::Proxy;

    /// A hundred full histories in a few round trips.
    #[test]
    fn histories_are_read_in_batches() {
        let store = Store::redis();
        let names: Vec<String> = (1..=100).map(|number| format!("job-{number}")).collect();
        let records: Vec<_> = (0..20)
            .flat_map(|number| [ran("a", number * 20, 5, 0), contended("b", number * 20, 1, "a")])
            .collect();
        for name in &names {
            plant(&store, name, &records);
        }
        let proxy = Proxy::to(store.space().port());
        let there = store.behind(proxy.port());
        let output = history(&there).arg("--json").args(&names).output();
        assert_eq!((output.exit, output.stderr.as_str()), (Exit::Code(0), ""));
        let seen: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        let lengths =
            seen["locks"].as_array().unwrap().iter().map(|lock| lock["history"].as_array().unwrap().len());
        assert_eq!(lengths.collect::<Vec<_>>(), vec![40; 100]);
        let flights = proxy.flights().len();
        assert!((3..=12).contains(&flights), "{flights} round trips");
    }
}
