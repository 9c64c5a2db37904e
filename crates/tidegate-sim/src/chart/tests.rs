//! The pictures themselves, kept as files: a change of look is a change of these.

use std::time::Duration;

use super::*;
use crate::traffic::Traffic;

/// A minute of traffic through a plain bucket of 100 per second, 200 at once: good enough to draw.
fn sample() -> (Curve, Curve, Curve) {
    let traffic: Traffic =
        "steady 80/s 20s, burst 500, steady 150/s 20s, ramp 150/s 20/s 20s".parse().unwrap();
    let mut series = Series::new(3, 60, Duration::from_secs(1));
    let start = Tick::from_secs(1_431_857_100);
    let (mut level, mut last) = (200.0f64, start);
    for arrival in traffic.arrivals(start, 1) {
        level = (level + arrival.at.since(last).as_secs_f64() * 100.0).min(200.0);
        last = arrival.at;
        let lane = if level >= 1.0 { 1 } else { 2 };
        level -= f64::from(u8::from(lane == 1));
        series.add(arrival.at, 0, 1);
        series.add(arrival.at, lane, 1);
    }
    let curve = |name: &str, lane| Curve::averages(name, &series, lane);
    (curve("offered", 0), curve("admitted", 1), curve("denied", 2))
}

fn limit() -> Option<Level> {
    Some(Level { name: "limit 100/s".into(), value: 100.0 })
}

fn check(name: &str, drawn: &str) {
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "golden" }, {
        insta::assert_snapshot!(name, drawn);
    });
    // For eyes: `TIDEGATE_CHARTS=dir cargo test -p tidegate-sim chart` leaves the pictures there.
    if let Some(dir) = std::env::var_os("TIDEGATE_CHARTS") {
        std::fs::write(std::path::Path::new(&dir).join(format!("{name}.svg")), drawn).unwrap();
    }
}

#[test]
fn load_over_time() {
    let (offered, admitted, denied) = sample();
    let chart = OverTime {
        title: "per-ip: offered and admitted",
        unit: "requests per second",
        axis: TimeAxis::Utc,
        area: Some(offered),
        curves: vec![admitted, denied],
        limit: limit(),
    };
    check("load", &chart.svg().unwrap());
}

#[test]
fn algorithms_side_by_side() {
    let (offered, admitted, denied) = sample();
    let named = |curve: &Curve, name: &str| Curve { name: name.into(), ..curve.clone() };
    let chart = OverTime {
        title: "What each algorithm admits <of the same>",
        unit: "requests per second",
        axis: TimeAxis::Elapsed,
        area: Some(offered),
        curves: vec![named(&admitted, "gcra"), named(&denied, "fixed-window")],
        limit: limit(),
    };
    check("compare", &chart.svg().unwrap());
}

#[test]
fn peaks_falling() {
    let peaks: Vec<u64> = (1..=2_000u64).map(|rank| 412 / rank + 1).collect();
    let chart = Falling {
        title: "per-ip: peak rate of each client.ip",
        unit: "requests in one second",
        peaks: &peaks,
        limit: limit(),
    };
    assert_eq!(chart.above(), 4);
    check("falling", &chart.svg().unwrap());
}

#[test]
fn nothing_to_draw_is_drawn_empty() {
    let empty = Curve { name: "offered".into(), steps: Vec::new(), end: Tick::EPOCH };
    let over = OverTime {
        title: "empty",
        unit: "",
        axis: TimeAxis::Utc,
        area: Some(empty.clone()),
        curves: vec![],
        limit: None,
    };
    assert!(over.svg().unwrap().ends_with("</svg>\n"));
    let falling = Falling { title: "empty", unit: "", peaks: &[], limit: limit() };
    assert!(falling.svg().unwrap().ends_with("</svg>\n"));
    let bars = Bars {
        title: "empty",
        unit: "",
        axis: TimeAxis::Utc,
        offered: &empty,
        admitted: &empty,
        limit: None,
    };
    assert_eq!(bars.draw(80, 8), "empty\n(nothing to draw)\n");
}

#[test]
fn bars_in_a_terminal() {
    let (offered, admitted, _) = sample();
    let axis = TimeAxis::Utc;
    let bars = Bars {
        title: "per-ip",
        unit: "requests per second",
        axis,
        offered: &offered,
        admitted: &admitted,
        limit: limit(),
    };
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "golden" }, {
        insta::assert_snapshot!("bars", bars.draw(80, 8));
    });
    assert!(bars.draw(60, 8).lines().skip(2).all(|line| line.chars().count() <= 60));
}

#[test]
fn sparks() {
    assert_eq!(sparkline(&[0.0, 1.0, 4.0, 8.0, 8.0, 2.0], 6), "▁▁▄██▂");
    assert_eq!(sparkline(&[0.0, 1.0, 4.0, 8.0], 2), "▁█");
    assert_eq!(sparkline(&[], 5), "▁");
}
