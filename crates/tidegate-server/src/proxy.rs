//! What is known of the proxy before a sub-request comes: which headers it sets, and which headers the policies name.

mod untrusted_peer;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::StatusCode;
use http::header::{HeaderMap, HeaderName};
use tidegate::config::{ForwardAuth, OriginalHeaders};
use tidegate::policy::{ClientIp, Named, PolicySet};

use self::untrusted_peer::UntrustedPeer;
use crate::problem::Problem;
use crate::settings::Settings;

/// What the attribute of a header begins with; its name follows.
pub(crate) const HEADER: &str = "request.header.";

/// The proxy under one configuration.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// How it asks; `None` where the configuration does not say.
    asks: Option<ForwardAuth>,
    pub(crate) client_ip: ClientIp,
    pub(crate) named: Named,
    pub(crate) policies: Arc<PolicySet>,
    /// The headers that hold method, path and host of the original request, ready to be looked up; `None` for a name that no header has.
    pub(crate) original: [Option<HeaderName>; 3],
    /// The header that holds the client's address, in the same way.
    pub(crate) forwarded: Option<HeaderName>,
    /// Whether policies name headers.
    pub(crate) names_headers: bool,
    /// The headers that policies name, as programs that do not tell `_` from `-` know them.
    spellings: HashSet<String>,
    /// Whether the log has been told what is wrong with the proxy.
    told: AtomicBool,
    untrusted_peer: UntrustedPeer,
}

impl Proxy {
    pub(crate) fn new(settings: &Settings) -> Self {
        let named = settings.policies.named();
        let headers = named.names().filter_map(|name| name.strip_prefix(HEADER));
        let family = settings.forward_auth.as_ref().map(|asks| &asks.original);
        let lookup = |name: &str| HeaderName::from_bytes(name.as_bytes()).ok();
        let original = [OriginalHeaders::method, OriginalHeaders::uri, OriginalHeaders::host];
        Self {
            asks: settings.forward_auth.clone(),
            original: original.map(|name| lookup(name(family?))),
            forwarded: lookup(settings.client_ip.header.name()),
            client_ip: settings.client_ip.clone(),
            names_headers: named.reaches(HEADER),
            spellings: headers.map(with_dashes).collect(),
            named,
            policies: Arc::clone(&settings.policies),
            told: AtomicBool::new(false),
            untrusted_peer: UntrustedPeer::new(&settings.policies),
        }
    }

    /// Returns how the proxy asks.
    ///
    /// # Errors
    /// 503 when nothing says so: which headers are the proxy's and which its caller's cannot be seen from a request.
    pub(crate) fn asks(&self) -> Result<&ForwardAuth, Problem> {
        self.asks.as_ref().ok_or_else(|| {
            let names = OriginalHeaders::NAMES.join(", ");
            self.misconfigured(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                format!(
                    "forward-auth is not set up: nothing says in which headers the proxy tells of the original request; \
                     write `forward_auth: {{ proxy: NAME }}` into the policy file or start with --forward-auth NAME, \
                     where NAME is one of {names}"
                ),
            ))
        })
    }

    /// Returns the status of every refusal; `None` where each policy has its own.
    pub(crate) fn deny_status(&self) -> Option<StatusCode> {
        let status = self.asks.as_ref().and_then(ForwardAuth::deny_status);
        status.and_then(|status| StatusCode::from_u16(status).ok())
    }

    /// Says that the proxy does not do its part. The log is told once per configuration: every request would say the same.
    pub(crate) fn misconfigured(&self, problem: Problem) -> Problem {
        // Relaxed: two threads may both tell, which is one line too many and orders nothing.
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(problem = problem.detail(), "a sub-request of a proxy was refused");
        }
        problem
    }

    /// Notes that a peer was taken for the caller. The log is told once per configuration where that makes one key of all who are behind it.
    pub(crate) fn took_peer_for_caller(&self, peer: IpAddr, headers: &HeaderMap) {
        if let Some(warning) = self.untrusted_peer.warning(peer, headers, &self.client_ip) {
            tracing::warn!("{warning}");
        }
    }

    /// Refuses what a caller did, in the way that the proxy takes for a refusal.
    pub(crate) fn refused(&self, detail: String) -> Problem {
        Problem::new(self.deny_status().unwrap_or(StatusCode::BAD_REQUEST), detail)
    }

    /// Says whether programs that do not tell `_` from `-`, as CGI and all that came of it, take a header for one that
    /// policies name.
    pub(crate) fn is_taken_for_named(&self, name: &HeaderName) -> bool {
        !self.spellings.is_empty() && self.spellings.contains(&with_dashes(name.as_str()))
    }
}

fn with_dashes(name: &str) -> String {
    name.replace('_', "-")
}
