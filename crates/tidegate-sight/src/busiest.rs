//! Finds the keys with the most refusals, the most passes with little left, and the most admitted units, now and some
//! hours ago.
//!
//! Callers choose how many keys there are, so each list is a [`Sketch`] of a fixed size. Lists are ordered by the lower
//! bound of a key's count, since in a flood of new keys every key has a large count and an error that is as large.

mod kept;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use tidegate_server::{Seen, Verdict};

use self::kept::Found;
use crate::board::{POLICIES, slot};
use crate::sketch::{COUNTERS, Sketch, Small};

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
    pub(crate) key: u64,
    /// At least `count - error`; at most `count` in the minutes in which the key was listed.
    pub(crate) count: u64,
    pub(crate) error: u64,
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

impl Named {
    /// Keeps as much of a name and of its digest as is shown: callers choose names.
    pub(crate) fn new(name: &str, digest: &str) -> Self {
        let cut = |text: &str| -> Arc<str> { text[..text.floor_char_boundary(NAME)].into() };
        Self { name: cut(name), digest: cut(digest) }
    }
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

/// Policies with lists at once: those with the most events in the minute before, each refusal and each pass with little
/// left counting as [`TELLING`].
const PLACES: usize = 64;

/// Where there are more policies, those that refuse are looked for: many passes elsewhere must not hide them.
const TELLING: u32 = 256;

/// Minutes whose lists are kept whole.
const MINUTES: usize = 15;

/// Past hours. Only their largest counters are kept.
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
/// hours, 7 MB for the current minute and hour; at most 8 MiB for names, and as much for what earlier processes kept. Usual traffic needs a hundredth. An event
/// costs some tens of nanoseconds; policies without events cost nothing.
#[derive(Debug)]
pub(crate) struct Busiest {
    places: Vec<Place>,
    /// By [`slot`]: the index in `places`, or [`NO_PLACE`].
    place_of: Vec<u8>,
    /// By [`slot`]: events in this minute, weighed.
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
    found: Found,
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
            found: Found::default(),
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
        let weight = if seen.verdict == Verdict::Denied || seen.near { TELLING } else { 1 };
        self.activity[at] = self.activity[at].saturating_add(weight);
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
    /// most 256, the first of each list first. Ends the minute and the hour too, if `now` is in another.
    pub(crate) fn end_second(&mut self, now: u64) -> Vec<(u16, u64)> {
        self.now = now;
        self.fast_seconds += 1;
        if self.fast_seconds >= FAST {
            self.fast_seconds = 0;
            self.places.iter_mut().for_each(Place::turn);
        }
        let mut unknown: Vec<Vec<(u16, u64)>> = Vec::new();
        for place in &mut self.places {
            if !std::mem::take(&mut place.is_used) {
                continue;
            }
            let policy = place.policy;
            for sketch in &place.sketches {
                let mut keys: Vec<_> =
                    sketch.largest(KEPT).into_iter().map(|small| (policy, small.key)).collect();
                keys.retain(|(policy, key)| !self.names.use_name(*policy, *key, now));
                unknown.push(keys);
            }
        }
        if now / 60 != self.minute_from / 60 {
            self.end_minute(now);
        }
        // The lists take turns: a flood of new keys in one of them must not leave the keys of another without names.
        let in_turns = (0..KEPT).flat_map(|turn| unknown.iter().filter_map(move |keys| keys.get(turn)));
        in_turns.copied().take(WANTED).collect()
    }

    /// Ends the minute. Its lists are kept, and the policies with the most events keep their places or get one.
    fn end_minute(&mut self, now: u64) {
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
        self.found.age(now);
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
        let each = if policy.is_some() { COUNTERS } else { KEPT };
        let (sums, _) = self.sums(by, window, policy, each);
        let mut keys: Vec<_> = sums.0.into_iter().collect();
        keys.sort_unstable_by(|(key, (count, error)), (other, (other_count, other_error))| {
            let by_least = (other_count - other_error).total_cmp(&(count - error));
            by_least.then(other_count.total_cmp(count)).then(key.cmp(other))
        });
        keys.truncate(most);
        let busy = |((policy, key), (count, error)): ((u16, u64), (f64, f64))| Busy {
            key,
            count: count as u64,
            error: error as u64,
            name: self.names.of(policy, key),
        };
        keys.into_iter().map(busy).collect()
    }

    /// Returns the amounts of the `each` first keys of each list of a window, and when the time that was read began.
    fn sums(&self, by: By, window: Duration, policy: Option<u16>, each: usize) -> (Sums, u64) {
        let is_asked = |of: u16, order: By| order == by && policy.is_none_or(|policy| policy == of);
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
        (sums, oldest)
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

/// Longer names and digests are cut.
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
