//! The pictures, kept as golden files: a change of their look changes these files.

use std::time::Duration;

use plotters::style::RGBColor;

use super::peaks_by_rank::Scale;
use super::*;
use crate::peaks::Distinct;
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

fn check(name: &str, chart: &dyn Chart) -> String {
    let drawn = chart.svg().unwrap();
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "golden" }, {
        insta::assert_snapshot!(name, drawn);
    });
    // For viewing: `TIDEGATE_CHARTS=dir cargo test -p tidegate-sim chart` writes the pictures there.
    if let Some(dir) = std::env::var_os("TIDEGATE_CHARTS") {
        let file = |form: &str| std::path::Path::new(&dir).join(format!("{name}.{form}"));
        std::fs::write(file("svg"), &drawn).unwrap();
        std::fs::write(file("png"), chart.png().unwrap()).unwrap();
    }
    drawn
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
    check("load", &chart);
}

#[test]
fn algorithms_side_by_side() {
    let (_, admitted, denied) = sample();
    let panel = |name: &str, difference: &str, denied: &Curve| Panel {
        name: name.into(),
        difference: difference.into(),
        denied: denied.clone(),
        would_deny: None,
        highest: None,
    };
    let chart = Panels {
        title: "What each algorithm denies <of the same>",
        unit: "requests per second",
        axis: TimeAxis::Elapsed,
        panels: vec![
            panel("gcra: 2,000 denied", "below: each, less this one", &denied),
            panel("token-bucket: 2,000 denied", "as many", &denied),
            panel("fixed-window: 4,000 denied", "2,000 more", &admitted),
        ],
    };
    let drawn = check("compare", &chart);
    // The scale of differences includes negative values; the difference of equal runs is a flat line.
    assert!(drawn.contains("\u{2212}100") && drawn.contains("&lt;of the same&gt;"), "{drawn}");
}

#[test]
fn of_many_runs_the_first_are_drawn() {
    let (_, _, denied) = sample();
    let panel = |number| Panel {
        name: format!("run {number}"),
        difference: String::new(),
        denied: denied.clone(),
        would_deny: None,
        highest: None,
    };
    let panels = (0..15).map(panel).collect();
    let chart = Panels { title: "many", unit: "", axis: TimeAxis::Elapsed, panels };
    let drawn = chart.svg().unwrap();
    assert!(drawn.contains("run 11") && !drawn.contains("run 12"), "{drawn}");
    assert!(drawn.contains("3 more runs are not drawn"), "{drawn}");
    let none = Panels { title: "none", unit: "", axis: TimeAxis::Utc, panels: Vec::new() };
    assert!(none.svg().unwrap().ends_with("</svg>\n") && none.png().is_ok());
}

/// Every seventh key was hit, and the two fastest.
fn falling_keys() -> Vec<PeakOfKey> {
    let key = |rank: u64| PeakOfKey { peak: 412 / rank + 1, is_hit: rank <= 2 || rank.is_multiple_of(7) };
    (1..=2_000u64).map(key).collect()
}

#[test]
fn peaks_falling() {
    let keys = falling_keys();
    let chart = PeaksByRank {
        title: "per-ip: peak rate of each client.ip",
        unit: "requests in one second",
        keys: &keys,
        of: Distinct::Exactly(2_000),
        level: limit(),
        only_measures: false,
    };
    assert_eq!((chart.above(), chart.hit()), (4, 287));
    let drawn = check("falling", &chart);
    assert!(drawn.contains("287 of 2,000 hit; 4 asked for more than the line"), "{drawn}");
    let shadow = PeaksByRank { only_measures: true, ..chart.clone() };
    let drawn = shadow.svg().unwrap();
    assert!(drawn.contains("would be hit (shadow)") && !drawn.contains("hit: denied"), "{drawn}");
    assert!(drawn.contains("287 of 2,000 would be hit"), "{drawn}");
    assert!(!drawn.contains(&format!("{}\" fill-opacity", canvas::hex(canvas::HIT))), "{drawn}");
    let forgotten = PeaksByRank { of: Distinct::About(9_000), level: None, ..chart };
    let drawn = forgotten.svg().unwrap();
    assert!(drawn.contains("287 of ~9,000 hit; drawn are the 2,000 that asked most"), "{drawn}");
}

/// The line must lie at the granted units, not at the written rate: otherwise 114 keys lie above it while the table
/// has 112 hit.
#[test]
fn the_line_lies_where_the_scale_says() {
    let keys = falling_keys();
    let level = limit().unwrap();
    let scale = Scale::new(&keys, std::iter::once(level.value));
    let chart = PeaksByRank {
        title: "",
        unit: "",
        keys: &keys,
        of: Distinct::Exactly(2_000),
        level: Some(level.clone()),
        only_measures: false,
    };
    let drawn = chart.svg().unwrap();
    // The first line is the sample in the legend.
    let mut lines = drawn.split("<polyline").skip(1).filter(|line| line.contains("stroke=\"#1F2328\""));
    let line = lines.nth(1).unwrap();
    let points = line.split("points=\"").nth(1).unwrap();
    let y: f64 = points.split([',', ' ']).nth(1).unwrap().parse().unwrap();
    assert!((y - scale.y(level.value)).abs() < 1.0, "{y} {}", scale.y(level.value));
    assert_eq!(scale.outline(&keys, |_| false), "");
    let one = scale.outline(&keys, |place| place == 0);
    assert_eq!(one.matches('M').count(), 1, "{one}");
}

/// A decoded PNG.
struct Decoded {
    width: usize,
    rgb: Vec<u8>,
}

impl Decoded {
    /// Decodes a picture 900 units wide and `height` units high.
    fn of(chart: &dyn Chart, height: u32) -> Self {
        let bytes = chart.png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let about = reader.info();
        assert_eq!((about.width, about.height), (1_800, height * 2));
        assert_eq!((about.color_type, about.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
        assert_eq!(about.utf8_text[0].get_text().unwrap(), r"\u{2066}title", "written out");
        let (width, mut rgb) = (about.width as usize, vec![0; reader.output_buffer_size().unwrap()]);
        reader.next_frame(&mut rgb).unwrap();
        Self { width, rgb }
    }

    /// Returns the colour at a position in units of the picture.
    fn at(&self, x: f64, y: f64) -> RGBColor {
        let pixel = ((y * 2.0) as usize * self.width + (x * 2.0) as usize) * 3;
        RGBColor(self.rgb[pixel], self.rgb[pixel + 1], self.rgb[pixel + 2])
    }

    fn count(&self, colour: RGBColor) -> usize {
        self.rgb.chunks(3).filter(|pixel| [colour.0, colour.1, colour.2] == **pixel).count()
    }
}

/// Returns the middles of those stretches of a solid curve in an SVG that are longer than the line is wide, so that
/// they are not at corners.
fn middles(svg: &str, colour: RGBColor) -> Vec<(f64, f64)> {
    let stroke = format!("stroke=\"{}\"", canvas::hex(colour));
    let lines = svg.split("<polyline").skip(1).filter(|line| line.contains(&stroke));
    let mut out = Vec::new();
    for line in lines {
        let points = line.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
        let corner = |text: &str| text.split_once(',').map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()));
        let corners: Vec<(f64, f64)> = points.split(' ').filter_map(corner).collect();
        let long =
            corners.windows(2).filter(|two| (two[0].0 - two[1].0).abs() + (two[0].1 - two[1].1).abs() > 4.0);
        out.extend(long.map(|two| ((two[0].0 + two[1].0) / 2.0, (two[0].1 + two[1].1) / 2.0)));
    }
    out
}

#[test]
fn pixels_lie_where_the_svg_has_its_lines() {
    let (offered, admitted, denied) = sample();
    let title = "\u{2066}title";
    let chart = OverTime {
        title,
        unit: "requests per second",
        axis: TimeAxis::Utc,
        area: Some(offered),
        curves: vec![admitted],
        limit: None,
    };
    let (svg, drawn) = (chart.svg().unwrap(), Decoded::of(&chart, 360));
    let blue = canvas::CURVES[0].0;
    let middles_of_blue = middles(&svg, blue);
    assert!(middles_of_blue.len() > 10, "{middles_of_blue:?}");
    for (x, y) in middles_of_blue {
        assert_eq!(drawn.at(x, y), blue, "at {x} {y}");
    }
    // The area below the line, the paper above, and the ink of the title, whose baseline lies on whole pixels.
    assert_eq!(drawn.at(100.0, 300.0), canvas::SHADE);
    assert_eq!(drawn.at(1.0, 1.0), canvas::PAPER);
    assert!(drawn.count(canvas::INK) > 500, "{}", drawn.count(canvas::INK));
    // A dashed line has gaps: the sample in the legend begins with a dash of 7 and a gap of 4.
    let chart = OverTime { area: None, curves: vec![denied.clone(), denied], ..chart };
    let (svg, drawn) = (chart.svg().unwrap(), Decoded::of(&chart, 360));
    let orange = canvas::CURVES[1].0;
    let (x, y) = middles(&svg, orange)[0];
    let begin = x - 13.0;
    assert_eq!(
        [1.0, 6.0, 8.0, 10.0, 12.0].map(|far| drawn.at(begin + far, y) == orange),
        [true, true, false, false, true]
    );
}

#[test]
fn keys_that_were_hit_are_filled_in_pixels_too() {
    let keys = falling_keys();
    let level = limit().unwrap();
    let scale = Scale::new(&keys, std::iter::once(level.value));
    let title = "\u{2066}title";
    let chart = PeaksByRank {
        title,
        unit: "",
        keys: &keys,
        of: Distinct::Exactly(2_000),
        level: Some(level),
        only_measures: false,
    };
    let (svg, drawn) = (chart.svg().unwrap(), Decoded::of(&chart, 360));
    let blue = canvas::CURVES[0].0;
    for (x, y) in middles(&svg, blue) {
        assert!([blue, canvas::LIMIT].contains(&drawn.at(x, y)), "at {x} {y}");
    }
    // Three quarters of the colour over a quarter of the paper.
    let (hit, paper) = (canvas::HIT, canvas::PAPER);
    let mixed = |hit: u8, paper: u8| (f64::from(hit) * 0.75 + f64::from(paper) * 0.25).round() as u8;
    let mixed = RGBColor(mixed(hit.0, paper.0), mixed(hit.1, paper.1), mixed(hit.2, paper.2));
    assert_eq!(drawn.at(80.0, scale.y(300.0)), mixed, "the fastest key was hit");
    assert_eq!(drawn.at(200.0, scale.y(30.0)), paper, "the third was not");
}

#[test]
fn panels_grow_with_their_number_in_pixels_too() {
    let (_, admitted, denied) = sample();
    let panel = |denied: &Curve| Panel {
        name: "東京 ↑".into(),
        difference: String::new(),
        denied: denied.clone(),
        would_deny: None,
        highest: None,
    };
    let title = "\u{2066}title";
    let panels = vec![panel(&denied), panel(&admitted)];
    let chart = Panels { title, unit: "", axis: TimeAxis::Elapsed, panels };
    let (svg, drawn) = (chart.svg().unwrap(), Decoded::of(&chart, 84 + 2 * 124 + 34));
    for (x, y) in middles(&svg, canvas::CURVES[0].0) {
        assert_eq!(drawn.at(x, y), canvas::CURVES[0].0, "at {x} {y}");
    }
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
    assert!(over.svg().unwrap().ends_with("</svg>\n") && over.png().is_ok());
    let peaks_by_rank = PeaksByRank {
        title: "empty",
        unit: "",
        keys: &[],
        of: Distinct::Exactly(0),
        level: limit(),
        only_measures: false,
    };
    assert!(peaks_by_rank.svg().unwrap().ends_with("</svg>\n") && peaks_by_rank.png().is_ok());
    let bars = Bars {
        title: "empty",
        unit: "",
        axis: TimeAxis::Utc,
        offered: &empty,
        admitted: &empty,
        would_deny: None,
        highest: None,
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
        would_deny: None,
        highest: None,
        limit: limit(),
    };
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true, snapshot_path => "golden" }, {
        insta::assert_snapshot!("bars", bars.draw(80, 8));
    });
    assert!(bars.draw(60, 8).lines().skip(2).all(|line| line.chars().count() <= 60));

    // The same load under a policy in shadow mode: all of it is admitted, and what would be denied has its own mark.
    let (offered, admitted, denied) = sample();
    let shadow = Bars { admitted: &offered, would_deny: Some(&denied), limit: None, ..bars.clone() };
    let drawn = shadow.draw(80, 8);
    let first = drawn.lines().nth(1).unwrap();
    assert!(first.contains("▒ admitted, would be denied (shadow)"), "{drawn}");
    let cells = |char| drawn.lines().skip(2).map(|line| line.matches(char).count()).sum::<usize>();
    assert!(cells('▒') > 20 && cells('░') == 0, "{drawn}");
    let enforced = Bars { offered: &offered, admitted: &admitted, limit: None, ..bars.clone() }.draw(80, 8);
    let refused = enforced.lines().skip(2).map(|line| line.matches('░').count()).sum::<usize>();
    assert!(cells('▒') >= refused, "as much as an enforced limit refuses: {refused} {drawn}");
}

/// The highest second must be visible: an average of 1 a second over a minute hides 40 requests in one second.
#[test]
fn the_highest_second_of_each_step_stands_above_its_average() {
    let mut series = Series::new(1, 4, Duration::from_secs(1));
    for second in 0..240 {
        series.add(Tick::from_secs(second), 0, if second == 100 { 40 } else { 1 });
    }
    let (averages, highest) =
        (Curve::averages("all", &series, 0), Curve::peaks("highest second", &series, 0));
    let bars = Bars {
        title: "load",
        unit: "requests per second",
        axis: TimeAxis::Utc,
        offered: &averages,
        admitted: &averages,
        would_deny: None,
        highest: Some(&highest),
        limit: None,
    };
    let drawn = bars.draw(48, 8);
    assert!(drawn.contains("\n· highest second\n"), "{drawn}");
    // Forty columns, four steps: the peak is in the second step.
    let top: String = drawn.lines().nth(3).unwrap().chars().skip(8).collect();
    assert_eq!(top, format!("{}{}", " ".repeat(10), "·".repeat(10)), "{drawn}");
    let panel = |highest| Panel {
        name: "run".into(),
        difference: String::new(),
        denied: averages.clone(),
        would_deny: None,
        highest,
    };
    let panels = vec![panel(Some(highest.clone())), panel(None)];
    let drawn = Panels { title: "", unit: "", axis: TimeAxis::Utc, panels }.svg().unwrap();
    assert!(drawn.contains("highest second") && drawn.contains("\n40\n"), "{drawn}");
}

/// States differ by height and by word, not by colour alone.
#[test]
fn a_state_is_a_height_and_a_word() {
    let at = Tick::from_secs;
    let band = |height, from, until| Band { height, from: at(from), until: at(until) };
    let curve = Curve {
        name: "p99".to_owned(),
        steps: vec![(at(0), 5.0), (at(10), f64::NAN), (at(20), 7.0)],
        end: at(30),
    };
    let tracks = Tracks {
        title: "What the guards did",
        axis: TimeAxis::Elapsed,
        tracks: vec![
            Track::Curves { name: "ms".to_owned(), area: None, curves: vec![curve], limit: None },
            Track::Bands {
                name: "payments: breaker".to_owned(),
                words: ["closed", "half-open", "open"],
                bands: vec![
                    band(Height::Low, 0, 10),
                    band(Height::High, 10, 20),
                    band(Height::Middle, 20, 30),
                ],
            },
        ],
    };
    let svg = tracks.svg().unwrap();
    for word in ["closed", "half-open", "open", "payments: breaker"] {
        assert!(svg.contains(word), "{word}");
    }
    let tops: std::collections::BTreeSet<&str> = svg
        .split("<rect ")
        .filter(|rect| !rect.contains("#FEFEFE") && rect.contains("fill="))
        .filter_map(|rect| rect.split(" y=\"").nth(1)?.split('"').next())
        .collect();
    assert!(tops.len() >= 3, "{tops:?}");
    assert!(!svg.contains("NaN") && tracks.png().unwrap().starts_with(b"\x89PNG"));
    let empty = Tracks { title: "none", axis: TimeAxis::Utc, tracks: vec![] };
    assert!(empty.svg().is_ok() && empty.png().is_ok());
}
