//! Faults of a text, each with its line and remedy.

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}; {remedy}")]
pub struct Fault {
    /// The file, as its reader named it.
    pub file: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The fault, with the value that was written.
    pub what: String,
    /// The remedy: a text to write instead.
    pub remedy: String,
}

/// Everything that is wrong with a text, in the order of its lines; at least one fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct Faults(pub Vec<Fault>);

fn lines(faults: &[Fault]) -> String {
    faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("\n")
}
