//! The charts of pages: SVG that is complete without a script, with the colours of the page.

use std::fmt::Write as _;

use maud::{Markup, html};

use super::words::{columns, moment, number};

/// The width and height of a chart, in its own units, and how many points it has.
struct Size {
    class: &'static str,
    width: f64,
    height: f64,
    points: usize,
}

/// 50 rows of them fit a page of 128 KB.
const SMALL: Size = Size { class: "spark", width: 120.0, height: 24.0, points: 24 };
const LARGE: Size = Size { class: "chart", width: 720.0, height: 140.0, points: 180 };

/// Draws what passed and what was refused, a second, over the window: passed and refused upon each other, and refused
/// alone. The title says the label and the largest values.
pub(crate) fn sparkline(points: &[(f64, f64)], label: &str) -> Markup {
    drawn(points, label, &SMALL)
}

/// Draws a large chart of `(when, passed, refused)`, with a table behind it.
pub(crate) fn chart(points: &[(u64, f64, f64)], label: &str, now: u64) -> Markup {
    let pairs: Vec<(f64, f64)> = points.iter().map(|(_, passed, refused)| (*passed, *refused)).collect();
    // Several tables fit a page.
    let every = points.len().div_ceil(48).max(1);
    html! {
        figure {
            (drawn(&pairs, label, &LARGE))
            figcaption class="quiet" {
                (label)
                @if let (Some((from, ..)), Some((to, ..))) = (points.first(), points.last()) {
                    ", " (moment(*from, now)) " to " (moment(*to, now))
                }
                @let mut refusals = points.iter().filter(|(_, _, refused)| *refused > 0.0).map(|(at, ..)| *at);
                @if let Some(first) = refusals.next() {
                    "; refused something from " (moment(first, now)) " to " (moment(refusals.next_back().unwrap_or(first), now))
                }
            }
            @if !points.is_empty() {
                details {
                    summary { "As a table" }
                    div class="wide" { table {
                        caption { (label) @if every > 1 { ", one of " (every) " points" } }
                        (columns(&[("Time", false), ("Passed/s", true), ("Refused/s", true)]))
                        tbody { @for (at, passed, refused) in points.iter().rev().step_by(every) {
                            tr { td { (moment(*at, now)) } td class="n" { (number(*passed)) } td class="n" { (number(*refused)) } }
                        } }
                    } }
                }
            }
        }
    }
}

/// Draws at most so many points, each the largest of those it stands for. Negative and endless numbers are 0.
fn drawn(points: &[(f64, f64)], label: &str, size: &Size) -> Markup {
    let largest = |most: f64, value: f64| if value.is_finite() { most.max(value) } else { most };
    let thinned = |part: &[(f64, f64)]| {
        let both =
            |most: (f64, f64), point: &(f64, f64)| (largest(most.0, point.0), largest(most.1, point.1));
        part.iter().fold((0.0, 0.0), both)
    };
    let points: Vec<(f64, f64)> =
        points.chunks(points.len().div_ceil(size.points).max(1)).map(thinned).collect();
    let most = points.iter().map(|(passed, refused)| passed + refused).fold(0.0_f64, f64::max);
    let refused_most = points.iter().map(|(_, refused)| *refused).fold(0.0_f64, f64::max);
    let title =
        format!("{label}: at most {} a second, refused at most {}", number(most), number(refused_most));
    let path = |value: fn(&(f64, f64)) -> f64| line(&points, value, most, size);
    let refused = if refused_most > 0.0 { path(|(_, refused)| *refused) } else { String::new() };
    html! {
        svg class=(size.class) viewBox={ "0 0 " (size.width) " " (size.height) } preserveAspectRatio="none" role="img" {
            title { (title) }
            path class="all" d=(path(|(passed, refused)| passed + refused)) {}
            path class="refused" d=(refused) {}
        }
    }
}

/// The closed outline of a curve, in the words of `d`. `live.js` writes the same.
fn line(points: &[(f64, f64)], value: fn(&(f64, f64)) -> f64, most: f64, size: &Size) -> String {
    let Size { width, height, .. } = size;
    let mut out = format!("M0 {height}");
    let step = width / points.len().saturating_sub(1).max(1) as f64;
    for (at, point) in points.iter().enumerate() {
        let share = if most > 0.0 { value(point) / most } else { 0.0 };
        // Writing to a string does not fail.
        let _ = write!(out, "L{:.0} {:.1}", at as f64 * step, height - share * (height - 1.0));
    }
    let end = points.len().saturating_sub(1) as f64 * step;
    let _ = write!(out, "L{end:.0} {height}Z");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_bounded_and_have_words() {
        let points: Vec<(f64, f64)> = (0..90).map(|at| (f64::from(at), f64::from(at % 7))).collect();
        let small = sparkline(&points, "per-ip <b>").into_string();
        assert!(small.len() < 1_400, "50 of them fit a page: {}", small.len());
        assert!(
            small.contains("<title>per-ip &lt;b&gt;: at most 94 a second, refused at most 6.0</title>"),
            "{small}"
        );
        let odd = sparkline(&[(f64::NAN, -1.0), (f64::INFINITY, 0.0)], "odd").into_string();
        assert!(!odd.contains("NaN") && !odd.contains("inf"), "{odd}");
        assert!(sparkline(&[], "none").into_string().contains("d=\"M0 24L0 24Z\""));
        let hours: Vec<(u64, f64, f64)> = (0..2_160).map(|at| (at * 3_600, 1.0, 0.0)).collect();
        let large = chart(&hours, "all", 0).into_string();
        assert!(large.len() < 40_000 && large.matches("<tr>").count() <= 49, "{}", large.len());
    }
}
