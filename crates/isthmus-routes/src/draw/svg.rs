//! Writing SVG.

use std::fmt::Write;

/// Looks of everything drawn. One sheet, so that a picture can be restyled by hand.
const STYLE: &str = "
text { font-family: 'Inter', 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif; fill: #1f2a37 }
.frame { fill: #f5f8fb; stroke: #b9c8d6; stroke-width: 1.5 }
.frame-title { font-size: 14px; font-weight: 600; fill: #4b6177 }
.line { stroke: #5a6b7c; stroke-width: 2 }
.dot { fill: #2f3e4e; stroke: #fff; stroke-width: 1.5 }
.transit { fill: #d6e6f5; stroke: #2f6ea5; stroke-width: 1.5 }
.edge { fill: #fff; stroke: #2f6ea5; stroke-width: 1.5; stroke-dasharray: 6 4 }
.wan { fill: #fde7c8; stroke: #c97a1a; stroke-width: 1.5 }
.private { fill: #f0e2f5; stroke: #8a4aa3; stroke-width: 1.5; stroke-dasharray: 6 4 }
.router { fill: #2f3e4e }
.router-name { font-size: 12px; font-weight: 600; fill: #fff; text-anchor: middle }
.remote { fill: #eef0f2; stroke: #6b7785; stroke-width: 1.5 }
.remote-name { font-size: 14px; font-weight: 600; text-anchor: middle }
.remote-id { font-size: 11px; fill: #4b5968; text-anchor: middle }
.name { font-size: 14px; font-weight: 600 }
.remark { font-size: 11px; font-weight: 400; fill: #4b5968 }
.small { font-size: 11px; fill: #4b5968 }
.chip { fill: #2e7d5b }
.chip-text { font-size: 9.5px; font-weight: 700; fill: #fff; text-anchor: middle }
";

/// The elements drawn so far.
#[derive(Default)]
pub(super) struct Svg(String);

// Writing to a String cannot fail.
impl Svg {
    /// Left, top, width and height, and the corners' radius.
    pub(super) fn rect(&mut self, class: &str, [x, y, width, height]: [f64; 4], radius: f64) {
        let _ = writeln!(
            self.0,
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" rx="{radius}"/>"#
        );
    }

    /// A vertical line.
    pub(super) fn line(&mut self, class: &str, x: f64, y1: f64, y2: f64) {
        let _ =
            writeln!(self.0, r#"<line class="{class}" x1="{x:.1}" y1="{y1:.1}" x2="{x:.1}" y2="{y2:.1}"/>"#);
    }

    pub(super) fn circle(&mut self, class: &str, x: f64, y: f64) {
        let _ = writeln!(self.0, r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="5"/>"#);
    }

    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let _ = writeln!(self.0, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{}</text>"#, escaped(text));
    }

    /// A name with a smaller remark after it, wherever the name ends in the reader's font.
    pub(super) fn name(&mut self, class: &str, x: f64, y: f64, name: &str, remark: &str) {
        let (name, remark) = (escaped(name), escaped(remark));
        let remark = format!(r#"<tspan class="remark" dx="7">{remark}</tspan>"#);
        let _ = writeln!(self.0, r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{name}{remark}</text>"#);
    }

    /// Begins a group of elements that show `tooltip`. [`Svg::close_group`] ends it.
    pub(super) fn open_group(&mut self, tooltip: &str) {
        let _ = writeln!(self.0, "<g><title>{}</title>", escaped(tooltip));
    }

    pub(super) fn close_group(&mut self) {
        self.0 += "</g>\n";
    }

    /// The whole document.
    pub(super) fn document(self, title: &str, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>Route map of {}</title>\n\
             <style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}</svg>\n",
            escaped(title),
            self.0
        )
    }
}

/// Escapes a text. The map checks all names but that of the AS, which may have any characters.
fn escaped(text: &str) -> String {
    // XML 1.0 has no way to write other control characters.
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
