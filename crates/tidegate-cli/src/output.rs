//! How results are printed: one set of values, five forms.
//!
//! Everything printed passes here, and what a terminal acts on is written out: names, log lines and servers' answers come
//! from elsewhere.

use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use tidegate::visible;

use crate::args::{Color, Global, Output};

/// Prints results on standard output and remarks on standard error.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Output,
    color: ColorChoice,
    quiet: bool,
}

impl Printer {
    pub(crate) fn new(global: &Global) -> Self {
        let color = match global.color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        color.write_global();
        Self { format: global.output, color, quiet: global.quiet }
    }

    /// Says whether all columns are wanted.
    pub(crate) fn wide(&self) -> bool {
        self.format == Output::Wide
    }

    /// Says whether a progress bar helps: a person watches, and nobody asked for silence.
    pub(crate) fn progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Returns standard output, colours as asked for.
    pub(crate) fn out(&self) -> AutoStream<io::StdoutLock<'static>> {
        AutoStream::new(io::stdout(), self.color).lock()
    }

    /// Prints text meant for people.
    ///
    /// A reader that closes the pipe, as `head` does, has seen enough: that is no error, and the exit code is the verb's own.
    pub(crate) fn text(&self, text: &str) -> Result<()> {
        self.print(&visible::lines(text))
    }

    /// Prints a text in which nothing is hidden.
    fn print(&self, text: &str) -> Result<()> {
        let mut out = self.out();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let done = out.write_all(text.as_bytes()).and_then(|()| out.write_all(end.as_bytes()));
        match done.and_then(|()| out.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            done => Ok(done?),
        }
    }

    /// Prints a remark on standard error, unless asked to be quiet.
    pub(crate) fn remark(&self, text: &str) {
        if !self.quiet {
            error(text, self.color);
        }
    }

    /// Prints an error on standard error, whether quiet or not.
    pub(crate) fn error(&self, text: &str) {
        error(text, self.color);
    }

    /// Says whether remarks are wanted.
    pub(crate) fn remarks(&self) -> bool {
        !self.quiet
    }

    /// Prints on standard output what is meant for people only; [`Self::programs`] prints the same for programs.
    pub(crate) fn people(&self, text: &str) -> Result<()> {
        if matches!(self.format, Output::Table | Output::Wide) { self.text(text) } else { Ok(()) }
    }

    /// Prints a value where the form asked for is for programs; people have read it as a remark.
    pub(crate) fn programs<T: Serialize>(&self, value: &T) -> Result<()> {
        if matches!(self.format, Output::Table | Output::Wide) {
            return Ok(());
        }
        self.value(value, |_| Ok(String::new()))
    }

    /// Prints a value in the form asked for; `people` makes the text for the forms that people read.
    pub(crate) fn value<T: Serialize>(
        &self,
        value: &T,
        people: impl FnOnce(&Self) -> Result<String>,
    ) -> Result<()> {
        match self.format {
            Output::Table | Output::Wide => self.text(&people(self)?),
            Output::Json => self.print(&visible::json(&serde_json::to_string_pretty(value)?)),
            Output::Jsonl => self.print(&visible::json(&json_lines(&serde_json::to_value(value)?)?)),
            Output::Yaml => self.print(&yaml(value)?),
        }
    }
}

/// Prints a line on standard error. Nobody is left to tell when that is closed or full.
pub(crate) fn error(text: &str, color: ColorChoice) {
    let _ = writeln!(AutoStream::new(io::stderr(), color), "{}", visible::lines(text));
}

/// YAML quotes most of what a terminal acts on, and not marks of direction: a document that holds such is written as JSON,
/// which is YAML too.
fn yaml<T: Serialize>(value: &T) -> Result<String> {
    let text = serde_saphyr::to_string(value)?;
    if visible::lines(&text) == text {
        return Ok(text);
    }
    Ok(visible::json(&serde_json::to_string_pretty(value)?).into_owned())
}

/// A list becomes a line per element, anything else one line.
fn json_lines(value: &serde_json::Value) -> Result<String> {
    let serde_json::Value::Array(items) = value else { return Ok(serde_json::to_string(value)?) };
    let lines: Vec<String> = items.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(lines.join("\n"))
}

/// Lays out columns; those named in `right` are numbers and stand at the right.
pub(crate) fn table(header: &[&str], right: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for row in rows {
        // A line end within a cell would begin a row of its own.
        table.add_row(row.iter().map(|cell| visible::line(cell)));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 3));
        if right.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Writes a number with thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_for_people() {
        assert_eq!([0, 999, 1000, 1_204_331].map(thousands), ["0", "999", "1,000", "1,204,331"]);
    }

    #[test]
    fn a_cell_is_one_line_and_moves_no_cursor() {
        let drawn = table(&["KEY"], &[], [vec!["a\nFORGED\u{1b}[2J".to_owned()]]);
        assert_eq!(drawn.lines().count(), 2, "{drawn}");
        assert!(drawn.contains(r"a\nFORGED\u{1b}[2J"), "{drawn}");
    }

    #[test]
    fn yaml_hides_nothing() {
        let value = serde_json::json!({ "key": "a\u{202e}b\u{9b}\u{1b}" });
        let text = yaml(&value).unwrap();
        assert_eq!(visible::lines(&text), text);
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap(), value);
    }

    #[test]
    fn a_list_is_a_line_each() {
        assert_eq!(json_lines(&serde_json::json!([{"a": 1}, 2])).unwrap(), "{\"a\":1}\n2");
    }
}
