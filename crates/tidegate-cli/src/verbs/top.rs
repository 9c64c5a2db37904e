//! Lists the keys that a running server refuses most, or that come near their limit, once or again and again; on a
//! terminal a live view.

#[cfg(feature = "tui")]
mod draw;
#[cfg(feature = "tui")]
mod live;
#[cfg(feature = "tui")]
mod state;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{IsTerminal as _, stdin};

use anyhow::Result;
use serde_json::Value;
use tidegate::clock::{Clock as _, SystemClock};
use tidegate_sim::grouped;

use crate::args::{Top, TopBy};
use crate::exit::{Exit, Mistake};
use crate::online::{self, ServerUrl, encoded};
use crate::outcome::time;
use crate::output::Printer;
use crate::overview::rows;
use crate::styled::{Styled, table, text};

pub(crate) fn run(top: &Top, printer: &Printer) -> Result<Exit> {
    let server = ServerUrl::of(&top.server)?;
    if top.watch {
        if !printer.repeats() {
            let wrong = "--watch prints more than one document; write -o jsonl, one a line, or -o table";
            return Err(Mistake(wrong.to_owned()).into());
        }
        watch(top, &server, printer)?;
        return Ok(Exit::Done);
    }
    if !top.plain && is_live(printer) {
        #[cfg(feature = "tui")]
        return live::run(top, server, printer);
        #[cfg(not(feature = "tui"))]
        printer.remark(&crate::features::Feature::Tui.lacking());
    }
    let answer = online::ask(&server, &path(top, top.count), None)?;
    printer.value(&answer, |printer| Ok(listed(&answer, top, None, printer)))?;
    Ok(Exit::Done)
}

/// Whether somebody looks at the output and can press keys.
fn is_live(printer: &Printer) -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
    printer.is_read() && stdin().is_terminal() && !is_dumb
}

fn path(top: &Top, count: usize) -> String {
    let by = match top.by {
        TopBy::Denied => "denied",
        TopBy::Near => "near",
    };
    let of = top.policy.as_ref().map(|policy| format!("&policy={}", encoded(policy))).unwrap_or_default();
    format!("/v1/keys/top?by={by}&limit={count}&reveal={}{of}", top.reveal)
}

/// Lists until Ctrl-C is pressed, or as often as wanted.
fn watch(top: &Top, server: &ServerUrl, printer: &Printer) -> Result<()> {
    // Counts are those since the server's start, so whoever is refused now may be far down: for people all keys are
    // compared with the list before.
    let most = if printer.is_for_people() { Top::MOST } else { top.count };
    let mut before = None;
    online::again(server, &path(top, most), top.every, top.times, printer, |answer| {
        let counts = PolicyCounts::of(answer, most);
        printer.again(answer, |printer| {
            let mut text = Styled::from(format!("{} UTC   {server}\n", time(SystemClock::new().now())));
            text.push(listed(answer, top, before.as_ref(), printer));
            Ok(text + "\n\n")
        })?;
        before = Some(counts);
        Ok(())
    })
}

/// The counts of a list, by policy and key.
#[derive(Debug)]
struct PolicyCounts {
    counts: HashMap<(String, String), u64>,
    /// There may be counted keys that were not listed.
    is_full: bool,
}

impl PolicyCounts {
    fn of(answer: &Value, most: usize) -> Self {
        let one = |row: &Value| Some(((text(&row["policy"]), text(&row["key"])), row["count"].as_u64()?));
        let counts: HashMap<_, _> = rows(&answer["keys"]).iter().filter_map(one).collect();
        let is_full = counts.len() >= most;
        Self { counts, is_full }
    }

    /// Returns what a key has been counted since this list; `None` if that is unknown.
    fn since(&self, row: &Value) -> Option<u64> {
        let now = row["count"].as_u64()?;
        match self.counts.get(&(text(&row["policy"]), text(&row["key"]))) {
            // A server that was restarted counts from zero.
            Some(before) => now.checked_sub(*before),
            None => (!self.is_full).then_some(now),
        }
    }
}

/// Lists keys, each with its share of all that was counted. With the list `before`, those that were counted most since
/// then come first.
fn listed(answer: &Value, top: &Top, before: Option<&PolicyCounts>, printer: &Printer) -> Styled {
    let (count, none) = match top.by {
        TopBy::Denied => ("DENIED", "no key was refused"),
        TopBy::Near => ("NEAR", "no key came near its limit"),
    };
    let mut rows: Vec<(&Value, Option<u64>)> =
        rows(&answer["keys"]).iter().map(|row| (row, before.and_then(|before| before.since(row)))).collect();
    if rows.is_empty() {
        return none.into();
    }
    // The sort is stable: keys that nothing was added to stay in the order of their counts.
    rows.sort_by_key(|(_, new)| Reverse(new.unwrap_or_default()));
    rows.truncate(top.count);
    let counted = answer["counted"].as_u64().unwrap_or_default();
    let error = |row: &Value| row["error"].as_u64().unwrap_or_default();
    let has_errors = printer.wide() || rows.iter().any(|(row, _)| error(row) > 0);
    let mut header = vec!["POLICY", "KEY", count, "%"];
    header.extend(before.map(|_| "NEW"));
    header.extend(has_errors.then_some("TOO HIGH BY"));
    let rows = rows.iter().map(|(row, new)| {
        let count = row["count"].as_u64().unwrap_or_default();
        let share = 100.0 * count as f64 / counted.max(count).max(1) as f64;
        // Would be refused, as in the tables of a replay.
        let is_shadow = row["mode"] == "shadow" && matches!(top.by, TopBy::Denied);
        let shown = if is_shadow { format!("({})", grouped(count)) } else { grouped(count) };
        let policy = text(&row["policy"]);
        let policy = if is_shadow { format!("{policy} (shadow)") } else { policy };
        let mut cells = vec![policy, text(&row["key"]), shown, format!("{share:.1}")];
        cells.extend(before.map(|_| new.map_or_else(|| "-".to_owned(), grouped)));
        cells.extend(has_errors.then(|| format!("at most {}", grouped(error(row)))));
        cells
    });
    table(&header, &[2, 3, 4], rows)
}
