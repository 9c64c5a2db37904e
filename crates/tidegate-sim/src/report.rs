//! Writes the HTML page of a replay, made for choosing a limit: tables, charts, the keys hit, and a line that can be
//! moved along other limits.
//!
//! The page loads nothing and is complete without its script. Names and log lines are untrusted text: they are escaped
//! as HTML, as JSON within the data of the script, and the script inserts them as text. Under the page's content policy
//! a browser would not run code from them anyway.

mod guards;
mod pictures;
mod trial;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use tidegate::visible;

use crate::chart::{self, Chart as _, ChartError, TimeAxis};
use crate::log::Tally;
use crate::replay::{Doubt, Outcome, Replay, share};
use crate::units::{grouped, percent};
use trial::content_policy;

pub use crate::ladder::Ladders;

pub use self::pictures::{Form, Picture, first_picture, pictures};

const STYLE: &str = include_str!("report/page.css");

/// The contents of a page.
#[derive(Clone, Copy, Debug)]
pub struct Report<'a> {
    /// The heading: what was replayed.
    pub title: &'a str,
    /// The replay; with several runs, the keys of the first are shown.
    pub replay: &'a Replay,
    /// The counts of the log, if one was read.
    pub log: Option<&'a Tally>,
    /// The reasons not to trust the replay.
    pub doubts: &'a [Doubt],
    /// The limits that were tried on the same requests, beside those of the first run.
    pub ladders: &'a Ladders,
    /// How many of the keys hit are listed for each policy.
    pub keys: usize,
}

/// Returns the page: one file that loads nothing.
///
/// # Errors
/// [`ChartError`] if the drawing library fails.
pub fn page(report: &Report<'_>) -> Result<String, ChartError> {
    let Report { title, replay, .. } = *report;
    let outcomes = replay.outcomes();
    let axis = pictures::axis(replay);
    let over_time = pictures::over_time(replay, &outcomes, |_, chart| chart.svg())?;
    let guards = guards::tracks(replay, &outcomes).map(|tracks| tracks.svg()).transpose()?;
    let sections = match outcomes.first() {
        Some(first) => pictures::keyed(first)
            .enumerate()
            .map(|(number, (row, policy))| trial::section(number, replay, row, policy, report.ladders))
            .collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    let policy = content_policy(&[trial::SCRIPT], &[STYLE, &chart::style()]);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                @if let Some(tally) = report.log { (source(tally)) }
                @for doubt in report.doubts { p class="bad" { "No verdict: " (doubt) "." } }
                @for outcome in &outcomes { (run(outcome, axis, outcomes.len() > 1)) }
                h2 { "Over time" }
                div class="wide" { (PreEscaped(&over_time)) }
                @if let Some(guards) = &guards { div class="wide" { (PreEscaped(guards)) } }
                @if !sections.is_empty() {
                    h2 { "Key by key" }
                    @for section in &sections { (section) }
                }
                @if let Some(first) = outcomes.first() {
                    (guards::tables(replay, &first.policies, axis, first.first.unwrap_or_default(), report.keys))
                }
                script { (PreEscaped(trial::SCRIPT)) }
            }
        }
    };
    // Invisible characters in keys and log lines: browsers and terminals act on some of them.
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
                "Time goes back " (grouped(order.back)) " times; " (grouped(order.ordered)) " lines were put in order, "
                (grouped(order.clamped)) " came too late and were given the latest time seen."
            }
        }
        @if let Some(window) = order.window_advised() {
            p class="bad" { "With " code { "--reorder " (window) } " all of them are put in order." }
        }
    }
}

fn run(outcome: &Outcome, axis: TimeAxis, named: bool) -> Markup {
    let start = outcome.first.unwrap_or_default();
    html! {
        h2 { @if named { (outcome.name) } @else { "Policies" } }
        p {
            (grouped(outcome.allowed)) " of " (grouped(outcome.requests)) " requests allowed, "
            (grouped(outcome.denied)) " denied (" (percent(share(outcome.denied, outcome.requests))) ")"
            @if outcome.delayed > 0 { ", " (grouped(outcome.delayed)) " delayed" }
            @if outcome.shadow_denied > 0 { ", " (grouped(outcome.shadow_denied)) " would be denied by policies in shadow mode" }
            @if let Some(marked) = outcome.marked { ", " (grouped(marked)) " marked" }
            @if let Some(demoted) = outcome.demoted { ", " (grouped(demoted)) " demoted" }
            "."
        }
        @if outcome.evicted > 0 {
            p class="bad" { "The store had no room for " (grouped(outcome.evicted)) " live keys: the number of denials may be too low." }
        }
        div class="wide" {
            table {
                thead { tr {
                    th { "Policy" } th { "Mode" } th { "Limit" } th class="n" { "Matched" } th class="n" { "Denied" }
                    th class="n" { "%" } th class="n" { "Keys hit" } th { "Worst key" } th class="n" { "Peak" } th { "First deny" }
                    @if outcome.marked.is_some() { th class="n" { "Marked" } }
                    @if outcome.demoted.is_some() { th class="n" { "Demoted" } }
                } }
                tbody {
                    @for policy in &outcome.policies {
                        @let is_shadow = policy.mode == "shadow";
                        @let refused = if is_shadow { policy.shadow_denied } else { policy.denied };
                        tr {
                            td { (policy.name) }
                            td { (policy.mode) }
                            td { (policy.limits.join(", ")) }
                            td class="n" { (grouped(policy.matched)) }
                            @if is_shadow { td class="n quiet" { "(" (grouped(refused)) ")" } }
                            @else { td class={ "n" @if refused > 0 { " bad" } } { (grouped(refused)) } }
                            td class="n" { (percent(share(refused, policy.matched))) }
                            td class="n" { (grouped(policy.keys_hit)) " of " (policy.keys) }
                            td { @if let Some(worst) = &policy.worst { code { (visible::name(&worst.key)) } } }
                            td class="n" { @if let Some(peak) = policy.peak { (peak.grouped()) } }
                            td { @if let Some(at) = policy.first_denied { (axis.label(at, start)) } @else { "never" } }
                            @if outcome.marked.is_some() { td class="n" { (policy.marked.map_or_else(String::new, grouped)) } }
                            @if outcome.demoted.is_some() { td class="n" { (policy.demoted.map_or_else(String::new, grouped)) } }
                        }
                    }
                }
            }
        }
        @for policy in outcome.policies.iter().filter(|policy| policy.keys_hit_signed_in > 0) {
            p {
                (grouped(policy.keys_hit_signed_in)) " of " (grouped(policy.keys_hit)) " keys hit by " (policy.name)
                " signed in and were served: look at them before enforcing."
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::config::Config;
    use tidegate::policy::Descriptor;

    use super::*;
    use crate::replay::ReplayOptions;

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_204_331].map(grouped), ["0", "999", "1,000", "1,204,331"]);
    }

    /// A replay without requests still gives a page: no policy has met a request, and no chart has anything to draw.
    #[test]
    fn nothing_replayed_is_a_page_too() {
        let policies = "version: 1\npolicies:\n  - { name: per-ip, by: [client.ip], limit: { rate: 5/s } }\n";
        let (config, _) = Config::parse(policies, "test.yaml", tidegate::config::Format::Yaml).unwrap();
        let options = ReplayOptions { details: true, ..ReplayOptions::default() };
        for sets in [vec![("<one>".to_owned(), config.policies)], Vec::new()] {
            let ladders = sets.first().map_or_else(Ladders::default, |(_, set)| Ladders::new(set, &options));
            let replay = Replay::new(sets, options).unwrap();
            let report =
                Report { title: "<&>", replay: &replay, log: None, doubts: &[], ladders: &ladders, keys: 5 };
            let page = page(&report).unwrap();
            assert!(page.contains("<h1>&lt;&amp;&gt;</h1>") && page.ends_with("</html>"), "{page}");
        }
    }

    /// Denials that a shadow policy only would have made must not appear in red, nor as "never".
    #[test]
    fn what_is_only_measured_is_told_apart() {
        let page = |mode: &str| {
            let policies = format!(
                "version: 1\npolicies:\n  - {{ name: all, mode: {mode}, limit: {{ rate: 1/s, burst: 1 }} }}\n"
            );
            let (config, _) = Config::parse(&policies, "test.yaml", tidegate::config::Format::Yaml).unwrap();
            let mut replay =
                Replay::new(vec![("run".to_owned(), config.policies)], ReplayOptions::default()).unwrap();
            for _ in 0..1_886 {
                replay.feed_request(tidegate::Tick::from_secs(1_000), &Descriptor::new(), None);
            }
            run(&replay.outcomes()[0], TimeAxis::Utc, false).into_string()
        };
        let shadow = page("shadow");
        assert!(shadow.contains("<td class=\"n quiet\">(1,885)</td>") && !shadow.contains("bad"), "{shadow}");
        assert!(!shadow.contains("never"), "{shadow}");
        assert!(page("enforce").contains("<td class=\"n bad\">1,885</td>"));
    }

    #[test]
    fn hostile_names_stay_text() {
        let tally =
            Tally { files: vec![("<script>".to_owned(), crate::log::Format::Json)], ..Tally::default() };
        assert!(source(&tally).into_string().contains("&lt;script&gt;"));
    }
}
