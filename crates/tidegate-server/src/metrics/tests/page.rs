//! Compares `docs/metrics.md` with the metrics that are served, in both directions: every name with its type and
//! labels.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tidegate::cluster::MemberReport;
use tidegate::cluster::shares::Status;
use tidegate::policy::{CostErrors, Holding, Limit, Over, Policy};
use tidegate::store::leased::LeaseHealth;
use tidegate::{Quota, Tick};

use super::super::peer_names::{LimitadorCalls, UnknownDomains, show_envoy};
use super::super::*;
use crate::metrics::admitted_share::Judge;
use crate::metrics::conditions::FollowedRate;

/// Type and labels of each metric, by its name on the page.
type MetricTypes = BTreeMap<String, (String, BTreeSet<String>)>;

/// Returns the text of all metrics that a server can have.
fn everything() -> String {
    let metrics = Metrics::new();
    let policy = Policy::new("a.b.c", Limit::new(Quota::per_second(10).burst(5).gcra().unwrap(), "all"));
    let series = metrics.policy(&policy.name, Some(5));
    let judge = Judge::of(&policy, false, None, None).unwrap();
    metrics.store_error("redis");
    metrics.store_states("redis").turn(false);
    drop(metrics.store_times("redis"));
    metrics.requests.waits(&policy.name, Duration::from_millis(1));
    let done = &metrics.protection;
    done.over(&policy.name, Over::Mark);
    done.too_late(&policy.name);
    done.blocked(&policy.name);
    done.show_blocks(&policy.name, 1);
    done.show_places(&policy.name, 2, 1);
    done.show_breakers(&policy.name, [0; BreakerStateLabel::ALL.len()]);
    done.breaker_changed(&policy.name, BreakerStateLabel::open);
    done.breaker_would_open(&policy.name, 1);
    metrics.switches.add("previews");
    metrics.limits_of_plans(&policy.name, [("gold".to_owned(), 7)].into());
    let mut peers = Registry::default();
    show_envoy(&mut peers, [(&policy, &series)].into_iter());
    let unknown = UnknownDomains::default();
    unknown.count("b", &[]);
    unknown.show(&mut peers);
    let calls = LimitadorCalls::default();
    [true, false].into_iter().for_each(|allowed| calls.count("a", allowed, std::slice::from_ref(&policy)));
    calls.show(&mut peers, false, std::slice::from_ref(&policy));
    let mut status = Status::default();
    status.members = 1;
    let others = |registry: &mut Registry| {
        leases::show(registry, &LeaseHealth::default());
        [true, false].into_iter().for_each(|of_region| leases::show_part(registry, &status, of_region));
        leases::show_membership(registry, &status);
        leases::show_policies(registry, &MemberReport::default());
        conditions::show_unknown_costs(registry, [("a.b.c", CostErrors::default())].into_iter());
        admitted_share::show(registry, [("a.b.c", &*judge)].into_iter());
        let followed = FollowedRate { policy: "a.b.c", per_second: 10.0 };
        conditions::show(registry, [("a.b.c", Holding::No)].into_iter(), &[followed]);
        #[cfg(feature = "tls")]
        tls::show(registry, Some(1), true, &tls::Failures::default());
        #[cfg(feature = "otel")]
        otlp::show(registry, &otlp::Fates::default());
    };
    let mut text = String::new();
    prometheus_client::encoding::text::encode_registry(&mut text, &peers).unwrap();
    text + &metrics.write(Tick::from_secs(1), Occupancy::default(), [&series].into_iter(), others)
}

fn served() -> MetricTypes {
    let text = everything();
    let mut types = MetricTypes::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|of| of.split_once(' ')) {
            let end = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            name = format!("{family}{end}");
            let before = types.insert(name.clone(), (kind.to_owned(), BTreeSet::new()));
            assert!(before.is_none(), "{name} is there twice");
        } else if let Some((_, labels)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let keys = labels
                .split("\",")
                .filter_map(|label| label.split_once("=\""))
                .map(|(key, _)| key.to_owned());
            types.get_mut(&name).unwrap().1.extend(keys.filter(|key| key != "le"));
        }
    }
    types
}

/// Reads the rows of the page: `| name | type | labels | meaning |`.
fn page() -> MetricTypes {
    let page = include_str!("../../../../../docs/metrics.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let types = rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, labels, meaning] = cells[..] else { panic!("not four columns: {row}") };
        assert!(!meaning.is_empty(), "{row}");
        let words = labels.split('`').skip(1).step_by(2).map(str::to_owned);
        (name.trim_matches('`').to_owned(), (kind.to_owned(), words.collect()))
    });
    types.collect()
}

#[test]
fn the_page_tells_of_every_metric_with_its_type_and_labels() {
    let (served, page) = (served(), page());
    for (name, types) in &served {
        assert_eq!(page.get(name), Some(types), "{name} is served so, and told of otherwise");
    }
    // The page tells of the metrics of all features.
    let all = cfg!(all(
        feature = "grpc",
        feature = "etcd",
        feature = "redis",
        feature = "zookeeper",
        feature = "otel"
    ));
    let gone: Vec<&String> = page.keys().filter(|name| !served.contains_key(*name)).collect();
    assert!(!all || gone.is_empty(), "told of, and not served: {gone:?}");
}
