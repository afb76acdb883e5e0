//! Pictures, to the letter.

use super::*;
use crate::lock::{Identity, LockName, Record};
use jiff::tz::Offset;
use std::collections::HashSet;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// 2026-11-26 22:00 in a zone that is an hour ahead of UTC.
const EVENING: u64 = 1_795_726_800_000;

fn zone() -> Zone {
    Zone(Offset::constant(1))
}

/// A record of a run on this host that ended this many minutes after the evening began, in a way that `change` sets.
fn noted(host: &str, minutes: u64, change: impl FnOnce(&mut Record)) -> NotedRecord {
    let identity = Identity { host: host.into(), pid: 1, user: "root".into(), ..Identity::default() };
    let mut record = Record { outcome: "ran".into(), identity, ..Record::default() };
    change(&mut record);
    (EVENING + minutes * MINUTE, record)
}

fn ran(host: &str, minutes: u64, held: u64, status: i32) -> NotedRecord {
    noted(host, minutes, |record| {
        (record.held_ms, record.exit_status) = (Some(held * MINUTE), Some(status));
    })
}

fn contended(host: &str, minutes: u64, waited: u64) -> NotedRecord {
    noted(host, minutes, |record| {
        (record.outcome, record.waited_ms) = ("contended".into(), waited * MINUTE);
    })
}

fn history(name: &str, records: Vec<NotedRecord>) -> History {
    History::new(LockName::new(name).expect("a name"), records)
}

/// The night of two locks.
fn night() -> Vec<History> {
    let killed = noted("web-10", 400, |record| {
        (record.held_ms, record.signal, record.waited_ms) = (Some(30 * MINUTE), Some(9), 45 * MINUTE);
    });
    vec![
        history(
            "nightly",
            vec![ran("web-2", 150, 120, 0), contended("web-10", 31, 1), contended("web-10", 90, 30), killed],
        ),
        history("deploy", vec![ran("ci-7", 465, 90, 3), ran("ci-7", 60, 2, 0)]),
        history("idle", vec![]),
    ]
}

fn filter() -> Filter {
    Filter { since: Some(EVENING), until: Some(EVENING + 8 * HOUR), only_failed: false }
}

fn drawn(histories: &[History], filter: Filter, width: Option<usize>, glyphs: Glyphs) -> String {
    let form = Form { style: Style::Plain, width, is_wide: false };
    picture("file:", histories, filter, form, glyphs, (EVENING + 10 * HOUR, zone()))
}

#[test]
fn a_night_at_80_columns() {
    let expected = "\
file:
2026-11-26 22:00:00 to 2026-11-27 06:00:00 (UTC+01:00)

nightly
web-2       ━━━━━━━━━━━━━━━━━━O
web-10      C    ────C                                  ───────━━━━━S
        │22:00   │23:00   │11-27   │01:00   │02:00   │03:00   │04:00   │05:00  │

deploy
ci-7            ━O                                              ━━━━━━━━━━━━━E
        │22:00   │23:00   │11-27   │01:00   │02:00   │03:00   │04:00   │05:00  │

idle
no matching runs are recorded

S signal  E exit  C contended  O ok  ━ held  ─ waited
";
    assert_eq!(drawn(&night(), filter(), Some(80), Glyphs::LINES), expected);
    assert_eq!(drawn(&night(), filter(), None, Glyphs::LINES), expected);
}

#[test]
fn a_night_at_120_columns() {
    let expected = "\
file:
2026-11-26 22:00:00 to 2026-11-27 06:00:00 (UTC+01:00)

nightly
web-2          ━━━━━━━━━━━━━━━━━━━━━━━━━━━━O
web-10         C      ───────C                                                     ───────────━━━━━━━S
        │22:00 │22:30 │23:00 │23:30 │11-27 │00:30 │01:00 │01:30 │02:00 │02:30 │03:00 │03:30 │04:00 │04:30 │05:00 │05:30│

deploy
ci-7                 ━O                                                                        ━━━━━━━━━━━━━━━━━━━━━E
        │22:00 │22:30 │23:00 │23:30 │11-27 │00:30 │01:00 │01:30 │02:00 │02:30 │03:00 │03:30 │04:00 │04:30 │05:00 │05:30│

idle
no matching runs are recorded

S signal  E exit  C contended  O ok  ━ held  ─ waited
";
    assert_eq!(drawn(&night(), filter(), Some(120), Glyphs::LINES), expected);
}

#[test]
fn a_night_at_40_columns() {
    let expected = "\
file:
2026-11-26 22:00:00 to 2026-11-27
06:00:00 (UTC+01:00)

nightly
web-2     ━━━━━━━━O
web-10    C ──C              ───━━S
        │22:00  │11-27  │02:00  │04:00 │

deploy
ci-7       ━O                    ━━━━━━E
        │22:00  │11-27  │02:00  │04:00 │

idle
no matching runs are recorded

S signal  E exit  C contended  O ok
━ held  ─ waited
";
    assert_eq!(drawn(&night(), filter(), Some(40), Glyphs::LINES), expected);
}

#[test]
fn a_night_in_ascii() {
    let expected = "\
file:
2026-11-26 22:00:00 to 2026-11-27 06:00:00 (UTC+01:00)

nightly
web-2       ==================O
web-10      C    ----C                                  -------=====S
        |22:00   |23:00   |11-27   |01:00   |02:00   |03:00   |04:00   |05:00  |

S signal  C contended  O ok  = held  - waited
";
    let text = drawn(&night()[..1], filter(), Some(80), Glyphs::ASCII);
    assert!(text.is_ascii(), "{text}");
    assert_eq!(text, expected);
}

/// The rows of one lock, without their labels.
fn rows(records: Vec<NotedRecord>, width: usize) -> Vec<String> {
    let text = drawn(&[history("x", records)], filter(), Some(width), Glyphs::ASCII);
    let rows = text.split("\nx\n").nth(1).expect("the lock").split("\n\n").next().expect("rows");
    let rows: Vec<&str> = rows.lines().collect();
    rows[..rows.len() - 1].iter().map(|row| row.get(3..).unwrap_or("").to_owned()).collect()
}

/// 80 columns for 8 hours: 6 minutes each.
const WIDTH: usize = 83;

#[test]
fn holds_that_overlap_are_in_rows_of_their_own() {
    let records = vec![ran("h", 60, 60, 0), ran("h", 90, 60, 1), ran("h", 120, 60, 0)];
    assert_eq!(rows(records, WIDTH), ["==========O=========O", "     ==========E"]);
    // Others are refused meanwhile.
    let records = vec![ran("h", 60, 60, 0), contended("h", 30, 0), contended("h", 45, 0)];
    assert_eq!(rows(records, WIDTH), ["==========O", "     C C"]);
}

#[test]
fn of_several_outcomes_in_a_column_the_worst_is_shown() {
    let short = |minutes, status| ran("h", minutes, 1, status);
    assert_eq!(rows(vec![short(61, 0), short(62, 1), short(64, 0)], WIDTH), ["          E"]);
    let lost = noted("h", 63, |record| record.outcome = "lost".into());
    assert_eq!(rows(vec![short(61, 0), short(62, 1), lost, short(64, 0)], WIDTH), ["          L"]);
    // A bar does not hide the end of another.
    assert_eq!(rows(vec![short(61, 0), ran("h", 90, 28, 1)], WIDTH), ["          O====E"]);
}

#[test]
fn what_is_beyond_the_edges_is_cut_there() {
    let wide = vec![ran("h", 9 * 60, 20 * 60, 0)];
    assert_eq!(rows(wide, WIDTH), [format!("{}O", "=".repeat(79))]);
    let waited = noted("h", 12, |record| {
        (record.exit_status, record.held_ms, record.waited_ms) = (Some(0), Some(6 * MINUTE), HOUR);
    });
    assert_eq!(rows(vec![waited], WIDTH), ["-=O"]);
}

#[test]
fn every_outcome_has_a_letter_of_its_own_and_a_colour() {
    let outcomes = [
        "lost",
        "max_runtime",
        "not_executable",
        "denied",
        "unavailable",
        "interrupted",
        "contended",
        "acquired",
        "released",
        "broken",
        "removed",
        "unheard-of",
    ];
    let warned = noted("h", 1, |record| (record.exit_status, record.interrupted) = (Some(0), true));
    let records: Vec<NotedRecord> = outcomes
        .iter()
        .map(|outcome| noted("h", 1, |record| record.outcome = (*outcome).into()))
        .chain([
            ran("h", 1, 1, 0),
            ran("h", 1, 1, 1),
            noted("h", 1, |record| record.signal = Some(9)),
            warned,
        ])
        .collect();
    let letters: HashSet<char> = records.iter().map(|(_, record)| Verdict::of(record).letter).collect();
    assert_eq!(letters.len(), records.len());
    let text = unglued(&legend(records.iter(), Glyphs::ASCII));
    assert_eq!(
        text,
        "L lost  X removed  B broken  T max_runtime  S signal  E exit  N not_executable  D denied  U unavailable  \
         ? other  I interrupted  W ok, interrupted  C contended  O ok  R released  A acquired  = held  - waited"
    );
    let histories = [history("x", vec![ran("h", 30, 12, 0), ran("h", 60, 12, 1), contended("h", 90, 12)])];
    let form = Form { style: Style::Coloured, width: Some(WIDTH), is_wide: false };
    let text = picture("file:", &histories, filter(), form, Glyphs::LINES, (EVENING, zone()));
    assert!(text.contains("\nh     \x1b[32m━━O\x1b[0m  \x1b[31m━━E\x1b[0m  \x1b[33m──C\x1b[0m"), "{text:?}");
}

/// Without a window, from the beginning of the first to the end of the last.
#[test]
fn the_picture_spans_what_is_shown() {
    let span = |filter: Filter| {
        let text = drawn(
            &[history("x", vec![ran("h", 60, 60, 0), ran("h", 240, 10, 0)])],
            filter,
            None,
            Glyphs::ASCII,
        );
        text.lines().nth(1).expect("the span").to_owned()
    };
    assert_eq!(span(Filter::default()), "2026-11-26 22:00:00 to 2026-11-27 02:00:00 (UTC+01:00)");
    let since = Filter { since: Some(EVENING - HOUR), ..Filter::default() };
    assert_eq!(span(since), "2026-11-26 21:00:00 to 2026-11-27 08:00:00 (UTC+01:00)");
    let until = Filter { until: Some(EVENING + 3 * HOUR), ..Filter::default() };
    assert_eq!(span(until), "2026-11-26 22:00:00 to 2026-11-27 01:00:00 (UTC+01:00)");
}

#[test]
fn nothing_is_drawn_of_nothing() {
    assert_eq!(drawn(&[], Filter::default(), None, Glyphs::LINES), "file:\nno runs are recorded\n");
    assert_eq!(
        drawn(&[history("x", vec![])], filter(), None, Glyphs::LINES),
        "file:\nx: no matching runs are recorded\n"
    );
}

/// Names that differ only at their ends remain different.
#[test]
fn names_are_cut_in_the_middle() {
    let pods = ["backup-28391234-abcde", "backup-28391234-fghij"];
    let labels = |width| {
        let records = pods.map(|pod| ran(pod, 60, 60, 0)).to_vec();
        let text = drawn(&[history("x", records)], filter(), Some(width), Glyphs::ASCII);
        let rows = text.split("\nx\n").nth(1).expect("the lock").to_owned();
        let labels = rows.lines().take(2).map(|row| row.split(' ').next().expect("a label").to_owned());
        labels.collect::<Vec<_>>()
    };
    assert_eq!(labels(84), pods);
    assert_eq!(labels(80), ["backup-283~234-abcde", "backup-283~234-fghij"]);
    assert_eq!(labels(40), ["backu~bcde", "backu~ghij"]);
    let cut = |text: &str, width| cut(text, width, Glyphs::LINES);
    assert_eq!([cut("abc", 0), cut("abc", 1), cut("abc", 2), cut("abc", 3)], ["", "…", "a…", "abc"]);
    assert_eq!([cut("a🔒🔒b", 5), cut("a🔒🔒b", 4)], ["a…🔒b", "a…b"]);
    assert_eq!(cut("abcde\u{301}", 3), "a…e\u{301}");
    assert_eq!(cut("abcd🔒\u{301}", 3), "a…");
}

/// Whatever the width and the time, also one that others have written: no line is wider, and the axis has its labels.
#[test]
fn every_picture_fits_its_width() {
    let hosts = ["a-host-with-a-very-long-name-\u{f6}.example.com".to_owned(), "☁\u{fe0f}".repeat(60)];
    let lengths =
        [0, 1, 700, 90_000, HOUR, 26 * HOUR, 40 * 24 * HOUR, 4000 * 24 * HOUR, u64::MAX / 2, u64::MAX];
    for (long, length) in hosts.iter().flat_map(|host| lengths.map(|length| (host, length))) {
        for width in (8..130).chain([500]) {
            let mut records = vec![ran("a", 0, 0, 0), ran(long, 0, 0, 1)];
            records[0].0 = EVENING.saturating_add(length);
            let name = "n".repeat(150);
            let text = drawn(&[history(&name, records)], Filter::default(), Some(width), Glyphs::LINES);
            for line in text.lines().skip(1) {
                let is_word = !line.contains(' ');
                assert!(width_of(line) <= width || is_word, "{width} {length}: {line:?} in\n{text}");
            }
            let label = width_of(long).min(width / 4);
            assert!(
                width < 60
                    || length < 700
                    || text.lines().rev().nth(2).is_some_and(|axis| axis.len() > label + 8),
                "{text}"
            );
        }
    }
}
