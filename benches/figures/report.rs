//! The figures of a section: printed as they are known, and kept for figures.json.

use serde_json::{Map, Value, json};

/// What a figure has to be.
#[derive(Clone, Copy)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Target::AtMost(limit) => figure <= limit,
            Target::AtLeast(limit) => figure >= limit,
        }
    }

    fn text(self) -> String {
        match self {
            Target::AtMost(limit) => format!("<= {limit}"),
            Target::AtLeast(limit) => format!(">= {limit}"),
        }
    }
}

/// A heading and its number of decimals.
pub type Column = (&'static str, usize);

/// A table, and figures that are derived from it.
pub struct Section {
    title: String,
    columns: &'static [Column],
    rows: Vec<Value>,
    figures: Vec<Value>,
}

impl Section {
    pub fn new(title: impl Into<String>, columns: &'static [Column]) -> Self {
        let title = title.into();
        println!("{title}");
        if !columns.is_empty() {
            let headings: String = columns.iter().map(|(heading, _)| format!(" {heading:>12}")).collect();
            println!("  {:<18}{headings}", "");
        }
        Section { title, columns, rows: Vec::new(), figures: Vec::new() }
    }

    /// Adds a row with a value for each column; NaN if there is none.
    pub fn row(&mut self, name: &str, values: &[f64]) {
        let mut row = Map::from_iter([("name".to_owned(), json!(name))]);
        let mut line = String::new();
        for ((heading, decimals), value) in self.columns.iter().zip(values) {
            row.insert(heading.replace(' ', "_"), rounded(*value, *decimals));
            let value = if value.is_nan() { "-".to_owned() } else { format!("{value:.decimals$}") };
            line.push_str(&format!(" {value:>12}"));
        }
        println!("  {name:<18}{line}");
        self.rows.push(row.into());
    }

    /// Adds a figure that has no target.
    pub fn figure(&mut self, what: &str, figure: f64) {
        println!("  {what}: {}", shown(figure));
        self.figures.push(json!({"what": what, "figure": rounded(figure, 4)}));
    }

    /// Adds a figure, and whether it meets its target.
    pub fn target(&mut self, what: &str, figure: f64, target: Target) {
        let (met, text) = (target.is_met(figure), target.text());
        let verdict = if met { "ok" } else { "MISSED" };
        println!("  {what}: {}, target {text}: {verdict}", shown(figure));
        self.figures.push(json!({"what": what, "figure": rounded(figure, 4), "target": text, "is_met": met}));
    }

    pub fn into_json(self) -> Value {
        json!({"title": self.title, "rows": self.rows, "figures": self.figures})
    }
}

/// Two decimals, or as many as a small figure needs.
fn shown(figure: f64) -> String {
    if figure != 0.0 && figure.abs() < 0.05 { format!("{figure:.4}") } else { format!("{figure:.2}") }
}

/// A number with this many decimals; null for NaN.
fn rounded(value: f64, decimals: usize) -> Value {
    format!("{value:.decimals$}").parse::<f64>().ok().filter(|value| value.is_finite()).into()
}
