//! The keys that policies hit, for `replay --hit`: one list per run and policy with keys.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate::visible;
use tidegate_sim::replay::{KeyDetail, Outcome, PathCount, PeakRate, Replay};
use tidegate_sim::{grouped, millis, rfc3339};

use crate::outcome::when;
use crate::styled::{Cell, Look, Styled, table};

/// Most denied first.
#[derive(Debug)]
pub(crate) struct HitList {
    run: String,
    policy: String,
    /// What is counted as denied would have been.
    is_shadow: bool,
    /// The number of keys hit; `keys` may have fewer.
    keys_hit: u64,
    window: Duration,
    /// All keys were remembered.
    is_complete: bool,
    /// Whether the log names users, so that it is known which keys signed in.
    names_users: bool,
    keys: Vec<KeyDetail>,
}

/// Returns the lists of all runs, with at most `most` keys each; the list of a policy that hit no key is empty.
pub(crate) fn lists(replay: &Replay, outcomes: &[Outcome], most: usize) -> Vec<HitList> {
    let mut lists = Vec::new();
    for (run, outcome) in outcomes.iter().enumerate() {
        let keyed = outcome.policies.iter().enumerate().filter(|(_, policy)| !policy.by.is_empty());
        lists.extend(keyed.filter_map(|(row, policy)| {
            let peaks = replay.policy_peaks(run, row)?;
            Some(HitList {
                run: outcome.name.clone(),
                policy: policy.name.clone(),
                is_shadow: policy.mode == "shadow",
                keys_hit: policy.keys_hit,
                window: peaks.window(),
                is_complete: peaks.is_exact(),
                names_users: replay.names_users(),
                keys: peaks.hit(most, |_| true),
            })
        }));
    }
    lists
}

impl HitList {
    pub(crate) fn json(&self) -> Value {
        let key = |key: &KeyDetail| {
            let peak = &key.peak;
            let path = |path: &PathCount| json!({ "path": path.path, "requests": path.requests, "requests_are_floor": !path.is_exact });
            json!({
                "key": peak.key,
                "requests": key.requests,
                "denied": peak.denied,
                "denied_units": peak.denied_units,
                "counts_are_floor": key.is_floor(),
                "peak": peak.peak,
                "peak_at": rfc3339(peak.peak_at),
                "signed_in": self.names_users.then_some(key.signed_in),
                "first_denied_at": peak.first_denied.map(rfc3339),
                "paths": key.paths.iter().map(path).collect::<Vec<_>>(),
            })
        };
        json!({
            "run": self.run,
            "policy": self.policy,
            "shadow": self.is_shadow,
            "keys_hit": self.keys_hit,
            "keys_may_be_missing": !self.is_complete,
            "peak_window_ms": millis(self.window),
            "keys": self.keys.iter().map(key).collect::<Vec<_>>(),
        })
    }

    /// Returns the list as text for people; `named` adds the name of its run.
    pub(crate) fn text(&self, recorded: bool, named: bool) -> Styled {
        let mut text = Styled::default();
        let run = if named { format!("{}: ", self.run) } else { String::new() };
        let hit = if self.is_shadow { "would hit (shadow)" } else { "hit" };
        text.push(format!("\n{run}{} {hit} ", self.policy));
        if self.keys.is_empty() {
            text.push("no key\n");
            return text;
        }
        text.push(format!("{} {}", grouped(self.keys_hit), if self.keys_hit == 1 { "key" } else { "keys" }));
        if (self.keys.len() as u64) < self.keys_hit {
            text.push(format!(
                "; the {} with the most denied requests are shown",
                grouped(self.keys.len() as u64)
            ));
        }
        text.push("\n");
        let denied = if self.is_shadow { "(DENIED)" } else { "DENIED" };
        let header = ["KEY", "REQUESTS", denied, "PEAK RATE", "SIGNED IN", "FIRST DENY", "PATHS"];
        text.push(table(&header, &[1, 2], self.keys.iter().map(|key| self.row(key, recorded))));
        text.push("\n");
        if self.keys.iter().any(KeyDetail::is_floor) {
            text.push(">= marks lower bounds: that key was forgotten for a while\n");
        }
        if !self.is_complete {
            text.push(
                "there were more keys than are remembered: some keys with few requests may be missing\n",
            );
        }
        text
    }

    fn row(&self, key: &KeyDetail, recorded: bool) -> Vec<Cell> {
        let least = if key.is_floor() { ">=" } else { "" };
        let count = |count: u64| format!("{least}{}", grouped(count));
        let path = |path: &PathCount| {
            format!("{} {}{}", path.path, if path.is_exact { "" } else { ">=" }, grouped(path.requests))
        };
        let signed_in = match (self.names_users, key.signed_in) {
            (false, _) => "?",
            (true, true) => "yes",
            (true, false) => "no",
        };
        vec![
            visible::name(&key.peak.key).into_owned().into(),
            key.requests.map_or_else(|| "-".to_owned(), count).into(),
            match self.is_shadow {
                true => Cell::looking(format!("({})", count(key.peak.denied)), Some(Look::Doubtful)),
                false => Cell::looking(count(key.peak.denied), Some(Look::Bad)),
            },
            PeakRate { count: key.peak.peak, window: self.window }.grouped().into(),
            signed_in.to_owned().into(),
            key.peak.first_denied.map_or_else(|| "-".to_owned(), |at| when(at, recorded)).into(),
            key.paths.iter().map(path).collect::<Vec<_>>().join(", ").into(),
        ]
    }
}
