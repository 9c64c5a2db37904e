//! Quoting and escaping in access logs, and how they mark missing values.

use std::borrow::Cow;

/// Returns the bytes, or nothing for `-`, which marks a missing value.
pub(super) fn known(bytes: &[u8]) -> &[u8] {
    if bytes == b"-" { b"" } else { bytes }
}

/// Says whether the byte after these is escaped: they end in an odd number of backslashes.
pub(super) fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// Splits one quoted text off the front; empty if there is none.
pub(super) fn quoted(text: &[u8]) -> (&[u8], &[u8]) {
    let [b'"', rest @ ..] = text.trim_ascii_start() else { return (b"", b"") };
    let ends = memchr::memchr_iter(b'"', rest);
    match ends.into_iter().find(|close| !is_escaped(&rest[..*close])) {
        Some(close) => (&rest[..close], &rest[close + 1..]),
        None => (rest, b""),
    }
}

/// Undoes the escapes of a quoted text, as Apache and nginx write them: `\"`, `\\`, `\xHH`, and `\n` and the like.
/// Invalid escapes stay as they are. Allocates only if there is a backslash.
///
/// # Source
/// `ap_escape_logitem` of Apache httpd's `server/util.c`; `ngx_http_log_escape` of nginx's `ngx_http_log_module.c`.
pub(super) fn undone(value: &[u8]) -> Cow<'_, [u8]> {
    let Some(first) = memchr::memchr(b'\\', value) else { return Cow::Borrowed(value) };
    let (plain, mut rest) = value.split_at(first);
    let mut out = plain.to_vec();
    while let [byte, after @ ..] = rest {
        let (byte, after) = escaped(rest).unwrap_or((*byte, after));
        out.push(byte);
        rest = after;
    }
    Cow::Owned(out)
}

/// Decodes one escape at the front; `None` if there is none.
fn escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let [b'\\', sign, after @ ..] = text else { return None };
    let byte = match sign {
        b'"' | b'\\' => *sign,
        b'b' => 0x08,
        b't' => b'\t',
        b'n' => b'\n',
        b'v' => 0x0b,
        b'f' => 0x0c,
        b'r' => b'\r',
        _ => return hex_escaped(text),
    };
    Some((byte, after))
}

/// Decodes `\xHH` at the front; `None` if there is something else.
pub(super) fn hex_escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let [b'\\', b'x', high, low, after @ ..] = text else { return None };
    Some((digit(*high)? << 4 | digit(*low)?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone() {
        let rows: [(&str, &[u8]); 9] = [
            ("plain", b"plain"),
            (
                r#"Crawl/2.0 (\"http://mega.example\"; contact)"#,
                b"Crawl/2.0 (\"http://mega.example\"; contact)",
            ),
            (r"\x22a\x5Cb\x22", b"\"a\\b\""),
            (r"gr\xC3\xBCn \xfc", b"gr\xc3\xbcn \xfc"),
            (r"DOMAIN\\ann", b"DOMAIN\\ann"),
            (r"a\tb\r\nc", b"a\tb\r\nc"),
            (r"a\d \x2 \xzz", br"a\d \x2 \xzz"),
            (r"\\x41", br"\x41"),
            ("end\\", b"end\\"),
        ];
        for (written, was) in rows {
            assert_eq!(&*undone(written.as_bytes()), was, "{written}");
        }
        assert!(matches!(undone(b"plain"), Cow::Borrowed(_)));
    }
}
