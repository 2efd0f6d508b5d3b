//! Manual pages of section 3, made from the header's comments.

use roff::{Inline, Roff, bold, italic, roman};

use super::header::{Call, Header};

const MANUAL: &str = "Isthmus";

/// The page of one call.
pub(super) fn page(header: &Header, call: &Call) -> String {
    let mut roff = start(&call.name, &summary(&call.comment));
    section(&mut roff, "SYNOPSIS");
    literal(&mut roff, &format!("#include <isthmus.h>\n\n{}", call.prototype));
    roff.text([italic("pkg-config --cflags --libs isthmus")]);
    section(&mut roff, "DESCRIPTION");
    roff.text(marked(&call.comment));
    section(&mut roff, "RETURN VALUE");
    if call.prototype.starts_with("int ") {
        roff.text([
            bold("ISTHMUS_SUCCESS"),
            roman(", or why the call was refused; then nothing has happened, and "),
            bold("isthmus_last_error"),
            roman("(3) has the whole text. Any of the statuses of "),
            bold("isthmus"),
            roman("(3) may be returned; these are named above:"),
        ]);
        let named = header.statuses.iter().filter(|(name, _)| mentions(&call.comment, name));
        named.for_each(|(name, meaning)| entry(&mut roff, name, meaning));
    } else {
        roff.text([roman("A text, which is the library's.")]);
    }
    let others = header.calls.iter().filter(|other| other.name != call.name);
    let related = others.filter(|other| mentions(&call.comment, &other.name));
    see_also(&mut roff, std::iter::once("isthmus").chain(related.map(|other| other.name.as_str())));
    roff.render()
}

/// The overview page: the header's preface, the calls, the statuses and the definitions.
pub(super) fn overview(header: &Header) -> String {
    let (title, paragraphs) = match header.preface.split_first() {
        Some((first, rest)) => (first.trim_start_matches("isthmus.h: ").trim_end_matches('.'), rest),
        None => ("", &[][..]),
    };
    let mut roff = start("isthmus", title);
    section(&mut roff, "SYNOPSIS");
    literal(&mut roff, "#include <isthmus.h>");
    roff.text([italic("pkg-config --cflags --libs isthmus")]);
    section(&mut roff, "DESCRIPTION");
    for paragraph in paragraphs {
        roff.control("PP", []);
        roff.text(marked(paragraph));
    }
    section(&mut roff, "CALLS");
    for call in &header.calls {
        entry(&mut roff, &format!("{}(3)", call.name), &format!("{}.", summary(&call.comment)));
    }
    section(&mut roff, "STATUSES");
    header.statuses.iter().for_each(|(name, meaning)| entry(&mut roff, name, meaning));
    section(&mut roff, "DEFINITIONS");
    header.definitions.iter().for_each(|definition| literal(&mut roff, definition));
    see_also(&mut roff, header.calls.iter().map(|call| call.name.as_str()));
    roff.render()
}

/// The summary of a call: the first sentence of its comment, up to its first stop.
pub(super) fn summary(comment: &str) -> String {
    let stops = [". ", "; ", ": ", " (", ", with ", ", as ", ", if ", ", of *"];
    let end = stops.iter().filter_map(|stop| comment.find(stop)).min().unwrap_or(comment.len());
    let mut text = comment[..end].trim_end_matches('.').to_owned();
    // Keep the case of a name in capitals.
    let name = text[1.min(text.len())..].starts_with(|c: char| c.is_ascii_uppercase());
    if let Some(first) = text.get_mut(..1).filter(|_| !name) {
        first.make_ascii_lowercase();
    }
    text
}

fn start(name: &str, about: &str) -> Roff {
    let mut roff = Roff::new();
    let version = concat!("isthmus ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [name, "3", "", version, MANUAL]);
    section(&mut roff, "NAME");
    roff.text([roman(format!("{name} - {about}"))]);
    roff
}

fn section(roff: &mut Roff, name: &str) {
    roff.control("SH", [name]);
}

fn literal(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    roff.control("nf", []);
    roff.text([roman(text)]);
    roff.control("fi", []);
    roff.control("PP", []);
}

fn entry(roff: &mut Roff, name: &str, meaning: &str) {
    roff.control("TP", []);
    roff.text([bold(name)]);
    roff.text(marked(meaning));
}

fn see_also<'a>(roff: &mut Roff, names: impl Iterator<Item = &'a str>) {
    section(roff, "SEE ALSO");
    let mut inlines = Vec::new();
    for name in names {
        if !inlines.is_empty() {
            inlines.push(roman(", "));
        }
        inlines.extend([bold(name), roman("(3)")]);
    }
    roff.text(inlines);
}

/// Sets names of calls and values in bold.
fn marked(text: &str) -> Vec<Inline> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut inlines = Vec::new();
    let mut rest = text;
    while let Some(start) = ["isthmus_", "ISTHMUS_"].iter().filter_map(|mark| rest.find(mark)).min() {
        let (before, name) = rest.split_at(start);
        let end = name.find(|c| !is_name(c)).unwrap_or(name.len());
        inlines.extend([roman(before), bold(&name[..end])]);
        rest = &name[end..];
    }
    inlines.push(roman(rest));
    inlines
}

/// Whether a text has `name` as a whole word.
fn mentions(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let next = text[at + name.len()..].chars().next();
        !next.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_every_call_fits_a_line() {
        let header = Header::read(super::super::HEADER).expect("understood");
        assert!(header.calls.len() >= 21, "{}", header.calls.len());
        for call in &header.calls {
            let about = summary(&call.comment);
            assert!((10..=80).contains(&about.len()), "{}: {about}", call.name);
        }
    }

    #[test]
    fn a_page_says_what_the_comment_says() {
        let header = Header::read(super::super::HEADER).expect("understood");
        let send = header.calls.iter().find(|call| call.name == "isthmus_send").expect("a call");
        let page = page(&header, send);
        for part in ["isthmus_send \\- sends a message", "const void *message", "ISTHMUS_FULL", "SEE ALSO"] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("ISTHMUS_REJECTED"), "it concerns another call");
        let overview = overview(&header);
        assert!(header.calls.iter().all(|call| overview.contains(&call.name)));
        assert!(header.statuses.iter().all(|(name, _)| overview.contains(name)));
    }
}
