//! Tests of the text of metrics.

use super::*;

#[tokio::test]
async fn names_are_those_of_the_dashboards() {
    let metrics = Metrics::new();
    let series = metrics.policy("per-ip", Some(200));
    series.enforce.count(Decided::denied);
    series.utilization.note(Tick::from_secs(60), 150, 200);
    metrics.store_error("memory");
    metrics.log_lines_dropped.store(7, Ordering::Relaxed);
    metrics.time(Transport::resp, async {}).await;
    metrics.store_states("redis").turn(false);
    let text = metrics.write(
        Tick::from_secs(61),
        Occupancy { used: 3, ..Occupancy::default() },
        [&series].into_iter(),
        |_| {},
    );
    for line in [
        "tidegate_decisions_total{policy=\"per-ip\",decision=\"denied\",mode=\"enforce\"} 1",
        "tidegate_decisions_total{policy=\"per-ip\",decision=\"allowed\",mode=\"shadow\"} 0",
        "tidegate_near_limit_total{policy=\"per-ip\"} 0",
        "tidegate_policy_limit{policy=\"per-ip\"} 200.0",
        "tidegate_policy_utilization_ratio{policy=\"per-ip\"} 0.75",
        "tidegate_decision_duration_seconds_count{transport=\"resp\"} 1",
        "tidegate_store_errors_total{store=\"memory\"} 1",
        "tidegate_store_up{store=\"redis\"} 0",
        "tidegate_store_state_changes_total{store=\"redis\",state=\"down\"} 1",
        "tidegate_store_state_changes_total{store=\"redis\",state=\"up\"} 0",
        "tidegate_settlements_total{result=\"expired\"} 0",
        "tidegate_extensions_total{result=\"not_held\"} 0",
        "tidegate_settled_units_total{policy=\"per-ip\",fate=\"owed\"} 0",
        "tidegate_connections_cut_total{reason=\"head\"} 0",
        "tidegate_store_keys 3",
        "tidegate_log_lines_dropped_total 7",
        "tidegate_config_last_reload_successful 1",
        "tidegate_build_info{version=\"0.1.0\",commit=\"unknown\"} 1",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    metrics.forget("per-ip");
    let text = metrics.write(Tick::EPOCH, Occupancy::default(), [].into_iter(), |_| {});
    assert!(!text.contains("per-ip"), "{text}");
}

// The page has the metrics of all features, so without one of them it cannot be made.
#[cfg(all(feature = "grpc", feature = "otel", feature = "tls"))]
mod page {
    //! The tables of metrics in the manual (docs/metrics.md), made from the metrics that are served.

    use std::collections::BTreeSet;
    use std::time::Duration;

    use tidegate::cluster::MemberReport;
    use tidegate::cluster::shares::Status;
    use tidegate::policy::{CostErrors, Holding, Limit, Over, Policy, Share};
    use tidegate::store::PlainStore;
    use tidegate::store::leased::LeaseHealth;
    use tidegate::{Quota, Tick};
    use tidegate_testkit::{cell, keep_tables, name, table};

    use super::super::peer_names::{LimitadorCalls, UnknownDomains, show_envoy};
    use super::super::*;
    use crate::metrics::admitted_share::Judge;
    use crate::metrics::protection::FollowedRate;
    use crate::stores::EngineLoad;

    /// Returns the text of all metrics that a server can have.
    fn everything() -> String {
        let metrics = Metrics::new();
        let policy = Policy::new("a.b.c", Limit::new(Quota::per_second(10).burst(5).gcra().unwrap(), "all"));
        let series = metrics.policy(&policy.name, Some(5));
        metrics.canary(&policy.name, &series);
        let judge = Judge::of(&policy, false, None, None).unwrap();
        metrics.store_error("redis");
        metrics.store_states("redis").turn(false);
        drop(metrics.store_times("redis"));
        metrics.requests.waits(&policy.name, Duration::from_millis(1));
        let done = &metrics.protection;
        done.over(&policy.name, Over::Mark);
        done.over(&policy.name, Over::Demote { to: None });
        done.too_late(&policy.name);
        done.blocked(&policy.name);
        done.show_blocks(&policy.name, 1);
        done.show_places(&policy.name, 2, 1);
        done.show_breakers(&policy.name, [0; BreakerStateLabel::ALL.len()]);
        for state in BreakerStateLabel::ALL {
            done.breaker_changed(&policy.name, state);
        }
        done.breaker_would_open(&policy.name, 1);
        metrics.switches.add("previews");
        metrics.limits_of_plans(&policy.name, [("gold".to_owned(), 7)].into());
        let mut peers = Registry::default();
        show_envoy(&mut peers, [(&policy, &series)].into_iter());
        let unknown = UnknownDomains::default();
        unknown.count("b", &[]);
        unknown.show(&mut peers);
        let calls = LimitadorCalls::default();
        [true, false]
            .into_iter()
            .for_each(|allowed| calls.count("a", allowed, std::slice::from_ref(&policy)));
        calls.show(&mut peers, false, std::slice::from_ref(&policy));
        let status = Status::default();
        let others = |registry: &mut Registry| {
            stores::show(registry, &LeaseHealth::default());
            stores::show_outstanding(registry, [("a.b.c".to_owned(), 1)]);
            let shares = [Share::Leased, Share::Central, Share::Split, Share::Local];
            let excess = shares.map(|share| ("a.b.c".to_owned(), share.word(), 1.0));
            stores::show_possible_excess(registry, excess);
            stores::show_engine(registry, &PlainStore::default());
            [true, false].into_iter().for_each(|of_region| stores::show_part(registry, &status, of_region));
            stores::show_agreement(registry, true);
            stores::show_members(registry, false, 1);
            stores::show_other_policies(registry, 0);
            stores::show_load(registry, EngineLoad::default());
            stores::show_policies(registry, &MemberReport::default());
            protection::show_unknown_costs(registry, [("a.b.c", CostErrors::default())].into_iter());
            admitted_share::show(registry, [("a.b.c", &*judge)].into_iter());
            let followed = FollowedRate { policy: "a.b.c", per_second: 10.0 };
            protection::show_conditions(registry, [("a.b.c", Holding::No)].into_iter(), &[followed]);
            tls::show(registry, Some(1), true, &tls::Failures::default());
            otlp::show(registry, &otlp::Fates::default());
            let rules = [
                "denied-unusual",
                "customer-cut",
                "tenant-near",
                "breaker-trips",
                "store-away",
                "config-refused",
                "sight-dropped",
                "canary-rolled-back",
            ];
            let firing = rules.map(|rule| Firing { rule, policy: String::new(), alerts: 0 });
            let fates = ["sent", "failed", "refused", "dropped", "left_out"];
            let messages = ["alertmanager", "webhook"]
                .into_iter()
                .flat_map(|receiver| fates.map(|fate| AlertMessages { receiver, fate, count: 0 }));
            show_alerts(registry, firing.into(), messages.collect());
            show_history(registry, true);
        };
        let mut text = String::new();
        encode_registry(&mut text, &peers).unwrap();
        text + &metrics.write(Tick::from_secs(1), Occupancy::default(), [&series].into_iter(), others)
    }

    /// The tables of the page: the marker, and the beginnings of the metrics' names in it, in their order. The first that
    /// fits counts.
    const TABLES: [(&str, &[&str]); 10] = [
        (
            "measured",
            &[
                "tidegate_policy_rate",
                "tidegate_policy_asked",
                "tidegate_policy_admitted",
                "tidegate_policy_ideal",
                "tidegate_policy_excess",
            ],
        ),
        (
            "guards",
            &[
                "tidegate_concurrency_limit",
                "tidegate_inflight",
                "tidegate_breaker_",
                "tidegate_settlements",
                "tidegate_extensions",
                "tidegate_cost_errors",
                "tidegate_settled_units",
            ],
        ),
        (
            "requests",
            &[
                "tidegate_requests",
                "tidegate_decision_duration",
                "tidegate_auth_failures",
                "tidegate_connections_cut",
                "tidegate_tls_",
                "tidegate_otlp_",
            ],
        ),
        ("quota", &["tidegate_quota_"]),
        ("stores", &["tidegate_store_"]),
        (
            "nodes",
            &[
                "tidegate_lease_",
                "tidegate_policy_possible_",
                "tidegate_node_",
                "tidegate_region_",
                "tidegate_cluster_",
            ],
        ),
        (
            "process",
            &[
                "tidegate_config_",
                "tidegate_log_",
                "tidegate_build_",
                "tidegate_alerts",
                "tidegate_alert_",
                "tidegate_sight_",
            ],
        ),
        ("policies", &["tidegate_decisions", "tidegate_near_limit", "tidegate_blocked", "tidegate_"]),
        ("envoy", &["ratelimit_service_"]),
        ("limitador", &[""]),
    ];

    /// The page or section that says more about a metric.
    const SECTIONS: &[(&str, &str)] = &[
        ("tidegate_near_limit_total", "policy-file.md#a-policy"),
        ("tidegate_blocked_total", "http-api.md#blocks"),
        ("tidegate_over_limit_total", "policy-file.md#over-the-limit-mark-and-demote"),
        ("tidegate_too_late_total", "policy-file.md#deadlines"),
        ("tidegate_throttle_decisions_total", "resp.md"),
        ("tidegate_queue_wait_seconds", "policy-file.md#limits"),
        ("tidegate_policy_utilization_ratio", "#hottest-keys"),
        ("tidegate_policy_followed_rate", "policy-file.md#a-rate-that-follows-a-number"),
        ("tidegate_policy_in_force", "policy-file.md#conditions-when"),
        ("tidegate_switch_off", "protection/degrading.md"),
        ("tidegate_concurrency_limit", "policy-file.md#concurrency-limits"),
        ("tidegate_breaker_state", "http-api.md#breakers"),
        ("tidegate_settlements_total", "algorithms.md#tickets"),
        ("tidegate_extensions_total", "http-api.md#extend"),
        ("tidegate_cost_errors_total", "policy-file.md#cost"),
        ("tidegate_connections_cut_total", "security.md#connections"),
        ("tidegate_otlp_spans_total", "running.md#opentelemetry"),
        ("tidegate_alerts", "http-api.md#alerts"),
        ("tidegate_alert_messages_total", "http-api.md#alerts"),
        ("tidegate_store_errors_total", "stores/README.md#when-the-store-is-gone"),
        ("tidegate_store_up", "stores/README.md#a-store-on-disk"),
        ("tidegate_store_clock_set_back_total", "stores/README.md#the-bound-of-each-fault"),
        ("tidegate_store_losses_total", "stores/engines.md#after-a-loss"),
        ("tidegate_store_memory_ratio", "stores/operating.md"),
        ("tidegate_store_processor_seconds_total", "stores/operating.md"),
        ("tidegate_lease_outstanding_units", "stores/operating.md"),
        ("tidegate_policy_possible_excess_units", "stores/operating.md"),
        ("tidegate_cluster_policies_version", "stores/README.md#policies-shared-by-all-nodes"),
    ];

    /// Labels whose values come from the configuration.
    const CONFIGURED: [&str; 10] = [
        "policy",
        "plan",
        "switch",
        "store",
        "domain",
        "key1",
        "key2",
        "limitador_namespace",
        "version",
        "commit",
    ];

    /// A metric as it is served.
    struct Metric {
        name: String,
        kind: String,
        labels: Vec<Label>,
        help: String,
    }

    /// A label, with all values that some series has.
    struct Label {
        name: String,
        values: BTreeSet<String>,
    }

    impl Metric {
        /// Adds the labels of a series, written as `policy="a",decision="denied"`.
        fn add(&mut self, labels: &str) {
            let pairs = labels.split("\",").filter_map(|label| label.split_once("=\""));
            for (name, value) in pairs.filter(|(name, _)| *name != "le") {
                let value = value.trim_end_matches('"').to_owned();
                match self.labels.iter_mut().find(|label| label.name == name) {
                    Some(label) => _ = label.values.insert(value),
                    None => self.labels.push(Label { name: name.to_owned(), values: [value].into() }),
                }
            }
        }

        fn cells(&self) -> [String; 4] {
            let labels = self.labels.iter().map(|label| {
                if CONFIGURED.contains(&&*label.name) {
                    return format!("`{}`", label.name);
                }
                let values: Vec<&str> = label.values.iter().map(String::as_str).collect();
                format!("`{}` ({})", label.name, values.join(", "))
            });
            let labels: Vec<String> = labels.collect();
            [name(&self.name, SECTIONS), self.kind.clone(), labels.join(", "), cell(&self.help)]
        }
    }

    /// Reads the metrics from their text.
    fn served() -> Vec<Metric> {
        let text = everything();
        let (mut metrics, mut help) = (Vec::<Metric>::new(), "");
        for line in text.lines() {
            if let Some((_, said)) = line.strip_prefix("# HELP ").and_then(|of| of.split_once(' ')) {
                help = said.trim_end_matches('.');
            } else if let Some((family, kind)) =
                line.strip_prefix("# TYPE ").and_then(|of| of.split_once(' '))
            {
                let end = match kind {
                    "counter" => "_total",
                    "info" => "_info",
                    _ => "",
                };
                let name = format!("{family}{end}");
                assert!(metrics.iter().all(|metric| metric.name != name), "{name} is there twice");
                metrics.push(Metric {
                    name,
                    kind: kind.to_owned(),
                    labels: Vec::new(),
                    help: help.to_owned(),
                });
            } else if let Some((_, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
                let labels = labels.rsplit_once('}').unwrap().0;
                metrics.last_mut().unwrap().add(labels);
            }
        }
        metrics
    }

    #[test]
    fn the_manual_has_the_metrics() {
        let served = served();
        let made = TABLES.iter().enumerate().map(|(place, (marker, names))| {
            let of_table = |metric: &&Metric| {
                let fits = |begins: &&str| metric.name.starts_with(*begins);
                TABLES.iter().position(|(_, names)| names.iter().any(fits)) == Some(place)
            };
            let mut of_table: Vec<&Metric> = served.iter().filter(of_table).collect();
            assert!(!of_table.is_empty(), "no metric is in the table {marker}");
            of_table.sort_by_key(|metric| names.iter().position(|begins| metric.name.starts_with(*begins)));
            let rows: Vec<[String; 4]> = of_table.into_iter().map(Metric::cells).collect();
            (format!("metrics {marker}"), table(["metric", "type", "labels", "what"], &rows))
        });
        keep_tables("docs/metrics.md", &made.collect::<Vec<_>>());
    }
}
