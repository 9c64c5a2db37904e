//! Series under the names of other rate limiters, for dashboards and alerts that exist.
//!
//! Those of envoyproxy/ratelimit are computed from Tidegate's own when metrics are read. Those of Limitador count
//! calls, so they are counted at each call. Imported policies are called `DOMAIN.KEY.KEY`; a name without a dot is a
//! key in the domain `tidegate`.
//!
//! # Source
//! The statsd mapping of envoyproxy/ratelimit (`src/stats/prom/default_mapper.yaml`); `prometheus_metrics.rs` of
//! Limitador's server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;
use tidegate::config::Peer;
use tidegate::policy::Policy;

use super::labels::Decided;
use super::policy_series::PolicySeries;

/// A count without the suffix that OpenMetrics demands of counters, so its type is `unknown`.
#[derive(Clone, Debug, Default)]
struct Count(Arc<AtomicU64>);

impl Count {
    fn add(&self, count: u64) {
        // Relaxed: the number stands alone.
        self.0.fetch_add(count, Ordering::Relaxed);
    }
}

impl TypedMetric for Count {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for Count {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        encoder.encode_gauge(&self.0.load(Ordering::Relaxed))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DescriptorLabels {
    domain: String,
    key1: String,
    key2: Option<String>,
}

impl DescriptorLabels {
    fn of(policy: &str) -> Self {
        let Some((domain, keys)) = policy.split_once('.') else {
            return Self { domain: "tidegate".to_owned(), key1: policy.to_owned(), key2: None };
        };
        // envoyproxy/ratelimit has no labels for deeper keys either.
        let mut keys = keys.split('.').map(str::to_owned);
        Self { domain: domain.to_owned(), key1: keys.next().unwrap_or_default(), key2: keys.next() }
    }
}

/// The rate limiter whose names are used.
#[derive(Debug)]
pub(crate) enum PeerNames {
    None,
    Envoy(UnknownDomains),
    Limitador(LimitadorCalls),
}

impl PeerNames {
    pub(crate) fn of(peer: Option<Peer>) -> Self {
        match peer {
            Some(Peer::Envoy) => Self::Envoy(UnknownDomains::default()),
            Some(Peer::Limitador) => Self::Limitador(LimitadorCalls::default()),
            _ => Self::None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DomainLabel {
    domain: String,
}

/// Counts calls in domains without policies. Only the first [`UnknownDomains::MOST`] have a series of their own.
#[derive(Debug, Default)]
pub(crate) struct UnknownDomains(Mutex<BTreeMap<String, u64>>);

impl UnknownDomains {
    const MOST: usize = 16;
    /// The longest label, in bytes.
    const LONGEST: usize = 128;

    pub(crate) fn count(&self, domain: &str, policies: &[Policy]) {
        if policies.iter().any(|policy| is_of(domain, policy)) {
            return;
        }
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(domain) {
            *count += 1;
            return;
        }
        let fits = counts.len() < Self::MOST && domain.len() <= Self::LONGEST;
        let domain = if fits { domain } else { "(others)" };
        *counts.entry(domain.to_owned()).or_default() += 1;
    }

    /// Registers the series.
    pub(crate) fn show(&self, registry: &mut Registry) {
        let family = Family::<DomainLabel, Count>::default();
        for (domain, count) in &*self.0.lock() {
            family.get_or_create(&DomainLabel { domain: domain.clone() }).add(*count);
        }
        registry.register(DOMAIN_NOT_FOUND, "Calls in a domain of which there is no policy", family);
    }
}

/// The name that envoyproxy/ratelimit gives this count.
const DOMAIN_NOT_FOUND: &str = "ratelimit_service_rate_limit_domain_not_found";

/// Registers the series of envoyproxy/ratelimit. A hit there is a request here, whatever its cost.
pub(crate) fn show_envoy<'a>(
    registry: &mut Registry,
    policies: impl Iterator<Item = (&'a Policy, &'a PolicySeries)>,
) {
    let families = [(); 5].map(|()| Family::<DescriptorLabels, Count>::default());
    let [total, over, near, within, shadow] = &families;
    for (policy, series) in policies {
        let labels = DescriptorLabels::of(&policy.name);
        // A shadow limit counts beside its policy's own, so requests would count twice.
        let measured = policy.shadow_limit.is_none().then_some(&series.shadow);
        let counted = |decided| series.enforced(decided) + measured.map_or(0, |tally| tally.counted(decided));
        let (denied, passed) =
            (counted(Decided::denied), counted(Decided::allowed) + counted(Decided::delayed));
        let counts = [
            (total, denied + passed),
            (over, denied),
            (near, series.near.get()),
            (within, passed),
            (shadow, measured.map_or(0, |tally| tally.counted(Decided::denied))),
        ];
        for (family, count) in counts {
            family.get_or_create(&labels).add(count);
        }
    }
    let said = [
        ("total_hits", "Requests that a policy decided"),
        ("over_limit", "Requests over the limit, also in shadow mode"),
        ("near_limit", "Requests that passed with little left of the limit"),
        ("within_limit", "Requests that passed"),
        ("shadow_mode", "Requests over a limit in shadow mode"),
    ];
    for ((name, help), family) in said.into_iter().zip(families) {
        registry.register(format!("ratelimit_service_rate_limit_{name}"), help, family);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamespaceLabel {
    limitador_namespace: String,
}

/// Counts calls like Limitador: by namespace, those that passed and those that were refused.
#[derive(Debug, Default)]
pub(crate) struct LimitadorCalls(Mutex<BTreeMap<String, [u64; 2]>>);

/// Returns whether a policy belongs to a namespace.
fn is_of(namespace: &str, policy: &Policy) -> bool {
    policy.name.strip_prefix(namespace).is_some_and(|rest| rest.starts_with('.'))
}

impl LimitadorCalls {
    /// Counts a call, unless no policy is of its namespace: names that callers make up get no series.
    pub(crate) fn count(&self, namespace: &str, allowed: bool, policies: &[Policy]) {
        if !policies.iter().any(|policy| is_of(namespace, policy)) {
            return;
        }
        let mut counts = self.0.lock();
        if !counts.contains_key(namespace) {
            counts.insert(namespace.to_owned(), [0; 2]);
        }
        if let Some(counts) = counts.get_mut(namespace) {
            counts[usize::from(!allowed)] += 1;
        }
    }

    /// Registers the series of Limitador. `partitioned`: the store is away. Drops namespaces without policies.
    pub(crate) fn show(&self, registry: &mut Registry, partitioned: bool, policies: &[Policy]) {
        let mut counts = self.0.lock();
        counts.retain(|namespace, _| policies.iter().any(|policy| is_of(namespace, policy)));
        for (place, (name, help)) in [
            ("authorized_calls", "Calls of Envoy that passed"),
            ("limited_calls", "Calls of Envoy that were refused"),
        ]
        .into_iter()
        .enumerate()
        {
            let family = Family::<NamespaceLabel, Count>::default();
            for (namespace, counts) in counts.iter().filter(|(_, counts)| counts[place] > 0) {
                let label = NamespaceLabel { limitador_namespace: namespace.clone() };
                family.get_or_create(&label).add(counts[place]);
            }
            registry.register(name, help, family);
        }
        for (name, help, value) in [
            ("limitador_up", "1 while the server runs", 1),
            ("datastore_partitioned", "1 while the store is gone", i64::from(partitioned)),
        ] {
            registry.register(name, help, ConstGauge::new(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::Quota;
    use tidegate::policy::Limit;

    use super::*;
    use crate::metrics::Metrics;

    fn policy(name: &str) -> Policy {
        Policy::new(name, Limit::new(Quota::per_second(1).gcra().unwrap(), "all"))
    }

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode_registry(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn what_policies_decided_is_told_by_the_names_of_ratelimit() {
        let metrics = Metrics::new();
        let (deep, own) = (policy("shop.plan_free.user.more"), policy("per-ip"));
        let (of_deep, of_own) = (metrics.policy(&deep.name, None), metrics.policy(&own.name, None));
        (0..3).for_each(|_| of_deep.enforce.count(Decided::allowed));
        of_deep.enforce.count(Decided::denied);
        of_deep.near.inc();
        of_own.shadow.count(Decided::denied);
        let mut registry = Registry::default();
        show_envoy(&mut registry, [(&deep, &of_deep), (&own, &of_own)].into_iter());
        let text = text(&registry);
        let prefix = "ratelimit_service_rate_limit";
        for (name, count) in [("total_hits", 4), ("over_limit", 1), ("near_limit", 1), ("within_limit", 3)] {
            let line =
                format!("{prefix}_{name}{{domain=\"shop\",key1=\"plan_free\",key2=\"user\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
        let line = format!("{prefix}_shadow_mode{{domain=\"tidegate\",key1=\"per-ip\",key2=\"\"}} 1\n");
        assert!(text.contains(&line), "{line}{text}");
        assert!(text.contains(&format!("# TYPE {prefix}_over_limit unknown\n")), "{text}");
    }

    #[test]
    fn unknown_domains_are_told_and_made_up_ones_share_a_series() {
        let (domains, policies) = (UnknownDomains::default(), [policy("shop.reads")]);
        domains.count("shop", &policies);
        for made_up in 0..100 {
            domains.count(&format!("d{made_up}"), &policies);
            domains.count("d3", &policies);
        }
        let mut registry = Registry::default();
        domains.show(&mut registry);
        let text = text(&registry);
        let name = "ratelimit_service_rate_limit_domain_not_found";
        for line in [format!("{name}{{domain=\"d3\"}} 101"), format!("{name}{{domain=\"(others)\"}} 84")] {
            assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("\"shop\"") && text.lines().count() < 25, "{text}");
    }

    #[test]
    fn calls_are_told_by_the_names_of_limitador_and_namespaces_that_callers_make_up_are_not() {
        let (calls, policies) = (LimitadorCalls::default(), [policy("shop.reads"), policy("shop.limit-2")]);
        for (namespace, allowed) in
            [("shop", true), ("shop", true), ("shop", false), ("made-up", true), ("sho", true)]
        {
            calls.count(namespace, allowed, &policies);
        }
        let mut registry = Registry::default();
        calls.show(&mut registry, true, &policies);
        let text = text(&registry);
        for line in [
            "authorized_calls{limitador_namespace=\"shop\"} 2",
            "limited_calls{limitador_namespace=\"shop\"} 1",
            "limitador_up 1",
            "datastore_partitioned 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("made-up") && !text.contains("\"sho\""), "{text}");
        let mut registry = Registry::default();
        calls.show(&mut registry, false, &[policy("own.reads")]);
        assert!(!self::text(&registry).contains("shop"), "no policy has it any more");
    }
}
