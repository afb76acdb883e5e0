//! The plots of figures.json, and the section of README.md that shows them.

use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::machine;
use crate::svg::{Anchor, Class, Svg};

const WIDTH: f64 = 920.0;
/// The width of one of two panels, and where the second one starts.
const PANEL: f64 = 430.0;
const SECOND: f64 = WIDTH / 2.0 + 15.0;
const MARGIN: f64 = 16.0;

/// Reads figures.json in this directory, and writes the plots and speed.md beside it. A plot whose figures were not
/// measured is left out.
pub fn write(directory: &Path) -> Result<(), Box<dyn Error>> {
    let figures: Value = serde_json::from_slice(&fs::read(directory.join("figures.json"))?)?;
    let sections = &figures["sections"];
    let has = |names: [&str; 2]| names.iter().all(|name| sections[*name].is_object());
    let mut written = vec!["figures.json"];
    if has(["startup", "handoff"]) {
        fs::write(directory.join("latency.svg"), latency(&figures))?;
        written.push("latency.svg");
    }
    if has(["drain", "queue"]) {
        fs::write(directory.join("queue.svg"), queue(&figures))?;
        written.push("queue.svg");
    }
    // The section compares dlock with flock(1).
    let compares = rows(&sections["startup"]).any(|row| row["name"] == "flock");
    if has(["startup", "handoff"]) && has(["drain", "memory"]) && compares {
        fs::write(directory.join("speed.md"), speed(&figures))?;
        written.push("speed.md");
    }
    println!("written to {}: {}", directory.display(), written.join(", "));
    Ok(())
}

/// The machine and the date.
fn origin(figures: &Value) -> String {
    format!("{}, {}", machine::line(&figures["machine"]), figures["date"].as_str().unwrap_or("?"))
}

fn rows(section: &Value) -> impl Iterator<Item = &Value> {
    section["rows"].as_array().into_iter().flatten()
}

fn number(row: &Value, column: &str) -> f64 {
    row[column].as_f64().unwrap_or(f64::NAN)
}

/// Start-up and hand-off beside the other tools.
fn latency(figures: &Value) -> String {
    let sections = &figures["sections"];
    let bars = |name: &str| -> Vec<(String, f64)> {
        let rows = rows(&sections[name]);
        rows.map(|row| (row["name"].as_str().unwrap_or_default().to_owned(), number(row, "p50_ms"))).collect()
    };
    let (startup, handoff) = (bars("startup"), bars("handoff"));
    let height = 92.0 + 24.0 * startup.len().max(handoff.len()) as f64;
    let mut svg = Svg::new(WIDTH, height);
    panel_of_bars(&mut svg, MARGIN, "Start-up: true under a lock, or select 1 (ms)", startup);
    panel_of_bars(&mut svg, SECOND, "Hand-off: from one command to the next (ms)", handoff);
    footer(&mut svg, height, "Median; shorter is better.", figures);
    svg.finish("Start-up and hand-off of dlock beside other tools")
}

fn footer(svg: &mut Svg, height: f64, reading: &str, figures: &Value) {
    let text = format!("{reading} {}", origin(figures));
    svg.text((MARGIN, height - 14.0), Anchor::Start, Class::Muted, &text);
}

fn class_of(tool: &str) -> Class {
    if tool.starts_with("dlock") { Class::Dlock } else { Class::Peer }
}

fn panel_of_bars(svg: &mut Svg, left: f64, title: &str, mut bars: Vec<(String, f64)>) {
    const LABELS: f64 = 118.0;
    const VALUES: f64 = 50.0;
    bars.sort_by(|one, other| one.1.total_cmp(&other.1));
    let most = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    svg.title(left, 28.0, title);
    let (axis, room) = (left + LABELS, PANEL - LABELS - VALUES);
    for (index, (tool, value)) in bars.iter().enumerate() {
        let top = 46.0 + 24.0 * index as f64;
        let width = (value / most * room).max(1.0);
        svg.text((axis - 8.0, top + 13.0), Anchor::End, Class::Text, tool);
        svg.bar((axis, top), width, 17.0, class_of(tool));
        svg.text((axis + width + 6.0, top + 13.0), Anchor::Start, Class::Muted, &label(*value));
    }
    svg.line((axis, 42.0), (axis, 46.0 + 24.0 * bars.len() as f64));
}

/// A number as short as its size allows.
fn label(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

/// Drain and requests by the number of waiters.
fn queue(figures: &Value) -> String {
    let (drain, queue) = (&figures["sections"]["drain"], &figures["sections"]["queue"]);
    let curve = |section: &Value, column: &str| -> Vec<(f64, f64)> {
        let points = rows(section).map(|row| (number(row, "waiters"), number(row, column)));
        points.filter(|point| !point.1.is_nan()).collect()
    };
    const HEIGHT: f64 = 320.0;
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let mut drains = vec![("dlock redis", Class::Dlock, curve(drain, "dlock_ms"))];
    let flock = curve(drain, "flock_ms");
    if !flock.is_empty() {
        drains.insert(0, ("flock", Class::Peer, flock));
    }
    panel_of_curves(&mut svg, MARGIN, "Until all waiters have run (ms)", &drains, Scale::Logarithmic);
    panel_of_curves(
        &mut svg,
        SECOND,
        "Requests to the Redis server",
        &[
            ("per run", Class::Dlock, curve(drain, "requests_each")),
            ("per hand-off", Class::Peer, curve(queue, "requests")),
        ],
        Scale::Linear,
    );
    footer(&mut svg, HEIGHT, "By number of waiters; lower is better.", figures);
    svg.finish("Time until all waiters have run, and requests to the server, by number of waiters")
}

/// The vertical scale; the horizontal one is logarithmic.
#[derive(Clone, Copy)]
enum Scale {
    Linear,
    Logarithmic,
}

type Curve<'a> = (&'a str, Class, Vec<(f64, f64)>);

fn panel_of_curves(svg: &mut Svg, left: f64, title: &str, curves: &[Curve<'_>], scale: Scale) {
    const TOP: f64 = 52.0;
    const BOTTOM: f64 = 250.0;
    svg.title(left, 28.0, title);
    let (axis, right) = (left + 52.0, left + PANEL - 92.0);
    let points = || curves.iter().flat_map(|(_, _, points)| points);
    let most = points().map(|point| point.1).fold(0.0, f64::max);
    let ticks = ticks(points().map(|point| point.1).fold(f64::MAX, f64::min), most, scale);
    let (low, high) = (ticks[0], ticks[ticks.len() - 1]);
    let height = |value: f64| match scale {
        Scale::Linear => (value - low) / (high - low),
        Scale::Logarithmic => (value / low).ln() / (high / low).ln(),
    };
    let y = |value: f64| BOTTOM - height(value) * (BOTTOM - TOP);
    let (fewest, longest) =
        points().fold((f64::MAX, 0.0_f64), |(least, most), point| (least.min(point.0), most.max(point.0)));
    let x =
        |count: f64| axis + 16.0 + (count / fewest).ln() / (longest / fewest).ln() * (right - axis - 24.0);
    for tick in &ticks {
        svg.line((axis, y(*tick)), (right, y(*tick)));
        svg.text((axis - 8.0, y(*tick) + 4.0), Anchor::End, Class::Muted, &format!("{tick}"));
    }
    for (index, (name, class, points)) in curves.iter().enumerate() {
        let points: Vec<(f64, f64)> = points.iter().map(|(count, value)| (x(*count), y(*value))).collect();
        svg.curve(&points, *class);
        for (at_x, _) in &points {
            svg.line((*at_x, BOTTOM), (*at_x, BOTTOM + 5.0));
        }
        // Beside its last point, but not on another label.
        let others = curves.iter().filter_map(|(_, _, points)| points.last()).map(|point| y(point.1));
        let at = points.last().copied().unwrap_or_default();
        let crowded = others.enumerate().any(|(other, y)| other != index && (y - at.1).abs() < 14.0);
        let is_lower = crowded && others_are_above(curves, index);
        let shift = match (crowded, is_lower) {
            (false, _) => 4.0,
            (true, true) => 13.0,
            (true, false) => -5.0,
        };
        svg.text((right + 6.0, at.1 + shift), Anchor::Start, Class::Text, name);
    }
    for (count, _) in &curves[0].2 {
        svg.text((x(*count), BOTTOM + 20.0), Anchor::Middle, Class::Muted, &format!("{count}"));
    }
    svg.text(((axis + right) / 2.0, BOTTOM + 38.0), Anchor::Middle, Class::Muted, "waiters");
}

/// Whether the last point of another curve has a larger value.
fn others_are_above(curves: &[Curve<'_>], index: usize) -> bool {
    let last = |curve: &Curve<'_>| curve.2.last().map_or(0.0, |point| point.1);
    curves.iter().any(|curve| last(curve) > last(&curves[index]))
}

/// The marks of a scale, of which the first and the last include all values.
fn ticks(least: f64, most: f64, scale: Scale) -> Vec<f64> {
    match scale {
        Scale::Linear => (0..=most.ceil().max(1.0) as u32).map(f64::from).collect(),
        Scale::Logarithmic => {
            let (from, to) = (least.log10().floor() as i32, most.log10().ceil() as i32);
            (from..=to.max(from + 1)).map(|exponent| 10_f64.powi(exponent)).collect()
        }
    }
}

/// The section of README.md.
fn speed(figures: &Value) -> String {
    let sections = &figures["sections"];
    let row = |section: &str, name: &str, column: &str| {
        let found = rows(&sections[section]).find(|row| row["name"] == name);
        found.map_or(f64::NAN, |row| number(row, column))
    };
    let memory = sections["memory"]["figures"][0]["figure"].as_f64().unwrap_or(f64::NAN);
    format!(
        "## Speed\n\n\
         ![Start-up and hand-off of dlock beside other tools](benches/plots/latency.svg)\n\
         ![Drain of a queue, and its requests to the server](benches/plots/queue.svg)\n\n\
         Measured on {} with\n\
         `cargo bench`, see [benches/README.md](benches/README.md): `dlock run x -- true` takes {:.1} ms with `file:`, {:.1} times as\n\
         long as `flock(1)`, and {:.1} ms with Redis. A lock is handed to the next waiter within {:.1} ms on Redis, and 1,000\n\
         waiters take {:.1} times as long as with `flock(1)`. A run needs {:.1} MB of memory.\n",
        origin(figures),
        row("startup", "dlock file", "p50_ms"),
        row("startup", "dlock file", "x_flock"),
        row("startup", "dlock redis", "p50_ms"),
        row("handoff", "dlock redis", "p50_ms"),
        row("drain", "1000 waiters", "x_flock"),
        memory,
    )
}
