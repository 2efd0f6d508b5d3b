//! docs/decisions.md shows the table of thresholds as it is. `ISTHMUS_GOLDEN=write cargo test -p isthmus-path` writes it.

use std::fs;

use isthmus_path::thresholds::TABLE;

const BEGIN: &str = "<!-- thresholds: written by crates/isthmus-path/tests/table.rs -->\n";
const END: &str = "<!-- end of thresholds -->\n";

/// The table as Markdown: a heading and rows for each decision.
fn table() -> String {
    let mut text = String::new();
    let mut before = "";
    for row in TABLE {
        if row.decision != before {
            text +=
                &format!("\n**{}**\n\n| Name | Value | Unit | Meaning |\n|---|---|---|---|\n", row.decision);
            before = row.decision;
        }
        let meaning = row.meaning.split_whitespace().collect::<Vec<_>>().join(" ");
        text += &format!("| `{}` | {} | {} | {meaning} |\n", row.name, row.value, row.unit);
    }
    text + "\n"
}

#[test]
fn the_documents_show_every_number_that_decides() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/decisions.md");
    let text = fs::read_to_string(path).expect("the document is there");
    let (head, rest) = text.split_once(BEGIN).expect("the table begins");
    let (shown, tail) = rest.split_once(END).expect("the table ends");
    if std::env::var("ISTHMUS_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(path, format!("{head}{BEGIN}{}{END}{tail}", table())).expect("it is ours");
    } else {
        assert!(
            shown == table(),
            "docs/decisions.md is old: ISTHMUS_GOLDEN=write cargo test -p isthmus-path"
        );
    }
}

#[test]
fn every_number_has_its_reason() {
    for row in TABLE {
        assert!(row.meaning.trim().len() > 10 && !row.unit.is_empty(), "{}::{}", row.decision, row.name);
    }
}
