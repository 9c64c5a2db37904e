//! Facts about the forward-auth proxy that the configuration determines: which headers the proxy sets, and which
//! headers the policies name.

mod untrusted_peer;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use http::StatusCode;
use http::header::{HeaderMap, HeaderName};
use tidegate::config::{ForwardAuth, OriginalHeaders};
use tidegate::policy::{ClientIp, Named, PolicySet};

use self::untrusted_peer::UntrustedPeer;
use crate::problem::Problem;
use crate::settings::Settings;

/// The prefix of a header's attribute; the header's name follows.
pub(crate) const HEADER: &str = "request.header.";

/// The proxy, under one configuration.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// How the proxy asks; `None` if the configuration does not say.
    forward_auth: Option<ForwardAuth>,
    pub(crate) client_ip: ClientIp,
    pub(crate) named: Named,
    pub(crate) policies: Arc<PolicySet>,
    /// The headers with the method, path and host of the original request, parsed once; `None` for an invalid header
    /// name.
    pub(crate) original: [Option<HeaderName>; 3],
    /// The header with the client's address, parsed once in the same way.
    pub(crate) forwarded: Option<HeaderName>,
    /// Whether policies name headers.
    pub(crate) names_headers: bool,
    /// The headers that policies name, with `_` replaced by `-`, as programs see them that do not distinguish the two.
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
    /// 503 if the configuration does not say: a request does not show which headers the proxy set and which its caller
    /// did.
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

    /// Returns the status of every refusal; `None` if each policy has its own.
    pub(crate) fn deny_status(&self) -> Option<StatusCode> {
        let status = self.forward_auth.as_ref().and_then(ForwardAuth::deny_status);
        status.and_then(|status| StatusCode::from_u16(status).ok())
    }

    /// Checks a peer that was taken for the caller. Logs once per configuration if that merges all callers behind it
    /// into one key.
    pub(crate) fn took_peer_for_caller(&self, peer: IpAddr, headers: &HeaderMap) {
        if let Some(warning) = self.untrusted_peer.warning(peer, headers, &self.client_ip) {
            tracing::warn!("{warning}");
        }
    }

    /// Refuses a request for something that the caller did, with a status that the proxy treats as a refusal.
    pub(crate) fn refused(&self, detail: String) -> Problem {
        Problem::new(self.deny_status().unwrap_or(StatusCode::BAD_REQUEST), detail)
    }

    /// Returns whether programs that do not distinguish `_` from `-`, such as CGI and its descendants, take this header
    /// for one that policies name.
    pub(crate) fn is_taken_for_named(&self, name: &HeaderName) -> bool {
        !self.spellings.is_empty() && self.spellings.contains(&with_dashes(name.as_str()))
    }
}

fn with_dashes(name: &str) -> String {
    name.replace('_', "-")
}
