//! Checks that a request can have what the file names (attributes, methods, hosts, paths and addresses), in the form in
//! which they reach the policies.
//!
//! A policy that names anything else would limit no request, unnoticed. So each word is compared with the form that the
//! server and the normalisation produce.
//!
//! `client.ip` and names that begin with `request.` are Tidegate's. Any other name is the caller's own, and accepted
//! unless it is probably a misspelling of one of Tidegate's.

mod foreign_paths;
mod reserved;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use tidegate_core::spelling::nearest;

use super::budget::SEGMENTS;
pub(super) use foreign_paths::{below, foreign_path, path_meant};
use reserved::is_token;
pub(super) use reserved::{HEADER, bare_variable, header_meant, variable};
pub use reserved::{canonical_attribute, unknown_attribute};
use tidegate_gate::policy::{
    BUILT_IN, Glob, PathGlob, canonical, host_bits, host_name, is_attribute_name, name_meant, path,
};
use tidegate_limits::visible::excerpt;

/// Reports whether a character would end the line, move the cursor or reverse the direction of a printed text.
pub(super) fn is_control(letter: char) -> bool {
    tidegate_limits::visible::is_acted_on(letter) || letter == '\u{feff}'
}

pub(super) fn policy(name: &str) -> Result<(), String> {
    if name.trim() != name {
        return Err(format!("\"{}\" begins or ends with a space", excerpt(name)));
    }
    if matches!(name, "." | "..") {
        return Err(format!("\"{name}\" cannot stand in a path, where a policy is asked for by its name"));
    }
    Ok(())
}

pub(super) fn attribute(name: &str) -> Result<(), String> {
    if BUILT_IN.contains(&name) {
        return Ok(());
    }
    if name.trim() != name {
        return Err(format!("\"{}\" begins or ends with a space", excerpt(name)));
    }
    if let Some(meant) = header_meant(name) {
        return Err(format!(
            "\"{}\" is not the name of an attribute; write {}",
            excerpt(name),
            excerpt(&meant)
        ));
    }
    let within = names_in(name);
    // What only an expression has comes before names that stand in one text.
    let calculates = name.contains(['(', '<', '>', '?', '!', '=', '"'])
        || within.iter().all(String::is_empty)
        || within.iter().any(|one| one.starts_with(|c: char| c.is_ascii_digit()));
    if let Some(meant) = of_expression(name).filter(|_| calculates) {
        let (shown, meant) = (excerpt(name), excerpt(meant));
        return Err(format!(
            "\"{shown}\" is an expression, which only a cost can be; write the name of one attribute, as {meant}"
        ));
    }
    // A variable of nginx, or a header in brackets, has advice of its own below.
    let is_known_form = (name.starts_with(['$', '%']) && !name.contains('.')) || name.contains('[');
    match within.as_slice() {
        [one] if !is_known_form => {
            let instead = reserved::instead_of(&one.to_ascii_lowercase());
            let instead = instead.unwrap_or_else(|| format!("write {}", excerpt(one)));
            return Err(format!("\"{}\" is not the name of an attribute; {instead}", excerpt(name)));
        }
        [] | [_] => {}
        several => {
            return Err(format!(
                "\"{}\" is {} names in one; an attribute has one, as {}",
                excerpt(name),
                several.len(),
                excerpt(&several[0])
            ));
        }
    }
    if let Some(header) = name.strip_prefix(HEADER) {
        let lower = header.to_ascii_lowercase();
        return match header_name(header) {
            Ok(()) if lower == header => Ok(()),
            Ok(()) => Err(format!("no request has \"{}\"; write {HEADER}{lower}", excerpt(name))),
            Err(error) => Err(error),
        };
    }
    match reserved::instead_of(&name.to_ascii_lowercase()) {
        Some(instead) => Err(format!("no request has \"{}\"; {instead}", excerpt(name))),
        None => match within.first() {
            Some(one) => {
                Err(format!("\"{}\" is not the name of an attribute; write {}", excerpt(name), excerpt(one)))
            }
            None => Ok(()),
        },
    }
}

/// Returns the first attribute in a text that is an expression, such as `int(user.level) > 3`; `None` for any other text.
pub(super) fn of_expression(text: &str) -> Option<&str> {
    let calculates = text.contains(['(', '+', '*', '<', '>', '?', '&', '|', '!', '"'])
        || [" - ", " / ", "=="].iter().any(|sign| text.contains(sign));
    let mut words = text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '.' | '_' | '-')));
    if calculates { words.find(|word| is_attribute_name(word)) } else { None }
}

/// Attributes whose last word people tend to write alone as a cost.
const COSTS: [&str; 4] = ["llm.tokens", "llm.input", "llm.output", "llm.total"];

/// Returns the attribute to write instead of a cost that is a single word, such as `tokens`, which is more likely a
/// mistake.
pub(super) fn instead_of_a_word(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if !text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') || !text.bytes().all(fits) {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    if nearest(&lower, ["learned"]).is_some() {
        return Some("belongs to an estimate; write cost: { estimate: learned, start: 300 }".to_owned());
    }
    let same = |name: &&str| name.replace('.', "") == lower.replace(['_', '-'], "");
    let last = |name: &'static str| name.rsplit('.').next().unwrap_or_default();
    let whole = COSTS.into_iter().find(same);
    let meant = whole.or_else(|| {
        let word = nearest(&lower, COSTS.into_iter().map(last))?;
        COSTS.into_iter().find(|name| last(name) == word)
    });
    let attribute = meant.unwrap_or("llm.tokens");
    // In an expression, a name with a hyphen is a subtraction of two names.
    let own = match text.contains('-') {
        true => String::new(),
        false => format!(", or 'int({text})' for a value of your own that has none"),
    };
    Some(format!("is one word, and the name of an attribute has a dot; write {attribute}{own}"))
}

/// Checks a name in an expression, where `request.header` is the map of all names that begin with it.
#[cfg(feature = "cel")]
pub(super) fn attribute_of_expression(name: &str) -> Result<(), String> {
    if matches!(name, "request" | "request.header" | "client") { Ok(()) } else { attribute(name) }
}

/// Checks the name of a value that a settlement reports, which has no access to the request.
pub(super) fn usage(name: &str) -> Result<(), String> {
    attribute(name)?;
    let own = |name: &str| name == "client.ip" || name.starts_with("request.");
    match own(name) {
        true => Err(format!(
            "a settlement has no {}: it has the values sent with it, as llm.output, and not the request",
            excerpt(name)
        )),
        false => Ok(()),
    }
}

pub(super) fn header_name(name: &str) -> Result<(), String> {
    let lower = name.to_ascii_lowercase();
    if let Some(own) = lower.strip_prefix(HEADER).or_else(|| lower.strip_prefix("request.headers.")) {
        return Err(format!("\"{}\" is an attribute; as a header it is {}", excerpt(name), excerpt(own)));
    }
    if is_token(name) {
        return Ok(());
    }
    Err(format!(
        "no header is called \"{}\"; a name has letters, digits and - or _, and no pattern",
        excerpt(name)
    ))
}

pub(super) fn method(text: &str) -> Result<(), String> {
    if text.eq_ignore_ascii_case("any") || text.eq_ignore_ascii_case("all") || text == "*" || text == "**" {
        return Err(format!("\"{text}\" is not a method; leave method out to match every method"));
    }
    if let Some(meant) = methods_meant(text) {
        return Err(format!("\"{}\" is not a method; write {meant}", excerpt(text)));
    }
    if is_token(text) {
        return Ok(());
    }
    Err(format!("\"{}\" is not a method; write GET, or a list as [GET, POST]", excerpt(text)))
}

/// Returns what to write for a text with signs that no method has, as `GET|POST`.
fn methods_meant(text: &str) -> Option<String> {
    // A token may have these signs, and would be read as a method.
    if !text.contains(['|', '^', '$', '!', '+', '&', '~']) {
        return None;
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let words: Vec<String> =
        text.split(|c: char| !is_part(c)).filter(|word| !word.is_empty()).take(8).map(excerpt).collect();
    match words.as_slice() {
        [] => Some("GET, or a list as [GET, POST]".to_owned()),
        [one] if text.starts_with('!') => Some(format!("not: {{ method: {one} }} within match")),
        several if text.starts_with('!') => {
            Some(format!("not: {{ method: [{}] }} within match", several.join(", ")))
        }
        [one] => Some(one.clone()),
        several => Some(format!("[{}]", several.join(", "))),
    }
}

/// The methods that servers know.
pub(super) const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

fn exact_method(text: &str) -> Result<(), String> {
    method(text)?;
    match METHODS.iter().find(|known| known.eq_ignore_ascii_case(text)) {
        Some(known) if *known != text => Err(format!("no request has \"{text}\"; write {known}")),
        _ => Ok(()),
    }
}

/// Checks a path pattern: normalisation must leave each alternative unchanged.
pub(super) fn path_pattern(glob: &PathGlob) -> Result<(), String> {
    glob.alternatives().try_for_each(|alternative| {
        let segments = alternative.split('/').skip(1).count();
        if segments > SEGMENTS {
            return Err(format!(
                "\"{}\" has {segments} segments; use at most {SEGMENTS}",
                excerpt(alternative)
            ));
        }
        let query = alternative
            .split('/')
            .any(|segment| segment.split_once('?').is_some_and(|(_, after)| after.contains(['=', '&'])));
        if query {
            let cut = alternative.split('?').next().unwrap_or_default();
            return Err(format!(
                "\"{}\": the query is cut off before a path is matched; write {}",
                excerpt(alternative),
                excerpt(or_root(cut))
            ));
        }
        normal_path(alternative)
    })
}

fn or_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn normal_path(text: &str) -> Result<(), String> {
    if let Some((before, _)) = text.split_once('#') {
        return Err(format!(
            "\"{}\": a fragment is never sent; write {}",
            excerpt(text),
            excerpt(or_root(before))
        ));
    }
    let normal = path::strictly(text);
    // The pattern of the root is empty.
    if or_root(text) == normal {
        return Ok(());
    }
    Err(format!(
        "\"{}\": no path is so when it is matched: escapes are decoded, . and .. resolved; write {}",
        excerpt(text),
        excerpt(&normal)
    ))
}

/// Checks a network. IPv4 addresses are compared as IPv4, in whichever form they were sent.
pub(super) fn network(network: IpNet) -> Result<(), String> {
    if let Some(reason) = host_bits(network) {
        return Err(reason);
    }
    let IpNet::V6(v6) = network else { return Ok(()) };
    let Some(length) = v6.prefix_len().checked_sub(96) else { return Ok(()) };
    // The first address may be a special one although the network has others.
    let is_translated = v6.addr().segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    let meant = match canonical(IpAddr::V6(v6.addr())) {
        IpAddr::V4(inner) => IpNet::new(IpAddr::V4(inner), length).map(|net| net.trunc().to_string()).ok(),
        IpAddr::V6(_) if is_translated && length < 8 => None,
        IpAddr::V6(_) => return Ok(()),
    };
    let instead = meant.unwrap_or_else(|| "networks of IPv4".to_owned());
    Err(format!("no address is in {network}: IPv4 is compared as IPv4; write {instead}"))
}

/// Returns the network for a text that is none, as `10.1.2.*` and `localhost`.
pub(super) fn network_meant(text: &str) -> Option<String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Some("127.0.0.0/8".to_owned());
    }
    let begin = text.strip_suffix(".*")?.trim_end_matches(".*");
    let stated = begin.split('.').map(|byte| byte.parse().ok()).collect::<Option<Vec<u8>>>()?;
    let mut bytes = [0_u8; 4];
    bytes.get_mut(..stated.len()).filter(|_| stated.len() < 4)?.copy_from_slice(&stated);
    Some(format!("{}/{}", Ipv4Addr::from(bytes), 8 * stated.len()))
}

pub(super) fn value(attribute: &str, text: &str) -> Result<(), String> {
    match attribute {
        "request.method" => exact_method(text),
        "request.direction" => match text {
            "inbound" | "outbound" => Ok(()),
            _ => Err(format!("\"{}\" is not a direction; write inbound or outbound", excerpt(text))),
        },
        "request.path" => match path::for_values(text) {
            plain if plain == text => Ok(()),
            plain => Err(format!(
                "\"{}\": no path is so when it is compared: the query is cut off, escapes decoded, dots resolved; write {}",
                excerpt(text),
                excerpt(&plain)
            )),
        },
        "request.host" => {
            host(&text.to_ascii_lowercase())?;
            match host_name(text) {
                plain if plain == text => Ok(()),
                plain => {
                    Err(format!("no request has the host \"{}\"; write {}", excerpt(text), excerpt(&plain)))
                }
            }
        }
        "client.ip" => match text.parse::<IpAddr>() {
            Ok(address) if canonical(address).to_string() == text => Ok(()),
            Ok(address) => {
                Err(format!("no address is written \"{}\"; write {}", excerpt(text), canonical(address)))
            }
            Err(_) => Err(text.parse().ok().and_then(host_bits).unwrap_or_else(|| {
                format!(
                    "\"{}\" is not an address; networks stand in access.allow and access.deny",
                    excerpt(text)
                )
            })),
        },
        _ if text == "*" => Err("\"*\" is compared as it is and stands for nothing else".to_owned()),
        _ => Ok(()),
    }
}

pub(super) fn pattern(attribute: &str, glob: &Glob) -> Result<(), String> {
    glob.alternatives().try_for_each(|alternative| {
        if !alternative.contains(['*', '?']) {
            return value(attribute, alternative);
        }
        // Only the text between wildcards is checked.
        let only = |fits: fn(u8) -> bool, what: &str| {
            match alternative.bytes().all(|byte| fits(byte) || b"*?".contains(&byte)) {
                true => Ok(()),
                false => Err(format!("no request has \"{}\": {what}", excerpt(alternative))),
            }
        };
        match attribute {
            "request.method" => only(|byte| byte.is_ascii_uppercase() || b"-_".contains(&byte), "methods are capitals"),
            "request.direction" if glob.matches("inbound") || glob.matches("outbound") => Ok(()),
            "request.direction" => Err(format!("\"{}\" is neither inbound nor outbound", excerpt(alternative))),
            "client.ip" => only(
                |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b':' | b'.'),
                "addresses are digits, a to f, dots and colons; networks stand in access.allow and access.deny",
            ),
            "request.host" => {
                only(|byte| !byte.is_ascii_uppercase(), "hosts are lower-case")?;
                host(alternative)
            }
            "request.path" => {
                // The leading slash is written out or part of what the first wildcard matches.
                let first = if alternative.starts_with(['*', '?']) { "/" } else { "" };
                let rest = alternative.strip_prefix('?').filter(|_| !first.is_empty()).unwrap_or(alternative);
                let sample = format!("{first}{}", rest.replace(['*', '?'], "x"));
                match path::for_values(&sample) == sample {
                    true => Ok(()),
                    false => Err(format!(
                        "\"{}\": no path is so when it is compared; write it under match.path, which knows segments",
                        excerpt(alternative)
                    )),
                }
            }
            _ => Ok(()),
        }
    })
}

/// Checks the problem type (RFC 9457) of a refusal.
pub(super) fn problem(text: &str) -> Result<(), String> {
    const KNOWN: [&str; 3] = ["quota-exceeded", "temporary-reduced-capacity", "abnormal-usage-detected"];
    let allowed = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    let is_uri = text.contains(':') || text.starts_with('/');
    if KNOWN.contains(&text) || is_uri && text.bytes().all(allowed) {
        return Ok(());
    }
    if is_uri {
        return Err(format!(
            "\"{}\" is not a URI: spaces, quotes and letters beyond ASCII are written as %xx",
            excerpt(text)
        ));
    }
    Err(format!("unknown problem \"{}\"{}, or a URI", excerpt(text), instead(text, KNOWN.into_iter())))
}

/// Returns the end of a message about an unknown word: the most similar word, or all possible ones.
pub(super) fn instead<'w>(found: &str, words: impl Iterator<Item = &'w str> + Clone) -> String {
    match nearest(found, words.clone()) {
        Some(word) => format!("; did you mean \"{word}\"?"),
        None => format!("; possible are {}", words.collect::<Vec<_>>().join(", ")),
    }
}

// Checks hosts: lower case, ASCII, without scheme, port and path.

pub(super) fn host_pattern(glob: &Glob) -> Result<(), String> {
    glob.alternatives().try_for_each(host)
}

pub(super) fn host(text: &str) -> Result<(), String> {
    let wrong = |why: &str, meant: &str| match meant {
        "" => Err(format!("\"{}\": {why}", excerpt(text))),
        meant => Err(format!("\"{}\": {why}; write {}", excerpt(text), excerpt(meant))),
    };
    if let Some((_, rest)) = text.split_once("://") {
        return wrong("a host has no scheme", rest.split('/').next().unwrap_or_default());
    }
    if let Some((host, _)) = text.split_once('/') {
        return wrong("a host has no path", host);
    }
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
        return wrong("an IPv6 host is compared without brackets", inner);
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => return wrong("the port is cut off", host),
        Some(_) => {
            let wild = text.contains(['*', '?']);
            let possible = text.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.*?".contains(&byte));
            let is_address = if wild { possible } else { text.parse::<Ipv6Addr>().is_ok() };
            return if is_address { Ok(()) } else { wrong("it is neither a host nor an IPv6 address", "") };
        }
        None => {}
    }
    if let Some(rest) = text.strip_prefix('.') {
        return wrong("a host begins with a name", &format!("*.{rest}"));
    }
    if let Some(rest) = text.strip_suffix('.') {
        return wrong("a dot at the end is cut off", rest);
    }
    if !text.is_ascii() {
        return wrong("a host is ASCII when it is sent: write it as xn--…", "");
    }
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._*?".contains(&byte)) {
        return wrong("a host has letters, digits, - and dots", "");
    }
    Ok(())
}

// Finds the names meant by a text that is no attribute's: several names in one, a name in braces, a variable.

/// Characters between names that stand in one text.
const BETWEEN: [char; 5] = [',', ';', '|', '+', '&'];

/// Characters around names.
const AROUND: [char; 11] = ['{', '}', '[', ']', '(', ')', '<', '>', '"', '\'', '*'];

/// Returns the names in a text with characters that no name has; empty for any other text.
///
/// A name with a slash is left alone: programs that write rules for Envoy make keys of routes.
pub(super) fn names_in(text: &str) -> Vec<String> {
    let is_strange = |c: char| c == '$' || c.is_whitespace() || BETWEEN.contains(&c) || AROUND.contains(&c);
    if text.contains('/') || !text.contains(is_strange) {
        return Vec::new();
    }
    let mut names = Vec::new();
    for part in text.split(|c: char| c.is_whitespace() || BETWEEN.contains(&c)) {
        for (at, word) in part.split('$').enumerate() {
            let name = word.trim_matches(|c| AROUND.contains(&c) || c == '%').trim_matches('.');
            // A dash alone is that of a list which stands deeper.
            if name.chars().all(|letter| letter == '-') {
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
    fn networks_are_found_in_patterns_of_addresses() {
        for (text, network) in [
            ("10.1.2.*", Some("10.1.2.0/24")),
            ("10.*", Some("10.0.0.0/8")),
            ("10.1.*.*", Some("10.1.0.0/16")),
            ("LocalHost", Some("127.0.0.0/8")),
            ("10.1.2.3.*", None),
            ("10*", None),
            ("300.*", None),
            ("*", None),
            ("*.*", None),
            ("example.com", None),
        ] {
            assert_eq!(network_meant(text).as_deref(), network, "{text}");
        }
    }

    #[test]
    fn names_are_found_in_whatever_surrounds_them() {
        for (text, names) in [
            ("client.ip,request.path", &["client.ip", "request.path"][..]),
            ("client.ip request.path", &["client.ip", "request.path"]),
            ("client.ip + user.id", &["client.ip", "user.id"]),
            ("client.ip - user.id", &["client.ip", "user.id"]),
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
