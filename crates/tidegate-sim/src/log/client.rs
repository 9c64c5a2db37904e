//! The client in a line: how an address is written, and what tells it from other words.
//!
//! A time stamp, the name of a pod or a list of proxies taken for the client would make limits of the log's own words.
//! So a first word is a client only if it is an address, or a host name in a log whose lines mostly have them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// What the letters of a word allow it to be, as bits.
const ADDRESS: u8 = 1;
const NAME: u8 = 2;

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let letter = byte as u8;
        let of_address = letter.is_ascii_hexdigit() || letter == b':' || letter == b'.';
        let of_name = letter.is_ascii_alphanumeric() || matches!(letter, b'.' | b'-' | b'_');
        classes[byte] = (of_address as u8 * ADDRESS) | (of_name as u8 * NAME);
        byte += 1;
    }
    classes
}

static CLASSES: [u8; 256] = classes();

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Clients {
    #[default]
    Addresses,
    Names,
}

/// Splits the client off the front of a line: its address or name, empty if the line says that there is none (`-`), and
/// the rest; `None` if the word is no client.
#[inline]
pub(super) fn split(clients: Clients, text: &[u8]) -> Option<(&[u8], &[u8])> {
    // The letters are looked at while the space is searched for, which costs little more than the search.
    let (mut end, mut class, mut dots, mut colons) = (0, ADDRESS | NAME, 0u32, 0u32);
    loop {
        let byte = *text.get(end)?;
        if byte == b' ' {
            break;
        }
        class &= CLASSES[usize::from(byte)];
        dots += u32::from(byte == b'.');
        colons += u32::from(byte == b':');
        end += 1;
    }
    let (word, rest) = (&text[..end], &text[end + 1..]);
    // The shape suffices: no other word of these letters has three dots, and a time of day has fewer colons.
    let is_ipv4 = colons == 0 && dots == 3 && end <= 15;
    if class & ADDRESS != 0 && (is_ipv4 || (colons >= 2 && end <= 45 && is_ipv6_shape(word, colons))) {
        return Some((word, rest));
    }
    // A name with a letter that no address has. Nearly all names do, and need not be parsed as an address first.
    if class == NAME && clients == Clients::Names && word.iter().any(u8::is_ascii_alphabetic) {
        return Some((word, rest));
    }
    odd(clients, class, word).map(|client| (client, rest))
}

/// All groups of an IPv6 address, or some left out.
fn is_ipv6_shape(word: &[u8], colons: u32) -> bool {
    colons == 7 || word.windows(2).any(|pair| pair == b"::")
}

#[cold]
fn odd(clients: Clients, class: u8, word: &[u8]) -> Option<&[u8]> {
    // nginx writes `unix:` for a caller on a socket of its machine.
    if matches!(word, b"-" | b"unix:") {
        return Some(b"");
    }
    let address = bare(word);
    if is_address(address) {
        return Some(address);
    }
    (clients == Clients::Names && is_name(class, word)).then_some(word)
}

fn is_name(class: u8, word: &[u8]) -> bool {
    class & NAME != 0 && word.iter().any(u8::is_ascii_alphabetic) || is_odd_name(word)
}

/// Says whether the value of a column, or the last one of a list, may be a client: as at the beginning of a line, and a
/// host name with a port, but no path and no URL.
pub(super) fn is_client(value: &[u8]) -> bool {
    let word = memchr::memrchr(b',', value).map_or(value, |comma| value[comma + 1..].trim_ascii());
    if is_address(word) || word == b"unix:" || is_host(word) {
        return true;
    }
    let class = word.iter().fold(ADDRESS | NAME, |class, byte| class & CLASSES[usize::from(*byte)]);
    let is_path = word.starts_with(b"/") || memchr::memmem::find(word, b"://").is_some();
    is_name(class, word) && !is_path && memchr::memchr(b' ', word).is_none()
}

/// Resolvers return what the owner of an address wrote, such as `phoenix#8.example`.
fn is_odd_name(word: &[u8]) -> bool {
    let mut labels = word.rsplitn(2, |byte| *byte == b'.');
    let is_domain =
        labels.next().is_some_and(|end| end.len() >= 2 && end.iter().all(u8::is_ascii_alphabetic));
    is_domain && labels.next().is_some_and(|name| !name.is_empty()) && !matches!(word[0], b'[' | b'"' | b'{')
}

/// Says whether a word is an address, with or without a port.
pub(super) fn is_address(word: &[u8]) -> bool {
    is_bare_address(bare(word))
}

/// A host name with a domain, perhaps with a port: the virtual host before a client.
pub(super) fn is_host(word: &[u8]) -> bool {
    let (name, has_port) = match memchr::memchr(b':', word) {
        Some(colon) if is_port(&word[colon + 1..]) => (&word[..colon], true),
        Some(_) => return false,
        None => (word, false),
    };
    let is_name = !name.is_empty() && name.iter().all(|byte| CLASSES[usize::from(*byte)] & NAME != 0);
    let has_letter = name.iter().any(u8::is_ascii_alphabetic);
    is_name && has_letter && (has_port || name.contains(&b'.'))
}

fn is_port(text: &[u8]) -> bool {
    matches!(text.len(), 1..=5) && text.iter().all(u8::is_ascii_digit)
}

/// The last address of a list, without port and brackets: `203.0.113.9` of `10.0.0.1, 203.0.113.9:50000`.
///
/// Each proxy appends the caller that it saw, so the last one is what the proxy that wrote the log saw itself. Text
/// that is no address stays as it is.
#[inline]
pub(super) fn bare(value: &[u8]) -> &[u8] {
    if value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.') {
        return value;
    }
    let last = memchr::memrchr(b',', value).map_or(value, |comma| value[comma + 1..].trim_ascii());
    match last {
        [b'[', inner @ ..] => match memchr::memchr(b']', inner) {
            Some(close) if is_bare_address(&inner[..close]) => &inner[..close],
            _ => value,
        },
        _ => match memchr::memchr(b':', last) {
            Some(colon) if is_port(&last[colon + 1..]) && is_ipv4(&last[..colon]) => &last[..colon],
            _ if last.len() < value.len() && !is_bare_address(last) => value,
            _ => last,
        },
    }
}

fn is_ipv4(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| Ipv4Addr::from_str(text).is_ok())
}

fn is_bare_address(text: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(text) else { return false };
    // A zone names an interface.
    let text = text.split_once('%').map_or(text, |(address, _)| address);
    Ipv4Addr::from_str(text).is_ok() || Ipv6Addr::from_str(text).is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn client(clients: Clients, line: &str) -> Option<String> {
        split(clients, line.as_bytes()).map(|(client, _)| String::from_utf8_lossy(client).into_owned())
    }

    #[test]
    fn a_first_word_is_a_client_or_not() {
        let rows = [
            ("203.0.113.9 - -", Some("203.0.113.9")),
            ("203.0.113.9:50000 - -", Some("203.0.113.9")),
            ("2001:db8::7 - -", Some("2001:db8::7")),
            ("[2001:db8::7]:443 - -", Some("2001:db8::7")),
            ("::ffff:203.0.113.9 - -", Some("::ffff:203.0.113.9")),
            ("fe80::1%eth0 - -", Some("fe80::1%eth0")),
            ("- - -", Some("")),
            ("unix: - -", Some("")),
            ("203.0.113.9, 10.0.0.1 - -", None),
            ("2026-03-02T09:14:00.123456789Z 203.0.113.9 - -", None),
            ("1772442840.123 203.0.113.9 - -", None),
            ("09:14:00 203.0.113.9 - -", None),
            ("[pod/web-7d9/nginx] 203.0.113.9 - -", None),
            ("10.0.0 - -", None),
            ("203.0.113.9", None),
            ("", None),
        ];
        for (line, want) in rows {
            for clients in [Clients::Addresses, Clients::Names] {
                assert_eq!(client(clients, line).as_deref(), want, "{line}");
            }
        }
        for name in
            ["shop.example.com", "web-7d9", "h", "c", "phoenix#8.example", "***.example", "a4/6029.example"]
        {
            let line = format!("{name} - -");
            assert_eq!(client(Clients::Names, &line).as_deref(), Some(name));
            assert_eq!(client(Clients::Addresses, &line), None);
        }
    }

    #[test]
    fn an_address_is_without_its_port_and_the_last_of_a_list() {
        let rows = [
            ("203.0.113.9:50000", "203.0.113.9"),
            ("[2001:db8::7]:443", "2001:db8::7"),
            ("2001:db8::7", "2001:db8::7"),
            ("10.0.0.1, 203.0.113.9", "203.0.113.9"),
            ("10.0.0.1,[2001:db8::7]:443", "2001:db8::7"),
            ("tenant:7", "tenant:7"),
            ("a, b", "a, b"),
            ("h.example", "h.example"),
            ("unix:", "unix:"),
            ("[", "["),
            ("[pod/web/nginx]", "[pod/web/nginx]"),
        ];
        for (value, want) in rows {
            assert_eq!(bare(value.as_bytes()), want.as_bytes(), "{value}");
        }
        for (word, want) in [
            ("shop.example.com", true),
            ("shop:443", true),
            ("nginx:", false),
            ("web-1", false),
            ("2026-03-02T09:14:00.123Z", false),
            ("1772442840.123", false),
        ] {
            assert_eq!(is_host(word.as_bytes()), want, "{word}");
        }
    }

    #[test]
    fn a_value_of_a_column_is_a_client_or_not() {
        for value in [
            "203.0.113.9",
            "203.0.113.9:50000",
            "[2001:db8::7]:443",
            "10.0.0.1, 203.0.113.9",
            "10.0.0.1, unknown",
            "web-7d9",
            "shop.example:443",
            "phoenix#8.example",
            "unix:",
        ] {
            assert!(is_client(value.as_bytes()), "{value}");
        }
        for value in
            ["/api/items", "/index.html", "https://shop.example", "200", "0.013", "a b.example", "10.0.0"]
        {
            assert!(!is_client(value.as_bytes()), "{value}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_read_as_if_it_were_parsed_as_an_address_first(word in "[0-9a-z.:,%#\\[\\]_-]{0,20}") {
            let line = format!("{word} - -");
            let class =
                word.bytes().fold(ADDRESS | NAME, |class, byte| class & CLASSES[usize::from(byte)]);
            for clients in [Clients::Addresses, Clients::Names] {
                // Those with the shape of an address are not parsed, and may be none: `999.1.1.1`.
                let read = split(clients, line.as_bytes()).map(|(client, _)| client);
                if class & ADDRESS == 0 {
                    prop_assert_eq!(read, odd(clients, class, word.as_bytes()));
                }
            }
        }

        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>, text in "[0-9a-f:.,\\[\\] %-]{0,50}") {
            for bytes in [&bytes[..], text.as_bytes()] {
                for clients in [Clients::Addresses, Clients::Names] {
                    if let Some((client, rest)) = split(clients, bytes) {
                        prop_assert!(client.len() + rest.len() < bytes.len());
                    }
                }
                prop_assert!(bare(bytes).len() <= bytes.len());
                let _ = (is_host(bytes), is_address(bytes), is_client(bytes));
            }
        }
    }
}
