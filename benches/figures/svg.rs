//! A drawing as SVG, with colours for light and dark screens.

use std::fmt::Write;

/// The class of an element, which has the colours.
#[derive(Clone, Copy)]
pub enum Class {
    Text,
    Muted,
    Axis,
    Dlock,
    Peer,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Text => "text",
            Class::Muted => "muted",
            Class::Axis => "axis",
            Class::Dlock => "dlock",
            Class::Peer => "peer",
        }
    }
}

/// Which side of its point a text is on.
#[derive(Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

const STYLE: &str = "\
  text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1f2328 }
  .title { font-weight: 600 }
  .paper { fill: #ffffff } .muted { fill: #59636e }
  line, polyline { fill: none; stroke-width: 2 } line.axis { stroke: #d1d9e0; stroke-width: 1 }
  rect.dlock, circle.dlock { fill: #0969da } polyline.dlock { stroke: #0969da }
  rect.peer, circle.peer { fill: #8c959f } polyline.peer { stroke: #8c959f }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc } .paper { fill: #0d1117 } .muted { fill: #9198a1 } line.axis { stroke: #3d444d }
    rect.dlock, circle.dlock { fill: #4493f8 } polyline.dlock { stroke: #4493f8 }
  }";

pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Self {
        Svg { width, height, body: String::new() }
    }

    fn push(&mut self, element: &str) {
        // Writing to a string does not fail.
        writeln!(self.body, "{element}").ok();
    }

    pub fn title(&mut self, x: f64, y: f64, text: &str) {
        self.push(&format!(r#"<text class="title" x="{x:.1}" y="{y:.1}">{}</text>"#, escaped(text)));
    }

    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: Class, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (class, text) = (class.name(), escaped(text));
        self.push(&format!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#
        ));
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64)) {
        let class = Class::Axis.name();
        self.push(&format!(
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    pub fn bar(&mut self, (x, y): (f64, f64), width: f64, height: f64, class: Class) {
        let class = class.name();
        self.push(&format!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="2"/>"#
        ));
    }

    /// Points that are joined by a line.
    pub fn curve(&mut self, points: &[(f64, f64)], class: Class) {
        let class = class.name();
        let joined: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(&format!(r#"<polyline class="{class}" points="{}"/>"#, joined.join(" ")));
        for (x, y) in points {
            self.push(&format!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="3.5"/>"#));
        }
    }

    /// The file; `name` is what a screen reader says.
    pub fn finish(self, name: &str) -> String {
        let Svg { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 \
             {width:.0} {height:.0}\" role=\"img\">\n<title>{}</title>\n<style>\n{STYLE}\n</style>\n\
             <rect class=\"paper\" width=\"{width:.0}\" height=\"{height:.0}\" rx=\"6\"/>\n{body}</svg>\n",
            escaped(name)
        )
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
