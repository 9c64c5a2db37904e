//! How access logs quote texts, and write that there is none.

/// Returns the bytes, empty for the `-` that stands for nothing.
pub(super) fn known(bytes: &[u8]) -> &[u8] {
    if bytes == b"-" { b"" } else { bytes }
}

/// Says whether what follows these bytes is escaped: an odd number of backslashes.
pub(super) fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Takes one quoted text off the front; empty when there is none.
pub(super) fn quoted(text: &[u8]) -> (&[u8], &[u8]) {
    let [b'"', rest @ ..] = text.trim_ascii_start() else { return (b"", b"") };
    let ends = memchr::memchr_iter(b'"', rest);
    match ends.into_iter().find(|close| !is_escaped(&rest[..*close])) {
        Some(close) => (&rest[..close], &rest[close + 1..]),
        None => (rest, b""),
    }
}
