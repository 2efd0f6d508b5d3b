//! Compares a table of results with the stored one. A value may improve. The test fails if one falls below its floor:
//! the stored value less what the table allows.
//!
//! With `ISTHMUS_GOLDEN=write` a test stores its table anew, and prints the old and the new rows. With
//! `ISTHMUS_GOLDEN=same` every row must be as stored, for a change that should not change any behaviour.

use std::path::Path;

/// How the values of a row are judged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Better {
    /// More is better. The floor is this much less than the stored value, and at least nine tenths of it.
    More(f64),
    /// Less is better. The limit is this much more than the stored value.
    Less(f64),
    /// A change of any kind is a change of behaviour.
    Same,
    /// The value only accompanies others, or the test compares it with bounds of its own.
    Either,
}

/// Compares the table in the file `kept`, below the crate's folder, with this one. The values of a row are judged in
/// turn by `better`, which begins again behind its last one.
pub(crate) fn compare(folder: &str, kept: &str, new: &str, better: &[Better]) {
    let path = Path::new(folder).join(kept);
    let golden = std::env::var("ISTHMUS_GOLDEN").unwrap_or_default();
    let old = std::fs::read_to_string(&path).unwrap_or_default();
    for (old, new) in old.lines().zip(new.lines()).filter(|(old, new)| old != new) {
        println!("- {old}\n+ {new}");
    }
    if golden == "write" {
        std::fs::write(&path, new).expect("the table can be written");
        return;
    }
    assert!(golden != "same" || old == new, "{kept}: behaviour has changed");
    let worse = worse(&old, new, better);
    assert!(worse.is_empty(), "{kept}: below its floor; if it is meant, write the table anew: {worse:#?}");
}

/// Lists the values that are worse in the new table.
fn worse(old: &str, new: &str, better: &[Better]) -> Vec<String> {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    if old.len() != new.len() {
        return vec![format!("{} rows, not {}", new.len(), old.len())];
    }
    old.iter().zip(new).flat_map(|(old, new)| worse_row(old, new, better)).collect()
}

/// The same of a row: its label, and behind it words and values. Words must be equal.
fn worse_row(old: &str, new: &str, better: &[Better]) -> Vec<String> {
    let ((label, before), (new_label, now)) = (parts(old), parts(new));
    if label != new_label || before.len() != now.len() {
        return vec![format!("{new}, not {old}")];
    }
    let mut judges = better.iter().cycle();
    let mut worse = Vec::new();
    for (before, now) in before.into_iter().zip(now) {
        let is_worse = match (value(before), value(now)) {
            (Some(before), Some(now)) => match judges.next().expect("a judge for each value") {
                Better::More(slack) => now < before - slack.min(before * MORE_PART) - ROUNDING,
                Better::Less(slack) => now > before + slack + ROUNDING,
                Better::Same => (now - before).abs() > ROUNDING,
                Better::Either => false,
            },
            _ => before != now,
        };
        if is_worse {
            worse.push(format!("{label}: {now}, not {before}"));
        }
    }
    worse
}

/// Largest part of a stored value that its floor may lie below it: the floor of a small value must be able to fail, too.
const MORE_PART: f64 = 0.1;
/// A value may be at its limit: decimal fractions are not exact.
const ROUNDING: f64 = 1e-9;

/// The label of a row, which two spaces end, and its other words.
fn parts(row: &str) -> (&str, Vec<&str>) {
    let (label, rest) = row.trim_start().split_once("  ").unwrap_or((row.trim(), ""));
    (label, rest.split_whitespace().collect())
}

/// A word as value: a number with decimals, perhaps in brackets. Numbers without are such as an MTU.
fn value(word: &str) -> Option<f64> {
    let number = word.trim_matches(['(', ')']);
    if number.contains('.') { number.parse().ok() } else { None }
}

#[test]
fn a_row_may_improve_and_fails_below_its_floor() {
    let old = "Title 0.5.\n\nRTT ms       24    100\n0.1 % lost  9000  0.90 6.0 (0.5)  0.80 5.0 (0.5)\n";
    let judges = [Better::More(0.02), Better::Less(0.5), Better::Either];
    assert_eq!(worse(old, &old.replace("0.90", "0.91"), &[Better::Same]), ["0.1 % lost: 0.91, not 0.90"]);
    assert_eq!(worse("a  0.020\n", "a  0.018\n", &judges), [""; 0]);
    assert_eq!(worse("a  0.020\n", "a  0.017\n", &judges), ["a: 0.017, not 0.020"]);
    let worse = |from: &str, to: &str| worse(old, &old.replacen(from, to, 1), &judges);
    for (from, to) in [
        ("0.90", "0.99"),
        ("0.90", "0.88"),
        ("0.80", "0.78"),
        ("6.0", "6.5"),
        ("5.0", "1.0"),
        ("(0.5)", "(0.1)"),
    ] {
        assert_eq!(worse(from, to), [""; 0], "{from} to {to}");
    }
    for (from, to) in [("0.90", "0.87"), ("0.80", "0.77"), ("6.0", "6.6"), ("5.0", "5.6")] {
        assert_eq!(worse(from, to), [format!("0.1 % lost: {to}, not {from}")]);
    }
    for (from, to) in [
        ("9000", "1500"),
        ("0.1 %", "0.2 %"),
        ("24", "25"),
        ("Title 0.5", "Title 0.6"),
        ("0.90 ", ""),
        ("100\n", "100\n\n"),
    ] {
        assert_eq!(worse(from, to).len(), 1, "{from} to {to}");
    }
}
