//! What pages of measurements are made of: a head, legends, plots as SVG.

use std::fmt::Write;

use crate::sample::median;

const STYLE: &str = include_str!("report.css");
/// A plot's size, and its margins: left, right, top, bottom. Pixels.
const SIZE: [f64; 2] = [460.0, 280.0];
const MARGIN: [f64; 4] = [44.0, 12.0, 12.0, 44.0];
/// One colour for each contender, told apart also by those who see few.
const COLOURS: [&str; 9] =
    ["#0b62a4", "#d1495b", "#2a9d57", "#8d6a9f", "#e08e00", "#3aa6b9", "#7a7a7a", "#a0522d", "#5b5bd6"];

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The beginning of a page that needs nothing else.
pub(crate) fn head(title: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Isthmus: {title}</title>\
         <style>{STYLE}</style><h1>{title}</h1>"
    )
}

pub(crate) fn colour(contenders: &[String], one: &str) -> &'static str {
    COLOURS[contenders.iter().position(|other| other == one).unwrap_or(0) % COLOURS.len()]
}

pub(crate) fn legend(out: &mut String, contenders: &[String]) {
    out.push_str("<p class=legend>");
    for one in contenders {
        let _ = write!(
            out,
            "<span><i style=\"background:{}\"></i>{}</span>",
            colour(contenders, one),
            escaped(one)
        );
    }
}

/// A plot's frame: `x` positions with their labels, and y from 0 to `most`.
pub(crate) fn frame(out: &mut String, title: &str, ticks: &[(f64, String)], most: f64, unit: &str) {
    let [width, height] = SIZE;
    let [left, right, top, bottom] = MARGIN;
    let _ = write!(
        out,
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {width} {height}\" role=img>",
        escaped(title)
    );
    for step in 0..=4 {
        let share = f64::from(step) / 4.0;
        let y = height - bottom - share * (height - top - bottom);
        let _ = write!(
            out,
            "<line class=grid x1={left} x2={:.1} y1={y:.1} y2={y:.1} /><text x={:.1} y={:.1} text-anchor=end>{:.2}</text>",
            width - right,
            left - 6.0,
            y + 4.0,
            share * most
        );
    }
    for (share, label) in ticks {
        let x = left + share * (width - left - right);
        let _ = write!(
            out,
            "<text x={x:.1} y={:.1} text-anchor=middle>{}</text>",
            height - bottom + 16.0,
            escaped(label)
        );
    }
    let _ = write!(
        out,
        "<text x={:.1} y={:.1} text-anchor=middle>{}</text>",
        width / 2.0,
        height - 6.0,
        escaped(unit)
    );
}

/// A line through points, each a share of the plot's width and height.
pub(crate) fn line(out: &mut String, points: &[(f64, f64)], colour: &str, dots: bool) {
    let [width, height] = SIZE;
    let [left, right, top, bottom] = MARGIN;
    let place = |(x, y): &(f64, f64)| {
        let y = y.clamp(0.0, 1.0);
        (left + x * (width - left - right), height - bottom - y * (height - top - bottom))
    };
    let path: String = points.iter().map(place).map(|(x, y)| format!("{x:.1},{y:.1} ")).collect();
    let _ = write!(out, "<polyline points=\"{}\" stroke=\"{colour}\" />", path.trim_end());
    for (x, y) in points.iter().map(place).filter(|_| dots) {
        let _ = write!(out, "<circle cx={x:.1} cy={y:.1} r=3 fill=\"{colour}\" />");
    }
}

/// A plot of bars that lie, each as long as the median of its values, which are dots on it; from 0
/// to 1, or to the greatest.
pub(crate) fn bars(out: &mut String, title: &str, rows: &[(&str, &[f64])]) {
    const WIDTH: f64 = 720.0;
    const LEFT: f64 = 210.0;
    const RIGHT: f64 = 60.0;
    const ROW: f64 = 22.0;
    let most = rows.iter().flat_map(|(_, values)| values.iter().copied()).fold(1.0, f64::max);
    let at = |value: f64| LEFT + value / most * (WIDTH - LEFT - RIGHT);
    let height = ROW * rows.len() as f64 + 8.0;
    let _ = write!(
        out,
        "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=img>\
         <line class=grid x1={x:.1} x2={x:.1} y1=0 y2={height} />",
        escaped(title),
        x = at(1.0)
    );
    for (row, (name, values)) in rows.iter().enumerate() {
        let y = row as f64 * ROW + 4.0;
        let middle = median(values.iter().copied()).unwrap_or(0.0);
        let _ = write!(
            out,
            "<text x={:.1} y={:.1} text-anchor=end>{}</text>\
             <rect x={LEFT} y={y:.1} width={:.1} height={:.1} fill=\"{}\" /><text x={:.1} y={:.1}>{middle:.3}</text>",
            LEFT - 8.0,
            y + 12.0,
            escaped(name),
            at(middle) - LEFT,
            ROW - 6.0,
            COLOURS[row % COLOURS.len()],
            at(values.iter().copied().fold(middle, f64::max)) + 8.0,
            y + 12.0
        );
        for value in *values {
            let _ = write!(out, "<circle cx={:.1} cy={:.1} r=3 fill=currentColor />", at(*value), y + 8.0);
        }
    }
    out.push_str("</svg></figure>");
}
