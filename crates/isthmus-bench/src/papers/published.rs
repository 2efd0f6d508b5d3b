//! Figures that the papers print, from a data file that also has their places in the papers.

use serde::Deserialize;

const DATA: &str = include_str!("published.json");

/// One figure, or one row of figures, of a paper.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Published {
    pub(crate) id: String,
    /// Its place in the paper.
    pub(crate) source: String,
    /// Its meaning, with unit.
    pub(crate) what: String,
    /// Position along the axis, and value.
    pub(crate) points: Vec<(f64, f64)>,
}

/// A table of words, without head and first column.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PublishedTable {
    pub(crate) id: String,
    pub(crate) source: String,
    pub(crate) rows: Vec<Vec<String>>,
}

/// A paper.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Paper {
    pub(crate) id: String,
    pub(crate) citation: String,
    pub(crate) figures: Vec<Published>,
    /// Tables of words.
    #[serde(default)]
    pub(crate) tables: Vec<PublishedTable>,
    /// What the text available to us does not tell.
    pub(crate) unknown: String,
}

/// All papers.
///
/// # Panics
/// Never: a test reads the data file.
pub(crate) fn papers() -> Vec<Paper> {
    serde_json::from_str(DATA).unwrap_or_default()
}

pub(crate) fn paper(id: &str) -> Option<Paper> {
    papers().into_iter().find(|paper| paper.id == id)
}

/// The figure with this id.
pub(crate) fn published(id: &str) -> Option<Published> {
    papers().into_iter().flat_map(|paper| paper.figures).find(|figure| figure.id == id)
}

/// The table with this id.
pub(crate) fn table(id: &str) -> Option<PublishedTable> {
    papers().into_iter().flat_map(|paper| paper.tables).find(|table| table.id == id)
}

/// A figure's value at a position.
pub(crate) fn value(id: &str, at: f64) -> Option<f64> {
    let near = |x: f64| (x - at).abs() <= 1e-9 * at.abs().max(1.0);
    published(id)?.points.iter().find(|(x, _)| near(*x)).map(|(_, y)| *y)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_place_a_unit_and_a_name_of_its_own() {
        let papers: Vec<Paper> = serde_json::from_str(DATA).expect("good JSON");
        assert_eq!(papers.len(), 6);
        let figures: Vec<_> = papers.iter().flat_map(|paper| &paper.figures).collect();
        for figure in &figures {
            assert!(
                !figure.source.is_empty() && !figure.what.is_empty() && !figure.points.is_empty(),
                "{figure:?}"
            );
            assert_eq!(figures.iter().filter(|other| other.id == figure.id).count(), 1, "{}", figure.id);
        }
        assert_eq!(value("table-2-10gb", 1.0), Some(1012.42));
        assert_eq!(value("table-2-10gb", 3.0), None);
    }
}
