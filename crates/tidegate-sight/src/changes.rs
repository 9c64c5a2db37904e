//! Who changed what and when, and the effect: how much was refused, and how many keys, in the five minutes before and
//! after.
//!
//! A change is a line of JSON in the history's file, so it is known after a restart, and numbers go on. Its effect is
//! worked out once, by the thread that keeps the history, and is kept with it: reading changes costs no look into the
//! minutes of all policies, and the minutes are forgotten after a day. The minute of the change itself is left out,
//! since it belongs to both sides.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate::clock::SystemClock;
use tidegate::visible;
use tidegate_server::Changed;

use crate::history::{History, MOST_CHANGES, MOST_POLICIES, Step};
use crate::numbers::Series;

/// The longest text of a change, in bytes. With the other fields and twice as long in JSON, 200 of them fit in 8 MiB.
const LONGEST_TEXT: usize = 16 * 1024;

/// The longest name and the longest reason, in bytes.
const LONGEST_WORDS: usize = 1_024;

/// The time before a change, and after it, that is compared, in minutes.
const COMPARED: u64 = 5;

const MINUTE: u64 = 60;

/// For the changes of how many minutes the effect is worked out in one call.
const AT_ONCE: usize = 2;

/// The list of changes. Shared by all threads; a lock is held while a change is written into the history, which does
/// not wait for the disk.
#[derive(Debug)]
pub(crate) struct Changes {
    history: Arc<History>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of the next change.
    next: u64,
    /// The changes without an effect yet, oldest first; at most [`MOST_CHANGES`].
    waiting: VecDeque<(u64, Kept)>,
}

/// A change as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// Milliseconds since 1970.
    at_ms: u64,
    what: String,
    who: String,
    reason: String,
    text: String,
    configuration: u64,
    /// `None`: it is too early, or no request came before or after.
    effect: Option<Effect>,
    /// Whether the time after the change is over.
    is_over: bool,
}

/// Before and after a change.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Effect {
    /// Of the requests, how many were refused: 0 to 1.
    denied_share: [f64; 2],
    /// Different keys that were refused in a minute, the largest of the five, summed over the policies.
    keys_refused: [u64; 2],
}

impl Changes {
    /// Reads what the history has.
    pub(crate) fn new(history: Arc<History>) -> Self {
        let mut known = history.changes(MOST_CHANGES);
        known.sort_unstable_by_key(|(number, _)| *number);
        let next = known.last().map_or(1, |(number, _)| number.saturating_add(1));
        let kept = known.iter().filter_map(|(number, text)| Some((*number, Kept::of(text)?)));
        let waiting = kept.filter(|(_, kept)| !kept.is_over).collect();
        Self { history, state: Mutex::new(State { next, waiting }) }
    }

    /// Adds a change.
    pub(crate) fn note(&self, changed: Changed) {
        let Changed { at, what, who, reason, text, configuration } = changed;
        let kept = Kept {
            at_ms: SystemClock::wall_time(at).as_nanos() / 1_000_000,
            what: what.to_owned(),
            who: cut(&who, LONGEST_WORDS),
            reason: cut(&reason, LONGEST_WORDS),
            text: cut(&text, LONGEST_TEXT),
            configuration,
            effect: None,
            is_over: false,
        };
        let mut state = self.state.lock();
        // A file that could not be read at the start may have been found since, with higher numbers.
        let newest = self.history.changes(1).first().map_or(0, |(number, _)| *number);
        let number = state.next.max(newest.saturating_add(1));
        state.next = number.saturating_add(1);
        self.history.put_change(number, &kept.json());
        if state.waiting.len() >= MOST_CHANGES {
            state.waiting.pop_front();
        }
        state.waiting.push_back((number, kept));
    }

    /// Works out the effect of changes whose time is over, for the thread that keeps the history to call once a minute.
    /// `now` is in seconds since 1970. Changes of one minute have one effect. Reads the history of each policy at most
    /// [`AT_ONCE`] times, since that thread has other work; what is left waits for the next call.
    pub(crate) fn work_out_effects(&self, now: u64, policies: &[Arc<str>]) {
        let policies = &policies[..policies.len().min(MOST_POLICIES)];
        let due = self.take_due(now);
        let mut last: Option<(u64, Option<Effect>)> = None;
        for (number, mut kept) in due {
            let minute = minute_of(&kept);
            let effect = match last {
                Some((of, effect)) if of == minute => effect,
                _ => self.effect(minute, policies),
            };
            last = Some((minute, effect));
            kept.effect = effect;
            kept.is_over = true;
            let state = self.state.lock();
            // One that has gone meanwhile must not come back.
            if state.next.saturating_sub(number) <= MOST_CHANGES as u64 {
                self.history.put_change(number, &kept.json());
            }
        }
    }

    /// Takes the changes of the first minutes that are over, in their order.
    fn take_due(&self, now: u64) -> Vec<(u64, Kept)> {
        let mut state = self.state.lock();
        let mut minutes: Vec<u64> = Vec::with_capacity(AT_ONCE);
        let mut is_due = |kept: &Kept| {
            let minute = minute_of(kept);
            let is_over = now >= minute.saturating_add((COMPARED + 1) * MINUTE);
            if is_over && !minutes.contains(&minute) && minutes.len() < AT_ONCE {
                minutes.push(minute);
            }
            is_over && minutes.contains(&minute)
        };
        let (due, waiting): (Vec<_>, Vec<_>) = state.waiting.drain(..).partition(|(_, kept)| is_due(kept));
        state.waiting = waiting.into();
        due
    }

    /// Compares the minutes before a minute with those after it; `None` if there was no request on one side.
    fn effect(&self, minute: u64, policies: &[Arc<str>]) -> Option<Effect> {
        let (from, to) =
            (minute.saturating_sub(COMPARED * MINUTE), minute.saturating_add((COMPARED + 1) * MINUTE));
        // 0: before, 1: after.
        let side = |at: u64| (at != minute).then_some(usize::from(at > minute));
        let (mut requests, mut denied) = ([0_u64; 2], [0_u64; 2]);
        for (at, counts) in self.history.server(Step::Minute, from, to) {
            let Some(side) = side(at) else { continue };
            let refused = counts.refused();
            requests[side] = requests[side].saturating_add(refused.requests);
            denied[side] = denied[side].saturating_add(refused.denied);
        }
        if requests.contains(&0) {
            return None;
        }
        let mut keys_refused = [0_u64; 2];
        for policy in policies {
            let mut most = [0_u64; 2];
            for (at, counts) in self.history.policy(policy, Step::Minute, from, to) {
                if let Some(side) = side(at) {
                    most[side] = most[side].max(counts.of(Series::KeysRefused));
                }
            }
            for (sum, most) in keys_refused.iter_mut().zip(most) {
                *sum = sum.saturating_add(most);
            }
        }
        let share = |side: usize| denied[side] as f64 / requests[side] as f64;
        Some(Effect { denied_share: [share(0), share(1)], keys_refused })
    }

    /// Returns the newest changes, newest first: `{"changes": […]}`.
    pub(crate) fn read(&self, most: usize) -> Value {
        let mut known = self.history.changes(most.min(MOST_CHANGES));
        known.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
        let shown = known.iter().filter_map(|(number, text)| Some(Kept::of(text)?.shown(*number)));
        json!({ "changes": shown.collect::<Vec<Value>>() })
    }
}

impl Kept {
    /// Reads a line of the history; `None` if it is of a version that is not known.
    fn of(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    fn json(&self) -> String {
        // All of it can be written: texts, whole numbers, and shares that are numbers.
        serde_json::to_string(self).unwrap_or_default()
    }

    fn shown(&self, number: u64) -> Value {
        let at = i64::try_from(self.at_ms).ok().and_then(|at| jiff::Timestamp::from_millisecond(at).ok());
        json!({
            "number": number,
            "at": at.map(|at| format!("{at:.3}")),
            "what": self.what,
            "who": self.who,
            "reason": self.reason,
            "text": self.text,
            "configuration": self.configuration,
            "effect": self.effect,
        })
    }
}

/// The minute of a change, in seconds since 1970.
fn minute_of(kept: &Kept) -> u64 {
    let at = kept.at_ms / 1_000;
    at - at % MINUTE
}

/// Makes a text safe to show in one line, of at most so many bytes and a mark that some are left out.
fn cut(text: &str, most: usize) -> String {
    let shown = visible::line(&text[..text.floor_char_boundary(most)]);
    let kept = &shown[..shown.floor_char_boundary(most)];
    if kept.len() == shown.len() && text.len() <= most { shown.into_owned() } else { format!("{kept}…") }
}

#[cfg(test)]
mod tests {
    use tidegate::Tick;

    use super::*;
    use crate::numbers::{Counts, ServerCounts, ServerSeries, Span};

    /// 2027-01-15 08:00:00 UTC, the beginning of a minute.
    const BEGIN: u64 = 1_800_000_000;

    fn changes() -> (Arc<History>, Changes) {
        let history = Arc::new(History::open(None, BEGIN).0);
        (Arc::clone(&history), Changes::new(history))
    }

    fn changed(at: u64, text: &str) -> Changed {
        Changed {
            at: Tick::from_secs(at),
            what: "policies",
            who: "oncall".to_owned(),
            reason: String::new(),
            text: text.to_owned(),
            configuration: 18,
        }
    }

    /// A minute in which so many of 100 requests were refused, of so many keys.
    fn minute(history: &History, at: u64, refused: u64, keys: u64) {
        let (mut server, mut counts) = (ServerCounts::default(), Counts::default());
        server.0[ServerSeries::Allowed as usize] = 100 - refused;
        server.0[ServerSeries::Denied as usize] = refused;
        counts.0[Series::Denied as usize] = refused;
        counts.0[Series::KeysRefused as usize] = keys;
        let span = Span { at, server, policies: vec![(0, counts)] };
        history.push(&span, &|_| Some(Arc::from("per-ip")));
    }

    #[test]
    fn a_change_shows_what_was_refused_before_and_after_once_it_is_known() {
        let (history, changes) = changes();
        let policies = [Arc::<str>::from("per-ip"), Arc::from("gone")];
        for at in 0..11 {
            // The change is in the sixth minute, which counts for neither side.
            let (refused, keys) = if at < 5 {
                (1, 0)
            } else if at == 5 {
                (90, 90)
            } else {
                (17, 1)
            };
            minute(&history, BEGIN + at * 60, refused, keys);
        }
        changes.note(changed(BEGIN + 330, "per-ip: limit 20/s -> 10/s"));
        changes.work_out_effects(BEGIN + 659, &policies);
        let shown = changes.read(50)["changes"][0].clone();
        assert_eq!(shown["effect"], Value::Null, "too early");
        assert_eq!(shown["at"].as_str().map(str::len), Some("2027-01-15T08:05:30.000Z".len()));
        changes.work_out_effects(BEGIN + 660, &policies);
        let shown = changes.read(50)["changes"][0].clone();
        assert_eq!(
            shown["effect"],
            json!({ "denied_share": [0.01, 0.17], "keys_refused": [0, 1] }),
            "{shown}"
        );
        assert_eq!((&shown["who"], &shown["number"]), (&json!("oncall"), &json!(1)));
    }

    #[test]
    fn numbers_go_on_and_effects_are_worked_out_after_a_restart() {
        let (history, first) = changes();
        first.note(changed(BEGIN, "a"));
        first.note(changed(BEGIN, "b"));
        drop(first);
        let again = Changes::new(Arc::clone(&history));
        again.note(changed(BEGIN, "c"));
        let told = |value: &Value| {
            let of =
                |one: &Value| (one["number"].as_u64().unwrap(), one["text"].as_str().unwrap().to_owned());
            value["changes"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
        };
        let expected = [(3, "c".to_owned()), (2, "b".to_owned()), (1, "a".to_owned())];
        assert_eq!(told(&again.read(50)), expected);
        assert_eq!(told(&again.read(1)), expected[..1]);
        again.work_out_effects(BEGIN + 3_600, &[]);
        assert!(again.state.lock().waiting.is_empty());
        assert_eq!(told(&again.read(50)), expected, "an effect changes no number");
        assert_eq!(again.read(1)["changes"][0]["effect"], Value::Null, "nobody asked anything");
    }

    #[test]
    fn hostile_texts_are_cut_and_few_changes_wait() {
        let (history, changes) = changes();
        let hostile = "\u{1b}]0;x\u{7}\"".repeat(10_000);
        for at in 0..300 {
            changes.note(changed(BEGIN + at, &hostile));
        }
        assert_eq!(changes.state.lock().waiting.len(), MOST_CHANGES);
        let kept = history.changes(MOST_CHANGES);
        assert!(kept.len() <= MOST_CHANGES);
        assert!(kept.iter().map(|(_, text)| text.len()).sum::<usize>() <= 8 << 20);
        let shown = changes.read(1)["changes"][0]["text"].as_str().unwrap().to_owned();
        assert!(shown.ends_with('…') && !shown.contains('\u{1b}'));
    }
}
