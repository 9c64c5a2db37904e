//! Text for people, with highlighted parts: headings, and words that a reader looks for first.
//!
//! The text and its styles are kept apart until they are printed. So untrusted text is made safe first and cannot
//! style itself, and documents for programs never contain colours.

use std::fmt::Write as _;
use std::ops::{Add, Deref, Range};

use anstyle::{AnsiColor, Effects, Style};
use tidegate::visible;

/// The style of a highlighted part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The names of columns.
    Heading,
    /// Denied, failed, wrong.
    Bad,
    /// Neither good nor bad: would be denied, undecided, a warning.
    Doubtful,
    /// Allowed, passed.
    Good,
}

impl Look {
    /// Returns the style; the colours are those of clap's messages where clap has one.
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

/// A text and its highlighted parts, in order.
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

    /// Returns the text for a terminal: made safe, with styles around its parts.
    pub(crate) fn render(&self) -> String {
        let mut out = String::with_capacity(self.text.len() + 16 * self.parts.len());
        let mut done = 0;
        for (part, look) in &self.parts {
            let style = look.style();
            out.push_str(&visible::lines(&self.text[done..part.start]));
            // Writing to a string does not fail.
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

/// Gives the text without its styles.
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
}
