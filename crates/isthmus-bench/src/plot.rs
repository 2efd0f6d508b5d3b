//! Parts of an HTML report: head, legends, tables, and plots as SVG.

use std::fmt::Write;

use crate::sample::median;
use crate::table::Grid;

const STYLE: &str = include_str!("report.css");
/// Size of a plot, then its margins: left, right, top, bottom. Pixels.
pub(crate) const SIZE: [f64; 2] = [400.0, 270.0];
const MARGIN: [f64; 4] = [60.0, 22.0, 12.0, 48.0];
/// About how many horizontal grid lines a plot has.
const GRID_LINES: f64 = 5.0;
/// One colour for each contender. They differ also for the colour-blind, and shapes help.
const COLOURS: [&str; 14] = [
    "#0b5394", "#c0392b", "#e08e00", "#2a9d57", "#7d3c98", "#17a2b8", "#8c564b", "#5f6b76", "#b5418e",
    "#7a8b00", "#4b6fd6", "#d2691e", "#2f7f7f", "#9b2d5e",
];
const SHAPES: usize = 4;

pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The beginning of a page that needs no other file.
pub(crate) fn head(title: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Isthmus: {title}</title>\
         <style>{STYLE}</style><h1>{title}</h1>"
    )
}

/// A table. Its first column names the rows.
pub(crate) fn table(out: &mut String, Grid { title, head, rows }: &Grid) {
    let cells = |tag: &str, row: &[String]| -> String {
        row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
    };
    let _ = write!(
        out,
        "<div class=\"wide\"><table>{}<thead><tr>{}</tr></thead><tbody>",
        if title.is_empty() { String::new() } else { format!("<caption>{}</caption>", escaped(title)) },
        cells("th", head)
    );
    for row in rows {
        let _ = write!(out, "<tr>{}</tr>", cells("td", row));
    }
    out.push_str("</tbody></table></div>");
}

/// Index of a contender among all of a page. It fixes colour and shape everywhere.
#[derive(Clone, Copy)]
pub(crate) struct Look(usize);

impl Look {
    pub(crate) fn of(contenders: &[String], one: &str) -> Self {
        Self(contenders.iter().position(|other| other == one).unwrap_or(0))
    }

    pub(crate) fn colour(self) -> &'static str {
        COLOURS[self.0 % COLOURS.len()]
    }

    /// Its marker at a point; hollow if the value is only a bound.
    pub(crate) fn sign(self, x: f64, y: f64, is_hollow: bool) -> String {
        let fill = if is_hollow { "#fff" } else { self.colour() };
        let paint = format!("fill=\"{fill}\" stroke=\"{}\" stroke-width=\"1.5\"", self.colour());
        let path = |points: &[(f64, f64)]| {
            let points: String =
                points.iter().map(|(dx, dy)| format!("{:.1},{:.1} ", x + dx, y + dy)).collect();
            format!("<polygon points=\"{}\" {paint} />", points.trim_end())
        };
        match self.0 % SHAPES {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" {paint} />"),
            1 => path(&[(-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)]),
            2 => path(&[(0.0, -4.4), (4.2, 3.4), (-4.2, 3.4)]),
            _ => path(&[(0.0, -4.6), (4.6, 0.0), (0.0, 4.6), (-4.6, 0.0)]),
        }
    }
}

/// Legend of these contenders, and of the dashed line if `dashed` names it.
pub(crate) fn legend(out: &mut String, all: &[String], shown: &[String], dashed: &str) {
    out.push_str("<p class=\"legend\">");
    for one in shown {
        let look = Look::of(all, one);
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 28 12\"><line x1=\"0\" x2=\"28\" y1=\"6\" y2=\"6\" stroke=\"{}\" stroke-width=\"2\" />{}</svg>{}</span> ",
            look.colour(),
            look.sign(14.0, 6.0, false),
            escaped(one)
        );
    }
    if !dashed.is_empty() {
        let line =
            "<svg viewBox=\"0 0 28 12\"><line class=\"floor\" x1=\"0\" x2=\"28\" y1=\"6\" y2=\"6\" /></svg>";
        let _ = write!(out, "<span>{line}{dashed}</span>");
    }
    out.push_str("</p>");
}

/// One point of a line: position along the plot (0 to 1), value, and whether the value is only a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) is_bound: bool,
}

/// A line plot.
#[derive(Default)]
pub(crate) struct Plot {
    pub(crate) title: String,
    /// Names of the x axis and the y axis, with units.
    pub(crate) along: String,
    pub(crate) up: String,
    /// Positions along the x axis (0 to 1), with labels.
    pub(crate) ticks: Vec<(f64, String)>,
    /// Lines without a sign at each point, for curves of many points.
    pub(crate) is_bare: bool,
    /// Smallest upper end of the y axis.
    pub(crate) least_top: f64,
    /// Points of the dashed line: the limit, or the goal.
    pub(crate) floor: Vec<(f64, f64)>,
}

impl Plot {
    pub(crate) fn draw(&self, out: &mut String, lines: &[(Look, Vec<Point>)]) {
        let [width, height] = SIZE;
        let title = escaped(&self.title);
        let _ = write!(
            out,
            "<figure><figcaption>{title}</figcaption><svg viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{title}\">"
        );
        self.draw_inside(out, lines);
        out.push_str("</svg></figure>");
    }

    /// Draws the inside of the picture. Its size is [`SIZE`].
    pub(crate) fn draw_inside(&self, out: &mut String, lines: &[(Look, Vec<Point>)]) {
        let [width, height] = SIZE;
        let [left, right, top, bottom] = MARGIN;
        let values = lines.iter().flat_map(|(_, points)| points.iter().map(|point| point.y));
        let most = values.chain(self.floor.iter().map(|(_, y)| *y)).fold(self.least_top, f64::max);
        let step = step(most);
        let count = (most / step - 1e-9).ceil().max(1.0);
        let digits = digits(step);
        let at = |x: f64, y: f64| {
            let up = (y / (count * step)).clamp(0.0, 1.0);
            (left + x * (width - left - right), height - bottom - up * (height - top - bottom))
        };
        for number in 0..=count as u32 {
            let value = f64::from(number) * step;
            let (x, y) = at(0.0, value);
            let (right, left, y_text) = (width - right, x - 8.0, y + 4.0);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{right:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" />\
                 <text x=\"{left:.1}\" y=\"{y_text:.1}\" text-anchor=\"end\">{value:.digits$}</text>"
            );
        }
        for (share, label) in &self.ticks {
            let (x, y) = at(*share, 0.0);
            let (end, under, label) = (y + 4.0, y + 18.0, escaped(label));
            let _ = write!(
                out,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{y:.1}\" y2=\"{end:.1}\" />\
                 <text x=\"{x:.1}\" y=\"{under:.1}\" text-anchor=\"middle\">{label}</text>"
            );
        }
        let ((x0, y0), (x1, y1)) = (at(0.0, 0.0), at(1.0, count * step));
        let (middle_x, middle_y) = (f64::midpoint(x0, x1), f64::midpoint(y0, y1));
        let _ = write!(
            out,
            "<polyline class=\"axis\" points=\"{x0:.1},{y1:.1} {x0:.1},{y0:.1} {x1:.1},{y0:.1}\" />\
             <text class=\"name\" x=\"{middle_x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text class=\"name\" transform=\"translate(14 {middle_y:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            height - 8.0,
            escaped(&self.along),
            escaped(&self.up)
        );
        let path = |points: &mut dyn Iterator<Item = (f64, f64)>| -> String {
            points.map(|(x, y)| at(x, y)).map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
        };
        if !self.floor.is_empty() {
            let _ = write!(
                out,
                "<polyline class=\"floor\" points=\"{}\" />",
                path(&mut ends_drawn(&self.floor).into_iter())
            );
        }
        for (look, points) in lines {
            let line = path(&mut points.iter().map(|point| (point.x, point.y)));
            let _ = write!(out, "<polyline points=\"{}\" stroke=\"{}\" />", line.trim_end(), look.colour());
            for point in points.iter().filter(|_| !self.is_bare) {
                let (x, y) = at(point.x, point.y);
                out.push_str(&look.sign(x, y, point.is_bound));
            }
        }
    }
}

/// Extends a line of one point across the plot.
fn ends_drawn(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    match points {
        [(_, y)] => vec![(0.0, *y), (1.0, *y)],
        _ => points.to_vec(),
    }
}

/// A round distance of grid lines for values up to `most`.
fn step(most: f64) -> f64 {
    let rough = (most / GRID_LINES).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough)
}

/// Decimals needed to print multiples of `step`.
fn digits(step: f64) -> usize {
    let is_whole = |digits: &usize| {
        let scaled = step * 10_f64.powi(*digits as i32);
        (scaled - scaled.round()).abs() < 1e-6
    };
    (0..6).find(is_whole).unwrap_or(6)
}

/// A plot of horizontal bars. Each is as long as the median of its values, which are dots on it. The axis goes
/// from 0 to 1, or to the largest value.
pub(crate) fn bars(out: &mut String, title: &str, all: &[String], rows: &[(&str, &[f64])]) {
    let (mut inside, title) = (String::new(), escaped(title));
    let [width, height] = bars_inside(&mut inside, |name| Look::of(all, name), rows);
    let _ = write!(
        out,
        "<figure class=\"bars\"><figcaption>{title}</figcaption><svg viewBox=\"0 0 {width} {height}\" role=\"img\" \
         aria-label=\"{title}\">{inside}</svg></figure>"
    );
}

/// Draws the inside of the picture, with the look that each bar's name has. Returns its size.
pub(crate) fn bars_inside(
    out: &mut String,
    look: impl Fn(&str) -> Look,
    rows: &[(&str, &[f64])],
) -> [f64; 2] {
    const WIDTH: f64 = 760.0;
    /// Room for names: at least `LEFT`, and about `CHARACTER` for each character. Pixels.
    const LEFT: f64 = 230.0;
    const CHARACTER: f64 = 6.2;
    const RIGHT: f64 = 60.0;
    const ROW: f64 = 24.0;
    const AXIS: f64 = 24.0;
    let most = rows.iter().flat_map(|(_, values)| values.iter().copied()).fold(1.0, f64::max);
    let step = step(most);
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let left = LEFT.max(longest as f64 * CHARACTER + 16.0);
    let at = |value: f64| left + value / most * (WIDTH - left - RIGHT);
    let bottom = ROW * rows.len() as f64 + 8.0;
    for number in 0..=(most / step + 1e-9) as u32 {
        let value = f64::from(number) * step;
        let (x, y) = (at(value), bottom + 16.0);
        let class = if (value - 1.0).abs() < 1e-9 { "floor" } else { "grid" };
        let _ = write!(
            out,
            "<line class=\"{class}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{bottom:.1}\" />\
             <text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{value:.1}</text>"
        );
    }
    for (row, (name, values)) in rows.iter().enumerate() {
        let y = row as f64 * ROW + 4.0;
        let middle = median(values.iter().copied()).unwrap_or(0.0);
        let after = at(values.iter().copied().fold(middle, f64::max)) + 8.0;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{left}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" rx=\"2\" fill=\"{}\" />\
             <text class=\"value\" x=\"{after:.1}\" y=\"{:.1}\">{middle:.3}</text>",
            left - 8.0,
            y + 12.0,
            escaped(name),
            at(middle) - left,
            ROW - 8.0,
            look(name).colour(),
            y + 12.0
        );
        for value in *values {
            let _ = write!(
                out,
                "<circle class=\"run\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" />",
                at(*value),
                y + (ROW - 8.0) / 2.0
            );
        }
    }
    [WIDTH, bottom + AXIS]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_across_a_plot_are_at_round_values_and_few() {
        for (most, expected) in [(1.0, 0.2), (990.0, 200.0), (9.9, 2.0), (4.6, 1.0), (120.0, 25.0)] {
            assert!((step(most) / expected - 1.0).abs() < 1e-9, "{most}: {}", step(most));
        }
        assert!(step(0.0) > 0.0);
        assert_eq!([200.0, 2.5, 0.2, 0.25].map(digits), [0, 1, 1, 2]);
    }

    #[test]
    fn a_bound_is_hollow_and_the_axes_have_names() {
        let mut out = String::new();
        let point = |is_bound| Point { x: 0.5, y: 1.0, is_bound };
        let plot = Plot { along: "loss, %".into(), up: "goodput, Mb/s".into(), ..Plot::default() };
        plot.draw(&mut out, &[(Look(0), vec![point(false), point(true)])]);
        assert!(out.contains("loss, %") && out.contains("goodput, Mb/s"), "{out}");
        assert_eq!(out.matches("fill=\"#fff\"").count(), 1);
    }
}
