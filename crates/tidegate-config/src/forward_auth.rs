//! Reads the `forward_auth` section: the headers in which a proxy's sub-requests describe the original request.
//!
//! A proxy sets one family of headers and passes on all others as its caller sent them. A request does not show which,
//! since its caller may have sent any header: so the family is configured, and without that no header is trusted.

use tidegate_core::Priority;

use super::diagnostic::Findings;
use super::node::{Node, Spot, Value};
use tidegate_gate::policy::Named;
use tidegate_limits::visible::excerpt;

/// The headers in which a proxy describes the original request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OriginalHeaders {
    /// `x-original-method`, `x-original-uri`, `x-original-host`: what the manual's nginx block sets.
    Nginx,
    /// `x-forwarded-method`, `x-forwarded-uri`, `x-forwarded-host`: what Caddy's `forward_auth` sets.
    Caddy,
    /// The same headers as [`OriginalHeaders::Caddy`]: what Traefik's ForwardAuth sets.
    Traefik,
    /// Headers of the operator's choice, in lower case, distinct.
    Custom {
        /// Holds the method.
        method: String,
        /// Holds the path and query, or the whole URL.
        uri: String,
        /// Holds the host.
        host: String,
    },
}

impl OriginalHeaders {
    /// The words that [`OriginalHeaders::named`] knows.
    pub const NAMES: [&'static str; 3] = ["nginx", "caddy", "traefik"];

    /// Returns the headers of a proxy by its name; `None` for any other name.
    #[must_use]
    pub fn named(proxy: &str) -> Option<Self> {
        match proxy {
            "nginx" => Some(Self::Nginx),
            "caddy" => Some(Self::Caddy),
            "traefik" => Some(Self::Traefik),
            _ => None,
        }
    }

    /// Returns the header that holds the method.
    #[must_use]
    pub fn method(&self) -> &str {
        match self {
            Self::Nginx => "x-original-method",
            Self::Caddy | Self::Traefik => "x-forwarded-method",
            Self::Custom { method, .. } => method,
        }
    }

    /// Returns the header that holds the path and query.
    #[must_use]
    pub fn uri(&self) -> &str {
        match self {
            Self::Nginx => "x-original-uri",
            Self::Caddy | Self::Traefik => "x-forwarded-uri",
            Self::Custom { uri, .. } => uri,
        }
    }

    /// Returns the header that holds the host.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Self::Nginx => "x-original-host",
            Self::Caddy | Self::Traefik => "x-forwarded-host",
            Self::Custom { host, .. } => host,
        }
    }
}

/// Which headers the forward-auth door of a server trusts, and how it answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ForwardAuth {
    /// The headers from which the original request is read; no others are trusted.
    pub original: OriginalHeaders,
    /// The status of every refusal, 400 to 599, if the file or the caller sets one.
    pub stated_status: Option<u16>,
    /// Whether a browser's preflight is limited like any request; by default it passes uncharged.
    pub charge_preflights: bool,
    /// The header, in lower case, in which the proxy tells the request's priority; `None`: all requests have
    /// [`ForwardAuth::default_priority`]. Trusted only from peers among
    /// [`ClientIp::trusted_proxies`](tidegate_gate::policy::ClientIp::trusted_proxies).
    pub priority_header: Option<String>,
    /// The priority of a request without a trusted header, or with an empty one; `critical` unless the file sets
    /// another.
    pub default_priority: Priority,
}

impl ForwardAuth {
    /// Creates the settings for a proxy, with its usual defaults.
    #[must_use]
    pub fn of(original: OriginalHeaders) -> Self {
        Self {
            original,
            stated_status: None,
            charge_preflights: false,
            priority_header: None,
            default_priority: Priority::default(),
        }
    }

    /// Returns the headers that come from the proxy and not from its caller.
    pub fn headers(&self) -> impl Iterator<Item = &str> {
        let original = [self.original.method(), self.original.uri(), self.original.host()];
        original.into_iter().chain(self.priority_header.as_deref())
    }

    /// Returns the status of every refusal; `None`: each policy has its own.
    ///
    /// For nginx the default is 403: `auth_request` turns other refusals than 401 and 403 into a 500.
    #[must_use]
    pub fn deny_status(&self) -> Option<u16> {
        let usual = matches!(self.original, OriginalHeaders::Nginx).then_some(403);
        self.stated_status.or(usual)
    }
}

pub(super) fn other_proxy(text: &str) -> Option<&'static str> {
    match &*text.to_ascii_lowercase() {
        "haproxy" | "apache" | "custom" => Some(
            "forward_auth: { method: x-original-method, path: x-original-uri, host: x-original-host }, the headers that it sets",
        ),
        "envoy" | "istio" => Some("server: { grpc: 127.0.0.1:8081 }, where it asks"),
        _ => None,
    }
}

pub(super) fn map_meant(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    match OriginalHeaders::NAMES.into_iter().find(|known| *known == lower) {
        Some(proxy) => format!("{{ proxy: {proxy} }}"),
        None => {
            other_proxy(text).unwrap_or("{ proxy: nginx }").trim_start_matches("forward_auth: ").to_owned()
        }
    }
}

const HEADERS: [&str; 3] = ["method", "path", "host"];

/// Headers of a sub-request that say nothing about the original request.
const OF_THE_SUB_REQUEST: [&str; 4] =
    ["connection", "content-length", "transfer-encoding", "x-tidegate-token"];

/// Returns an error text if policies name a header that never comes from the original caller.
pub(super) fn never_of_the_caller(named: &Named) -> Option<String> {
    let header = named.names().filter_map(|name| name.strip_prefix("request.header."));
    let header = header.into_iter().find(|name| *name == "host" || OF_THE_SUB_REQUEST.contains(name))?;
    let advice = if header == "host" { "; write request.host" } else { "" };
    Some(format!(
        "a policy names request.header.{header}, which in forward-auth is the proxy's own and never the caller's{advice}"
    ))
}

/// Builds the section; `None` if there is none, or its mistakes are among the findings.
pub(super) fn forward_auth(file: &Node, findings: &mut Findings) -> Option<ForwardAuth> {
    let (name, section) = file.entry("forward_auth")?;
    let original = match (section.entry("proxy"), HEADERS.map(|key| section.get(key))) {
        (Some((_, proxy)), [None, None, None]) => OriginalHeaders::named(proxy.text()?)?,
        (Some((proxy, _)), _) => {
            findings.error(
                proxy.spot,
                "forward_auth has a proxy and headers; use one of them: the proxy says which headers",
            );
            return None;
        }
        (None, [None, None, None]) if !matches!(section.value, Value::Map(_)) => return None,
        (None, [None, None, None]) => {
            let words = OriginalHeaders::NAMES.join(", ");
            findings.error(
                name.spot,
                format_args!(
                    "forward_auth has no proxy; use {words}, or name the headers as method, path and host"
                ),
            );
            return None;
        }
        (None, [method, uri, host]) => {
            let mut read = |key: &str, node: Option<&Node>| header(key, node, name.spot, findings);
            let (method, uri, host) = (read("method", method), read("path", uri), read("host", host));
            let (method, uri, host) = (method?, uri?, host?);
            if method == uri || uri == host || method == host {
                findings.error(
                    name.spot,
                    "forward_auth names one header twice; method, path and host need one each",
                );
                return None;
            }
            OriginalHeaders::Custom { method, uri, host }
        }
    };
    let status = section.get("status");
    let stated_status = status.and_then(Node::text).and_then(|text| text.parse().ok());
    if let Some(node) = status
        && original == OriginalHeaders::Nginx
        && !matches!(stated_status, Some(401 | 403))
    {
        findings.warn(
            node.spot,
            "forward_auth.status: nginx turns every refusal other than 401 and 403 into 500; use 403",
        );
    }
    let charge_preflights = section.text_of("options") == Some("charge");
    if file.get("client_ip").is_none_or(|node| node.get("trusted_proxies").is_none()) {
        findings.warn(
            name.spot,
            "forward_auth asks for client_ip.trusted_proxies: without the proxy's network there, every caller is the proxy",
        );
    }
    let client_header = file.get("client_ip").and_then(|node| node.entry("header"));
    if let Some((_, node)) = client_header
        && let Some(header) = node.text().filter(|header| !header.eq_ignore_ascii_case("x-forwarded-for"))
        && !matches!(original, OriginalHeaders::Custom { .. })
    {
        let header = excerpt(header);
        findings.warn(
            node.spot,
            format_args!("client_ip.header: the proxy of forward_auth does not set {header} unless it is configured to; otherwise callers choose their own address"),
        );
    }
    let priority_header = priority_header(file, section, &original, findings);
    let default_priority = section.text_of("default_priority");
    let default_priority = default_priority.and_then(|text| text.parse().ok()).unwrap_or_default();
    Some(ForwardAuth { original, stated_status, charge_preflights, priority_header, default_priority })
}

/// Reads the name of the priority header. No other value may come from the same header.
fn priority_header(
    file: &Node,
    section: &Node,
    original: &OriginalHeaders,
    findings: &mut Findings,
) -> Option<String> {
    let node = section.get("priority_header")?;
    let name = header("priority_header", Some(node), node.spot, findings)?;
    let client_ip = |key: &str| file.get("client_ip").and_then(|client_ip| client_ip.get(key));
    if client_ip("trusted_proxies").is_none_or(|proxies| proxies.each().is_empty()) {
        findings.error(
            node.spot,
            "forward_auth.priority_header is believed only from your own proxies; name their networks in client_ip.trusted_proxies",
        );
        return None;
    }
    let family = [original.method(), original.uri(), original.host()];
    let address = client_ip("header").and_then(Node::text).unwrap_or("x-forwarded-for");
    if family.contains(&name.as_str()) || address.eq_ignore_ascii_case(&name) {
        findings.error(
            node.spot,
            format_args!(
                "forward_auth.priority_header: {name} already has another meaning; name another header"
            ),
        );
        return None;
    }
    Some(name)
}

/// Reads the name of a header, in lower case; the shape was checked.
fn header(key: &str, node: Option<&Node>, section: Spot, findings: &mut Findings) -> Option<String> {
    let Some(node) = node else {
        findings.error(section, format_args!("forward_auth has no {key}; name the header that holds it"));
        return None;
    };
    let name = node.text()?.to_ascii_lowercase();
    // A proxy passes on the caller's credentials or sends its own.
    if name == "authorization" || OF_THE_SUB_REQUEST.contains(&name.as_str()) {
        let example = key.trim_end_matches("_header");
        findings.error(node.spot, format_args!("forward_auth.{key}: {name} cannot describe the original request; use a header that the proxy sets, as x-original-{example}"));
        return None;
    }
    Some(name)
}

// Reads `defaults.priority_header`.

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

/// Reads the header's name in lower case; `None` if the file does not set it, or an error among the findings refuses
/// it.
pub(super) fn told_in_answers(defaults: Option<&Node>, findings: &mut Findings) -> Option<String> {
    let node = defaults?.get("priority_header")?;
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
    use super::*;
    use tidegate_core::Criticality;

    fn parse(section: &str) -> Result<(Option<ForwardAuth>, Vec<String>), Vec<String>> {
        let text =
            format!("version: 1\nclient_ip: {{ trusted_proxies: [10.0.0.0/8] }}\n{section}\npolicies: []\n");
        let lines = |found: Vec<super::super::Diagnostic>| found.iter().map(ToString::to_string).collect();
        match Config::parse(&text, "f", Format::Yaml) {
            Ok((config, warnings)) => Ok((config.forward_auth, lines(warnings))),
            Err(mistakes) => Err(lines(mistakes)),
        }
    }

    #[test]
    fn headers_that_are_never_the_callers_are_refused() {
        for (header, word) in [("host", "write request.host"), ("x-tidegate-token", "x-tidegate-token")] {
            let policy = format!("{{ name: a, by: [request.header.{header}], limit: {{ rate: 1/s }} }}");
            let file = |door: &str| {
                let text = format!(
                    "version: 1\nclient_ip: {{ trusted_proxies: [10.0.0.0/8] }}\n{door}policies: [{policy}]\n"
                );
                Config::parse(&text, "f", Format::Yaml)
            };
            let mistakes = file("forward_auth: { proxy: caddy }\n").unwrap_err();
            assert!(mistakes[0].to_string().contains(word), "{}", mistakes[0]);
            assert!(file("").is_ok(), "a program may send an attribute of that name");
        }
    }

    #[test]
    fn one_family_is_chosen_and_nothing_is_believed_unless_one_is() {
        assert_eq!(parse("").unwrap(), (None, Vec::new()));
        let (nginx, _) = parse("forward_auth: { proxy: nginx }").unwrap();
        let nginx = nginx.unwrap();
        assert_eq!((nginx.original.uri(), nginx.deny_status()), ("x-original-uri", Some(403)));
        for proxy in ["caddy", "traefik"] {
            let (chosen, _) = parse(&format!("forward_auth: {{ proxy: {proxy}, options: charge }}")).unwrap();
            let chosen = chosen.unwrap();
            assert_eq!((chosen.original.host(), chosen.deny_status()), ("x-forwarded-host", None));
            assert!(chosen.charge_preflights);
        }
        let own = "forward_auth: { method: X-M, path: x-u, host: x-h, status: 418 }";
        let (own, warnings) = parse(own).unwrap();
        let own = own.unwrap();
        assert_eq!((own.original.method(), own.deny_status(), warnings.len()), ("x-m", Some(418), 0));
    }

    #[test]
    fn what_is_half_said_or_cannot_be_is_named() {
        for (section, says) in [
            (
                "{ options: pass }",
                "forward_auth has no proxy; use nginx, caddy, traefik, or name the headers",
            ),
            ("{ proxy: ngnix }", "did you mean \"nginx\"?"),
            ("{ proxy: nginx, path: x-u }", "forward_auth has a proxy and headers"),
            ("{ path: x-u, method: x-m }", "forward_auth has no host; name the header"),
            ("{ path: x-u, method: x-m, host: X-U }", "names one header twice"),
            ("{ path: 'x u', method: x-m, host: x-h }", "no header is called \"x u\""),
            (
                "{ path: x-u, method: connection, host: x-h }",
                "connection cannot describe the original request",
            ),
            ("{ proxy: caddy, status: 200 }", "200 is out of range; use 400 to 599"),
            ("{ proxy: caddy, options: maybe }", "unknown word \"maybe\""),
            ("{ proxy: caddy, deny_status: 403 }", "it is called status now: write status: 403"),
            ("{ proxy: caddy, header: x }", "unknown key \"header\" in forward_auth"),
            (
                "{ proxy: caddy, priority_header: x-forwarded-host }",
                "x-forwarded-host already has another meaning",
            ),
            (
                "{ proxy: caddy, priority_header: X-Forwarded-For }",
                "x-forwarded-for already has another meaning",
            ),
            (
                "{ proxy: caddy, priority_header: authorization }",
                "use a header that the proxy sets, as x-original-priority",
            ),
            ("{ proxy: caddy, priority_header: 'x y' }", "no header is called \"x y\""),
            (
                "{ proxy: caddy, default_priority: shedable }",
                "forward_auth.default_priority: unknown word \"shedable\"; did you mean \"sheddable\"?",
            ),
            ("nginx", "forward_auth is a map, found a text"),
        ] {
            let mistakes = parse(&format!("forward_auth: {section}")).unwrap_err().join("\n");
            assert!(mistakes.contains(says), "{section}: {mistakes}");
        }
        let (told, warnings) = parse("forward_auth: { proxy: nginx, priority_header: X-Priority }").unwrap();
        let told = told.unwrap();
        assert_eq!((told.priority_header.as_deref(), warnings.len()), (Some("x-priority"), 0));
        assert_eq!(told.default_priority, Priority::of(Criticality::Critical));
        let (told, _) = parse("forward_auth: { proxy: nginx, default_priority: sheddable-plus }").unwrap();
        assert_eq!(told.unwrap().default_priority, Priority::of(Criticality::SheddablePlus));
        for nobody in ["", "client_ip: { trusted_proxies: [] }\n"] {
            let text = format!(
                "version: 1\n{nobody}forward_auth: {{ proxy: caddy, priority_header: x-p }}\npolicies: []\n"
            );
            let mistakes = Config::parse(&text, "f", Format::Yaml).unwrap_err();
            let told = mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(
                told.contains(
                    "is believed only from your own proxies; name their networks in client_ip.trusted_proxies"
                ),
                "{told}"
            );
        }
        let text =
            "version: 1\nclient_ip: { header: X-Real-IP }\nforward_auth: { proxy: caddy }\npolicies: []\n";
        let (_, warnings) = Config::parse(text, "f", Format::Yaml).unwrap();
        let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert!(
            warnings[0]
                .contains("the proxy of forward_auth does not set X-Real-IP unless it is configured to"),
            "{warnings:?}"
        );
        assert!(warnings[1].contains("asks for client_ip.trusted_proxies"), "{warnings:?}");
        let (_, warnings) = parse("forward_auth: { proxy: nginx, status: 429 }").unwrap();
        assert!(
            warnings[0].contains("nginx turns every refusal other than 401 and 403 into 500"),
            "{warnings:?}"
        );
    }

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
