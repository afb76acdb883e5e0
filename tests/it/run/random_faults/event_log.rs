//! The records of the commands, and whether they are consistent.

use crate::support::running::Exit;
use std::collections::{BTreeMap, BTreeSet};

/// All records, by the name of the lock and in the order in which they were written.
pub struct EventLog {
    overlaps: Vec<String>,
    /// The outcomes of nested dlocks.
    inside: Vec<String>,
    holds: BTreeMap<String, Vec<Hold>>,
}

/// One run under one lock, including those that entered its hold.
#[derive(Debug)]
struct Hold {
    run: usize,
    mode: String,
    slot: Option<u32>,
    fencing: u64,
    /// When it was recorded, in nanoseconds since boot, and by which process.
    since: u64,
    pid: u32,
    ended: bool,
    /// The number of nested entries.
    entered: usize,
}

impl Hold {
    /// Whether the two must not be alive at the same time.
    fn excludes(&self, other: &Hold) -> bool {
        self.mode == "exclusive" || other.mode == "exclusive" || self.mode != other.mode
    }
}

impl EventLog {
    /// Parses the log of the witnesses.
    #[track_caller]
    pub fn read(log: &str) -> Self {
        let mut events = Self { overlaps: Vec::new(), inside: Vec::new(), holds: BTreeMap::new() };
        for line in log.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["overlap", ..] => events.overlaps.push(line.to_owned()),
                ["inside", status, _] => events.inside.push(status.to_owned()),
                [what @ ("start" | "end"), name, mode, slot, fencing, at, pid, run] => {
                    let holds = events.holds.entry(name.to_owned()).or_default();
                    let (run, fencing, pid) =
                        (run.parse().unwrap(), fencing.parse().unwrap(), pid.parse().unwrap());
                    let known = holds.iter_mut().find(|hold| hold.run == run);
                    match (what, known) {
                        ("start", Some(hold)) => {
                            assert_eq!(hold.fencing, fencing, "a nested entry has another token: {line}");
                            hold.entered += 1;
                        }
                        // The process that acquired the lock, not one that has entered.
                        ("end", Some(hold)) => hold.ended |= hold.pid == pid,
                        ("start", None) => holds.push(Hold {
                            run,
                            mode: mode.to_owned(),
                            slot: slot.parse().ok(),
                            fencing,
                            since: at.parse().unwrap(),
                            pid,
                            ended: false,
                            entered: 0,
                        }),
                        _ => panic!("an end without a start: {line}"),
                    }
                }
                _ => panic!("a line that no witness writes: {line:?}"),
            }
        }
        events
    }

    /// No two incompatible holds overlapped, and tokens grew in the order of the grants as far as that order is
    /// certain: between two that exclude each other, and when the command of one was running before the dlock of the
    /// other was started. `begun` is when that was, for each run.
    #[track_caller]
    pub fn assert_in_order(&self, begun: &[u64]) {
        assert!(self.overlaps.is_empty(), "see the log above: {:#?}", self.overlaps);
        for (name, holds) in &self.holds {
            let tokens: BTreeSet<u64> = holds.iter().map(|hold| hold.fencing).collect();
            assert_eq!(tokens.len(), holds.len(), "two holds of {name} have the same token");
            assert!(tokens.iter().all(|token| (1..1 << 53).contains(token)), "{tokens:?}");
            assert!(holds.iter().all(|hold| hold.slot.is_none_or(|slot| slot < 3)), "{holds:#?}");
            for (index, first) in holds.iter().enumerate() {
                for second in &holds[index + 1..] {
                    let certain = first.excludes(second) || first.since < begun[second.run];
                    assert!(
                        !certain || first.fencing < second.fencing,
                        "the tokens of {name} do not grow: {first:#?} {second:#?}"
                    );
                }
            }
        }
    }

    /// A dlock that reports that the command ran has run it to its end, and one that reports that it did not has not
    /// started it.
    #[track_caller]
    pub fn assert_ran_as(&self, ends: &BTreeMap<usize, Exit>) {
        let all = || self.holds.values().flatten();
        let started: BTreeSet<usize> = all().map(|hold| hold.run).collect();
        let ended: BTreeSet<usize> = all().filter(|hold| hold.ended).map(|hold| hold.run).collect();
        for (run, exit) in ends {
            match exit {
                Exit::Code(0) => assert!(ended.contains(run), "run {run} exits 0 and has not ended"),
                Exit::Code(75 | 69) => {
                    assert!(!started.contains(run), "run {run} exits {exit:?} and has started")
                }
                _ => {}
            }
        }
        // What an inner dlock reports.
        let known = ["0", "69", "75", "76", "70", "137", "143", "signal"];
        assert!(self.inside.iter().all(|status| known.contains(&status.as_str())), "{:?}", self.inside);
    }

    /// What has not happened yet: a test without any events of a kind proves nothing about them.
    pub fn lack(&self, has_slots: bool) -> Option<&'static str> {
        let all = || self.holds.values().flatten();
        let count = |what: &dyn Fn(&Hold) -> bool| all().filter(|hold| what(hold)).count();
        let few = |mode| count(&|hold| hold.mode == mode) < 3;
        let slots: BTreeSet<u32> = all().filter_map(|hold| hold.slot).collect();
        if few("exclusive") {
            Some("few exclusive holds")
        } else if few("shared") {
            Some("few shared holds")
        } else if has_slots && (few("slots") || slots.len() < 2) {
            Some("few holds in slots")
        } else if count(&|hold| !hold.ended) == 0 {
            Some("no run was killed")
        } else if self.inside.is_empty() && count(&|hold| hold.entered > 0) == 0 {
            Some("no command has run another dlock")
        } else {
            None
        }
    }
}

impl std::fmt::Display for EventLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = || self.holds.values().flatten();
        let count = |what: &dyn Fn(&Hold) -> bool| all().filter(|hold| what(hold)).count();
        let of = |mode: &str| count(&|hold| hold.mode == mode);
        let (exclusive, shared, slots) = (of("exclusive"), of("shared"), of("slots"));
        let (killed, entered) = (count(&|hold| !hold.ended), count(&|hold| hold.entered > 0));
        write!(f, "holds: {exclusive} exclusive, {shared} shared, {slots} in slots; {killed} did not end; ")?;
        write!(f, "{entered} were entered; the {} inside: {}", self.inside.len(), self.inside.join(" "))
    }
}
