//! Logs a warning if a proxy asks that the configuration does not trust, so that all its callers count as one.
//!
//! Such a setup seems to work: each answer is a decision, but about the wrong key. A file with `trusted_proxies: []`
//! causes no warning when it is read, so the first sub-request is what reveals it.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::HeaderMap;
use tidegate::policy::{ClientIp, Mode, PolicySet};

/// Headers in which proxies forward the caller's address. The configured header is checked too.
const FORWARDING: [&str; 4] = ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip"];

/// Whether the warning is still to be logged, under one configuration.
#[derive(Debug)]
pub(super) struct UntrustedPeer {
    /// False once it was logged, and from the start if no policy is keyed by `client.ip`.
    pending: AtomicBool,
}

impl UntrustedPeer {
    pub(super) fn new(policies: &PolicySet) -> Self {
        let keyed = policies
            .policies()
            .iter()
            .filter(|policy| policy.mode != Mode::Off)
            .flat_map(|policy| &policy.by);
        Self { pending: AtomicBool::new(keyed.into_iter().any(|by| by == "client.ip")) }
    }

    /// Returns the warning about an untrusted peer, once, when it sends a forwarding header; otherwise `None`.
    ///
    /// Once there is nothing more to log, this reads a single flag.
    pub(super) fn warning(&self, peer: IpAddr, headers: &HeaderMap, client_ip: &ClientIp) -> Option<String> {
        if !self.pending.load(Ordering::Relaxed) {
            return None;
        }
        let read = client_ip.header.name();
        let sent = std::iter::once(read).chain(FORWARDING).find(|name| headers.contains_key(*name))?;
        // Relaxed: the swap alone decides which of several threads logs.
        if !self.pending.swap(false, Ordering::Relaxed) {
            return None;
        }
        // Single quotes: IPv6 addresses need quotes in YAML, and a JSON log escapes double quotes.
        let advice = if client_ip.trusted_proxies.is_empty() && *client_ip == ClientIp::default() {
            format!("write `client_ip: {{ trusted_proxies: ['{peer}'] }}` into the policy file")
        } else {
            format!("add '{peer}' to `client_ip.trusted_proxies` in the policy file")
        };
        // Does not suggest setting `client_ip.header` to the header that came: if the proxy only passes that on, its
        // caller chooses the value.
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
