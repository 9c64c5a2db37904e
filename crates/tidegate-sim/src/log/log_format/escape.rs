//! How nginx escapes special bytes in a value.

use std::borrow::Cow;

use super::super::quoting::hex_escaped;

/// The value of `escape=`.
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
    /// Says whether a value stands for a missing one.
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
