//! Reads `isthmus.h`: its calls, statuses and definitions, each with its comment.
//!
//! A comment belongs to the item that follows it directly. This is no parser of C: the header is ours, and an unknown
//! construct is an error.

/// The declarations of the header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    /// The first comment: a title and paragraphs.
    pub(super) preface: Vec<String>,
    pub(super) calls: Vec<Call>,
    /// Values of `enum isthmus_status`, each with its meaning.
    pub(super) statuses: Vec<(String, String)>,
    /// Text of the enumerations and structures, comments included.
    pub(super) definitions: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    /// Its text in the header.
    pub(super) prototype: String,
    pub(super) comment: String,
}

impl Header {
    /// # Errors
    /// If it finds an unknown construct.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut header = Self::default();
        let mut comment: Option<String> = None;
        let mut rest = text;
        while let Some(start) = next_item(rest) {
            rest = &rest[start..];
            if let Some(inside) = rest.strip_prefix("/*") {
                let end = inside.find("*/").ok_or("a comment without an end")?;
                if header.preface.is_empty() {
                    header.preface = paragraphs(&inside[..end]);
                } else {
                    comment = Some(paragraphs(&inside[..end]).join(" "));
                }
                rest = &inside[end + 2..];
                continue;
            }
            let item = &rest[..item_length(rest)?];
            header.take(item, comment.take())?;
            rest = &rest[item.len()..];
        }
        Ok(header)
    }

    fn take(&mut self, item: &str, comment: Option<String>) -> Result<(), String> {
        let first = item.lines().next().unwrap_or_default();
        if first.starts_with('#') || first.starts_with("extern \"C\"") || first.starts_with('}') {
            return Ok(());
        }
        if first.starts_with("enum ") || first.starts_with("typedef ") {
            if first.starts_with("enum isthmus_status") {
                self.statuses = statuses(item)?;
            }
            let comment = comment.map(|text| format!("/* {text} */\n")).unwrap_or_default();
            self.definitions.push(format!("{}{item}", wrapped(&comment)));
            return Ok(());
        }
        let (before, _) = item.split_once('(').ok_or_else(|| format!("not understood: {first}"))?;
        let name = before.rsplit([' ', '*']).next().unwrap_or_default().to_owned();
        let comment = comment.ok_or_else(|| format!("{name} has no comment"))?;
        self.calls.push(Call { name, prototype: item.to_owned(), comment });
        Ok(())
    }
}

/// Position of the next item.
fn next_item(text: &str) -> Option<usize> {
    text.find(|c: char| !c.is_whitespace())
}

/// Length of an item: to the end of the line for a directive or closing brace, or to the end of a declaration.
fn item_length(text: &str) -> Result<usize, String> {
    let line = text.find('\n').unwrap_or(text.len());
    if text.starts_with('#') || text.starts_with("extern \"C\"") || text.starts_with('}') {
        return Ok(line);
    }
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ';' if depth == 0 => return Ok(at + 1),
            _ => {}
        }
    }
    Err(format!("a declaration without an end: {}", &text[..line]))
}

/// A comment's paragraphs, without comment marks.
fn paragraphs(comment: &str) -> Vec<String> {
    let lines = comment.lines().map(|line| line.trim().trim_start_matches('*').trim());
    let mut out = vec![String::new()];
    for line in lines {
        if line.is_empty() {
            out.push(String::new());
        } else if let Some(last) = out.last_mut() {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(line);
        }
    }
    out.retain(|paragraph| !paragraph.is_empty());
    out
}

fn statuses(item: &str) -> Result<Vec<(String, String)>, String> {
    let mut out: Vec<(String, String)> = Vec::new();
    let mut comment = "It is done.".to_owned();
    let mut inside: Option<String> = None;
    for line in item.lines().skip(1).map(str::trim) {
        if let Some(text) = line.strip_prefix("/*") {
            inside = Some(String::new());
            comment = text.trim().to_owned();
        } else if inside.is_some() {
            comment = format!("{comment} {}", line.trim_start_matches('*').trim());
        } else if let Some((name, _)) = line.split_once(" = ") {
            out.push((name.to_owned(), comment.clone()));
        }
        if line.ends_with("*/") {
            inside = None;
            comment = comment.trim_end_matches("*/").trim().to_owned();
        }
    }
    if out.is_empty() { Err("no statuses".to_owned()) } else { Ok(out) }
}

/// Wraps a comment to the width of a page.
fn wrapped(comment: &str) -> String {
    let (mut out, mut length) = (String::new(), 0);
    for word in comment.split_whitespace() {
        if length > 0 && length + 1 + word.len() > 76 {
            out.push_str("\n * ");
            length = 3;
        } else if length > 0 {
            out.push(' ');
            length += 1;
        }
        out.push_str(word);
        length += word.len();
    }
    if !out.is_empty() {
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "/*\n * isthmus.h: a title.\n *\n * More of it.\n */\n#ifndef X\n\n\
        /* What calls return. */\nenum isthmus_status {\n    ISTHMUS_SUCCESS = 0,\n    /* Of two\n     * lines. */\n    \
        ISTHMUS_AGAIN = 1\n};\n\n/* Does a thing; at\n * once. */\nint isthmus_do(int a,\n               int b);\n#endif\n";

    #[test]
    fn calls_statuses_and_definitions_are_found_with_their_comments() {
        let header = Header::read(SMALL).expect("understood");
        assert_eq!(header.preface, ["isthmus.h: a title.", "More of it."]);
        let call = Call {
            name: "isthmus_do".to_owned(),
            prototype: "int isthmus_do(int a,\n               int b);".to_owned(),
            comment: "Does a thing; at once.".to_owned(),
        };
        assert_eq!(header.calls, [call]);
        let status = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        assert_eq!(
            header.statuses,
            [status("ISTHMUS_SUCCESS", "It is done."), status("ISTHMUS_AGAIN", "Of two lines.")]
        );
        assert!(header.definitions[0].starts_with("/* What calls return. */\nenum isthmus_status {"));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        assert!(Header::read("/* T. */\nint isthmus_do(void);\n").is_err(), "no comment of its own");
        assert!(Header::read("/* T. */\nint isthmus_do(void)\n").is_err(), "no end");
        assert!(Header::read("/* T.\n").is_err());
    }
}
