//! Lists what changed on a running server, who did it, and how refusals went before and after.

use anyhow::Result;
use serde_json::Value;

use crate::args::Changes;
use crate::exit::Exit;
use crate::online::{self, ServerUrl};
use crate::output::Printer;
use crate::overview::{percent, rows};
use crate::styled::{Styled, table, text};

pub(crate) fn run(changes: &Changes, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(&changes.server)?;
    let answer = online::ask(&server, &format!("/v1/changes?limit={}", changes.count), None)?;
    printer.value(&answer, |printer| Ok(listed(&answer, printer.wide())))?;
    Ok(Exit::Done)
}

fn listed(answer: &Value, is_wide: bool) -> Styled {
    let changes = rows(&answer["changes"]);
    if changes.is_empty() {
        return "nothing has changed since the server began to remember".into();
    }
    let mut header = vec!["AT", "WHAT", "WHO", "REFUSED", "CHANGE"];
    if is_wide {
        header.extend(["REASON", "CONFIG"]);
    }
    let rows = changes.iter().map(|change| {
        let mut row = vec![
            moment(change),
            text(&change["what"]),
            text(&change["who"]),
            effect(&change["effect"]),
            text(&change["text"]),
        ];
        if is_wide {
            let number = change["configuration"].as_u64();
            row.push(text(&change["reason"]));
            row.push(number.map_or_else(|| "-".to_owned(), |number| format!("#{number}")));
        }
        row
    });
    table(&header, &[], rows)
}

/// When a change was, UTC, without parts of a second.
pub(crate) fn moment(change: &Value) -> String {
    let at = text(&change["at"]);
    match (at.get(..10), at.get(11..19)) {
        (Some(day), Some(time)) => format!("{day} {time}"),
        _ => at,
    }
}

/// The shares refused in the five minutes before and after a change: `1.0 → 17.1 %`; `-` if they are not known.
pub(crate) fn effect(effect: &Value) -> String {
    let shares = &effect["denied_share"];
    match (shares[0].as_f64(), shares[1].as_f64()) {
        (Some(before), Some(after)) => format!("{} → {} %", percent(before), percent(after)),
        _ => "-".to_owned(),
    }
}

/// The same in words. `now`: when the server said so, in RFC 3339.
#[cfg(feature = "tui")]
pub(crate) fn effect_in_words(change: &Value, now: &str) -> String {
    /// After so many seconds it is known, or will never be.
    const KNOWN_AFTER: i64 = 8 * 60;
    let known = &change["effect"];
    if !known.is_null() {
        let keys = [0, 1].map(|side: usize| known["keys_refused"][side].as_u64().unwrap_or_default());
        let [before, after] = keys.map(tidegate_sim::grouped);
        return format!("refused {}, {before} → {after} keys", effect(known));
    }
    let second = |at: &str| at.parse::<jiff::Timestamp>().map(jiff::Timestamp::as_second);
    match (second(&text(&change["at"])), second(now)) {
        (Ok(at), Ok(now)) if now < at.saturating_add(KNOWN_AFTER) => "effect: too early to say".to_owned(),
        _ => "effect not known: no requests before or after".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_a_row_with_its_effect() {
        let answer = json!({ "changes": [
            {
                "number": 7, "at": "2026-03-02T02:50:01.123Z", "what": "policies", "who": "file", "reason": "",
                "text": "per-ip: 10/s\n→ 6/s", "configuration": 18,
                "effect": { "denied_share": [0.01, 0.171], "keys_refused": [0, 1] },
            },
            { "number": 6, "at": "x", "what": "key", "who": "", "reason": "scraper", "text": "blocked", "configuration": 17, "effect": null },
        ]});
        let shown = listed(&answer, false);
        let rows: Vec<&str> = shown.lines().collect();
        assert_eq!(rows.len(), 3, "{rows:?}");
        assert!(
            rows[1].starts_with("2026-03-02 02:50:01   policies   file   1.0 → 17.1 %   per-ip: 10/s\\n"),
            "{rows:?}"
        );
        assert!(rows[2].ends_with("-              blocked"), "{rows:?}");
        assert!(listed(&answer, true).contains("scraper   #17"));
        assert!(listed(&json!({}), false).starts_with("nothing has changed"));
    }

    #[cfg(feature = "tui")]
    #[test]
    fn an_effect_that_is_not_known_is_early_or_never_comes() {
        let change = json!({ "at": "2026-03-02T02:50:01.123Z", "effect": null });
        assert_eq!(effect_in_words(&change, "2026-03-02T02:58:00Z"), "effect: too early to say");
        for now in ["2026-03-02T02:58:02Z", ""] {
            assert_eq!(effect_in_words(&change, now), "effect not known: no requests before or after");
        }
    }
}
