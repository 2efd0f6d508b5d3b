//! The table of settings in the guide is made from the table in the code.
//! `ISTHMUS_GOLDEN=write cargo test -p isthmus-io --test guide` writes it.

use std::fmt::Write;

use isthmus_io::PARAMETERS;

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
const HEAD: &str = "| Setting | Values | Default | Meaning |\n|---|---|---|---|\n";

fn table() -> String {
    let mut rows = String::from(HEAD);
    for parameter in PARAMETERS {
        let default = match parameter.default {
            "" => "not set".to_owned(),
            default => format!("`{default}`"),
        };
        let _ = writeln!(
            rows,
            "| `{}` | {} | {default} | {} |",
            parameter.name, parameter.values, parameter.help
        );
    }
    rows
}

#[test]
fn the_guide_lists_every_setting_as_it_is() {
    let guide = std::fs::read_to_string(GUIDE).expect("the guide is there");
    let (before, rest) = guide.split_once(HEAD).expect("a table of settings");
    let after = rest.lines().skip_while(|line| line.starts_with('|')).collect::<Vec<_>>().join("\n");
    let new = format!("{before}{}{after}\n", table());
    if std::env::var("ISTHMUS_GOLDEN").is_ok_and(|value| value == "write") {
        std::fs::write(GUIDE, &new).expect("the guide can be written");
    }
    let guide = std::fs::read_to_string(GUIDE).expect("the guide is there");
    assert!(
        guide == new,
        "docs/settings.md is old: ISTHMUS_GOLDEN=write cargo test -p isthmus-io --test guide"
    );
}

#[test]
fn each_help_is_one_short_sentence() {
    for parameter in PARAMETERS {
        let help = parameter.help;
        assert!(help.ends_with('.') && !help.trim_end_matches('.').contains(". "), "{help}");
        assert!(help.split_whitespace().count() <= 20, "{help}");
    }
}
