//! Prints results: the same values in five formats.
//!
//! All output passes through here, and characters that a terminal acts on are escaped: names, log lines and answers of
//! servers are untrusted.

use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use anyhow::Result;
use clap::ValueEnum as _;
use serde::Serialize;
use tidegate::visible;

use crate::args::{Color, Global, Output};
use crate::styled::{Look, Styled};

/// The cursor goes to the upper left corner, and what is below is cleared.
const CLEAR: &[u8] = b"\x1b[H\x1b[J";

/// Results on standard output and remarks on standard error.
#[derive(Debug)]
pub(crate) struct Printer {
    format: Output,
    color: ColorChoice,
    quiet: bool,
}

impl Printer {
    pub(crate) fn new(global: &Global) -> Self {
        let color = choice(global.color);
        color.write_global();
        Self { format: global.output, color, quiet: global.quiet }
    }

    pub(crate) fn silent(&self) -> Self {
        Self { quiet: true, ..*self }
    }

    pub(crate) fn wide(&self) -> bool {
        self.format == Output::Wide
    }

    /// Says whether to show a progress bar: standard error is a terminal, and `--quiet` is not set.
    pub(crate) fn progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    pub(crate) fn out(&self) -> AutoStream<io::StdoutLock<'static>> {
        AutoStream::new(io::stdout(), self.color).lock()
    }

    /// A reader that closes the pipe, as `head` does, has read enough: the exit code is the verb's own.
    pub(crate) fn text(&self, text: impl Into<Styled>) -> Result<()> {
        self.print(&text.into().render())
    }

    /// The text is safe already; its styles are removed if colours are not wanted.
    pub(crate) fn print(&self, text: &str) -> Result<()> {
        match self.write(text) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            done => Ok(done?),
        }
    }

    /// Fails if the reader has closed the pipe: for verbs that print until then.
    fn write(&self, text: &str) -> io::Result<()> {
        let mut out = self.out();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        out.write_all(text.as_bytes())?;
        out.write_all(end.as_bytes())?;
        out.flush()
    }

    pub(crate) fn is_for_people(&self) -> bool {
        matches!(self.format, Output::Table | Output::Wide)
    }

    /// Says whether a format can have several results, one after the other: JSON and YAML are one document.
    pub(crate) fn repeats(&self) -> bool {
        !matches!(self.format, Output::Json | Output::Yaml)
    }

    /// Says whether a format can have a line for each of several results: YAML cannot.
    pub(crate) fn has_lines(&self) -> bool {
        self.format != Output::Yaml
    }

    /// One of many values: a line each, in JSON one object.
    ///
    /// # Errors
    /// Also if the reader has closed the pipe, since nothing else might end the verb.
    pub(crate) fn line<T: Serialize, P: Into<Styled>>(
        &self,
        value: &T,
        people: impl FnOnce(&Self) -> Result<P>,
    ) -> Result<()> {
        let text = match self.format {
            Output::Json => visible::json(&serde_json::to_string(value)?).into_owned(),
            _ => self.form(value, people)?,
        };
        Ok(self.write(&text)?)
    }

    /// Says whether standard output shows colours.
    #[cfg(feature = "tui")]
    pub(crate) fn shows_colors(&self) -> bool {
        AutoStream::new(io::stdout(), self.color).current_choice() != ColorChoice::Never
    }

    /// A value that is printed again and again. On a terminal it replaces the one before.
    ///
    /// # Errors
    /// Also if the reader has closed the pipe, since nothing else might end the verb.
    pub(crate) fn again<T: Serialize, P: Into<Styled>>(
        &self,
        value: &T,
        people: impl FnOnce(&Self) -> Result<P>,
    ) -> Result<()> {
        let text = self.form(value, people)?;
        if self.is_read() && std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb") {
            // `out` removes escape sequences if colours are not wanted.
            io::stdout().lock().write_all(CLEAR)?;
        }
        Ok(self.write(&text)?)
    }

    /// Prints a remark on standard error, unless asked to be quiet.
    pub(crate) fn remark(&self, text: &str) {
        if !self.quiet {
            say(&visible::lines(text), self.color);
        }
    }

    /// Whether quiet or not.
    pub(crate) fn error(&self, text: &str) {
        say(&error(text).render(), self.color);
    }

    /// The text is safe already; printed whether quiet or not.
    pub(crate) fn say(&self, text: &str) {
        say(text, self.color);
    }

    /// Says whether a person reads the result: standard output is a terminal, and the format is one for people.
    pub(crate) fn is_read(&self) -> bool {
        self.is_for_people() && io::stdout().is_terminal()
    }

    /// Mistakes in files are shown with their lines on a terminal, or if colours were requested. Otherwise each is one
    /// line, which programs can parse.
    pub(crate) fn shows_lines(&self, stream: &impl IsTerminal) -> bool {
        self.color == ColorChoice::Always || stream.is_terminal()
    }

    pub(crate) fn remarks(&self) -> bool {
        !self.quiet
    }

    /// Prints text on standard output in the formats for people; [`Self::programs`] prints the same for programs.
    pub(crate) fn people(&self, text: impl Into<Styled>) -> Result<()> {
        if self.is_for_people() { self.text(text) } else { Ok(()) }
    }

    /// Prints a value in the formats for programs; people get it as a remark.
    pub(crate) fn programs<T: Serialize>(&self, value: &T) -> Result<()> {
        if self.is_for_people() {
            return Ok(());
        }
        self.value(value, |_| Ok(String::new()))
    }

    /// Prints a value in the requested format; `people` makes the text for the formats that people read.
    pub(crate) fn value<T: Serialize, P: Into<Styled>>(
        &self,
        value: &T,
        people: impl FnOnce(&Self) -> Result<P>,
    ) -> Result<()> {
        self.print(&self.form(value, people)?)
    }

    /// Formats a value in the requested format, as safe text.
    fn form<T: Serialize, P: Into<Styled>>(
        &self,
        value: &T,
        people: impl FnOnce(&Self) -> Result<P>,
    ) -> Result<String> {
        Ok(match self.format {
            Output::Table | Output::Wide => people(self)?.into().render(),
            Output::Json => visible::json(&serde_json::to_string_pretty(value)?).into_owned(),
            Output::Jsonl => visible::json(&json_lines(&serde_json::to_value(value)?)?).into_owned(),
            Output::Yaml => yaml(value)?,
        })
    }
}

fn choice(color: Color) -> ColorChoice {
    match color {
        Color::Auto => ColorChoice::Auto,
        Color::Always => ColorChoice::Always,
        Color::Never => ColorChoice::Never,
    }
}

/// Returns the value of `--color` when the command line could not be parsed.
pub(crate) fn typed_color() -> ColorChoice {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let joined = words.iter().filter_map(|word| word.strip_prefix("--color="));
    let apart = words.windows(2).filter(|pair| pair[0] == "--color").map(|pair| pair[1].as_str());
    let said = joined.chain(apart).find_map(|word| Color::from_str(word, false).ok());
    said.map_or(ColorChoice::Auto, choice)
}

pub(crate) fn error(text: &str) -> Styled {
    let mut error = Styled::default();
    error.push_as(Look::Bad, "error:");
    error.push(format!(" {text}"));
    error
}

/// The text is safe already. Failures could not be reported.
pub(crate) fn say(text: &str, color: ColorChoice) {
    let _ = writeln!(AutoStream::new(io::stderr(), color), "{}", text.trim_end_matches('\n'));
}

/// Formats a value as YAML. YAML quotes most characters that a terminal acts on, but not marks of direction: a document
/// that contains those is written as JSON, which is valid YAML.
fn yaml<T: Serialize>(value: &T) -> Result<String> {
    let text = serde_saphyr::to_string(value)?;
    if visible::lines(&text) == text {
        return Ok(text);
    }
    Ok(visible::json(&serde_json::to_string_pretty(value)?).into_owned())
}

/// A list has a line per element, anything else is one line.
fn json_lines(value: &serde_json::Value) -> Result<String> {
    let serde_json::Value::Array(items) = value else { return Ok(serde_json::to_string(value)?) };
    let lines: Vec<String> = items.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

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
