//! Extracts the format from a directive of `nginx.conf`, with quotes and backslashes read as nginx reads them.

use std::borrow::Cow;

use super::super::csv::hex_escaped;
use super::LogFormatError;

pub(super) struct Directive {
    pub(super) escape: Escape,
    pub(super) format: Vec<(u8, usize)>,
}

const WORD: &str = "log_format";

impl Directive {
    pub(super) fn read(text: &str) -> Result<Self, LogFormatError> {
        let mut words = Words { text, at: 0 };
        words.skip_blanks();
        let is_whole = text[words.at..].strip_prefix(WORD).is_some_and(|rest| rest.starts_with(blank));
        if is_whole { words.directive() } else { words.alone() }
    }
}

fn blank(char: char) -> bool {
    char.is_ascii_whitespace()
}

struct Words<'t> {
    text: &'t str,
    at: usize,
}

impl Words<'_> {
    fn rest(&self) -> &[u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn error(&self, at: usize, what: impl Into<String>) -> LogFormatError {
        LogFormatError::at(self.text, at, what)
    }

    fn skip_blanks(&mut self) {
        while let Some(first) =
            self.rest().first().filter(|byte| byte.is_ascii_whitespace() || **byte == b'#')
        {
            let line = self.rest().iter().position(|byte| *byte == b'\n').unwrap_or(self.rest().len());
            self.at += if *first == b'#' { line } else { 1 };
        }
    }

    /// Reads `log_format NAME [escape=WORD] TEXT ...;`.
    fn directive(&mut self) -> Result<Directive, LogFormatError> {
        self.at += WORD.len();
        let (mut escape, mut format, mut count) = (Escape::Default, Vec::new(), 0);
        loop {
            self.skip_blanks();
            let (start, before) = (self.at, format.len());
            match self.rest().first() {
                None => break,
                Some(b';') => {
                    self.at += 1;
                    self.skip_blanks();
                    if !self.rest().is_empty() {
                        return Err(self.error(self.at, "something follows the `;`; give one log_format"));
                    }
                    break;
                }
                Some(quote @ (b'\'' | b'"')) => self.quoted(*quote, &mut format)?,
                Some(_) => self.bare(&mut format),
            }
            // An `escape=` word may follow the name.
            if count == 0 {
                format.clear();
            } else if let Some(word) = self.text[start..self.at].strip_prefix("escape=")
                && before == 0
            {
                escape = self.escape(word, start)?;
                format.clear();
            }
            count += 1;
        }
        if format.is_empty() {
            return Err(self.error(self.text.len(), "the format is missing: log_format NAME '…';"));
        }
        Ok(Directive { escape, format })
    }

    /// The whole text after an optional `escape=WORD `.
    fn alone(&mut self) -> Result<Directive, LogFormatError> {
        let mut escape = Escape::Default;
        if self.rest().starts_with(b"escape=") {
            let word = self.text[self.at..].split(blank).next().unwrap_or("");
            escape = self.escape(&word["escape=".len()..], self.at)?;
            self.at += word.len();
            self.skip_blanks();
        }
        let mut format = Vec::new();
        // They come from the shell or the editor.
        let end = self.text.trim_end_matches(['\r', '\n']).len().max(self.at);
        while self.at < end {
            self.byte(&mut format);
        }
        if format.is_empty() {
            return Err(self.error(
                end,
                "the format is missing; write it as nginx does: '$time_iso8601 $remote_addr …'",
            ));
        }
        Ok(Directive { escape, format })
    }

    fn escape(&self, word: &str, at: usize) -> Result<Escape, LogFormatError> {
        word.parse().map_err(|()| {
            self.error(at, format!("escape={word} is none that nginx has; possible are default, json, none"))
        })
    }

    fn quoted(&mut self, quote: u8, format: &mut Vec<(u8, usize)>) -> Result<(), LogFormatError> {
        let open = self.at;
        self.at += 1;
        loop {
            match self.rest().first() {
                None => return Err(self.error(open, "this quote is never closed")),
                Some(byte) if *byte == quote => break,
                Some(_) => self.byte(format),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn bare(&mut self, format: &mut Vec<(u8, usize)>) {
        while self.rest().first().is_some_and(|byte| !byte.is_ascii_whitespace() && *byte != b';') {
            self.byte(format);
        }
    }

    /// A backslash escape stands for one byte.
    fn byte(&mut self, format: &mut Vec<(u8, usize)>) {
        let (byte, length) = match self.rest() {
            [b'\\', b't', ..] => (b'\t', 2),
            [b'\\', b'n', ..] => (b'\n', 2),
            [b'\\', b'r', ..] => (b'\r', 2),
            [b'\\', escaped @ (b'\\' | b'\'' | b'"'), ..] => (*escaped, 2),
            [byte, ..] => (*byte, 1),
            [] => return,
        };
        format.push((byte, self.at));
        self.at += length;
    }
}

/// How nginx escapes special bytes in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// `\xHH` for quotes, backslashes, control characters and bytes from 0x7F on; `-` for a missing value.
    Default,
    /// As in a JSON string.
    Json,
    /// Unchanged.
    None,
}

impl std::str::FromStr for Escape {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        match word {
            "default" => Ok(Self::Default),
            "json" => Ok(Self::Json),
            "none" => Ok(Self::None),
            _ => Err(()),
        }
    }
}

impl Escape {
    pub(super) fn is_nothing(self, value: &[u8]) -> bool {
        value.is_empty() || (self == Self::Default && value == b"-")
    }

    /// Undoes the escapes in a value. Invalid escapes stay as they are.
    pub(super) fn undo(self, value: &[u8]) -> Cow<'_, [u8]> {
        if self == Self::None || memchr::memchr(b'\\', value).is_none() {
            return Cow::Borrowed(value);
        }
        if self == Self::Default {
            return Cow::Owned(hex_undone(value));
        }
        let string = [b"\"", value, b"\""].concat();
        match serde_json::from_slice::<String>(&string) {
            Ok(text) => Cow::Owned(text.into_bytes()),
            Err(_) => Cow::Borrowed(value),
        }
    }
}

fn hex_undone(mut value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    while let [first, rest @ ..] = value {
        let (byte, after) = hex_escaped(value).unwrap_or((*first, rest));
        out.push(byte);
        value = after;
    }
    out
}
