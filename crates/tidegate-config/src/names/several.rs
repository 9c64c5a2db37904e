//! Finds the names that were meant by a text that no name of an attribute is: several names in one, a name in braces, a
//! variable of another system.

use super::reserved::variable;
use tidegate_gate::policy::name_meant;

/// Characters between names that stand in one text.
const BETWEEN: [char; 5] = [',', ';', '|', '+', '&'];
/// Characters around names.
const AROUND: [char; 11] = ['{', '}', '[', ']', '(', ')', '<', '>', '"', '\'', '*'];

/// Returns the names that stand in a text with characters that no name has; empty for any other text, which may be a name.
///
/// A name with a slash is left alone: programs that write rules for Envoy make keys of routes and their patterns.
pub(crate) fn names_in(text: &str) -> Vec<String> {
    let is_strange = |c: char| c == '$' || c.is_whitespace() || BETWEEN.contains(&c) || AROUND.contains(&c);
    if text.contains('/') || !text.contains(is_strange) {
        return Vec::new();
    }
    let mut names = Vec::new();
    for part in text.split(|c: char| c.is_whitespace() || BETWEEN.contains(&c)) {
        for (at, word) in part.split('$').enumerate() {
            let name = word.trim_matches(|c| AROUND.contains(&c) || c == '%').trim_matches('.');
            if name.is_empty() {
                continue;
            }
            let of_nginx = (at > 0 && !name.contains('.')).then(|| variable(&format!("${name}"))).flatten();
            let short = || name_meant(name).map_or_else(|| name.to_owned(), str::to_owned);
            names.push(of_nginx.unwrap_or_else(short));
        }
    }
    if names.is_empty() {
        names.push("client.ip".to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_whatever_surrounds_them() {
        for (text, names) in [
            ("client.ip,request.path", &["client.ip", "request.path"][..]),
            ("client.ip request.path", &["client.ip", "request.path"]),
            ("client.ip + user.id", &["client.ip", "user.id"]),
            ("{client.ip}", &["client.ip"]),
            ("${user.id}", &["user.id"]),
            ("{{ user.id }}", &["user.id"]),
            ("$binary_remote_addr$uri", &["client.ip", "request.path"]),
            ("user.*", &["user"]),
            ("user.id", &[]),
            ("httproute/shop/rule/0/match/0/*", &[]),
            ("*", &["client.ip"]),
        ] {
            let found = names_in(text);
            if text == "user.*" {
                assert_eq!(found, ["user.id"], "a short name is told the long one");
            } else {
                assert_eq!(found, names, "{text}");
            }
        }
    }
}
