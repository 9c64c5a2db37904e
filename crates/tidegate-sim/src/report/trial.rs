//! The section where a limit is chosen: the chart of peaks with a line that moves along the limits that were tried.
//!
//! Without the script, the page shows the chart at the replayed limit, its numbers, and a table of the others. The
//! script (`line.js`) moves the line and shows the numbers under it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{Markup, PreEscaped, html};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tidegate::visible;

use super::guards::{paths, yes_or_no};
use super::pictures::{Peaks, window_words};
use crate::chart::{Chart as _, ChartError, Level, Movable};
use crate::ladder::{Ladder, Ladders, NewlyHit, Rung};
use crate::replay::{PolicyOutcome, Replay};
use crate::units::{grouped, percent};

pub(super) const SCRIPT: &str = include_str!("line.js");

/// Returns the section of one policy; `number` makes the ids of its elements unique.
pub(super) fn section(
    number: usize,
    replay: &Replay,
    row: usize,
    policy: &PolicyOutcome,
    ladders: &Ladders,
) -> Result<Markup, ChartError> {
    let Some(peaks) = Peaks::of(replay, row, policy) else { return Ok(html! {}) };
    let tried = ladders.of_row(row).map(|ladder| (ladder, ladder.rungs(replay)));
    let Some((ladder, (rungs, at))) = tried.filter(|(_, (rungs, at))| *at < rungs.len()) else {
        let svg = peaks.chart().svg()?;
        let why = ladders.why_not(row);
        return Ok(html! {
            section {
                div class="wide" { (PreEscaped(svg)) }
                @if let Some(why) = why { p class="quiet" { "No other limits were tried for " (policy.name) ": " (why) "." } }
            }
        });
    };
    let window = replay.policy_peaks(0, row).map_or_else(String::new, |peaks| window_words(peaks.window()));
    let chart = Movable::new(&peaks.chart(), rungs.iter().map(|rung| rung.granted as f64));
    let level = |rung: &Rung| {
        let above = if chart.is_above(rung.granted as f64) { " (above this chart) ↑" } else { "" };
        format!("{} grants at most {} in any {window}{above}", rung.limit(), grouped(rung.granted))
    };
    let here = &rungs[at];
    let svg = chart.svg(&Level { name: level(here), value: here.granted as f64 }, &here.hit)?;
    let users = replay.names_users();
    let other = ladder.stands_in_for();
    let data = data(&rungs, at, ladder, policy, users, &chart, &level);
    let is_shadow = policy.mode == "shadow";
    let (range, label) = (format!("limit-{number}"), format!("who-{number}"));
    Ok(html! {
        section class="trial" {
            h3 { (policy.name) ": the effect of other limits" }
            p class="quiet" {
                "Each limit was tried on the same requests, as gcra and on its own, without other policies and without other limits of this policy"
                @if !here_is(here, policy) { ", so its numbers differ from those of the table above" }
                "."
                @if !ladder.is_exact() { " There were more keys than are remembered: the numbers of keys are lower bounds." }
            }
            @if let Some(limit) = other {
                p data-nearest {
                    "The limit replayed, " (limit) ", is not gcra. The line begins at the nearest gcra to " (limit) ", which is " (here.limit())
                    ", with the same rate and burst. The numbers below and the filled marks are those of " (here.limit()) "."
                }
            }
            div class="wide" { (PreEscaped(svg)) }
            div class="controls" data-scripted hidden {
                label for=(range) { "Limit" }
                input type="range" id=(range) min="0" max=(rungs.len() - 1) step="1" value=(at);
                button type="button" data-back { @if other.is_some() { "Back to the nearest gcra" } @else { "Back to the limit replayed" } }
            }
            dl class="numbers" aria-live="polite" { (numbers(here, policy, users)) }
            div class="wide" data-who hidden[here.newly.is_empty()] {
                table aria-labelledby=(label) {
                    caption id=(label) { @if is_shadow { "Newly hit, if it were enforced; denied most first " } @else { "Newly hit, denied most first " } span data-more { (more(here)) } }
                    thead { tr {
                        th { "Key" } th class="n" { "Requests" } th class="n" { "Denied" } th { "Signed in" } th { "Most frequent paths" }
                    } }
                    tbody {}
                }
            }
            @match ladder.yaml(here) {
                Ok(yaml) => {
                    pre { code data-yaml { (yaml) } }
                    p data-scripted hidden {
                        button type="button" data-copy { "Copy" } " " span data-copied role="status" {}
                    }
                }
                Err(why) => p class="quiet" data-unwritten {
                    "No policy is written here, since none would count the same requests: " (visible::line(why)) "."
                },
            }
            details open {
                summary { "All limits that were tried" }
                div class="wide" { (ladder_table(&rungs, at, other, users)) }
            }
            script type="application/json" { (PreEscaped(inert(&data))) }
        }
    })
}

/// The rung has the results that the table shows for the policy.
fn here_is(rung: &Rung, policy: &PolicyOutcome) -> bool {
    (rung.denied, rung.keys_hit) == (policy.over_limit(), policy.keys_hit)
}

fn words(rung: &Rung, policy: &PolicyOutcome, users: bool) -> [(&'static str, &'static str, String); 5] {
    let signed_in = |count: u64, of: u64| match (count, of) {
        (_, 0) => String::new(),
        _ if !users => ", unknown who signed in, since the log names no users".to_owned(),
        (0, _) => ", none of them signed in".to_owned(),
        (count, _) => format!(", {} of them signed in and served", grouped(count)),
    };
    let denied = format!(
        "{} of {} requests ({})",
        grouped(rung.denied),
        grouped(policy.matched),
        percent(rung.denied_share)
    );
    let hit = format!(
        "{} of {}{}",
        grouped(rung.keys_hit),
        policy.keys,
        signed_in(rung.keys_hit_signed_in, rung.keys_hit)
    );
    let newly = format!("{}{}", grouped(rung.newly_hit), signed_in(rung.newly_hit_signed_in, rung.newly_hit));
    [
        ("limit", "Limit", rung.limit()),
        ("denied", if policy.mode == "shadow" { "Would be denied (shadow)" } else { "Denied" }, denied),
        ("hit", "Keys hit", hit),
        ("newly", "Newly hit, not by the limit replayed", newly),
        ("spared", "No longer hit", grouped(rung.spared)),
    ]
}

fn numbers(rung: &Rung, policy: &PolicyOutcome, users: bool) -> Markup {
    html! {
        @for (name, title, text) in words(rung, policy, users) { dt { (title) } dd data-number=(name) { (text) } }
    }
}

/// Says how many of the newly hit keys are named, if not all are.
fn more(rung: &Rung) -> String {
    if (rung.newly.len() as u64) < rung.newly_hit {
        format!("({} of {})", rung.newly.len(), grouped(rung.newly_hit))
    } else {
        String::new()
    }
}

/// The results of each rung, and the keys named by any of them, each once.
fn data(
    rungs: &[Rung],
    at: usize,
    ladder: &Ladder,
    policy: &PolicyOutcome,
    users: bool,
    chart: &Movable<'_>,
    level: &impl Fn(&Rung) -> String,
) -> Value {
    let mut keys: Vec<Value> = Vec::new();
    let mut places = std::collections::HashMap::new();
    let mut rows = Vec::new();
    for rung in rungs {
        let who = |newly: &NewlyHit| {
            let place = *places.entry(newly.key.clone()).or_insert_with(|| {
                keys.push(key(newly, users));
                keys.len() - 1
            });
            json!([place, grouped(newly.denied)])
        };
        let who: Vec<Value> = rung.newly.iter().map(who).collect();
        let words = words(rung, policy, users);
        let spoken: Vec<String> = words.iter().map(|(_, title, text)| format!("{title}: {text}")).collect();
        let numbers: serde_json::Map<String, Value> =
            words.into_iter().map(|(name, _, text)| (name.to_owned(), text.into())).collect();
        rows.push(json!({
            "words": spoken.join("; "),
            "numbers": numbers,
            "y": (chart.y(rung.granted as f64) * 10.0).round() / 10.0,
            "level": level(rung),
            "hits": chart.outline(&rung.hit),
            "yaml": ladder.yaml(rung).ok(),
            "who": who,
            "more": more(rung),
        }));
    }
    json!({ "replayed": at, "rungs": rows, "keys": keys })
}

fn key(newly: &NewlyHit, users: bool) -> Value {
    let detail = newly.detail.as_ref();
    let requests = detail.and_then(|detail| {
        let least = if detail.is_floor() { "≥ " } else { "" };
        Some(format!("{least}{}", grouped(detail.requests?)))
    });
    let shown = |text: &str| visible::line(text).into_owned();
    json!({
        "key": visible::name(&newly.key),
        "requests": requests.unwrap_or_default(),
        "signed_in": yes_or_no(newly.signed_in, users),
        "paths": shown(&detail.map(|detail| paths(&detail.paths)).unwrap_or_default()),
    })
}

/// Serialises data so that no text in it can end the surrounding element or open a comment.
fn inert(data: &Value) -> String {
    let text = data.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    visible::json(&text).into_owned()
}

fn ladder_table(rungs: &[Rung], at: usize, other: Option<&str>, users: bool) -> Markup {
    let signed_in = |count: u64| if users { grouped(count) } else { "?".to_owned() };
    let at_opening = other.map_or_else(|| " (replayed)".to_owned(), |limit| format!(" (nearest to {limit})"));
    html! {
        table {
            thead { tr {
                th { "Limit" } th class="n" { "Denied" } th class="n" { "%" } th class="n" { "Keys hit" } th class="n" { "Signed in" }
                th class="n" { "Newly hit" } th class="n" { "Signed in" } th class="n" { "No longer hit" } th { "Newly hit first" }
            } }
            tbody {
                @for (place, rung) in rungs.iter().enumerate() {
                    tr data-rung class=[(place == at).then_some("here")] {
                        th scope="row" { (rung.limit()) @if place == at { (at_opening) } }
                        td class="n" { (grouped(rung.denied)) }
                        td class="n" { (percent(rung.denied_share)) }
                        td class="n" { (grouped(rung.keys_hit)) }
                        td class="n" { (signed_in(rung.keys_hit_signed_in)) }
                        td class="n" { (grouped(rung.newly_hit)) }
                        td class="n" { (signed_in(rung.newly_hit_signed_in)) }
                        td class="n" { (grouped(rung.spared)) }
                        td class="names" {
                            @for (place, newly) in rung.newly.iter().take(3).enumerate() {
                                @if place > 0 { ", " }
                                code { (visible::name(&newly.key)) }
                                @if let Some(path) = newly.detail.as_ref().and_then(|detail| detail.paths.first()) {
                                    " " span class="quiet" { (path.path) }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Returns a `Content-Security-Policy` under which these scripts and style sheets work. Content that a hostile name
/// could inject does not: no other script runs, nothing is loaded, nothing is sent.
pub(super) fn content_policy(scripts: &[&str], styles: &[&str]) -> String {
    let hashes = |texts: &[&str]| {
        let hash = |text: &&str| format!(" 'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())));
        texts.iter().map(hash).collect::<String>()
    };
    format!(
        "default-src 'none'; script-src{}; style-src{}; base-uri 'none'; form-action 'none'",
        hashes(scripts),
        hashes(styles)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_cannot_end_its_element() {
        let data = json!({ "key": "</script><!--&\u{2028}\u{202e}\u{1b}" });
        let text = inert(&data);
        assert!(!text.contains(['<', '>', '&', '\u{2028}', '\u{202e}', '\u{1b}']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), data);
    }

    #[test]
    fn the_script_writes_names_as_text_only() {
        for word in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function("] {
            assert!(!SCRIPT.contains(word), "{word}");
        }
    }

    /// The hash of `alert('Hello, world.');` is an example in the standard, Content Security Policy level 3.
    #[test]
    fn hashes_are_those_of_the_standard() {
        let policy = content_policy(&["alert('Hello, world.');"], &["", "a"]);
        assert!(
            policy.contains("script-src 'sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng=';"),
            "{policy}"
        );
        assert_eq!(policy.matches("sha256-").count(), 3);
    }
}
