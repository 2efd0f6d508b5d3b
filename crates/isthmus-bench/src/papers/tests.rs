//! Every section's rendering from recorded samples.

use super::*;

/// Samples of a small run of every section.
const RECORDED: &str = include_str!("recorded.jsonl");

fn recorded() -> Vec<Taken> {
    RECORDED.lines().map(|line| serde_json::from_str(line).expect("a sample")).collect()
}

#[test]
fn every_section_has_a_name_of_its_own_and_papers_that_are_known() {
    let names = Papers::names();
    for section in SECTIONS {
        assert_eq!(names.iter().filter(|name| **name == section.name()).count(), 1);
        assert!(section.papers().iter().all(|id| published::paper(id).is_some()), "{}", section.name());
    }
}
