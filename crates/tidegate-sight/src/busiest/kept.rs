//! The hours of the lists as a text, so that they outlast the process, and what an earlier process left.
//!
//! Fingerprints and the numbers of policies change with the process. Names and digests stay, so the text has those, and
//! found keys are told apart by policy, order and digest. A key whose name is not known is left out.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{Busiest, By, HOURS, KEPT, MINUTES, Named, Past, Sums};
use crate::board::Board;
use crate::sketch::{COUNTERS, Small};

/// The most keys of the text: with names of usual length, 2 MiB are full before.
const MOST_KEYS: usize = 32_768;

/// For how long an hour that has ended is kept, in seconds.
const KEPT_FOR: u64 = HOURS as u64 * 3_600;

/// A key as it is listed.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) policy: Option<Arc<str>>,
    /// 0 for a key that only an earlier process saw; its name is known.
    pub(crate) key: u64,
    pub(crate) name: Option<Named>,
    /// Too high by `error` at most.
    pub(crate) count: f64,
    pub(crate) error: f64,
    /// `count` over the time that was read, including the time in which no process ran.
    pub(crate) per_second: f64,
}

impl Listed {
    fn least(&self) -> f64 {
        self.count - self.error
    }

    fn digest(&self) -> Option<&str> {
        self.name.as_ref().map(|name| &*name.digest)
    }
}

/// What earlier processes counted, by hour, the oldest first. It was one text of 2 MiB, so it takes at most 8 MiB.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Hour>);

#[derive(Debug)]
struct Hour {
    span: Span,
    lists: Vec<List>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: u64,
}

#[derive(Debug)]
struct List {
    policy: Arc<str>,
    by: By,
    /// Largest lower bound first.
    keys: Vec<Key>,
}

#[derive(Debug)]
struct Key {
    named: Named,
    count: u64,
    error: u64,
}

impl Key {
    fn least(&self) -> u64 {
        self.count.saturating_sub(self.error)
    }
}

/// A line of the text: a span, the policy, the order, the name, the digest, the count and its error.
type Line<'t> = (u64, u64, Cow<'t, str>, Cow<'t, str>, Cow<'t, str>, Cow<'t, str>, u64, u64);

fn line(span: Span, policy: &str, by: By, key: &Key) -> Option<String> {
    let Named { name, digest } = &key.named;
    let line: Line<'_> = (
        span.from,
        span.to,
        policy.into(),
        by.word().into(),
        (&**name).into(),
        (&**digest).into(),
        key.count,
        key.error,
    );
    serde_json::to_string(&line).ok()
}

impl Found {
    /// Reads a text. A line that is not understood is left out with a warning.
    fn of(text: &str) -> Self {
        type Lists = HashMap<(String, By), HashMap<Arc<str>, Key>>;
        let mut hours: BTreeMap<u64, (Span, Lists)> = BTreeMap::new();
        let mut not_understood = 0_usize;
        for line in text.lines().take(MOST_KEYS) {
            let read = serde_json::from_str::<Line<'_>>(line).ok();
            let by = |word: &str| By::ALL.into_iter().find(|by| by.word() == word);
            let read = read.and_then(|line| by(&line.3).map(|by| (line, by)));
            let Some(((from, to, policy, _, name, digest, count, error), by)) = read else {
                not_understood += 1;
                continue;
            };
            // The parts of an hour in which the server was started again become one.
            let (span, lists) =
                hours.entry(from / 3_600).or_insert_with(|| (Span { from, to }, Lists::default()));
            (span.from, span.to) = (span.from.min(from), span.to.max(to));
            let named = Named::new(&name, &digest);
            let keys = lists.entry((policy.into_owned(), by)).or_default();
            let key =
                keys.entry(Arc::clone(&named.digest)).or_insert_with(|| Key { named, count: 0, error: 0 });
            key.count = key.count.saturating_add(count);
            key.error = key.error.saturating_add(error);
        }
        if not_understood > 0 {
            tracing::warn!(lines = not_understood, "some busy keys of an earlier process cannot be read");
        }
        let list = |((policy, by), keys): ((String, By), HashMap<Arc<str>, Key>)| {
            let mut keys: Vec<Key> = keys.into_values().collect();
            keys.sort_unstable_by(|a, b| {
                b.least().cmp(&a.least()).then_with(|| a.named.digest.cmp(&b.named.digest))
            });
            List { policy: Arc::from(policy), by, keys }
        };
        let hour = |(span, lists): (Span, Lists)| Hour { span, lists: lists.into_iter().map(list).collect() };
        Self(hours.into_values().map(hour).collect())
    }

    /// Lets go of what ended a day ago, and of what lies more than an hour ahead, because the clock was set back.
    pub(super) fn age(&mut self, now: u64) {
        self.0.retain(|hour| {
            hour.span.from <= now.saturating_add(3_600) && hour.span.to.saturating_add(KEPT_FOR) >= now
        });
    }
}

impl Busiest {
    /// Learns the hours that an earlier process kept: what [`Self::hours_text`] returned.
    pub(crate) fn learn_hours(&mut self, text: &str) {
        self.found = Found::of(text);
        self.found.age(self.now);
    }

    /// Returns whether an earlier process has counted keys of a policy of this name.
    pub(crate) fn has_found(&self, policy: &str) -> bool {
        self.found.0.iter().flat_map(|hour| &hour.lists).any(|list| *list.policy == *policy)
    }

    /// Returns the hours as a text of at most `most` bytes: those of this process until now, and those that were found.
    ///
    /// It has the first key of each list, then the second, and so on, and leaves out what does not fit: the many units of
    /// one policy must not hide the refusals of another. Takes some milliseconds for a full text.
    pub(crate) fn hours_text(&self, board: &Board, most: usize) -> String {
        let current = Span { from: self.hour_from, to: self.now };
        let mut lists: Vec<Box<dyn Iterator<Item = String> + '_>> = Vec::new();
        for ((policy, by), sketch) in &self.hour {
            lists.push(self.lines(current, board.name_of(*policy), *policy, *by, sketch.largest(KEPT)));
        }
        // Nothing, if a minute has just ended.
        for place in &self.places {
            for (by, sketch) in By::ALL.into_iter().zip(&place.sketches) {
                let name = board.name_of(place.policy);
                lists.push(self.lines(current, name, place.policy, by, sketch.largest(KEPT)));
            }
        }
        for Past { from, to, lists: ended } in self.hours.iter().rev() {
            let span = Span { from: *from, to: *to };
            for list in ended {
                let counters = list.counters.iter().copied();
                lists.push(self.lines(span, board.name_of(list.policy), list.policy, list.by, counters));
            }
        }
        for hour in self.found.0.iter().rev() {
            for List { policy, by, keys } in &hour.lists {
                lists.push(Box::new(keys.iter().filter_map(|key| line(hour.span, policy, *by, key))));
            }
        }
        let (mut text, mut keys) = (String::new(), 0);
        while !lists.is_empty() {
            lists.retain_mut(|list| {
                let Some(line) = list.next() else { return false };
                if keys >= MOST_KEYS || text.len() + line.len() + 1 > most {
                    return false;
                }
                keys += 1;
                text.push_str(&line);
                text.push('\n');
                true
            });
        }
        text
    }

    /// Returns the lines of a list of this process, as they are asked for.
    fn lines<'s>(
        &'s self,
        span: Span,
        name: Option<Arc<str>>,
        policy: u16,
        by: By,
        counters: impl IntoIterator<Item = Small, IntoIter: 's>,
    ) -> Box<dyn Iterator<Item = String> + 's> {
        Box::new(counters.into_iter().filter_map(move |small| {
            let named = self.names.of(policy, small.key)?;
            let key = Key { named, count: small.count as u64, error: small.error as u64 };
            line(span, name.as_deref()?, by, &key)
        }))
    }

    /// Returns the `most` busiest keys as [`Self::read`] does, and, if the window is longer than 15 minutes, what earlier
    /// processes counted of these and of others. `policy`: of one policy alone.
    pub(crate) fn listed(
        &self,
        by: By,
        window: Duration,
        policy: Option<&str>,
        most: usize,
        board: &Board,
    ) -> Vec<Listed> {
        let number = policy.map(|policy| board.number_of(policy));
        let each = if policy.is_some() { COUNTERS } else { KEPT };
        let (sums, mut oldest) = match number {
            // A policy of an earlier process alone.
            Some(None) => (Sums::default(), self.now),
            _ => self.sums(by, window, number.flatten(), each),
        };
        let mut keys: Vec<Listed> = Vec::with_capacity(sums.0.len());
        for ((policy, key), (count, error)) in sums.0 {
            let (name, policy) = (self.names.of(policy, key), board.name_of(policy));
            keys.push(Listed { policy, key, name, count, error, per_second: 0.0 });
        }
        if window.as_secs() > MINUTES as u64 * 60 {
            self.add_found(&mut keys, &mut oldest, by, window, policy);
        }
        let seconds = self.now.saturating_sub(oldest).max(1) as f64;
        keys.sort_unstable_by(|a, b| {
            let by_amount = b.least().total_cmp(&a.least()).then(b.count.total_cmp(&a.count));
            by_amount.then_with(|| (&a.policy, a.key, a.digest()).cmp(&(&b.policy, b.key, b.digest())))
        });
        keys.truncate(most);
        keys.iter_mut().for_each(|listed| listed.per_second = listed.count / seconds);
        keys
    }

    /// Adds what earlier processes counted in a window, and when the oldest of it began.
    fn add_found(
        &self,
        keys: &mut Vec<Listed>,
        oldest: &mut u64,
        by: By,
        window: Duration,
        policy: Option<&str>,
    ) {
        let from = self.now.saturating_sub(window.as_secs());
        let mut places: HashMap<(Arc<str>, Arc<str>), usize> = HashMap::new();
        if !self.found.0.is_empty() {
            let known = keys.iter().enumerate();
            places = known
                .filter_map(|(at, listed)| {
                    let digest = Arc::clone(&listed.name.as_ref()?.digest);
                    Some(((Arc::clone(listed.policy.as_ref()?), digest), at))
                })
                .collect();
        }
        for hour in self.found.0.iter().filter(|hour| hour.span.to > from && hour.span.from <= self.now) {
            *oldest = (*oldest).min(hour.span.from);
            let is_asked =
                |list: &&List| list.by == by && policy.is_none_or(|policy| *list.policy == *policy);
            for list in hour.lists.iter().filter(is_asked) {
                for key in &list.keys {
                    let at = (Arc::clone(&list.policy), Arc::clone(&key.named.digest));
                    let at = *places.entry(at).or_insert_with(|| {
                        let (policy, name) = (Some(Arc::clone(&list.policy)), Some(key.named.clone()));
                        keys.push(Listed { policy, key: 0, name, count: 0.0, error: 0.0, per_second: 0.0 });
                        keys.len() - 1
                    });
                    keys[at].count += key.count as f64;
                    keys[at].error += key.error as f64;
                }
            }
        }
    }
}
