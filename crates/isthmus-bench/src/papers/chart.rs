//! Pictures as files: plots and bars of `plot`, with their style and legend inside.

use std::fmt::Write;

use super::page::Block;
use crate::plot::{Look, Plot, Point, SIZE, bars_inside, escaped};

const STYLE: &str = include_str!("picture.css");
/// Height of the title and of a line of the legend. Pixels.
const TITLE: f64 = 22.0;
const ROW: f64 = 18.0;

/// A line with its name. Each point has a position, a value, and whether the value is only a bound.
pub(crate) type Line = (String, Vec<(f64, f64, bool)>);

/// A line without bounds.
pub(crate) fn line(name: &str, points: impl IntoIterator<Item = (f64, f64)>) -> Line {
    (name.to_owned(), points.into_iter().map(|(x, y)| (x, y, false)).collect())
}

/// A plot of several lines.
#[derive(Default)]
pub(crate) struct Chart {
    /// Name of the picture's file.
    pub(crate) name: &'static str,
    pub(crate) title: String,
    pub(crate) along: &'static str,
    pub(crate) up: &'static str,
    /// Positions with labels along the x axis, ascending.
    pub(crate) ticks: Vec<(f64, String)>,
    /// The x axis is logarithmic.
    pub(crate) is_logarithmic: bool,
    pub(crate) lines: Vec<Line>,
    /// Points of the dashed line, the lowest or highest possible values; then its name.
    pub(crate) limit: Vec<(f64, f64)>,
    pub(crate) limit_name: &'static str,
}

impl Chart {
    pub(crate) fn block(&self) -> Block {
        Block::Picture { name: self.name.to_owned(), title: self.title.clone(), svg: self.svg() }
    }

    /// A position as a fraction of the plot's width.
    fn share(&self, x: f64) -> f64 {
        let scale = |x: f64| if self.is_logarithmic { x.max(1e-9).ln() } else { x };
        let ends = self.ticks.first().zip(self.ticks.last());
        let Some(((first, _), (last, _))) = ends else { return 0.5 };
        let (first, last) = (scale(*first), scale(*last));
        if last > first { (scale(x) - first) / (last - first) } else { 0.5 }
    }

    fn svg(&self) -> String {
        let names: Vec<String> = self.lines.iter().map(|(name, _)| name.clone()).collect();
        let plot = Plot {
            title: String::new(),
            along: self.along.to_owned(),
            up: self.up.to_owned(),
            ticks: self.ticks.iter().map(|(x, label)| (self.share(*x), label.clone())).collect(),
            least_top: 0.0,
            is_bare: false,
            floor: self.limit.iter().map(|(x, y)| (self.share(*x), *y)).collect(),
        };
        let lines: Vec<_> = self
            .lines
            .iter()
            .map(|(name, points)| {
                let point = |(x, y, is_bound): &(f64, f64, bool)| Point {
                    x: self.share(*x),
                    y: *y,
                    is_bound: *is_bound,
                };
                (Look::of(&names, name), points.iter().map(point).collect::<Vec<_>>())
            })
            .collect();
        let mut inside = String::new();
        plot.draw_inside(&mut inside, &lines);
        let mut legend = String::new();
        let mut y = SIZE[1] + ROW / 2.0;
        for name in &names {
            let look = Look::of(&names, name);
            let line = format!("x1=\"60\" x2=\"88\" y1=\"{y:.1}\" y2=\"{y:.1}\"");
            let _ = write!(
                legend,
                "<line {line} stroke=\"{}\" stroke-width=\"2\" />{}<text x=\"96\" y=\"{:.1}\">{}</text>",
                look.colour(),
                look.sign(74.0, y, false),
                y + 4.0,
                escaped(name)
            );
            y += ROW;
        }
        if !self.limit.is_empty() {
            let _ = write!(
                legend,
                "<line class=\"floor\" x1=\"60\" x2=\"88\" y1=\"{y:.1}\" y2=\"{y:.1}\" /><text x=\"96\" y=\"{:.1}\">{}</text>",
                y + 4.0,
                escaped(self.limit_name)
            );
            y += ROW;
        }
        picture(&self.title, SIZE[0], y, &(inside + &legend))
    }
}

/// Horizontal bars, each as long as the median of its values. `of` has names and values.
pub(crate) fn bars(name: &str, title: &str, of: &[(String, Vec<f64>)]) -> Block {
    let names: Vec<String> = of.iter().map(|(name, _)| name.clone()).collect();
    bars_by(name, title, |name| Look::of(&names, name), of)
}

/// The same with a look for each bar's name.
pub(crate) fn bars_by(
    name: &str,
    title: &str,
    look: impl Fn(&str) -> Look,
    of: &[(String, Vec<f64>)],
) -> Block {
    let rows: Vec<(&str, &[f64])> =
        of.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect();
    let mut inside = String::new();
    let [width, height] = bars_inside(&mut inside, look, &rows);
    Block::Picture {
        name: name.to_owned(),
        title: title.to_owned(),
        svg: picture(title, width, height, &inside),
    }
}

/// A whole picture. Its title is above `inside`.
pub(crate) fn picture(title: &str, width: f64, height: f64, inside: &str) -> String {
    let (title, whole) = (escaped(title), height + TITLE);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {whole}\" role=\"img\" \
         aria-label=\"{title}\"><style>{STYLE}</style><rect width=\"{width}\" height=\"{whole}\" fill=\"#fff\" />\
         <text class=\"title\" x=\"8\" y=\"15\">{title}</text><g transform=\"translate(0 {TITLE})\">{inside}</g></svg>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether all attributes are quoted and all elements closed.
    fn is_well_formed(svg: &str) -> bool {
        let mut open = Vec::new();
        for tag in svg.split('<').skip(1) {
            let Some((inside, _)) = tag.split_once('>') else { return false };
            if inside.matches('"').count() % 2 == 1 {
                return false;
            }
            let outside: String = inside.split('"').step_by(2).collect();
            if outside.split_whitespace().any(|word| word.contains('=') && !word.ends_with('=')) {
                return false;
            }
            let name = inside.split([' ', '/']).next().unwrap_or("");
            if let Some(end) = inside.strip_prefix('/') {
                if open.pop() != Some(end) {
                    return false;
                }
            } else if !inside.ends_with('/') {
                open.push(name);
            }
        }
        open.is_empty()
    }

    #[test]
    fn pictures_are_well_formed_files_with_their_legends() {
        let chart = Chart {
            name: "x",
            title: "A & B".into(),
            ticks: vec![(1.0, "1".into()), (100.0, "100".into())],
            is_logarithmic: true,
            lines: vec![("ours <1>".into(), vec![(1.0, 2.0, false), (10.0, 3.0, true)])],
            limit: vec![(1.0, 4.0)],
            limit_name: "the link",
            ..Chart::default()
        };
        assert!((chart.share(10.0) - 0.5).abs() < 1e-9);
        let svg = chart.svg();
        assert!(is_well_formed(&svg), "{svg}");
        assert!(svg.contains("ours &lt;1&gt;") && svg.contains("the link"), "{svg}");
        let Block::Picture { svg, .. } = bars("y", "Z", &[("one".into(), vec![0.5, 0.7])]) else {
            panic!("a picture")
        };
        assert!(is_well_formed(&svg), "{svg}");
        assert!(!is_well_formed("<svg a=1></svg>") && !is_well_formed("<svg><g></svg>"));
    }
}
