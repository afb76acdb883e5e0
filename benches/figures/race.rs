//! Several tools that do the same, measured once per round in random order, so that a slow phase of the machine affects
//! all of them.
//!
//! Only those take turns that are compared, in one heat: a program that runs between two others leaves them its share of the caches,
//! and costs the smaller ones more.

use std::error::Error;
use std::time::Duration;

use crate::report::{Column, Section};
use crate::stats::{Rng, Sample, median, ms};

type Measure<'a> = Box<dyn FnMut(&mut Rng) -> Result<Duration, Box<dyn Error>> + 'a>;

struct Tool<'a> {
    name: String,
    measure: Measure<'a>,
    /// Of each heat, none for one that it is not in.
    heats: Vec<Vec<Duration>>,
}

#[derive(Default)]
pub struct Race<'a>(Vec<Tool<'a>>);

/// The columns of [`Race::show`].
pub const COLUMNS: &[Column] = &[("p50 ms", 2), ("p99 ms", 2), ("x flock", 2)];

impl<'a> Race<'a> {
    pub fn add(
        &mut self,
        name: impl Into<String>,
        measure: impl FnMut(&mut Rng) -> Result<Duration, Box<dyn Error>> + 'a,
    ) {
        self.0.push(Tool { name: name.into(), measure: Box::new(measure), heats: Vec::new() });
    }

    /// Measures the tools with these names, heat by heat; the first rounds of each do not count. A name without a tool is that of one
    /// that is left out.
    pub fn run(&mut self, heats: &[&[&str]], warm_up: usize, rounds: usize) -> Result<(), Box<dyn Error>> {
        let mut rng = Rng::new();
        for tool in &self.0 {
            assert!(
                heats.iter().any(|heat| heat.contains(&tool.name.as_str())),
                "{} is in no heat",
                tool.name
            );
        }
        for heat in heats {
            let in_heat = |tool: usize| heat.contains(&self.0[tool].name.as_str());
            let mut order: Vec<usize> = (0..self.0.len()).filter(|tool| in_heat(*tool)).collect();
            self.0.iter_mut().for_each(|tool| tool.heats.push(Vec::new()));
            // flock alone is compared with nothing.
            if order.iter().all(|tool| self.0[*tool].name == "flock") {
                continue;
            }
            for round in 0..warm_up + rounds {
                rng.shuffle(&mut order);
                for &turn in &order {
                    let tool = &mut self.0[turn];
                    let time = (tool.measure)(&mut rng).map_err(|error| format!("{}: {error}", tool.name))?;
                    if let Some(times) = tool.heats.last_mut().filter(|_| round >= warm_up) {
                        times.push(time);
                    }
                }
            }
        }
        Ok(())
    }

    /// How many times as long a tool took as another one, in each heat that both are in: each time is compared with that
    /// of the same round. Empty if either is left out.
    pub fn ratios(&self, tool: &str, other: &str) -> Vec<f64> {
        let both = self.heats(tool).zip(self.heats(other));
        let both = both.filter(|(times, others)| !times.is_empty() && !others.is_empty());
        let ratio = |times: &[Duration], others: &[Duration]| {
            median(times.iter().zip(others).map(|(time, other)| ms(*time) / ms(*other)))
        };
        both.map(|(times, others)| ratio(times, others)).collect()
    }

    fn heats<'b>(&'b self, name: &'b str) -> impl Iterator<Item = &'b Vec<Duration>> {
        self.0.iter().filter(move |tool| tool.name == name).flat_map(|tool| &tool.heats)
    }

    /// The first of the [`ratios`](Race::ratios).
    pub fn ratio(&self, tool: &str, other: &str) -> Option<f64> {
        self.ratios(tool, other).first().copied()
    }

    /// Adds a row for each tool, with the times of its first heat.
    pub fn show(&self, section: &mut Section) {
        for Tool { name, heats, .. } in &self.0 {
            let Some(times) = heats.iter().find(|times| !times.is_empty()) else { continue };
            let sample = Sample::new(times.clone());
            let ratio = self.ratio(name, "flock").unwrap_or(f64::NAN);
            section.row(name, &[ms(sample.p50()), ms(sample.p99()), ratio]);
        }
    }
}
