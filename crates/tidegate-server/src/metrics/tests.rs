//! Tests of the text of metrics.

// The page has the metrics of all features, so without one of them it cannot be made.
#[cfg(all(feature = "grpc", feature = "otel", feature = "tls"))]
mod page;

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
