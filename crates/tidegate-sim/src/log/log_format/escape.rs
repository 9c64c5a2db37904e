//! How nginx writes a value that has bytes which would spoil the line.

use std::borrow::Cow;

use super::super::quoting::hex_escaped;

/// The word behind `escape=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escape {
    /// `\xHH` for quotes, backslashes, control characters and bytes from 0x7F on; `-` where there is no value.
    Default,
    /// As in a string of JSON.
    Json,
    /// As it came.
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
    /// Says whether a value stands for nothing.
    pub(super) fn is_nothing(self, value: &[u8]) -> bool {
        value.is_empty() || (self == Self::Default && value == b"-")
    }

    /// Returns a value as it was before it was written; what is no escape stays.
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
