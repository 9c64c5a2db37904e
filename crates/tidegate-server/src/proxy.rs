//! What the configuration says about the forward-auth proxy: which headers it sets, and which the policies name.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use tidegate::config::{ForwardAuth, OriginalHeaders};
use tidegate::policy::{ClientIp, Mode, Named, PolicySet};

use crate::problem::Problem;
use crate::settings::Settings;

pub(crate) const HEADER: &str = "request.header.";

/// The proxy, under one configuration.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// How the proxy asks; `None` if the configuration does not say.
    forward_auth: Option<ForwardAuth>,
    pub(crate) client_ip: ClientIp,
    pub(crate) named: Named,
    pub(crate) policies: Arc<PolicySet>,
    /// The headers with the original method, path and host; `None` for an invalid name.
    pub(crate) original: [Option<HeaderName>; 3],
    /// The header with the client's address.
    pub(crate) forwarded: Option<HeaderName>,
    /// Whether policies name headers.
    pub(crate) names_headers: bool,
    /// The named headers with `-` for `_`, as programs see them that do not tell the two apart.
    spellings: HashSet<String>,
    untrusted_peer: UntrustedPeer,
}

impl Proxy {
    pub(crate) fn new(settings: &Settings) -> Self {
        let named = settings.policies.named();
        let headers = named.names().filter_map(|name| name.strip_prefix(HEADER));
        let family = settings.forward_auth.as_ref().map(|forward_auth| &forward_auth.original);
        let lookup = |name: &str| HeaderName::from_bytes(name.as_bytes()).ok();
        let original = [OriginalHeaders::method, OriginalHeaders::uri, OriginalHeaders::host];
        Self {
            forward_auth: settings.forward_auth.clone(),
            original: original.map(|name| lookup(name(family?))),
            forwarded: lookup(settings.client_ip.header.name()),
            client_ip: settings.client_ip.clone(),
            names_headers: named.reaches(HEADER),
            spellings: headers.map(with_dashes).collect(),
            named,
            policies: Arc::clone(&settings.policies),
            untrusted_peer: UntrustedPeer::new(&settings.policies),
        }
    }

    /// Returns how the proxy asks.
    ///
    /// # Errors
    /// 503 if the configuration does not say: a request does not show which headers its caller
    /// set.
    pub(crate) fn forward_auth(&self) -> Result<&ForwardAuth, Problem> {
        self.forward_auth.as_ref().ok_or_else(|| {
            let names = OriginalHeaders::NAMES.join(", ");
            let detail = format!(
                "forward-auth is not set up: it is not configured in which headers the proxy describes the original \
                 request; write `forward_auth: {{ proxy: NAME }}` into the policy file or start with --forward-auth NAME, \
                 where NAME is one of {names}"
            );
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail).of_proxy()
        })
    }

    /// Returns the address of a caller who comes through the trusted proxies or alone. One whose proxy does not say where
    /// from is the proxy.
    pub(crate) fn caller_of(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        let lines = self.forwarded.iter().flat_map(|name| headers.get_all(name)).map(HeaderValue::as_bytes);
        self.client_ip.find(peer, lines).map_or(peer, |found| found.address)
    }

    /// Returns the status of every refusal; `None` if each policy has its own.
    pub(crate) fn deny_status(&self) -> Option<StatusCode> {
        let status = self.forward_auth.as_ref().and_then(ForwardAuth::deny_status);
        status.and_then(|status| StatusCode::from_u16(status).ok())
    }

    /// Logs once per configuration if a peer taken for the caller merges all callers behind it.
    pub(crate) fn took_peer_for_caller(&self, peer: IpAddr, headers: &HeaderMap) {
        if let Some(warning) = self.untrusted_peer.warning(peer, headers, &self.client_ip) {
            tracing::warn!("{warning}");
        }
    }

    /// Refuses a request for something that the caller did, with a status that the proxy takes for a refusal.
    pub(crate) fn refused(&self, detail: String) -> Problem {
        Problem::new(self.deny_status().unwrap_or(StatusCode::BAD_REQUEST), detail)
    }

    /// Returns whether programs that do not distinguish `_` from `-`, such as CGI and its descendants, take this
    /// header for a named one.
    pub(crate) fn is_taken_for_named(&self, name: &HeaderName) -> bool {
        !self.spellings.is_empty() && self.spellings.contains(&with_dashes(name.as_str()))
    }

    /// Returns the named header for which such programs take this one.
    pub(crate) fn named_like(&self, header: &str) -> Option<&str> {
        let spelling = with_dashes(header);
        let mut headers = self.named.names().filter_map(|name| name.strip_prefix(HEADER));
        headers.find(|name| with_dashes(name) == spelling)
    }
}

pub(crate) fn with_dashes(name: &str) -> String {
    name.replace('_', "-")
}

// Warns of a proxy that is not trusted: all its callers count as one, and each answer is a decision about the wrong
// key. A file with `trusted_proxies: []` is valid, so the first sub-request reveals it.

/// Headers in which proxies forward the caller's address. The configured header is checked too.
const FORWARDING: [&str; 4] = ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip"];

#[derive(Debug)]
struct UntrustedPeer {
    /// False once logged, and from the start if no policy is keyed by `client.ip`.
    pending: AtomicBool,
}

impl UntrustedPeer {
    fn new(policies: &PolicySet) -> Self {
        let keyed = policies
            .policies()
            .iter()
            .filter(|policy| policy.mode != Mode::Off)
            .flat_map(|policy| &policy.by);
        Self { pending: AtomicBool::new(keyed.into_iter().any(|by| by == "client.ip")) }
    }

    /// Returns the warning, once, when an untrusted peer sends a forwarding header. After that it reads a single
    /// flag.
    fn warning(&self, peer: IpAddr, headers: &HeaderMap, client_ip: &ClientIp) -> Option<String> {
        if !self.pending.load(Ordering::Relaxed) {
            return None;
        }
        let read = client_ip.header.name();
        let sent = std::iter::once(read).chain(FORWARDING).find(|name| headers.contains_key(*name))?;
        // Relaxed: the swap alone decides which of several threads logs.
        if !self.pending.swap(false, Ordering::Relaxed) {
            return None;
        }
        // Single quotes: IPv6 addresses need them in YAML, and a JSON log escapes double ones.
        let advice = if client_ip.trusted_proxies.is_empty() && *client_ip == ClientIp::default() {
            format!("write `client_ip: {{ trusted_proxies: ['{peer}'] }}` into the policy file")
        } else {
            format!("add '{peer}' to `client_ip.trusted_proxies` in the policy file")
        };
        // Never suggests reading the header that came: if the proxy only passes it on, its caller chooses the
        // value.
        let also = if sent == read { String::new() } else { format!(" and have it set {read}") };
        Some(format!(
            "behind {peer} all callers share one key of each policy by client.ip: it sends {sent}, and trusted_proxies does not name it; if it is \
             your proxy, {advice}{also}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use tidegate::config::{Config, Format};

    use super::*;

    fn config(file: &str) -> Config {
        Config::parse(file, "f", Format::Yaml).unwrap().0
    }

    fn sending(names: &[&'static str]) -> HeaderMap {
        let lines =
            names.iter().map(|name| (HeaderName::from_static(name), HeaderValue::from_static("9.9.9.9")));
        lines.collect()
    }

    fn by(attribute: &str, mode: &str, client_ip: &str) -> (UntrustedPeer, ClientIp) {
        let policy = format!("{{ name: a, mode: {mode}, by: [{attribute}], limit: {{ rate: 1/s }} }}");
        let config = config(&format!("version: 1\n{client_ip}\npolicies: [{policy}]\n"));
        (UntrustedPeer::new(&config.policies), config.client_ip)
    }

    /// Regression: behind nginx, three different callers shared 127.0.0.1, and nothing was logged.
    #[test]
    fn the_first_request_of_a_proxy_that_nobody_trusts_is_told_once_with_the_line_that_helps() {
        for peer in ["127.0.0.1", "2001:db8::7"] {
            let peer: IpAddr = peer.parse().unwrap();
            let (told, client_ip) = by("client.ip", "enforce", "client_ip: { trusted_proxies: [] }");
            assert_eq!(told.warning(peer, &sending(&["accept"]), &client_ip), None, "it forwards nobody");
            let warning = told.warning(peer, &sending(&["x-forwarded-for"]), &client_ip).unwrap();
            assert!(warning.starts_with(&format!("behind {peer} all callers share one key")), "{warning}");
            assert!(warning.contains("it sends x-forwarded-for,"), "{warning}");
            assert_eq!(told.warning(peer, &sending(&["x-forwarded-for"]), &client_ip), None, "once");
            let line = warning.split('`').nth(1).unwrap();
            let advised = config(&format!("version: 1\n{line}\npolicies: []\n")).client_ip;
            assert!(advised.trusted_proxies.iter().any(|network| network.contains(&peer)), "{line}");
        }
    }

    #[test]
    fn what_the_file_says_already_is_kept_and_a_header_that_is_not_read_is_not_made_the_one_that_is() {
        let peer = IpAddr::from([192, 0, 2, 1]);
        let (told, client_ip) = by("client.ip", "shadow", "client_ip: { trusted_proxies: [10.0.0.0/8] }");
        let warning = told.warning(peer, &sending(&["cf-connecting-ip"]), &client_ip).unwrap();
        assert!(warning.contains("it sends cf-connecting-ip,"), "{warning}");
        let advice = "add '192.0.2.1' to `client_ip.trusted_proxies` in the policy file and have it set x-forwarded-for";
        assert!(warning.ends_with(advice), "{warning}");
        let (told, client_ip) = by("client.ip", "enforce", "client_ip: { header: x-client }");
        let warning = told.warning(peer, &sending(&["x-client", "forwarded"]), &client_ip).unwrap();
        assert!(warning.contains("it sends x-client,") && !warning.contains("have it set"), "{warning}");
    }

    #[test]
    fn nobody_is_warned_where_no_policy_goes_by_the_address() {
        let peer = IpAddr::from([127, 0, 0, 1]);
        for (attribute, mode) in [("user.id", "enforce"), ("client.ip", "\"off\"")] {
            let (told, client_ip) = by(attribute, mode, "client_ip: { trusted_proxies: [] }");
            assert_eq!(told.warning(peer, &sending(&["x-forwarded-for"]), &client_ip), None);
        }
    }
}
