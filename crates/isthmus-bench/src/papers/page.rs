//! The document's parts, as the sections write them, and its two forms: an HTML page, and Markdown with pictures.

use std::fmt::Write;

use crate::plot::{escaped, head, table};
use crate::table::Grid;

/// A block of a part.
#[derive(Clone, Debug)]
pub(crate) enum Block {
    Heading(String),
    /// A paragraph, with `code` between backquotes.
    Text(String),
    List(Vec<String>),
    Table(Grid),
    /// A picture: name of its file, title, contents.
    Picture {
        name: String,
        title: String,
        svg: String,
    },
}

impl Block {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn table(title: &str, head: &[&str], rows: Vec<Vec<String>>) -> Self {
        let head = head.iter().map(|cell| (*cell).to_owned()).collect();
        Self::Table(Grid { title: title.to_owned(), head, rows })
    }
}

/// A section of the document.
pub(crate) struct Part {
    pub(crate) title: String,
    pub(crate) blocks: Vec<Block>,
}

/// Prefix of the picture files' names.
const PICTURE: &str = "papers-";

pub(crate) fn html(title: &str, parts: &[Part]) -> String {
    let mut out = head(title);
    for Part { title, blocks } in parts {
        if !title.is_empty() {
            let _ = write!(out, "<h2>{}</h2>", escaped(title));
        }
        for block in blocks {
            match block {
                Block::Heading(text) => drop(write!(out, "<h3>{}</h3>", escaped(text))),
                Block::Text(text) => drop(write!(out, "<p>{}</p>", with_code(text))),
                Block::List(items) => {
                    out.push_str("<ul>");
                    for item in items {
                        let _ = write!(out, "<li>{}</li>", with_code(item));
                    }
                    out.push_str("</ul>");
                }
                Block::Table(grid) => table(&mut out, grid),
                Block::Picture { title, svg, .. } => {
                    let _ = write!(
                        out,
                        "<figure style=\"max-width:44rem\"><figcaption>{}</figcaption>{svg}</figure>",
                        escaped(title)
                    );
                }
            }
        }
    }
    out.push_str("</html>\n");
    out
}

/// Text as HTML, with code between backquotes marked up.
fn with_code(text: &str) -> String {
    let mut out = String::new();
    for (at, piece) in escaped(text).split('`').enumerate() {
        let _ = if at % 2 == 1 { write!(out, "<code>{piece}</code>") } else { write!(out, "{piece}") };
    }
    out
}

/// The document as Markdown, and its pictures: names of files in the folder `pictures`, and their contents.
pub(crate) fn markdown(title: &str, parts: &[Part]) -> (String, Vec<(String, String)>) {
    let mut out = format!("# {title}\n");
    let mut pictures = Vec::new();
    for Part { title, blocks } in parts {
        if !title.is_empty() {
            let _ = write!(out, "\n## {title}\n");
        }
        for block in blocks {
            out.push('\n');
            match block {
                Block::Heading(text) => drop(writeln!(out, "### {text}")),
                Block::Text(text) => drop(writeln!(out, "{}", folded(text, ""))),
                Block::List(items) => {
                    for item in items {
                        let _ = writeln!(out, "- {}", folded(item, "  "));
                    }
                }
                Block::Table(grid) => grid_text(&mut out, grid),
                Block::Picture { name, title, svg } => {
                    let file = format!("{PICTURE}{name}.svg");
                    let _ = writeln!(out, "![{title}](pictures/{file})");
                    pictures.push((file, svg.clone() + "\n"));
                }
            }
        }
    }
    (out, pictures)
}

/// Longest line in Markdown. Characters.
const WIDTH: usize = 120;

fn folded(text: &str, indent: &str) -> String {
    let (mut out, mut column) = (String::new(), indent.len());
    for word in words(text) {
        let length = word.chars().count();
        if column > indent.len() && column + 1 + length > WIDTH {
            let _ = write!(out, "\n{indent}");
            column = indent.len();
        } else if column > indent.len() {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word);
        column += length;
    }
    out
}

/// Splits at spaces, but not inside a `piece of code`.
fn words(text: &str) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match out.last_mut() {
            Some(last) if last.matches('`').count() % 2 == 1 => *last = format!("{last} {word}"),
            _ => out.push(word.to_owned()),
        }
    }
    out
}

fn grid_text(out: &mut String, Grid { title, head, rows }: &Grid) {
    if !title.is_empty() {
        let _ = writeln!(out, "{}:\n", folded(title, ""));
    }
    let line = |cells: &[String]| {
        let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |", cells.join(" | "))
    };
    let _ = writeln!(out, "{}\n|{}", line(head), "---|".repeat(head.len()));
    for row in rows {
        let _ = writeln!(out, "{}", line(row));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Part> {
        let svg = "<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>".to_owned();
        let blocks = vec![
            Block::text("Run `a <b>` now."),
            Block::table("Of it", &["who", "MB/s"], vec![vec!["a|b".into(), "1".into()]]),
            Block::Picture { name: "x".into(), title: "X".into(), svg },
        ];
        vec![Part { title: "One".into(), blocks }]
    }

    #[test]
    fn a_page_needs_no_other_file_and_shows_code_as_such() {
        let page = html("Papers", &parts());
        assert!(page.contains("<code>a &lt;b&gt;</code>") && page.contains("<svg xmlns"), "{page}");
        assert!(!page.contains("<img") && !page.contains("<script"), "{page}");
    }

    #[test]
    fn markdown_names_its_pictures_and_keeps_tables_whole() {
        let (text, pictures) = markdown("Papers", &parts());
        assert!(text.contains("\n| who | MB/s |\n|---|---|\n| a\\|b | 1 |\n"), "{text}");
        assert!(text.contains("![X](pictures/papers-x.svg)"), "{text}");
        assert_eq!(pictures.len(), 1);
        let long = folded(&"word ".repeat(60), "  ");
        assert!(long.lines().all(|line| line.chars().count() <= WIDTH), "{long}");
    }
}
