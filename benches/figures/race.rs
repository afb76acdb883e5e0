//! Several tools that do the same, measured once per round in random order, so that a slow phase of the machine affects
//! all of them.

use std::error::Error;
use std::time::Duration;

use crate::report::{Column, Section};
use crate::stats::{Rng, Sample, median, ms};

type Measure<'a> = Box<dyn FnMut(&mut Rng) -> Result<Duration, Box<dyn Error>> + 'a>;

struct Tool<'a> {
    name: String,
    measure: Measure<'a>,
    times: Vec<Duration>,
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
        self.0.push(Tool { name: name.into(), measure: Box::new(measure), times: Vec::new() });
    }

    /// Measures; the first rounds do not count.
    pub fn run(&mut self, warm_up: usize, rounds: usize) -> Result<(), Box<dyn Error>> {
        let mut rng = Rng::new();
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        for round in 0..warm_up + rounds {
            rng.shuffle(&mut order);
            for &turn in &order {
                let tool = &mut self.0[turn];
                let time = (tool.measure)(&mut rng).map_err(|error| format!("{}: {error}", tool.name))?;
                if round >= warm_up {
                    tool.times.push(time);
                }
            }
        }
        Ok(())
    }

    /// How many times as long a tool took as another one: each time is compared with that of the same round. None if
    /// either is left out.
    pub fn ratio(&self, tool: &str, other: &str) -> Option<f64> {
        let times =
            |name: &str| self.0.iter().find(|tool| tool.name.starts_with(name)).map(|tool| &tool.times);
        let (times, others) = (times(tool)?, times(other)?);
        Some(median(times.iter().zip(others).map(|(time, other)| ms(*time) / ms(*other))))
    }

    /// Adds a row for each tool.
    pub fn show(&self, section: &mut Section) {
        for Tool { name, times, .. } in &self.0 {
            let sample = Sample::new(times.clone());
            let ratio = self.ratio(name, "flock").unwrap_or(f64::NAN);
            section.row(name, &[ms(sample.p50()), ms(sample.p99()), ratio]);
        }
    }
}
