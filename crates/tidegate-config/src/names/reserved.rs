//! Reserved names: those that begin with `request.` are Tidegate's, and most others of them are misspellings.

use std::borrow::Cow;

use tidegate_core::spelling::nearest;

use tidegate_gate::policy::{BUILT_IN, name_meant};

/// The prefix of a header's attribute.
pub(crate) const HEADER: &str = "request.header.";

/// Prefixes that people write by mistake for a header's attribute.
const HEADER_SLIPS: [&str; 7] = [
    HEADER,
    "request.headers.",
    "request.header[",
    "request.headers[",
    "header.",
    "headers.",
    "http.request.header.",
];

const SLIPS: [(&str, &str); 22] = [
    ("client.addr", "client.ip"),
    ("client.address", "client.ip"),
    ("client.ip_address", "client.ip"),
    ("client.ipv4", "client.ip"),
    ("client.ipv6", "client.ip"),
    ("client.ips", "client.ip"),
    ("client.remote_addr", "client.ip"),
    ("request.addr", "client.ip"),
    ("request.client", "client.ip"),
    ("request.client_ip", "client.ip"),
    ("request.client.ip", "client.ip"),
    ("request.ip", "client.ip"),
    ("request.remote_addr", "client.ip"),
    ("request.remote_ip", "client.ip"),
    ("request.authority", "request.host"),
    ("request.domain", "request.host"),
    ("request.hostname", "request.host"),
    ("request.verb", "request.method"),
    ("request.target", "request.path"),
    ("request.uri", "request.path"),
    ("request.url", "request.path"),
    ("request.url_path", "request.path"),
];

/// Says why no policy can read an attribute of this name, and what to write instead; `None` if one can.
///
/// For names from outside a policy file: a check with `request.paht` fits no policy, and would pass without a limit.
/// Judged are names that begin with `request.` in any case; others are the callers' own. Headers are not judged: who
/// hands on what it gets does not choose them. Allocates for an unknown name only.
///
/// # Examples
/// ```
/// use tidegate::config::unknown_attribute;
///
/// assert_eq!(unknown_attribute("request.path"), None);
/// assert_eq!(unknown_attribute("form.paht"), None);
/// assert_eq!(unknown_attribute("request.paht").as_deref(), Some("write request.path"));
/// ```
#[must_use]
pub fn unknown_attribute(name: &str) -> Option<String> {
    const OWN: &[u8] = b"request.";
    let is_judged = name.as_bytes().get(..OWN.len()).is_some_and(|start| start.eq_ignore_ascii_case(OWN));
    if !is_judged || BUILT_IN.contains(&name) || name.starts_with(HEADER) {
        return None;
    }
    instead_of(&name.to_ascii_lowercase())
}

/// Returns the name of an attribute as policies know it: `request.header.X-Api-Key` is `request.header.x-api-key`.
///
/// For headers that are handed on as received: a stranger could otherwise avoid a limit by another spelling. Other
/// names are case-sensitive and returned unchanged. Allocates for a header with an upper-case letter only.
///
/// # Examples
/// ```
/// use tidegate::config::canonical_attribute;
///
/// assert_eq!(canonical_attribute("request.header.X-Api-Key".into()), "request.header.x-api-key");
/// assert_eq!(canonical_attribute("user.ID".into()), "user.ID");
/// ```
#[must_use]
pub fn canonical_attribute(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.starts_with(HEADER) && name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Owned(name.to_ascii_lowercase());
    }
    name
}

/// Returns the attribute for a variable of nginx or a fetch of HAProxy, such as `$binary_remote_addr` and `%[src]`.
pub(crate) fn variable(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let name = match lower.strip_prefix('$') {
        Some(name) => name.trim_start_matches('{').trim_end_matches('}'),
        None if lower.starts_with("%[src") => "remote_addr",
        None if lower.starts_with("%[path") => "uri",
        None => return None,
    };
    Some(match name {
        "uri" | "request_uri" | "document_uri" => "request.path".to_owned(),
        "host" | "http_host" | "server_name" => "request.host".to_owned(),
        "request_method" => "request.method".to_owned(),
        "remote_user" => "user.id".to_owned(),
        name => match name.strip_prefix("http_").map(|header| header.replace('_', "-")) {
            Some(header) if is_token(&header) => format!("{HEADER}{header}"),
            _ => "client.ip".to_owned(),
        },
    })
}

/// Returns the attribute for a header that is written with a colon, such as `header:x-api-key`.
pub(crate) fn header_meant(text: &str) -> Option<String> {
    let (kind, header) = text.split_once(':')?;
    let is_header = matches!(&*kind.trim().to_ascii_lowercase(), "header" | "headers" | "http_header");
    let header = header.trim().to_ascii_lowercase();
    (is_header && is_token(&header)).then(|| format!("{HEADER}{header}"))
}

/// Returns the attribute for a variable of nginx that lacks its `$`, such as `http_x_api_key`.
pub(crate) fn bare_variable(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase().replace('-', "_");
    let header = lower.strip_prefix("http_")?;
    let of_header = || variable(&format!("${lower}")).filter(|_| header.starts_with("x_"));
    name_meant(header).map(str::to_owned).or_else(of_header)
}

/// Says what to write instead of a lower-case name that no request has; `None` for a caller's own name.
pub(super) fn instead_of(lower: &str) -> Option<String> {
    let reserved = lower.starts_with("request.") || matches!(lower, "request" | "client");
    match variable(lower).or_else(|| meant(lower)) {
        Some(meant) => Some(format!("write {meant}")),
        None if lower.starts_with("request.query") => {
            Some("the query of a request is not an attribute".to_owned())
        }
        None if reserved => Some(format!(
            "there are {} and {HEADER}<name>, and names of your own begin with another word",
            BUILT_IN.join(", ")
        )),
        None => None,
    }
}

fn meant(lower: &str) -> Option<String> {
    for slip in HEADER_SLIPS {
        let Some(header) = lower.strip_prefix(slip) else { continue };
        let header = header.trim_end_matches(']').trim_matches(['"', '\'']);
        return Some(format!("{HEADER}{}", if is_token(header) { header } else { "<name>" }));
    }
    if matches!(lower, "request.header" | "request.headers") {
        return Some(format!("{HEADER}<name>"));
    }
    if let Some((_, meant)) = SLIPS.iter().find(|(slip, _)| *slip == lower) {
        return Some((*meant).to_owned());
    }
    let bare = |name: &str| name.replace(['.', '_', '-', ' ', '/'], "");
    let bare_name = bare(lower);
    if let Some(same) = BUILT_IN.iter().find(|built_in| bare(built_in) == bare_name) {
        return Some((*same).to_owned());
    }
    // Similar names are suggested only if the name cannot be the caller's own: `client.id` may well be one.
    let own = lower.strip_prefix("request.")?;
    let built_in = BUILT_IN.iter().filter_map(|name| name.strip_prefix("request."));
    nearest(own, built_in).map(|name| format!("request.{name}"))
}

/// Reports whether a text is a token (RFC 9110, section 5.6.2), as methods and names of headers are.
pub(super) fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    // A token may have a star, but no existing name has one: a pattern was meant.
    !text.is_empty() && text.bytes().all(|byte| fits(byte) && byte != b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_other_systems_are_known() {
        let key = Some("request.header.x-api-key".to_owned());
        for text in ["header:x-api-key", "Headers: X-Api-Key"] {
            assert_eq!(header_meant(text), key, "{text}");
        }
        for text in ["http_x_api_key", "HTTP_X_API_KEY"] {
            assert_eq!(bare_variable(text), key, "{text}");
        }
        assert_eq!(bare_variable("http_x_real_ip").as_deref(), Some("client.ip"));
        for text in ["header", "user:id", "header:a b", "http_status", "https_x_a"] {
            assert_eq!((header_meant(text), bare_variable(text)), (None, None), "{text}");
        }
    }

    #[test]
    fn names_under_the_reserved_prefix_are_known_or_told_of() {
        for (name, instead) in [
            ("request.paht", Some("write request.path")),
            ("Request.Path", Some("write request.path")),
            ("request.url", Some("write request.path")),
            ("request.headers.x-plan", Some("write request.header.x-plan")),
            ("request.query.q", Some("the query of a request is not an attribute")),
            ("request.size", Some("names of your own begin with another word")),
            ("request.", Some("names of your own begin with another word")),
            ("request.path", None),
            ("request.direction", None),
            ("request.header.x-plan", None),
            ("request.header.X*Plan", None),
            ("client.ip", None),
            ("client.address", None),
            ("user.id", None),
            ("requests", None),
            ("é.request.paht", None),
        ] {
            let told = unknown_attribute(name);
            let is_told = match instead {
                Some(part) => told.as_deref().is_some_and(|told| told.contains(part)),
                None => told.is_none(),
            };
            assert!(is_told, "{name}: {told:?}");
        }
    }
}
