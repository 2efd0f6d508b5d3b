//! The guide tells of every setting of a device what the table of settings tells.

#[test]
fn the_guide_lists_every_setting_of_a_device_as_it_is() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/substrate.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    for (name, help) in isthmus_io::DEVICE_PARAMETERS {
        let row = format!("| `{name}` | {help} |");
        assert!(guide.contains(&row), "the guide's table should have the row\n{row}");
    }
    // The guide's own example is one.
    let example = guide.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
    let devices = isthmus_io::devices_from_toml(example.expect("an example"), "the guide").expect("valid");
    assert_eq!(devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["compute", "campus"]);
}
