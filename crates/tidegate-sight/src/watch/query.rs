//! Answers the queries about the history and the busiest keys, and keeps the hours of those over restarts.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

use super::live;
use crate::busiest::By;
use crate::history::{NoteOf, Step};
use crate::numbers::{Counts, Series, ServerCounts, ServerSeries};
use crate::watch::Watch;

/// The window if none is named.
pub(crate) const DEFAULT_WINDOW: Duration = Duration::from_secs(15 * 60);

/// The longest history, in seconds.
pub(crate) const LONGEST_WINDOW: u64 = 90 * 86_400;

/// Answers `/v1/history`.
pub(crate) fn history(watch: &Watch, query: &Pairs<'_>) -> Result<Value, Wrong> {
    let now = watch.state.lock().second;
    let number = |name: &'static str, or: u64| -> Result<u64, Wrong> {
        let Some(text) = query.value(name) else { return Ok(or) };
        text.parse().map_err(|_| query.wrong(name, "use seconds since 1970, such as 1767225600"))
    };
    let to = number("to", now)?;
    let from = number("from", to.saturating_sub(DEFAULT_WINDOW.as_secs()))?;
    if from >= to {
        return Err(bad(format!("`from` is {from}, which is not before `to`, {to}")));
    }
    let step = match query.value("step") {
        Some("1s") => Step::Second,
        Some("1m") => Step::Minute,
        Some("1h") => Step::Hour,
        Some(_) => return Err(query.wrong("step", "use 1s, 1m or 1h")),
        None => Step::for_last(now.saturating_sub(from)),
    };
    // What lies before that is not kept, and nothing lies after now.
    let (from, to) = (from.max(now.saturating_sub(LONGEST_WINDOW)), to.min(now.saturating_add(1)));
    let to = to.max(from);
    let words = query.value("series").unwrap_or("allowed,denied");
    let series = match query.value("policy") {
        Some(policy) => {
            let points = watch.history.policy(policy, step, from, to);
            if points.is_empty() && watch.state.lock().board.number_of(policy).is_none() {
                return Err(unknown_policy());
            }
            asked_series(words, &Series::ALL, Series::word, &points, Counts::of)?
        }
        None => {
            let points = watch.history.server(step, from, to);
            asked_series(words, &ServerSeries::ALL, ServerSeries::word, &points, ServerCounts::of)?
        }
    };
    Ok(json!({ "step": step.seconds(), "series": series }))
}

/// Answers `/v1/busiest`.
pub(crate) fn busiest(watch: &Watch, query: &Pairs<'_>, reveal: bool) -> Result<Value, Wrong> {
    let by = match query.value("by") {
        None => By::Denied,
        Some(word) => By::ALL
            .into_iter()
            .find(|by| by.word() == word)
            .ok_or_else(|| query.wrong("by", "use denied, near or rate"))?,
    };
    let window = query.window(86_400, "use 1m, 15m or 24h")?;
    let limit = query.limit(20, 500)?;
    let state = watch.state.lock();
    let policy = query.value("policy");
    if let Some(name) = policy
        && state.board.number_of(name).is_none()
        && !state.busiest.has_found(name)
    {
        return Err(unknown_policy());
    }
    let keys: Vec<Value> = state
        .busiest
        .listed(by, window, policy, limit, &state.board)
        .into_iter()
        .map(|listed| {
            json!({
                "policy": listed.policy.as_deref(),
                "key": live::shown_key(listed.name.as_ref(), listed.key, reveal),
                "count": listed.count as u64,
                "error": listed.error as u64,
                "per_second": live::rounded(listed.per_second),
            })
        })
        .collect();
    Ok(json!({ "by": by.word(), "window_s": window.as_secs(), "keys": keys }))
}

impl Watch {
    /// Learns the hours of keys that an earlier process kept, once. Returns whether there were any.
    pub(super) fn find_keys(&self) -> bool {
        let found = self.history.found_note(NoteOf::Keys);
        if let Some(text) = &found {
            self.state.lock().busiest.learn_hours(text);
        }
        found.is_some()
    }

    /// Keeps the hours of keys, if there is a folder.
    pub(super) fn keep_keys(&self) {
        if self.history.is_written().is_none() {
            return;
        }
        let text = {
            let state = self.state.lock();
            state.busiest.hours_text(&state.board, NoteOf::Keys.most_bytes())
        };
        self.history.put_note(NoteOf::Keys, &text);
        // Not a minute later: together they would be two minutes old.
        self.history.write_soon();
    }
}

/// A status and what is wrong with a query.
pub(crate) type Wrong = (u16, String);

pub(crate) fn bad(detail: String) -> Wrong {
    (400, detail)
}

pub(crate) fn unknown_policy() -> Wrong {
    let detail = "parameter `policy`: no policy of this name was seen; /v1/policies lists those in force";
    (404, detail.to_owned())
}

/// Returns the points of the series that are named, separated by commas.
fn asked_series<C, S: Copy>(
    words: &str,
    all: &[S],
    word_of: fn(S) -> &'static str,
    points: &[(u64, C)],
    count_of: fn(&C, S) -> u64,
) -> Result<Value, Wrong> {
    let mut shown = serde_json::Map::new();
    for word in words_of(words) {
        let Some(series) = all.iter().copied().find(|series| word_of(*series) == word) else {
            let known: Vec<&str> = all.iter().copied().map(word_of).collect();
            let (word, known) = (tidegate::visible::excerpt(word), known.join(", "));
            return Err(bad(format!("parameter `series`: `{word}` is not counted; use {known}")));
        };
        let points = points.iter().map(|(at, counts)| json!([at, count_of(counts, series)]));
        shown.insert(word.to_owned(), points.collect());
    }
    Ok(shown.into())
}

/// Returns the words of a list, each once: a query has room for thousands.
fn words_of(list: &str) -> Vec<&str> {
    let mut words: Vec<&str> = list.split(',').collect();
    words.sort_unstable();
    words.dedup();
    words
}

/// The parameters of a query.
pub(crate) struct Pairs<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Pairs<'q> {
    pub(crate) fn of(query: &'q str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).collect())
    }

    /// Returns the first value of a parameter; `None` if it is empty.
    fn value(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(have, _)| have == name);
        pair.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    fn wrong(&self, name: &str, use_this: &str) -> Wrong {
        let value = tidegate::visible::excerpt(self.value(name).unwrap_or_default());
        bad(format!("parameter `{name}`: `{value}` cannot be used; {use_this}"))
    }

    /// Returns the window: at least a minute, and at most so many seconds.
    pub(crate) fn window(&self, longest: u64, use_this: &str) -> Result<Duration, Wrong> {
        let Some(text) = self.value("w") else { return Ok(DEFAULT_WINDOW) };
        let seconds = seconds_of(text).filter(|seconds| (60..=longest).contains(seconds));
        seconds.map(Duration::from_secs).ok_or_else(|| self.wrong("w", use_this))
    }

    pub(crate) fn limit(&self, or: usize, most: usize) -> Result<usize, Wrong> {
        let Some(text) = self.value("limit") else { return Ok(or) };
        let limit = text.parse::<usize>().ok().filter(|limit| (1..=most).contains(limit));
        limit.ok_or_else(|| self.wrong("limit", &format!("use 1 to {most}")))
    }
}

/// Reads a time such as `15m`.
fn seconds_of(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_read_once_however_often_it_is_named() {
        assert_eq!(words_of(&"denied,allowed,".repeat(2_000)), ["", "allowed", "denied"]);
    }
}
