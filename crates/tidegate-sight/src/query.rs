//! Reads the queries of the paths that a watch answers.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Value, json};

/// The window if none is named.
pub(crate) const DEFAULT_WINDOW: Duration = Duration::from_secs(15 * 60);

/// The longest history, in seconds.
pub(crate) const LONGEST_WINDOW: u64 = 90 * 86_400;

/// A status and what is wrong with a query.
pub(crate) type Wrong = (u16, String);

pub(crate) fn bad(detail: String) -> Wrong {
    (400, detail)
}

/// Returns the points of the series that are named, separated by commas.
pub(crate) fn asked_series<C, S: Copy>(
    words: &str,
    all: &[S],
    word_of: fn(S) -> &'static str,
    points: &[(u64, C)],
    count_of: fn(&C, S) -> u64,
) -> Result<Value, Wrong> {
    let mut shown = serde_json::Map::new();
    for word in words.split(',') {
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

/// The parameters of a query.
pub(crate) struct Pairs<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Pairs<'q> {
    pub(crate) fn of(query: &'q str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).collect())
    }

    /// Returns the first value of a parameter; `None` if it is empty.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(have, _)| have == name);
        pair.map(|(_, value)| &**value).filter(|value| !value.is_empty())
    }

    pub(crate) fn wrong(&self, name: &str, use_this: &str) -> Wrong {
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
