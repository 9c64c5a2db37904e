//! Text for people, with highlighted parts.
//!
//! The text and its styles are kept apart until they are printed. So untrusted text is made safe first and cannot style
//! itself, and documents for programs never contain colours.

use std::fmt::Write as _;
use std::ops::{Add, Deref, Range};

use anstyle::{AnsiColor, Effects, Style};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde_json::Value;
use tidegate::visible;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Heading,
    /// Denied, failed, wrong.
    Bad,
    /// Neither good nor bad: would be denied, undecided, a warning.
    Doubtful,
    /// Allowed, passed.
    Good,
}

impl Look {
    /// Those of clap's messages where clap has one.
    fn style(self) -> Style {
        let color = |color: AnsiColor| Style::new().fg_color(Some(color.into())).effects(Effects::BOLD);
        match self {
            Self::Heading => Style::new().effects(Effects::BOLD),
            Self::Bad => color(AnsiColor::Red),
            Self::Doubtful => color(AnsiColor::Yellow),
            Self::Good => color(AnsiColor::Green),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Styled {
    text: String,
    parts: Vec<(Range<usize>, Look)>,
}

impl Styled {
    pub(crate) fn push(&mut self, more: impl Into<Self>) {
        let more = more.into();
        let from = self.text.len();
        self.text.push_str(&more.text);
        self.parts
            .extend(more.parts.into_iter().map(|(part, look)| (part.start + from..part.end + from, look)));
    }

    pub(crate) fn push_as(&mut self, look: Look, text: &str) {
        let from = self.text.len();
        self.text.push_str(text);
        self.parts.push((from..self.text.len(), look));
    }

    /// For a terminal: made safe, with styles around its parts.
    pub(crate) fn render(&self) -> String {
        let mut out = String::with_capacity(self.text.len() + 16 * self.parts.len());
        let mut done = 0;
        for (part, look) in &self.parts {
            let style = look.style();
            out.push_str(&visible::lines(&self.text[done..part.start]));
            let _ = write!(out, "{style}{}{style:#}", visible::lines(&self.text[part.clone()]));
            done = part.end;
        }
        out.push_str(&visible::lines(&self.text[done..]));
        out
    }
}

impl From<String> for Styled {
    fn from(text: String) -> Self {
        Self { text, parts: Vec::new() }
    }
}

impl From<&str> for Styled {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// The text without its styles.
impl Deref for Styled {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl Add<&str> for Styled {
    type Output = Self;

    fn add(mut self, more: &str) -> Self {
        self.text.push_str(more);
        self
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: String,
    look: Option<Look>,
}

impl Cell {
    /// Highlighted if it has a look.
    pub(crate) fn looking(text: String, look: Option<Look>) -> Self {
        Self { text, look }
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, look: None }
    }
}

/// Of a server's answer: `-` if it is absent or empty.
pub(crate) fn text(value: &Value) -> String {
    value.as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

/// The columns in `right` are numbers. The header is styled as a heading.
pub(crate) fn table<C: Into<Cell>>(
    header: &[&str],
    right: &[usize],
    rows: impl IntoIterator<Item = Vec<C>>,
) -> Styled {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    let mut cells: Vec<Vec<Cell>> = Vec::new();
    for row in rows {
        let mut row: Vec<Cell> = row.into_iter().map(Into::into).collect();
        for cell in &mut row {
            // It would start another row.
            cell.text = visible::line(&cell.text).into_owned();
        }
        table.add_row(row.iter().map(|cell| &cell.text));
        cells.push(row);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 3));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let drawn = table.trim_fmt();
    let mut out = Styled::default();
    for (at, line) in drawn.lines().enumerate() {
        if at > 0 {
            out.push("\n");
        }
        match at.checked_sub(1).and_then(|row| cells.get(row)) {
            None => out.push_as(Look::Heading, line),
            Some(row) => out.push(styled(line, row)),
        }
    }
    out
}

/// The cells are in order and separated by blanks.
fn styled(line: &str, row: &[Cell]) -> Styled {
    let (mut out, mut rest) = (Styled::default(), line);
    for cell in row {
        let Some((before, after)) = rest.split_once(&cell.text) else { break };
        out.push(before);
        match cell.look {
            Some(look) => out.push_as(look, &cell.text),
            None => out.push(&*cell.text),
        }
        rest = after;
    }
    out.push(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_their_place_and_text_cannot_style_itself() {
        let mut text = Styled::from("a \u{1b}[1m");
        text.push_as(Look::Bad, "DENIED\u{1b}[0m");
        let mut whole = Styled::from("é ");
        whole.push(text);
        whole.push(" end\n");
        assert_eq!(&*whole, "é a \u{1b}[1mDENIED\u{1b}[0m end\n");
        assert_eq!(whole.render(), "é a \\u{1b}[1m\u{1b}[1m\u{1b}[31mDENIED\\u{1b}[0m\u{1b}[0m end\n");
    }

    #[test]
    fn a_cell_is_one_line_and_moves_no_cursor() {
        let drawn = table(&["KEY"], &[], [vec!["a\nFORGED\u{1b}[2J".to_owned()]]);
        assert_eq!(drawn.lines().count(), 2, "{:?}", &*drawn);
        assert!(drawn.contains(r"a\nFORGED\u{1b}[2J"), "{:?}", &*drawn);
    }

    #[test]
    fn the_cell_that_stands_out_is_styled_and_not_one_of_the_same_text() {
        let cell = |text: &str| Cell::from(text.to_owned());
        let bad = Cell::looking("7".to_owned(), Some(Look::Bad));
        let drawn = table(&["A", "B", "C"], &[1], [vec![cell("7"), bad, cell("7")]]);
        assert_eq!(&*drawn, "A   B   C\n7   7   7");
        assert_eq!(drawn.render(), "\u{1b}[1mA   B   C\u{1b}[0m\n7   \u{1b}[1m\u{1b}[31m7\u{1b}[0m   7");
    }
}
