//! Names of policies in headers.

use percent_encoding::percent_encode_byte;

/// Appends a name escaped as in a path, so that it may stand between quotes of any language; cut after `most` bytes, between letters. Says
/// whether it is whole.
pub(super) fn push_escaped(name: &str, most: usize, out: &mut String) -> bool {
    let end = out.len().saturating_add(most);
    for byte in name.bytes() {
        let before = out.len();
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(percent_encode_byte(byte));
        }
        if out.len() > end {
            out.truncate(before);
            return false;
        }
    }
    true
}
