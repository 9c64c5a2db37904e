//! Values that are not what their attribute holds: they would make a key of their own, or fit no network and no path.

use std::net::Ipv4Addr;

use super::client_ip;
use tidegate_limits::visible::excerpt;

/// Says why a value cannot be that of an attribute that Tidegate defines, and what to send instead; `None` if it can.
///
/// For doors. A `client.ip` that is not one address would be a key of its own for each way of writing it, and be on no
/// list; a `request.path` that does not begin with a slash would fit no policy's path. Allocates for a wrong value only.
#[must_use]
pub fn wrong_value(name: &str, value: &str) -> Option<String> {
    match name {
        // The usual form first: it is parsed once.
        "client.ip" if value.parse::<Ipv4Addr>().is_ok() => None,
        "client.ip" if value.trim() == value && client_ip::address(value).is_some() => None,
        "client.ip" => {
            Some(format!("client.ip is not an address: \"{}\"; {}", excerpt(value), address_in(value)))
        }
        "request.path" if value.starts_with('/') || value == "*" => None,
        "request.path" => Some(not_a_path(value)),
        _ => None,
    }
}

/// Says what to send instead of a text that is not one address.
fn address_in(value: &str) -> String {
    let is_address = |text: &&str| client_ip::address(text).is_some();
    let bare = value.trim().trim_start_matches("for=").trim_matches('"');
    if value.contains(',') {
        return "send the last address alone, which your own proxy appended".to_owned();
    }
    if let Some((address, _)) = bare.split_once('/').filter(|(address, _)| is_address(address)) {
        return format!("send one address, not a network: {address}");
    }
    match Some(bare).filter(is_address) {
        Some(address) => format!("send {address} alone"),
        None => "send one such as 203.0.113.9 or 2001:db8::1".to_owned(),
    }
}

fn not_a_path(value: &str) -> String {
    let shown = excerpt(value);
    let mut words = value.split_ascii_whitespace();
    if let (Some(_), Some(target), Some(_)) = (words.next(), words.next(), words.next()) {
        let path = path_of_url(target).unwrap_or(target);
        return format!("request.path is a request line: \"{shown}\"; send {}", excerpt(path));
    }
    match path_of_url(value) {
        Some(path) => format!("request.path is a URL: \"{shown}\"; send {}", excerpt(path)),
        None => format!(
            "request.path does not begin with a slash: \"{shown}\"; send {}",
            excerpt(&format!("/{value}"))
        ),
    }
}

/// Returns the path of an absolute URL; `None` if it is none.
fn path_of_url(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("://")?;
    let path = rest.find(['/', '?', '#']).map_or("/", |start| &rest[start..]);
    Some(if path.starts_with('/') { path } else { "/" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_one_address() {
        for right in [
            "203.0.113.9",
            "203.0.113.9:443",
            "2001:DB8::1",
            "[2001:db8::1]",
            "[2001:db8::1]:443",
            "fe80::1%eth0",
            "::ffff:203.0.113.9",
        ] {
            assert_eq!(wrong_value("client.ip", right), None, "{right}");
            assert_eq!(wrong_value("user.id", right), None);
        }
        for (wrong, advice) in [
            ("9.9.9.9, 10.0.0.1", "send the last address alone, which your own proxy appended"),
            ("for=203.0.113.66", "send 203.0.113.66 alone"),
            ("for=\"[2001:db8::1]\"", "send [2001:db8::1] alone"),
            (" 5.5.5.5", "send 5.5.5.5 alone"),
            ("5.5.5.5\n", "send 5.5.5.5 alone"),
            ("8.8.8.8/32", "send one address, not a network: 8.8.8.8"),
            ("203.0.113.066", "send one such as 203.0.113.9 or 2001:db8::1"),
            ("9.9.9.999", "send one such as 203.0.113.9 or 2001:db8::1"),
            ("not-an-ip", "send one such as 203.0.113.9 or 2001:db8::1"),
            ("", "send one such as 203.0.113.9 or 2001:db8::1"),
        ] {
            let told = wrong_value("client.ip", wrong).unwrap();
            assert!(told.starts_with("client.ip is not an address: \"") && told.ends_with(advice), "{told}");
        }
    }

    #[test]
    fn a_path_begins_with_a_slash() {
        for right in ["/", "/api/x?q=http://a/", "*", "//a b/c"] {
            assert_eq!(wrong_value("request.path", right), None, "{right}");
        }
        for (wrong, told) in [
            ("http://ex.org/api/x", "request.path is a URL: \"http://ex.org/api/x\"; send /api/x"),
            ("https://ex.org?x=/y", "request.path is a URL: \"https://ex.org?x=/y\"; send /"),
            ("GET /api/x HTTP/1.1", "request.path is a request line: \"GET /api/x HTTP/1.1\"; send /api/x"),
            (
                "GET http://a/b HTTP/1.1",
                "request.path is a request line: \"GET http://a/b HTTP/1.1\"; send /b",
            ),
            ("api/x", "request.path does not begin with a slash: \"api/x\"; send /api/x"),
            ("", "request.path does not begin with a slash: \"\"; send /"),
        ] {
            assert_eq!(wrong_value("request.path", wrong).as_deref(), Some(told));
        }
    }
}
