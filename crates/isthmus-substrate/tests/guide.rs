//! The guide tells of every setting of a device what the table of settings tells.

#[test]
fn the_guide_lists_every_setting_of_a_device_as_it_is() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/substrate.md");
    let guide = std::fs::read_to_string(guide).expect("the guide is there");
    for (name, help) in isthmus_io::DEVICE_PARAMETERS {
        let row = format!("| `{name}` | {help} |");
        assert!(guide.contains(&row), "the guide's table should have the row\n{row}");
    }
    // The guide's own examples are some.
    let names: Vec<Vec<String>> = guide
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().expect("an end"))
        .map(|text| isthmus_io::devices_from_toml(text, "the guide").expect("valid"))
        .map(|devices| devices.into_iter().map(|device| device.name).collect())
        .collect();
    assert_eq!(names, [vec!["compute", "campus"], vec!["rack"]]);
}
