//! Separates the choices that Isthmus logs from the other lines of a program's standard error.

/// Most lines kept of one run. Count.
const KEPT: usize = 24;
/// Prefix of libfabric's log lines, and what precedes our text in libfabric's log and in our commands' log.
const LOG: &str = "libfabric:";
const OURS: [&str; 2] = [":isthmus:core:isthmus():0<info> ", "INFO isthmus_io: "];

/// The log of one run.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Choices {
    /// The first line of each kind, in order; at most [`KEPT`].
    pub(crate) lines: Vec<String>,
    /// All lines that belong to no log.
    pub(crate) complaints: String,
}

impl Choices {
    pub(crate) fn of(stderr: &str) -> Self {
        let mut out = Self::default();
        let mut kinds = Vec::new();
        for line in stderr.lines() {
            if let Some((_, choice)) = OURS.iter().find_map(|before| line.split_once(before)) {
                let choice = without_peer(choice);
                let kind = kind_of(choice);
                if !choice.starts_with("refused: ") && !kinds.contains(&kind) && kinds.len() < KEPT {
                    kinds.push(kind);
                    out.lines.push(choice.to_owned());
                }
            } else if !line.starts_with(LOG) {
                out.complaints += line;
                out.complaints.push('\n');
            }
        }
        out
    }

    /// The lanes' congestion control, such as "udp rate, tcp cubic, tcp bbr"; `None` if no line names a lane.
    pub(crate) fn congestion(&self) -> Option<String> {
        let mut found: Vec<String> = Vec::new();
        for line in &self.lines {
            let control = if let Some((_, composition)) = line.split_once("a lane by UDP with ") {
                let name = composition.split_once(" is ").and_then(|(_, made)| made.split(['+', ',']).next());
                format!("udp {}", name.unwrap_or("?"))
            } else if line.contains(", goes by TCP: ") {
                "tcp cubic".to_owned() // every TCP lane begins with it
            } else if line.starts_with("a lane by TCP with ") && line.contains(" takes bbr: ") {
                "tcp bbr".to_owned()
            } else {
                continue;
            };
            if !found.contains(&control) {
                found.push(control);
            }
        }
        (!found.is_empty()).then(|| found.join(", "))
    }
}

/// The choice without the peer's address: "isthmus://ADDRESS: DECISION" is the same for all peers.
fn without_peer(choice: &str) -> &str {
    match choice.starts_with("isthmus://") {
        true => choice.split_once(": ").map_or(choice, |(_, decision)| decision),
        false => choice,
    }
}

/// The choice without digits if it is about a lane: lanes of one kind differ in number, host and round trip.
fn kind_of(choice: &str) -> String {
    let is_of_lane = choice.starts_with("lane ") || choice.starts_with("a lane ");
    choice.chars().filter(|c| !(is_of_lane && c.is_ascii_digit())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_told_from_complaints_and_from_what_libfabric_says() {
        let log = "libfabric:1:17::core:core:fi_fabric_():1588<info> Opened fabric: isthmus\n\
                   libfabric:1:17:ofi_rxm:isthmus:core:isthmus():0<info> refused: serving as the core\n\
                   libfabric:1:17::isthmus:core:isthmus():0<info> a lane by UDP with 10.200.0.2 is rate+fixed, chosen\n\
                   libfabric:1:17::isthmus:core:isthmus():0<info> lane 0, dialled, goes by TCP: round trip 9 us\n\
                   libfabric:2:17::isthmus:core:isthmus():0<info> lane 1, dialled, goes by TCP: round trip 8 us\n\
                   libfabric:1:17::isthmus:core:isthmus():0<info> a lane by TCP with 10.200.0.2 takes bbr: losses\n\
                   libfabric:2:17::isthmus:core:isthmus():0<info> isthmus://0.0/10.0.0.1:5#a: streams: 4 carry: why\n\
                    INFO isthmus_io: isthmus://0.0/10.0.0.2:6#b: streams: 4 carry: why\n\
                    INFO isthmus_io: isthmus://0.0/10.0.0.2:6#b: streams: 8 carry: why\n\
                   isthmus lab: time is up\n";
        let choices = Choices::of(log);
        assert_eq!(choices.lines.len(), 5, "{choices:?}");
        assert_eq!(choices.lines[3..], ["streams: 4 carry: why", "streams: 8 carry: why"]);
        assert_eq!(choices.complaints, "isthmus lab: time is up\n");
        assert_eq!(choices.congestion().as_deref(), Some("udp rate, tcp cubic, tcp bbr"));
        assert_eq!(Choices::of("nothing\n").congestion(), None);
    }
}
