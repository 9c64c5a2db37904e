//! Reads `defaults.priority_header`: the header in which answers tell the priority of a request that a policy demotes.

use super::diagnostic::Findings;
use super::node::Node;

/// Headers with another meaning, in an answer or in a request that the answer's headers are copied into.
const TAKEN: [&str; 21] = [
    "age",
    "authorization",
    "cache-control",
    "connection",
    "content-length",
    "content-type",
    "cookie",
    "date",
    "forwarded",
    "host",
    "keep-alive",
    "location",
    "priority",
    "retry-after",
    "server",
    "set-cookie",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "www-authenticate",
];
/// Prefixes of the headers of Tidegate's own answers, and of the headers in which proxies describe a request.
const TAKEN_BEGINNINGS: [&str; 5] =
    ["access-control-", "ratelimit", "x-forwarded-", "x-ratelimit-", "x-tidegate-"];

/// Reads the header's name in lower case. `None`: the file does not set it, or the name is refused with an error among
/// the findings.
pub(super) fn read(defaults: Option<&Node>, findings: &mut Findings) -> Option<String> {
    let node = defaults?.get("priority_header")?;
    // The shape check made sure that this is a valid header name.
    let name = node.text()?.to_ascii_lowercase();
    let taken = TAKEN.contains(&name.as_str())
        || TAKEN_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning));
    if taken && name != "x-tidegate-priority" {
        findings.error(
            node.spot,
            format_args!("defaults.priority_header: {name} already has another meaning; use another header, as x-priority"),
        );
        return None;
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Format};

    #[test]
    fn a_header_of_its_own_is_taken_and_any_other_is_refused() {
        let read = |name: &str| {
            let text = format!("version: 1\ndefaults: {{ priority_header: {name} }}\npolicies: []\n");
            Config::parse(&text, "f", Format::Yaml)
                .map(|(config, _)| config.priority_header)
                .map_err(|mistakes| mistakes[0].to_string())
        };
        assert_eq!(read("X-Request-Priority"), Ok(Some("x-request-priority".to_owned())));
        assert_eq!(read("x-tidegate-priority"), Ok(Some("x-tidegate-priority".to_owned())));
        for (name, says) in [
            (
                "Content-Length",
                "f:2:30  error  defaults.priority_header: content-length already has another meaning",
            ),
            ("x-tidegate-token", "use another header, as x-priority"),
            ("x-forwarded-for", "already has another meaning"),
            ("ratelimit", "already has another meaning"),
            ("'x y'", "no header is called \"x y\""),
        ] {
            let told = read(name).unwrap_err();
            assert!(told.contains(says), "{name}: {told}");
        }
    }
}
