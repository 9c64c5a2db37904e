//! The rules and the dashboard on a running server: every expression is valid, and has data where the server has any.

use serde_json::json;

use crate::deploy::expressions::{self, Expression};
use crate::deploy::raw::JSON;
use crate::deploy::scraper::Scraper;
use crate::deploy::serving::{Desk, Serving, ended, words};

/// Policies of every kind that has series of its own.
fn policies(store: &str) -> String {
    format!(
        "version: 1
client_ip: {{ trusted_proxies: [] }}
store: {store}
policies:
  - name: per-ip
    by: [client.ip]
    limit: {{ rate: 5/day }}
  - name: all
    limit: {{ algorithm: gcra, rate: 50/s, burst: 20 }}
  - name: trial
    mode: shadow
    limit: {{ rate: 1/day }}
  - name: heavy
    match: {{ path: /heavy }}
    over: mark
    limit: {{ rate: 1/day }}
  - name: search
    match: {{ path: /search }}
    deadline: 10s
    limit: {{ rate: 1000/s }}
  - name: work
    match: {{ path: /work }}
    share: local
    limit: {{ algorithm: concurrency, max: 2 }}
  - name: smooth
    match: {{ path: /smooth }}
    limit: {{ rate: 5/s, burst: 1, max_wait: 5s }}
  - name: payments
    match: {{ path: /pay }}
    limit: {{ algorithm: breaker }}
"
    )
}

/// Sends the requests that make each policy produce data.
fn traffic(serving: &Serving) {
    let check = |attributes: serde_json::Value| {
        let body = json!({ "attributes": attributes }).to_string();
        let answer = serving.ask("POST", "/v1/check", &[JSON], &body);
        assert!(matches!(answer.status, 200 | 429 | 503), "{answer:?}");
        answer
    };
    check(json!({ "client.ip": "203.0.113.9" }));
    for path in ["/heavy", "/work", "/pay", "/smooth", "/smooth", "/smooth"] {
        check(json!({ "request.path": path }));
    }
    let late = check(json!({ "request.path": "/search", "request.header.grpc-timeout": "1S" }));
    assert_eq!(late.status, 503, "{late:?}");
}

/// Starts the server with a store, and forces a breaker open.
fn start(desk: &Desk, store: &str) -> Serving {
    std::fs::write(desk.path("p.yaml"), policies(store)).unwrap();
    let serving = desk.serve(&[]);
    let server = format!("http://{}", serving.addr);
    let forced = ["breaker", "force-open", "payments", "--for", "5min", "--server", &server];
    let forced = ended(desk.command(&forced));
    assert!(forced.status.success(), "{}", words(&forced));
    serving
}

/// Evaluates all expressions of the files, under traffic.
fn prove(scraper: &Scraper, serving: &Serving, is_shared: bool) {
    // Series that a single server does not have, and series that only `metrics-only` breakers count.
    let of_nodes = [
        "tidegate_lease_",
        "tidegate_cluster_",
        "tidegate_node_part_ratio",
        "tidegate_store_errors_total",
        "tidegate_store_operation_",
        "tidegate_store_state_changes_total",
    ];
    let has_none = |series: &str| {
        series == "tidegate_breaker_would_open_total"
            // TLS is not used here.
            || series.starts_with("tidegate_tls_")
            || !is_shared && of_nodes.iter().any(|prefix| series.starts_with(prefix))
    };
    let (recorded, alerts) = expressions::of_rules();
    let panels = expressions::of_dashboard();
    let everywhere = || recorded.iter().chain(&alerts).chain(&panels);
    let answers = |expression: &&Expression| !expression.series().iter().any(|series| has_none(series));
    // Annotations show events, and there are none.
    let quiet = ["\"Alerts\"", "\"Policy files put in force\""];
    let wanted = recorded.iter().chain(&panels).filter(|of| !quiet.contains(&&*of.of)).filter(answers);
    let series: std::collections::BTreeSet<String> =
        everywhere().flat_map(Expression::series).filter(|series| !has_none(series)).collect();
    let wanted = wanted.map(|expression| expression.text.clone()).chain(series);
    scraper.until_all_have(wanted, || traffic(serving));
    for expression in everywhere() {
        // Fails if Prometheus answers with an error; most alerts have no data.
        let _ = scraper.samples(&expression.text);
    }
    for record in &recorded {
        assert!(!answers(&record) || scraper.has(&record.of), "{} is not recorded", record.of);
    }
}

#[test]
fn every_expression_answers_over_a_server_alone() {
    let desk = Desk::with("");
    let serving = start(&desk, "{ kind: disk, path: counters }");
    let Some(scraper) = Scraper::of(serving.addr) else { return };
    prove(&scraper, &serving, false);
    // A refused file is noticed, and the alert is pending for its minute.
    std::fs::write(desk.path("p.yaml"), "version: 1\npolicies: none\n").unwrap();
    serving.signal("HUP");
    let alert = "ALERTS{alertname=\"TidegateConfigRefused\",alertstate=\"pending\"}";
    scraper.until_all_have([alert.to_owned()].into_iter(), || {});
}

#[cfg(feature = "etcd")]
#[test]
fn every_expression_answers_over_an_engine_and_an_engine_that_is_away_is_seen() {
    let Some(mut etcd) = tidegate_testkit::EtcdServer::start(&[]) else { return };
    let desk = Desk::with("");
    let store = format!("{{ kind: etcd, url: '{}', nodes: 2, policies: cluster }}", etcd.url());
    let serving = start(&desk, &store);
    let Some(scraper) = Scraper::of(serving.addr) else { return };
    prove(&scraper, &serving, true);
    etcd.kill();
    let alert = |name: &str| format!("ALERTS{{alertname=\"{name}\",alertstate=\"pending\"}}");
    let alerts = ["TidegateStoreAway", "TidegateStoreTrouble"].map(alert);
    scraper.until_all_have(alerts.into_iter(), || traffic(&serving));
    assert!(scraper.has("tidegate_store_state_changes_total{state=\"down\"} > 0"));
}
