//! The guide tells of every setting what the table of settings tells.

use isthmus_io::PARAMETERS;

#[test]
fn the_guide_lists_every_setting_as_it_is() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    for parameter in PARAMETERS {
        let row = format!("| `{}` | {} |", parameter.name, parameter.help);
        assert!(guide.contains(&row), "docs/settings.md should have the row\n{row}");
    }
}
