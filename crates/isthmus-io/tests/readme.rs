//! The README tells of every setting what the table of settings tells.

use isthmus_io::PARAMETERS;

#[test]
fn the_readme_lists_every_setting_as_it_is() {
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = std::fs::read_to_string(readme).expect("the README is there");
    for parameter in PARAMETERS {
        let row = format!("| `{}` | {} |", parameter.name, parameter.help);
        assert!(readme.contains(&row), "the README's table of settings should have the row\n{row}");
    }
}
