//! What docs/route-map.md tells users is so.

use isthmus_routes::{Measured, Metric, RouteMap, Table};
use isthmus_wire::{AsId, SubnetId};

const GUIDE: &str = include_str!("../../../docs/route-map.md");

/// The guide's TOML: the map, then the measurements.
fn examples() -> [String; 2] {
    let blocks: Vec<_> =
        GUIDE.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let [map, measured] = blocks[..] else { panic!("{} examples", blocks.len()) };
    [map.to_owned(), measured.to_owned()]
}

#[test]
fn the_guides_examples_are_good() {
    let [map, measured] = examples();
    let map = RouteMap::parse(&map, "docs/route-map.md").expect("a good map");
    let measured = Measured::parse(&measured, "docs/route-map.md", &map).expect("good measurements");
    let again = Measured::parse(&measured.to_text(&map), "again.toml", &map).expect("its own text");
    assert_eq!(again, measured);
    let exit = |measured| {
        let table = Table::compute(&map, Metric::Bandwidth, measured);
        let next = table.next_hop(SubnetId(2), (AsId(4), SubnetId(1))).expect("a route");
        next.route.path.last().map(|subnet| subnet.0)
    };
    assert_eq!((exit(None), exit(Some(&measured))), (Some(104), Some(100)));
}

/// Faults list the fields that exist: the guide must have a row for each, and no other.
#[test]
fn the_guides_table_has_every_field() {
    let [map, _] = examples();
    let mut rows = 0;
    for section in ["[as]", "[[subnet]]", "[[wan]]", "[[router]]", "[[remote]]"] {
        let spoiled = map.replacen(section, &format!("{section}\nnonsense = 1"), 1);
        let said = RouteMap::parse(&spoiled, "map.toml").expect_err("refused").to_string();
        let fields = said.split("use one of ").nth(1).expect("the list of fields");
        for field in fields.split(", ") {
            let row = format!("| `{section}` | `{field}` | ");
            assert!(GUIDE.contains(&row), "the guide should have the row {row}");
            rows += 1;
        }
    }
    assert_eq!(GUIDE.matches("\n| `[").count(), rows, "the guide has rows for fields that do not exist");
}

#[test]
fn the_guides_metrics_are_those_that_exist() {
    for metric in Metric::ALL {
        assert!(GUIDE.contains(&format!("\n| `{metric}` | ")), "{metric}");
    }
}
