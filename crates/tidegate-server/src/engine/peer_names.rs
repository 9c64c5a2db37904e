//! Metrics under the names that another rate limiter uses, where the configuration asks for them.

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;
use tidegate::policy::Descriptor;

use super::Engine;
use crate::active_config::ActiveConfig;
use crate::metrics::Transport;
use crate::metrics::peer_names::{PeerNames, show_envoy};

impl Engine {
    /// Counts a gRPC call. Does nothing unless Limitador's metric names are in use.
    pub(super) fn count_call(
        &self,
        live: &ActiveConfig,
        request: &Descriptor<'_>,
        transport: Transport,
        allowed: bool,
    ) {
        if let (PeerNames::Limitador(calls), Transport::grpc) = (&self.peer_names, transport)
            && let Some(namespace) = request.value("rls.domain")
        {
            calls.count(namespace, allowed, live.set.policies());
        }
    }

    /// Counts a gRPC call that no policy is about by its domain, if there is no policy of that. Does nothing unless the
    /// metric names of envoyproxy/ratelimit are in use.
    pub(super) fn count_unknown_domain(&self, live: &ActiveConfig, request: &Descriptor<'_>) {
        if let (PeerNames::Envoy(unknown), Some(domain)) = (&self.peer_names, request.value("rls.domain")) {
            unknown.count(domain, live.set.policies());
        }
    }

    /// Returns the series under those names as text; empty if none are in use.
    pub(super) fn peer_metrics(&self, live: &ActiveConfig) -> String {
        let mut registry = Registry::default();
        match &self.peer_names {
            PeerNames::None => return String::new(),
            PeerNames::Envoy(unknown) => {
                unknown.show(&mut registry);
                let series = live.policies.iter().map(|facts| &*facts.series);
                show_envoy(&mut registry, live.set.policies().iter().zip(series));
            }
            PeerNames::Limitador(calls) => {
                let partitioned = self.storage.outage().is_some() || self.storage.trouble().is_some();
                calls.show(&mut registry, partitioned, live.set.policies());
            }
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode_registry(&mut text, &registry);
        text
    }
}
