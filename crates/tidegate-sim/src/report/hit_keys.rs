//! The table of the keys that a policy hit, most denied first.

use maud::{Markup, html};
use tidegate::{Tick, visible};

use crate::chart::TimeAxis;
use crate::peaks::{KeyDetail, PathCount};
use crate::replay::{PeakRate, PolicyOutcome, Replay};
use crate::thousands::grouped;

/// Returns tables of the keys that the policies of the first run hit, at most `most` for each.
pub(super) fn tables(
    replay: &Replay,
    policies: &[PolicyOutcome],
    axis: TimeAxis,
    start: Tick,
    most: usize,
) -> Markup {
    let keyed =
        policies.iter().enumerate().filter(|(_, policy)| !policy.by.is_empty() && policy.keys_hit > 0);
    html! {
        @for (row, policy) in keyed {
            @if let Some(peaks) = replay.policy_peaks(0, row) {
                @let hit = peaks.hit(most, |_| true);
                @let is_shadow = policy.mode == "shadow";
                h3 { @if is_shadow { "Keys that " (policy.name) " would hit (shadow)" } @else { "Keys hit by " (policy.name) } }
                p {
                    (grouped(policy.keys_hit)) " of " (policy.keys) " keys"
                    @if (hit.len() as u64) < policy.keys_hit {
                        "; the " (grouped(hit.len() as u64)) " that " @if is_shadow { "would be" } @else { "were" } " denied most"
                    }
                    "."
                }
                div class="wide" { (table(&hit, peaks.window(), axis, start, replay.names_users(), is_shadow)) }
                @if hit.iter().any(KeyDetail::is_floor) {
                    p class="quiet" { "≥ marks lower bounds: the key was forgotten for a while." }
                }
                @if !peaks.is_exact() {
                    p class="bad" { "There were more keys than are remembered: some keys with few requests may be missing." }
                }
            }
        }
    }
}

fn table(
    hit: &[KeyDetail],
    window: std::time::Duration,
    axis: TimeAxis,
    start: Tick,
    names_users: bool,
    is_shadow: bool,
) -> Markup {
    let denied = if is_shadow { "Would be denied" } else { "Denied" };
    html! {
        table {
            thead { tr {
                th { "Key" } th class="n" { "Requests" } th class="n" { (denied) } th class="n" { "Peak" } th { "Signed in" }
                th { "First deny" } th { "Most frequent paths" }
            } }
            tbody {
                @for key in hit {
                    @let least = if key.is_floor() { "≥ " } else { "" };
                    tr {
                        td { code { (visible::name(&key.peak.key)) } }
                        td class="n" { @if let Some(requests) = key.requests { (least) (grouped(requests)) } }
                        td class={ "n" @if !is_shadow { " bad" } } { (least) (grouped(key.peak.denied)) }
                        td class="n" { (PeakRate { count: key.peak.peak, window }.grouped()) }
                        td { (yes_or_no(key.signed_in, names_users)) }
                        td { @if let Some(at) = key.peak.first_denied { (axis.label(at, start)) } }
                        td class="names" { (paths(&key.paths)) }
                    }
                }
            }
        }
    }
}

/// Says whether a key signed in; `?` if the log names no users.
pub(super) fn yes_or_no(signed_in: bool, names_users: bool) -> &'static str {
    match (names_users, signed_in) {
        (false, _) => "?",
        (true, true) => "yes",
        (true, false) => "no",
    }
}

/// Formats paths in one line: `/items/* 700, / at least 12`.
pub(super) fn paths(paths: &[PathCount]) -> String {
    let shown = paths.iter().map(|path| {
        let least = if path.is_exact { "" } else { "at least " };
        format!("{} {least}{}", path.path, grouped(path.requests))
    });
    shown.collect::<Vec<_>>().join(", ")
}
