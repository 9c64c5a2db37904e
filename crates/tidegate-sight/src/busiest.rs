//! Finds the keys with the most refusals, the most passes with little left, and the most admitted units, now and some
//! hours ago.
//!
//! Callers choose how many keys there are, so each list has a fixed number of counters: a key without one takes over the
//! smallest, whose count becomes the new key's error. The true amount lies between `count - error` and `count`; lists are
//! ordered by the lower bound, since in a flood of new keys every key has a large count and an error that is as large.
//! [`tidegate::gate::hot_keys::HotKeys`] does the same behind a lock of its own, and scans all counters for the smallest;
//! here one thread counts, and the smallest is found where the last one was.
//!
//! # Source
//! Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005 ("Space-Saving").

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_server::{Seen, Verdict};

use crate::board::{POLICIES, mixed, slot};

/// What keys are ordered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub(crate) enum By {
    /// Refusals.
    Denied,
    /// Passes with little left of the limit.
    Near,
    /// Admitted units.
    Rate,
}

impl By {
    pub(crate) const ALL: [Self; 3] = [Self::Denied, Self::Near, Self::Rate];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Near => "near",
            Self::Rate => "rate",
        }
    }
}

/// A key and its count.
#[derive(Clone, Debug)]
pub(crate) struct Busy {
    pub(crate) policy: u16,
    pub(crate) key: u64,
    /// At least `count - error`; at most `count` in the minutes in which the key was listed.
    pub(crate) count: u64,
    pub(crate) error: u64,
    /// `count` over the time that was read, which is up to a minute longer than asked for, or an hour if more than 15
    /// minutes are asked for.
    pub(crate) per_second: f64,
    /// `None`: not known yet. It is asked for at the key's next event.
    pub(crate) name: Option<Named>,
}

/// The name of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: Arc<str>,
    /// Stands for the name where names are hidden.
    pub(crate) digest: Arc<str>,
}

/// What a key did in a minute.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KeyMinute {
    pub(crate) policy: u16,
    pub(crate) key: u64,
    /// Refusals, and admitted units: so many at least.
    pub(crate) refused: f64,
    pub(crate) admitted: f64,
}

/// Policies with lists at once: those with the most events in the minute before.
const PLACES: usize = 64;

/// Counters of a list: each key with more than a 512th of the amounts has one.
const COUNTERS: usize = 512;

/// Minutes whose lists are kept whole.
const MINUTES: usize = 15;

/// Hours of which the largest counters are kept.
const HOURS: usize = 24;

/// Counters kept of a list for hours, and keys of a list whose names are wanted.
const KEPT: usize = 64;

/// Seconds after which the counters for rates begin anew. Two such spans are read, so a rate is over ten seconds.
const FAST: u64 = 5;

/// Names that are asked for in a second.
const WANTED: usize = 256;

/// The lists of the busiest keys.
///
/// Memory, if 64 policies have 512 keys each for each of the three orders all day: 24 MB for 15 minutes, 5 MB for 24
/// hours, 7 MB for the current minute and hour; and at most 8 MiB for names. Usual traffic needs a hundredth. An event
/// costs some tens of nanoseconds; policies without events cost nothing.
#[derive(Debug)]
pub(crate) struct Busiest {
    places: Vec<Place>,
    /// By [`slot`]: the index in `places`, or [`NO_PLACE`].
    place_of: Vec<u8>,
    /// By [`slot`]: events in this minute.
    activity: Vec<u32>,
    /// The current second, from 1970.
    now: u64,
    /// The beginning of the current minute's and hour's lists, in seconds since 1970.
    minute_from: u64,
    hour_from: u64,
    /// Seconds counted for rates since the last turn.
    fast_seconds: u64,
    minutes: VecDeque<Past>,
    /// The minutes of the current hour, joined.
    hour: HashMap<(u16, By), Sketch, RandomState>,
    hours: VecDeque<Past>,
    names: Names,
}

const NO_PLACE: u8 = u8::MAX;

/// The lists of one policy.
#[derive(Debug)]
struct Place {
    policy: u16,
    /// Of this minute, by [`By`].
    sketches: [Sketch; By::ALL.len()],
    /// Admitted units of the current five seconds.
    fast: Sketch,
    /// The largest of the five seconds before.
    before: Vec<Small>,
    /// The busiest key of the last ten seconds, and its admitted units a second.
    hottest: Option<(u64, f64)>,
    /// Whether there was an event in this second.
    is_used: bool,
}

/// The lists of a past minute or hour.
#[derive(Debug)]
struct Past {
    from: u64,
    to: u64,
    lists: Vec<List>,
}

#[derive(Debug)]
struct List {
    policy: u16,
    by: By,
    /// Of all keys.
    total: f64,
    /// Largest lower bound first.
    counters: Box<[Small]>,
}

/// A counter in half of the memory: exact up to 16,777,216, and above to seven digits.
#[derive(Clone, Copy, Debug)]
struct Small {
    key: u64,
    count: f32,
    error: f32,
}

impl Busiest {
    /// Makes empty lists at a time in seconds since 1970.
    pub(crate) fn new(now: u64) -> Self {
        Self {
            places: Vec::new(),
            place_of: Vec::new(),
            activity: Vec::new(),
            now,
            minute_from: now,
            hour_from: now,
            fast_seconds: 0,
            minutes: VecDeque::new(),
            hour: HashMap::default(),
            hours: VecDeque::new(),
            names: Names::default(),
        }
    }

    /// Counts an event.
    pub(crate) fn note(&mut self, seen: &Seen) {
        let at = slot(seen.policy);
        if at >= self.place_of.len() {
            self.place_of.resize(at + 1, NO_PLACE);
            self.activity.resize(at + 1, 0);
        }
        self.activity[at] = self.activity[at].saturating_add(1);
        if self.place_of[at] == NO_PLACE {
            if self.places.len() >= PLACES {
                return;
            }
            self.take_place(seen.policy);
        }
        let place = &mut self.places[usize::from(self.place_of[at])];
        place.is_used = true;
        match seen.verdict {
            Verdict::Denied => place.sketches[By::Denied as usize].add(seen.key, 1, 0),
            Verdict::Allowed | Verdict::Delayed | Verdict::Over => {
                let cost = u64::from(seen.cost);
                place.sketches[By::Rate as usize].add(seen.key, cost, 0);
                place.fast.add(seen.key, cost, 0);
            }
            Verdict::Error | Verdict::WouldDeny | Verdict::WouldAllow => {}
        }
        if seen.near {
            place.sketches[By::Near as usize].add(seen.key, 1, 0);
        }
    }

    /// Gives a policy a place, if there is one.
    fn take_place(&mut self, policy: u16) {
        let (at, free) = (slot(policy), self.places.len());
        if at < self.place_of.len() && free < PLACES {
            // Below 64.
            self.place_of[at] = free as u8;
            self.places.push(Place::new(policy));
        }
    }

    /// Ends a second; `now` is the beginning of the next, in seconds since 1970. Returns keys whose names are wanted, at
    /// most 256. Ends the minute and the hour too, if `now` is in another.
    pub(crate) fn second(&mut self, now: u64) -> Vec<(u16, u64)> {
        self.now = now;
        self.fast_seconds += 1;
        if self.fast_seconds >= FAST {
            self.fast_seconds = 0;
            self.places.iter_mut().for_each(Place::turn);
        }
        let mut wanted = Vec::new();
        for place in &mut self.places {
            if !std::mem::take(&mut place.is_used) {
                continue;
            }
            for sketch in &place.sketches {
                for small in sketch.largest(KEPT) {
                    let is_known = self.names.use_name(place.policy, small.key, now);
                    if !is_known && wanted.len() < WANTED {
                        wanted.push((place.policy, small.key));
                    }
                }
            }
        }
        if now / 60 != self.minute_from / 60 {
            self.minute(now);
        }
        wanted
    }

    /// Ends the minute. Its lists are kept, and the policies with the most events keep their places or get one.
    pub(crate) fn minute(&mut self, now: u64) {
        let mut lists = Vec::new();
        for place in &mut self.places {
            for (by, sketch) in By::ALL.into_iter().zip(&mut place.sketches) {
                if sketch.counters.is_empty() {
                    continue;
                }
                let is_room = self.hour.len() < PLACES * By::ALL.len();
                if is_room || self.hour.contains_key(&(place.policy, by)) {
                    let hour = self.hour.entry((place.policy, by)).or_default();
                    for counter in &sketch.counters {
                        hour.add(counter.key, counter.count, counter.error);
                    }
                }
                lists.push(List::of(place.policy, by, sketch, COUNTERS));
                sketch.clear();
            }
        }
        keep(
            &mut self.minutes,
            Past { from: self.minute_from, to: now, lists },
            MINUTES,
            MINUTES as u64 * 60,
        );
        if now / 3_600 != self.hour_from / 3_600 {
            let lists =
                self.hour.drain().map(|((policy, by), sketch)| List::of(policy, by, &sketch, KEPT)).collect();
            keep(&mut self.hours, Past { from: self.hour_from, to: now, lists }, HOURS, HOURS as u64 * 3_600);
            self.hour_from = now;
        }
        self.minute_from = now;
        self.share_places();
    }

    /// Gives the places of the next minute to the policies with the most events in this one.
    fn share_places(&mut self) {
        let active = self.activity.iter().enumerate().filter(|(_, events)| **events > 0);
        let mut ranked: Vec<(u32, usize)> = active.map(|(at, events)| (*events, at)).collect();
        ranked.sort_unstable_by(|a, b| b.cmp(a));
        ranked.truncate(PLACES);
        self.place_of.fill(NO_PLACE);
        self.places.retain(|place| ranked.iter().any(|(_, at)| *at == slot(place.policy)));
        for (at, place) in self.places.iter().enumerate() {
            // Below 64.
            self.place_of[slot(place.policy)] = at as u8;
        }
        for (_, at) in ranked {
            if self.place_of[at] == NO_PLACE {
                // The last slot is that of all further policies.
                self.take_place(if at < POLICIES { at as u16 } else { u16::MAX });
            }
        }
        self.activity.fill(0);
    }

    /// Remembers the name of a key.
    pub(crate) fn learn(&mut self, policy: u16, key: u64, name: Named) {
        self.names.insert(policy, key, name, self.now);
    }

    /// Returns the `most` busiest keys of the last `window`, the largest lower bound first. If all policies are asked
    /// for, the 64 busiest keys of each policy and minute are read.
    ///
    /// Windows of up to 15 minutes are read by the minute, longer ones by the hour.
    pub(crate) fn read(&self, by: By, window: Duration, policy: Option<u16>, most: usize) -> Vec<Busy> {
        let is_asked = |of: u16, order: By| order == by && policy.is_none_or(|policy| policy == of);
        let each = if policy.is_some() { COUNTERS } else { KEPT };
        let mut sums = Sums::default();
        let oldest = self.past(window, |past| {
            for list in past.lists.iter().filter(|list| is_asked(list.policy, list.by)) {
                sums.add(list.policy, list.counters.iter().copied().take(each));
            }
        });
        if window.as_secs() > MINUTES as u64 * 60 {
            for ((policy, _), sketch) in self.hour.iter().filter(|((of, order), _)| is_asked(*of, *order)) {
                sums.add(*policy, sketch.largest(each).into_iter());
            }
        }
        for place in self.places.iter().filter(|place| is_asked(place.policy, by)) {
            sums.add(place.policy, place.sketches[by as usize].largest(each).into_iter());
        }
        let seconds = self.now.saturating_sub(oldest).max(1) as f64;
        let mut keys: Vec<_> = sums.0.into_iter().collect();
        keys.sort_unstable_by(|(key, (count, error)), (other, (other_count, other_error))| {
            let by_least = (other_count - other_error).total_cmp(&(count - error));
            by_least.then(other_count.total_cmp(count)).then(key.cmp(other))
        });
        keys.truncate(most);
        let busy = |((policy, key), (count, error)): ((u16, u64), (f64, f64))| Busy {
            policy,
            key,
            count: count as u64,
            error: error as u64,
            per_second: count / seconds,
            name: self.names.of(policy, key),
        };
        keys.into_iter().map(busy).collect()
    }

    /// Returns the key with the most refusals of a policy in the last minute or two, and its share of them, from 0 to 1.
    pub(crate) fn most_refused(&self, policy: u16) -> Option<(Busy, f64)> {
        let window = Duration::from_secs(60);
        let first = self.read(By::Denied, window, Some(policy), 1).pop()?;
        let place = self.places.iter().find(|place| place.policy == policy);
        let mut total = place.map_or(0.0, |place| place.sketches[By::Denied as usize].total as f64);
        self.past(window, |past| {
            let of_policy = past.lists.iter().filter(|list| list.policy == policy && list.by == By::Denied);
            total += of_policy.map(|list| list.total).sum::<f64>();
        });
        let share = (first.count - first.error.min(first.count)) as f64 / total.max(1.0);
        Some((first, share.min(1.0)))
    }

    /// Returns the key with the most admitted units over the last ten seconds, and its units a second. `None`: no key, or
    /// the policy is not among the 64 with the most events.
    pub(crate) fn hottest(&self, policy: u16) -> Option<(u64, f64)> {
        let at = *self.place_of.get(slot(policy))?;
        self.places.get(usize::from(at))?.hottest
    }

    /// Returns the name of a key, if it is known.
    pub(crate) fn name_of(&self, policy: u16, key: u64) -> Option<Named> {
        self.names.of(policy, key)
    }

    /// Returns the beginning and the end of the minute that ended last.
    pub(crate) fn last_minute(&self) -> Option<(u64, u64)> {
        self.minutes.back().map(|past| (past.from, past.to))
    }

    /// Returns what keys did in the minute that ended last: of each policy, the `most` with the most refusals, and the
    /// `most` with the most admitted units.
    pub(crate) fn keys_of_last_minute(&self, most: usize) -> Vec<KeyMinute> {
        let Some(past) = self.minutes.back() else { return Vec::new() };
        let mut keys: HashMap<(u16, u64), KeyMinute, RandomState> = HashMap::default();
        for list in past.lists.iter().filter(|list| list.by != By::Near) {
            for small in list.counters.iter().take(most) {
                let (policy, key) = (list.policy, small.key);
                let of = |by: By| past.amount(by, policy, key);
                keys.entry((policy, key)).or_insert_with(|| KeyMinute {
                    policy,
                    key,
                    refused: of(By::Denied),
                    admitted: of(By::Rate),
                });
            }
        }
        keys.into_values().collect()
    }

    /// Returns what is known of a key in the last 24 hours, but for the last 15 minutes: admitted units, and refusals; so
    /// many at least. Of ended hours, only the 64 largest of a policy are known.
    pub(crate) fn before_the_minutes(&self, policy: u16, key: u64) -> (f64, f64) {
        let amount = |by: By| {
            let hours: f64 = self.hours.iter().map(|past| past.amount(by, policy, key)).sum();
            let hour = self.hour.get(&(policy, by)).map_or(0.0, |sketch| sketch.least(key));
            let minutes: f64 = self.minutes.iter().map(|past| past.amount(by, policy, key)).sum();
            (hours + hour - minutes).max(0.0)
        };
        (amount(By::Rate), amount(By::Denied))
    }

    /// Reads the ended minutes, or the ended hours, of a window. Returns the beginning of the time that is read.
    fn past(&self, window: Duration, mut each: impl FnMut(&Past)) -> u64 {
        let from = self.now.saturating_sub(window.as_secs());
        let is_short = window.as_secs() <= MINUTES as u64 * 60;
        let (past, mut oldest) =
            if is_short { (&self.minutes, self.minute_from) } else { (&self.hours, self.hour_from) };
        for past in past.iter().filter(|past| past.to > from) {
            oldest = oldest.min(past.from);
            each(past);
        }
        oldest
    }
}

/// Adds the lists of an ended span, and lets go of those beyond `most`, of those that ended more than `seconds` ago, and
/// of those that lie in the future, because the clock was set back.
fn keep(past: &mut VecDeque<Past>, ended: Past, most: usize, seconds: u64) {
    let now = ended.to;
    past.push_back(ended);
    past.retain(|past| past.from <= now && past.to <= now && now - past.to <= seconds);
    while past.len() > most {
        past.pop_front();
    }
}

impl Place {
    fn new(policy: u16) -> Self {
        Self {
            policy,
            sketches: Default::default(),
            fast: Sketch::default(),
            before: Vec::new(),
            hottest: None,
            is_used: false,
        }
    }

    /// Finds the busiest key of the last ten seconds, and begins the next five.
    fn turn(&mut self) {
        if self.fast.counters.is_empty() && self.before.is_empty() {
            self.hottest = None;
            return;
        }
        // A key that leads over ten seconds is among the first in five of them.
        let last = self.fast.largest(8);
        self.fast.clear();
        let of =
            |list: &[Small], key: u64| list.iter().find(|small| small.key == key).map_or(0.0, Small::least);
        let rates = last.iter().chain(&self.before).map(|small| {
            let units = of(&last, small.key) + of(&self.before, small.key);
            (small.key, units / (2 * FAST) as f64)
        });
        self.hottest = rates.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, rate)| *rate > 0.0);
        self.before = last;
    }
}

impl Past {
    /// Returns the amount of a key, at least; 0 if it is not listed.
    fn amount(&self, by: By, policy: u16, key: u64) -> f64 {
        let list = self.lists.iter().find(|list| list.policy == policy && list.by == by);
        let small = list.and_then(|list| list.counters.iter().find(|small| small.key == key));
        small.map_or(0.0, Small::least)
    }
}

impl List {
    fn of(policy: u16, by: By, sketch: &Sketch, most: usize) -> Self {
        Self { policy, by, total: sketch.total as f64, counters: sketch.largest(most).into_boxed_slice() }
    }
}

impl Small {
    fn least(&self) -> f64 {
        f64::from(self.count) - f64::from(self.error)
    }
}

/// Amounts and errors by policy and key.
#[derive(Default)]
struct Sums(HashMap<(u16, u64), (f64, f64), RandomState>);

impl Sums {
    fn add(&mut self, policy: u16, counters: impl Iterator<Item = Small>) {
        for small in counters {
            let sum = self.0.entry((policy, small.key)).or_default();
            sum.0 += f64::from(small.count);
            sum.1 += f64::from(small.error);
        }
    }
}

/// The counters of one list, at most 512, in 14 KiB. Allocates nothing before the first amount.
#[derive(Debug, Default)]
struct Sketch {
    counters: Vec<Counter>,
    /// A hash table with linear probing: the indexes of counters, at [`home`] of the key or after it.
    table: Vec<u16>,
    /// No counter is smaller, and none before `cursor` is as small.
    floor: u64,
    cursor: usize,
    /// Of all keys.
    total: u64,
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    key: u64,
    count: u64,
    error: u64,
}

/// Twice the counters, so that a probe is short.
const TABLE: usize = 2 * COUNTERS;

const EMPTY: u16 = u16::MAX;

fn home(key: u64) -> usize {
    mixed(key) as usize % TABLE
}

impl Sketch {
    /// Adds an amount to a key, of which up to `error` may be too much.
    fn add(&mut self, key: u64, amount: u64, error: u64) {
        if amount == 0 {
            return;
        }
        if self.table.is_empty() {
            self.table = vec![EMPTY; TABLE];
        }
        self.total = self.total.saturating_add(amount);
        let mut at = home(key);
        while self.table[at] != EMPTY {
            let counter = &mut self.counters[usize::from(self.table[at])];
            if counter.key == key {
                counter.count = counter.count.saturating_add(amount);
                counter.error = counter.error.saturating_add(error);
                return;
            }
            at = (at + 1) % TABLE;
        }
        if self.counters.len() < COUNTERS {
            // Below 512.
            self.table[at] = self.counters.len() as u16;
            self.counters.push(Counter { key, count: amount, error });
            return;
        }
        let smallest = self.smallest();
        let counter = &mut self.counters[smallest];
        let old = counter.key;
        *counter = Counter {
            key,
            count: counter.count.saturating_add(amount),
            error: counter.count.saturating_add(error),
        };
        self.remove(old, smallest);
        self.insert(key, smallest);
    }

    /// Returns the index of a smallest counter. Counts only grow, so the search goes on where it ended, and all counters
    /// are read once for as many calls as there are smallest ones.
    fn smallest(&mut self) -> usize {
        let floor = self.floor;
        let mut after = self.counters.iter().skip(self.cursor);
        if let Some(at) = after.position(|counter| counter.count <= floor) {
            self.cursor += at;
            return self.cursor;
        }
        self.floor = self.counters.iter().map(|counter| counter.count).min().unwrap_or(0);
        self.cursor = self.counters.iter().position(|counter| counter.count == self.floor).unwrap_or(0);
        self.cursor
    }

    /// Removes the table's entry of a key whose counter has this index and another key already.
    fn remove(&mut self, old: u64, index: usize) {
        let mut hole = home(old);
        while usize::from(self.table[hole]) != index {
            hole = (hole + 1) % TABLE;
        }
        let mut at = hole;
        loop {
            at = (at + 1) % TABLE;
            if self.table[at] == EMPTY {
                break;
            }
            let home = home(self.counters[usize::from(self.table[at])].key);
            // Moves back if that is not before its home.
            if (at + TABLE - home) % TABLE >= (at + TABLE - hole) % TABLE {
                self.table[hole] = self.table[at];
                hole = at;
            }
        }
        self.table[hole] = EMPTY;
    }

    /// Inserts a key that is not in the table.
    fn insert(&mut self, key: u64, index: usize) {
        let mut at = home(key);
        while self.table[at] != EMPTY {
            at = (at + 1) % TABLE;
        }
        // Below 512.
        self.table[at] = index as u16;
    }

    /// Returns the amount of a key, at least; 0 if it is not listed.
    fn least(&self, key: u64) -> f64 {
        let counter = self.counters.iter().find(|counter| counter.key == key);
        counter.map_or(0.0, |counter| (counter.count - counter.error.min(counter.count)) as f64)
    }

    /// Returns the `most` counters with the largest lower bound, largest first.
    fn largest(&self, most: usize) -> Vec<Small> {
        let mut order: Vec<(u64, u64, usize)> = (0..)
            .zip(&self.counters)
            .map(|(at, counter)| (counter.count - counter.error.min(counter.count), counter.count, at))
            .collect();
        if order.len() > most && most > 0 {
            order.select_nth_unstable_by(most - 1, |a, b| b.cmp(a));
        }
        order.truncate(most);
        order.sort_unstable_by(|a, b| b.cmp(a));
        let small = |(_, _, at): (u64, u64, usize)| {
            let Counter { key, count, error } = self.counters[at];
            Small { key, count: count as f32, error: error as f32 }
        };
        order.into_iter().map(small).collect()
    }

    /// Removes all keys, and keeps the memory.
    fn clear(&mut self) {
        self.counters.clear();
        self.table.fill(EMPTY);
        (self.floor, self.cursor, self.total) = (0, 0, 0);
    }
}

/// The names of keys, at most 8 MiB. When there are more, the quarter that was used longest ago goes.
#[derive(Debug, Default)]
struct Names {
    names: HashMap<(u16, u64), Entry, RandomState>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    name: Named,
    /// The second in which the key was last among the busiest.
    used: u64,
}

const NAME_BYTES: usize = 8 << 20;

/// Longer names and digests are cut: callers choose names.
const NAME: usize = 256;

impl Entry {
    /// The texts, the counts before them, and the entry with its part of the table's free places.
    fn bytes(&self) -> usize {
        self.name.name.len() + self.name.digest.len() + 160
    }
}

impl Names {
    fn of(&self, policy: u16, key: u64) -> Option<Named> {
        self.names.get(&(policy, key)).map(|entry| entry.name.clone())
    }

    /// Marks a name as used. Returns whether it is known.
    fn use_name(&mut self, policy: u16, key: u64, now: u64) -> bool {
        let Some(entry) = self.names.get_mut(&(policy, key)) else { return false };
        entry.used = now;
        true
    }

    fn insert(&mut self, policy: u16, key: u64, name: Named, now: u64) {
        let cut = |text: Arc<str>| {
            if text.len() <= NAME { text } else { Arc::from(&text[..text.floor_char_boundary(NAME)]) }
        };
        let name = Named { name: cut(name.name), digest: cut(name.digest) };
        let entry = Entry { name, used: now };
        self.bytes += entry.bytes();
        if let Some(old) = self.names.insert((policy, key), entry) {
            self.bytes -= old.bytes();
        }
        while self.bytes > NAME_BYTES {
            self.evict();
        }
    }

    /// Lets a quarter of the names go, at least one.
    fn evict(&mut self) {
        let mut ages: Vec<u64> = self.names.values().map(|entry| entry.used).collect();
        if ages.is_empty() {
            self.bytes = 0;
            return;
        }
        let at = ages.len() / 4;
        let until = *ages.select_nth_unstable(at).1;
        let before = ages.iter().filter(|used| **used < until).count();
        // Many names may have been used in the same second.
        let mut same = at + 1 - before;
        let bytes = &mut self.bytes;
        self.names.retain(|_, entry| {
            let goes = entry.used < until || entry.used == until && same > 0;
            if goes {
                *bytes -= entry.bytes();
                same -= usize::from(entry.used == until);
            }
            !goes
        });
    }
}

#[cfg(test)]
mod tests;
