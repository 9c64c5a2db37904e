//! One HTML page of a replay: tables and charts, nothing to load, light or dark as the reader's system.

mod pictures;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use tidegate::visible;

use crate::chart::{ChartError, TimeAxis};
use crate::log::Tally;
use crate::replay::{Doubt, Outcome, Replay};
use crate::suggest::percent;
use crate::thousands::grouped;

pub use self::pictures::{Picture, pictures};

const STYLE: &str = "
:root{color-scheme:light dark;--ink:#24292f;--quiet:#57606a;--paper:#fefefe;--line:#d8dee4;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--quiet:#9da7b1;--paper:#0d1117;--line:#30363d;--bad:#ff8a80}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.4rem 0}.quiet{color:var(--quiet)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}
th{font-weight:600;color:var(--quiet);font-size:.85rem}.n{text-align:right}.bad{color:var(--bad);font-weight:600}
svg{max-width:100%;height:auto;margin:.5rem 0}code{font-size:.9em;overflow-wrap:anywhere}
";

/// Writes the page. `log` is what was read, if a log was, and `doubts` why no verdict should rest on it.
///
/// # Errors
/// [`ChartError`], which drawing into memory does not give.
pub fn page(
    title: &str,
    replay: &Replay,
    log: Option<&Tally>,
    doubts: &[Doubt],
) -> Result<String, ChartError> {
    let outcomes = replay.outcomes();
    let axis = if replay.is_recorded() { TimeAxis::Utc } else { TimeAxis::Elapsed };
    let pictures = pictures(replay)?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                @if let Some(tally) = log { (source(tally)) }
                @for doubt in doubts { p class="bad" { "No verdict: " (doubt) "." } }
                @for outcome in &outcomes { (run(outcome, axis, outcomes.len() > 1)) }
                h2 { "Charts" }
                @for picture in &pictures { (PreEscaped(&picture.svg)) }
            }
        }
    };
    // Keys and log lines of strangers: a browser draws some of what a terminal acts on, and the page is read in either.
    Ok(visible::lines(&page.into_string()).into_owned())
}

fn source(tally: &Tally) -> Markup {
    let order = &tally.order;
    html! {
        p class="quiet" {
            @for (file, format) in &tally.files { code { (file) } " (" (format) ") " }
        }
        p {
            (grouped(tally.records)) " requests on " (grouped(tally.lines)) " lines"
            @if tally.malformed > 0 { ", " span class="bad" { (grouped(tally.malformed)) " malformed lines skipped" } }
            "."
        }
        @for line in &tally.first_malformed { p class="quiet" { code { (line) } } }
        @if order.back > 0 {
            p {
                "Time goes back " (grouped(order.back)) " times; " (grouped(order.ordered)) " lines were put into their place, "
                (grouped(order.clamped)) " came too late and count as the latest time."
            }
        }
        @if let Some(window) = order.window_needed() {
            p class="bad" { "Sort over " (window.as_secs()) " s of log time to put them all in order." }
        }
    }
}

fn run(outcome: &Outcome, axis: TimeAxis, named: bool) -> Markup {
    let start = outcome.first.unwrap_or_default();
    html! {
        h2 { @if named { (outcome.name) } @else { "Policies" } }
        p {
            (grouped(outcome.allowed)) " of " (grouped(outcome.requests)) " requests allowed, "
            (grouped(outcome.denied)) " denied (" (percent(ratio(outcome.denied, outcome.requests))) ")"
            @if outcome.delayed > 0 { ", " (grouped(outcome.delayed)) " delayed" }
            @if outcome.shadow_denied > 0 { ", " (grouped(outcome.shadow_denied)) " would be denied by what is in shadow" }
            "."
        }
        @if outcome.evicted > 0 {
            p class="bad" { "The store had no room for " (grouped(outcome.evicted)) " live keys: denials may be too few." }
        }
        div class="wide" {
            table {
                thead { tr {
                    th { "Policy" } th { "Mode" } th { "Limit" } th class="n" { "Matched" } th class="n" { "Denied" }
                    th class="n" { "%" } th class="n" { "Keys hit" } th { "Worst key" } th class="n" { "Peak" } th { "First deny" }
                } }
                tbody {
                    @for policy in &outcome.policies {
                        @let refused = if policy.mode == "shadow" { policy.shadow_denied } else { policy.denied };
                        tr {
                            td { (policy.name) }
                            td { (policy.mode) }
                            td { (policy.limits.join(", ")) }
                            td class="n" { (grouped(policy.matched)) }
                            td class={ "n" @if refused > 0 { " bad" } } { (grouped(refused)) }
                            td class="n" { (percent(ratio(refused, policy.matched))) }
                            td class="n" { (grouped(policy.keys_hit)) " of " (policy.keys) }
                            td { @if let Some(worst) = &policy.worst { code { (worst.key) } } }
                            td class="n" { @if let Some(peak) = policy.peak { (peak) } }
                            td { @if let Some(at) = policy.first_denied { (axis.label(at, start)) } @else { "never" } }
                        }
                    }
                }
            }
        }
        @for policy in outcome.policies.iter().filter(|policy| policy.keys_hit_signed_in > 0) {
            p {
                (policy.keys_hit_signed_in) " of " (policy.keys_hit) " keys hit by " (policy.name)
                " belong to somebody who signed in and was served: look at them before enforcing."
            }
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_204_331].map(grouped), ["0", "999", "1,000", "1,204,331"]);
    }

    #[test]
    fn hostile_names_stay_text() {
        let tally =
            Tally { files: vec![("<script>".to_owned(), crate::log::Format::Json)], ..Tally::default() };
        assert!(source(&tally).into_string().contains("&lt;script&gt;"));
    }
}
