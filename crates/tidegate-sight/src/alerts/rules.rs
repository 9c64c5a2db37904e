//! What is wrong now: the rules, over what the watch knows at the end of each second and each minute.
//!
//! Rules have no settings. Each asks for a time in which its condition holds, and for another in which it does not before
//! it ends: otherwise one incident would be ten messages. Time is an argument, so a month takes a moment in a test.
//!
//! | rule | holds while | for | ends after |
//! |---|---|---|---|
//! | `denied-unusual` | the share that a policy refuses is [unusual](crate::usual) | 2 min | 2 min |
//! | `customer-cut` | a key that passed often and was never refused, or was told of before, is refused more than half of the time, or [nearly](refused_by) | 2 min, or 100 s | 2 min |
//! | `tenant-near` | a key, but for one told of in the last eight days, is admitted at 80 % of its rate or more, if that is ten units a minute or more | 5 min | 5 min |
//! | `breaker-trips` | a breaker is not closed for 30 s, or opened 3 times in 5 min | | 1 min |
//! | `store-away`, `config-refused` | the server says so | 1 min | 1 min |
//! | `sight-dropped` | an event found its ring full | | 5 min |
//! | `canary-rolled-back` | the guard keeps a canary from deciding | | |

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use foldhash::fast::RandomState;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tidegate::{Tick, visible};
use tidegate_server::OpenBreaker;

use super::shift;

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Rule {
    DeniedUnusual,
    CustomerCut,
    TenantNear,
    BreakerTrips,
    StoreAway,
    ConfigRefused,
    SightDropped,
    CanaryRolledBack,
}

impl Rule {
    pub(crate) const ALL: [Self; 8] = [
        Self::DeniedUnusual,
        Self::CustomerCut,
        Self::TenantNear,
        Self::BreakerTrips,
        Self::StoreAway,
        Self::ConfigRefused,
        Self::SightDropped,
        Self::CanaryRolledBack,
    ];

    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::DeniedUnusual => "denied-unusual",
            Self::CustomerCut => "customer-cut",
            Self::TenantNear => "tenant-near",
            Self::BreakerTrips => "breaker-trips",
            Self::StoreAway => "store-away",
            Self::ConfigRefused => "config-refused",
            Self::SightDropped => "sight-dropped",
            Self::CanaryRolledBack => "canary-rolled-back",
        }
    }

    /// The label that receivers route by.
    pub(crate) const fn severity(self) -> &'static str {
        match self {
            Self::StoreAway => "critical",
            Self::TenantNear => "info",
            _ => "warning",
        }
    }
}

/// What a rule has found: it holds now, and for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) rule: Rule,
    /// The name of the policy; empty: it is about the server.
    pub(crate) policy: String,
    /// The digest of the key; empty: it is about no single key.
    pub(crate) key: String,
    /// Since when it holds, in seconds since 1970.
    pub(crate) since: u64,
    /// One sentence for people.
    pub(crate) text: String,
    /// The page that says more.
    pub(crate) path: String,
}

/// A policy whose refusals are unusual.
#[derive(Clone, Debug)]
pub(crate) struct UnusualPolicy {
    pub(crate) name: Arc<str>,
    pub(crate) since: u64,
    /// The share refused in the last minute, and the largest that is usual, 0 to 1.
    pub(crate) share: f64,
    pub(crate) usual: f64,
}

/// A canary that the guard has rolled back.
#[derive(Clone, Debug)]
pub(crate) struct RolledBack {
    pub(crate) policy: String,
    /// Since when, in seconds since 1970.
    pub(crate) since: u64,
    /// `31 keys refused > 20`.
    pub(crate) why: String,
}

/// What is known at the end of a second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Second<'s> {
    /// In seconds since 1970.
    pub(crate) now: u64,
    pub(crate) unusual: Vec<UnusualPolicy>,
    pub(crate) breakers: Vec<OpenBreaker>,
    pub(crate) rolled_back: Vec<RolledBack>,
    /// The kind of the store.
    pub(crate) store: &'s str,
    pub(crate) store_away: Option<&'s str>,
    pub(crate) refused: Option<&'s str>,
    /// Events that were dropped in this second.
    pub(crate) dropped: u64,
}

/// What a key did in a minute.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) policy: u16,
    pub(crate) key: u64,
    pub(crate) name: Arc<str>,
    /// Its digest.
    pub(crate) shown: String,
    pub(crate) refused: f64,
    pub(crate) passed: f64,
    /// Admitted units a second.
    pub(crate) per_second: f64,
    /// The rate of its policy, in units a second; `None`: it has no single one.
    pub(crate) rate: Option<f64>,
}

/// What a key did before, in the last 24 hours.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before {
    pub(crate) passed: f64,
    pub(crate) refused: f64,
}

const MINUTE: u64 = 60;

/// How long refusals must be unusual. They are compared over the last minute, which is the first of the three.
const UNUSUAL_FOR: u64 = 2 * MINUTE;

/// How often a customer has passed: about once a minute in a working day.
const PASSED_OFTEN: f64 = 1_000.0;

/// The fewest refusals of a minute that cut a customer off: fewer are retries.
const LEAST_REFUSED: f64 = 10.0;

/// A customer who asks seldom is refused less often than that in a minute, and is cut off all the same. So the last slices of
/// so many seconds are judged too, [`CUT_SLICES`] of them, and who was never refused is cut if
///
/// * he was refused in `LEAST_SLICES` of them, of which the first is `FIRST_SLICE` ago at least and the last `LAST_SLICE` at
///   most: refusals that come together, as when one call is tried again at once, count as one;
/// * since the first, more was refused than passed, or so much that chance explains the rest: by one standard deviation of
///   the refusals of one who is refused every other time. So who is refused in three of five is found also by few requests.
///   It goes on while a tenth is refused: who is refused about every other time is one alert, and not many.
///
/// Who was never refused in a day is refused in one of 2,900 such slices at most, by 95 % confidence. If these are
/// independent, the chance of five in fifteen is 2e-14.
pub(crate) const SLICE: u64 = 10;
pub(crate) const CUT_SLICES: usize = 15;
const LEAST_SLICES: usize = 5;
const FIRST_SLICE: usize = 9;
const LAST_SLICE: usize = 2;

/// The slices without that until it is over.
const CALM_SLICES: u32 = 12;

/// The minutes for which a key must be cut, or near its rate; after as many calm ones it is over.
const CUT_FOR: u32 = 2;
const NEAR_FOR: u32 = 5;

/// For how long a customer who was told of is known, and how long after the last time he is told of again.
const KNOWN_FOR: u64 = 24 * 3_600;
const CALM_BEFORE: u64 = 3_600;

/// Near its rate.
const NEAR: f64 = 0.8;

/// For how long a key that was near its rate is no news if it is so again: one that is so each night, or each Monday, is told
/// of once.
const NEAR_KNOWN_FOR: u64 = 8 * 24 * 3_600;

/// The least rate, in units a minute, of which a minute tells the share: of 1,000 a day, any request would be more than all.
const LEAST_RATE: f64 = 10.0;

/// How long a breaker may be open or half-open.
const OPEN_FOR: u64 = 30;

/// So many openings, in so many seconds, are too many.
const TRIPS: usize = 3;
const TRIPS_WITHIN: u64 = 5 * MINUTE;

/// How long a dropped event is told of.
const DROPPED_FOR: u64 = 5 * MINUTE;

/// Keys that are followed, of each rule. Callers choose keys.
const FOLLOWED: usize = 1_000;

/// The state of the rules. Bounded: five lists of [`FOLLOWED`] keys, the breakers of the server, and its policies.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    unusual: BTreeMap<Arc<str>, (Lasting, Option<Found>)>,
    cut: KeyRule,
    /// The same by slices, and so sooner.
    cut_soon: KeyRule,
    /// By policy and digest: when a customer who was told of was cut last. What he is refused then would keep him from being
    /// told of again for a day, and after a restart nobody knows what he passed.
    customers: BTreeMap<(String, String), u64>,
    near: KeyRule,
    /// By policy and digest: when a key that was told of was near its rate last.
    were_near: BTreeMap<(String, String), u64>,
    breakers: BTreeMap<(String, String), Breaker>,
    store: Lasting,
    store_found: Option<Found>,
    refused: Lasting,
    refused_found: Option<Found>,
    dropped: Lasting,
}

impl Rules {
    /// Judges the keys of a minute that began at `from`. `before` tells what a key did before the last minutes.
    pub(crate) fn minute(&mut self, from: u64, keys: &[Key], before: &dyn Fn(u16, u64) -> Before) {
        let cut = keys.iter().filter(|key| key.refused >= LEAST_REFUSED && key.refused > key.passed);
        let customers = &self.customers;
        self.cut.judge(cut, CUT_FOR, CUT_FOR, &mut |key| {
            found_cut(customers, key, &before(key.policy, key.key), from)
        });
        self.know_customers(from);
        let is_near =
            |key: &Key, rate: f64| rate * MINUTE as f64 >= LEAST_RATE && key.per_second >= NEAR * rate;
        let near = keys.iter().filter(|key| key.rate.is_some_and(|rate| is_near(key, rate)));
        let were_near = &mut self.were_near;
        were_near.retain(|_, last| from.saturating_sub(*last) < NEAR_KNOWN_FOR);
        self.near.judge(near, NEAR_FOR, NEAR_FOR, &mut |key| {
            let rate = key.rate?;
            if let Some(last) = were_near.get_mut(&(key.name.to_string(), key.shown.clone())) {
                *last = from;
                return None;
            }
            let text = format!(
                "a key of `{}` uses {:.0} % of its rate: {:.1} of {rate:.1} units a second",
                visible::name(&key.name),
                100.0 * key.per_second / rate,
                key.per_second,
            );
            Some(found(Rule::TenantNear, key, from, text, "rate"))
        });
        know(&mut self.were_near, &self.near, from);
    }

    /// Judges the keys that are [refused for long](refused_by) at the end of a slice. `before` tells what a key did before the
    /// last minutes.
    pub(crate) fn slice(&mut self, now: u64, keys: &[Key], before: &dyn Fn(u16, u64) -> Before) {
        let since = now.saturating_sub((FIRST_SLICE as u64 + 1) * SLICE);
        let customers = &self.customers;
        self.cut_soon.judge(keys.iter(), 1, CALM_SLICES, &mut |key| {
            // Of `n` that are refused every other time, the standard deviation is half of the root of `n`.
            let is_half = key.refused - key.passed >= -(key.refused + key.passed).sqrt();
            is_half.then(|| found_cut(customers, key, &before(key.policy, key.key), since))?
        });
        self.know_customers(now);
    }

    /// Learns that an alert of the process before told of a customer, the newest first. `over`: when it was over; `now`: in
    /// seconds since 1970.
    pub(crate) fn knew_customer(&mut self, policy: &str, key: &str, over: Option<u64>, now: u64) {
        let last = over.unwrap_or(now.saturating_sub(CALM_BEFORE));
        if self.customers.len() < FOLLOWED && now.saturating_sub(last) < KNOWN_FOR {
            self.customers.entry((policy.to_owned(), key.to_owned())).or_insert(last);
        }
    }

    /// Learns that an alert of the process before told of a key near its rate, the newest first. One that is not over yet
    /// may be found again.
    pub(crate) fn knew_near(&mut self, policy: &str, key: &str, over: Option<u64>, now: u64) {
        let Some(last) = over.filter(|last| now.saturating_sub(*last) < NEAR_KNOWN_FOR) else { return };
        if self.were_near.len() < FOLLOWED {
            self.were_near.entry((policy.to_owned(), key.to_owned())).or_insert(last);
        }
    }

    /// Knows the customers who are cut in the minute that began at `from`, and forgets those of whom nothing was told in a
    /// day.
    fn know_customers(&mut self, from: u64) {
        self.customers.retain(|_, last| from.saturating_sub(*last) < KNOWN_FOR);
        know(&mut self.customers, &self.cut, from);
        know(&mut self.customers, &self.cut_soon, from);
    }

    /// Moves all times with a step of the clock, so that what has lasted goes on to last.
    pub(crate) fn follow_step(&mut self, by: i64) {
        let of_policies = self.unusual.values_mut().map(|(lasting, found)| (lasting, found.as_mut()));
        let of_breakers = self.breakers.values_mut().flat_map(|breaker| {
            breaker.trips.iter_mut().for_each(|at| shift(at, by));
            [(&mut breaker.open, breaker.found.as_mut()), (&mut breaker.often, None)]
        });
        let of_server = [
            (&mut self.store, self.store_found.as_mut()),
            (&mut self.refused, self.refused_found.as_mut()),
            (&mut self.dropped, None),
        ];
        for (lasting, found) in of_policies.chain(of_breakers).chain(of_server) {
            lasting.follow_step(by);
            if let Some(found) = found {
                shift(&mut found.since, by);
            }
        }
        for held in [&mut self.cut, &mut self.cut_soon, &mut self.near]
            .into_iter()
            .flat_map(|rule| rule.0.values_mut())
        {
            shift(&mut held.found.since, by);
        }
        self.customers.values_mut().chain(self.were_near.values_mut()).for_each(|last| shift(last, by));
    }

    /// Judges a second. Returns all that fires at its end.
    pub(crate) fn second(&mut self, second: &Second<'_>) -> Vec<Found> {
        let mut all = Vec::new();
        self.policies(second, &mut all);
        all.extend(self.cut_soon.firing().map(|(_, found)| found.clone()));
        let is_told = |of: &(u16, u64)| self.cut_soon.0.get(of).is_some_and(|held| held.fires);
        all.extend(self.cut.firing().filter(|(of, _)| !is_told(of)).map(|(_, found)| found.clone()));
        all.extend(self.near.firing().map(|(_, found)| found.clone()));
        self.open_breakers(second, &mut all);
        all.extend(second.rolled_back.iter().map(canary_found));
        self.server(second, &mut all);
        all
    }

    fn policies(&mut self, second: &Second<'_>, all: &mut Vec<Found>) {
        let now = second.now;
        for policy in &second.unusual {
            let (_, found) = self.unusual.entry(Arc::clone(&policy.name)).or_default();
            if now.saturating_sub(policy.since) >= UNUSUAL_FOR {
                found.get_or_insert_with(|| Found {
                    rule: Rule::DeniedUnusual,
                    policy: policy.name.to_string(),
                    key: String::new(),
                    since: policy.since,
                    text: format!(
                        "`{}` refuses {:.1} % of its requests; usual is up to {:.1} %",
                        visible::name(&policy.name),
                        100.0 * policy.share,
                        100.0 * policy.usual,
                    ),
                    path: page_of(&policy.name),
                });
            }
        }
        self.unusual.retain(|name, (lasting, found)| {
            let is_unusual = second.unusual.iter().any(|policy| policy.name == *name);
            let fires = lasting.see(now, is_unusual && found.is_some(), 0, UNUSUAL_FOR);
            if let Some(found) = found.as_ref().filter(|_| fires) {
                all.push(found.clone());
            }
            is_unusual || fires
        });
    }

    fn open_breakers(&mut self, second: &Second<'_>, all: &mut Vec<Found>) {
        let now = second.now;
        self.breakers.values_mut().for_each(|breaker| breaker.is_open = false);
        for open in &second.breakers {
            let breaker = self.breakers.entry((open.policy.clone(), open.key.clone())).or_default();
            breaker.is_open = true;
            // A probe that fails opens it anew, at a later time. A policy may have two breakers for a key.
            if !open.probes && open.since > breaker.opened {
                breaker.opened = open.since;
                breaker.trips.push_back(now);
            }
            if !open.why.is_empty() {
                breaker.why.clone_from(&open.why);
            }
        }
        self.breakers.retain(|(policy, key), breaker| {
            while breaker.trips.front().is_some_and(|at| now.abs_diff(*at) >= TRIPS_WITHIN) {
                breaker.trips.pop_front();
            }
            let is_long = breaker.open.see(now, breaker.is_open, OPEN_FOR + 1, MINUTE);
            let is_often = breaker.often.see(now, breaker.trips.len() >= TRIPS, 0, MINUTE);
            if !(is_long || is_often) {
                breaker.found = None;
                return breaker.is_open || !breaker.trips.is_empty();
            }
            let (trips, why) = (breaker.trips.len(), &breaker.why);
            let found = breaker.found.get_or_insert_with(|| {
                let how = if is_often {
                    format!("opened {trips} times in 5 minutes")
                } else {
                    format!("is not closed for {OPEN_FOR} s")
                };
                let why = if why.is_empty() { String::new() } else { format!(": {why}") };
                Found {
                    rule: Rule::BreakerTrips,
                    policy: policy.clone(),
                    key: if key == "(all)" { String::new() } else { key.clone() },
                    since: breaker.open.since.unwrap_or(now),
                    text: format!("the breaker of `{}` {how}{why}", visible::name(policy)),
                    path: "/ui/guards".to_owned(),
                }
            });
            all.push(found.clone());
            true
        });
    }

    fn server(&mut self, second: &Second<'_>, all: &mut Vec<Found>) {
        let now = second.now;
        let of_server = |rule: Rule, since: u64, text: String, path: &str| Found {
            rule,
            policy: String::new(),
            key: String::new(),
            since,
            text,
            path: path.to_owned(),
        };
        if self.store.see(now, second.store_away.is_some(), MINUTE, MINUTE) {
            let since = self.store.since.unwrap_or(now);
            let found = self.store_found.get_or_insert_with(|| {
                let why = first_of(second.store_away.unwrap_or_default());
                let text = format!("the store ({}) cannot be asked: {why}", second.store);
                of_server(Rule::StoreAway, since, text, "/ui/")
            });
            all.push(found.clone());
        } else {
            self.store_found = None;
        }
        if self.refused.see(now, second.refused.is_some(), MINUTE, MINUTE) {
            let since = self.refused.since.unwrap_or(now);
            let found = self.refused_found.get_or_insert_with(|| {
                let why = first_of(second.refused.unwrap_or_default());
                let text =
                    format!("the newest configuration is refused, the one before stays in force: {why}");
                of_server(Rule::ConfigRefused, since, text, "/ui/changes")
            });
            all.push(found.clone());
        } else {
            self.refused_found = None;
        }
        if self.dropped.see(now, second.dropped > 0, 0, DROPPED_FOR) {
            let text = "decisions were made faster than they could be counted; figures of keys and policies are too low";
            let since = self.dropped.since.unwrap_or(now);
            all.push(of_server(Rule::SightDropped, since, text.to_owned(), "/ui/"));
        }
    }
}

/// Returns what is told of a key that is cut, if it is a customer's.
fn found_cut(
    customers: &BTreeMap<(String, String), u64>,
    key: &Key,
    before: &Before,
    since: u64,
) -> Option<Found> {
    // Counts are at least so large, so half a refusal is none.
    let is_new = before.passed >= PASSED_OFTEN && before.refused < 0.5;
    let last = customers.get(&(key.name.to_string(), key.shown.clone()));
    let is_again = last.is_some_and(|last| since.saturating_sub(*last) >= CALM_BEFORE);
    (is_new || is_again).then(|| {
        let share = 100.0 * key.refused / (key.refused + key.passed);
        let who = if is_new {
            format!("passed {:.0} times in 24 hours and was never refused", before.passed)
        } else {
            "an alert told of before".to_owned()
        };
        let name = visible::name(&key.name);
        let text = format!("a key of `{name}` that {who} is refused {share:.0} % of the time");
        found(Rule::CustomerCut, key, since, text, "denied")
    })
}

/// What a key was refused, and what of it passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) refused: u32,
    pub(crate) passed: u32,
}

/// Returns what a key was refused and passed since the first refusal, if it is refused for long, and a tenth at least: by
/// its last [`CUT_SLICES`] slices, the newest first.
pub(crate) fn refused_by(slices: &[Slice; CUT_SLICES]) -> Option<Slice> {
    let refuses = |slice: &Slice| slice.refused > 0;
    let (first, last) = (slices.iter().rposition(refuses)?, slices.iter().position(refuses)?);
    let of = slices.get(..=first)?;
    let all = of.iter().fold(Slice::default(), |all, slice| Slice {
        refused: all.refused.saturating_add(slice.refused),
        passed: all.passed.saturating_add(slice.passed),
    });
    let is_for_long = first >= FIRST_SLICE && last <= LAST_SLICE;
    let is_often = of.iter().filter(|slice| refuses(slice)).count() >= LEAST_SLICES;
    let is_tenth = all.refused.saturating_mul(9) >= all.passed;
    (is_for_long && is_often && is_tenth).then_some(all)
}

/// Knows the keys for which a rule holds and fires, as far as there is room.
fn know(known: &mut BTreeMap<(String, String), u64>, rule: &KeyRule, now: u64) {
    for held in rule.0.values().filter(|held| held.fires && held.calm == 0) {
        let of = (held.found.policy.clone(), held.found.key.clone());
        if known.len() < FOLLOWED || known.contains_key(&of) {
            known.insert(of, now);
        }
    }
}

fn canary_found(canary: &RolledBack) -> Found {
    let RolledBack { policy, since, why } = canary;
    Found {
        rule: Rule::CanaryRolledBack,
        policy: policy.clone(),
        key: String::new(),
        since: *since,
        text: format!("the canary of `{}` is rolled back: {why}", visible::name(policy)),
        path: page_of(policy),
    }
}

/// The beginning of a text of the server, safe in one line.
fn first_of(text: &str) -> String {
    let shown: String = text.chars().take(200).collect();
    visible::line(&shown).into_owned()
}

fn found(rule: Rule, key: &Key, since: u64, text: String, by: &str) -> Found {
    let query = form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("policy", &*key.name), ("by", by)])
        .finish();
    Found {
        rule,
        policy: key.name.to_string(),
        key: key.shown.clone(),
        since,
        text,
        path: format!("/ui/keys?{query}"),
    }
}

/// What stands unescaped in a part of a path.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The page of a policy.
fn page_of(policy: &str) -> String {
    format!("/ui/policies/{}", utf8_percent_encode(policy, SEGMENT))
}

/// Something that holds or does not, each second.
#[derive(Clone, Debug, Default)]
struct Lasting {
    /// Since when it holds.
    since: Option<u64>,
    /// When it held last.
    last: u64,
    fires: bool,
}

impl Lasting {
    /// Returns whether it fires: it does when it has held for `after` seconds, and until it has not held for `calm`.
    fn see(&mut self, now: u64, holds: bool, after: u64, calm: u64) -> bool {
        if holds {
            // A clock that was set back begins anew.
            let since = self.since.filter(|since| *since <= now).unwrap_or(now);
            (self.since, self.last) = (Some(since), now);
            self.fires |= now - since >= after;
        } else if !self.fires || now.abs_diff(self.last) >= calm {
            *self = Self::default();
        }
        self.fires
    }

    fn follow_step(&mut self, by: i64) {
        self.since.iter_mut().for_each(|since| shift(since, by));
        shift(&mut self.last, by);
    }
}

#[derive(Debug, Default)]
struct Breaker {
    is_open: bool,
    open: Lasting,
    often: Lasting,
    /// When it opened last, by the gate's clock.
    opened: Option<Tick>,
    /// When it was seen to have opened.
    trips: VecDeque<u64>,
    why: String,
    found: Option<Found>,
}

/// A rule about keys, judged in rounds: minutes or slices.
#[derive(Debug, Default)]
struct KeyRule(HashMap<(u16, u64), HeldKey, RandomState>);

#[derive(Debug)]
struct HeldKey {
    found: Found,
    /// The rounds for which it has held, and those since it held last.
    rounds: u32,
    calm: u32,
    fires: bool,
}

impl KeyRule {
    /// Judges the keys for which it holds in a round. It fires when it `lasts` for so many, until so many are calm. `begin`
    /// tells whether one that is new is followed.
    fn judge<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k Key>,
        lasts: u32,
        calm: u32,
        begin: &mut dyn FnMut(&Key) -> Option<Found>,
    ) {
        self.0.values_mut().for_each(|held| held.calm += 1);
        for key in keys {
            let at = (key.policy, key.key);
            if let Some(held) = self.0.get_mut(&at) {
                held.calm = 0;
                held.rounds = held.rounds.saturating_add(1);
                held.fires |= held.rounds >= lasts;
                if !held.fires {
                    // Its name may have been learned since.
                    held.found.key.clone_from(&key.shown);
                }
            } else if self.0.len() < FOLLOWED
                && let Some(found) = begin(key)
            {
                self.0.insert(at, HeldKey { found, rounds: 1, calm: 0, fires: lasts <= 1 });
            }
        }
        self.0.retain(|_, held| held.calm < if held.fires { calm } else { 1 });
    }

    fn firing(&self) -> impl Iterator<Item = (&(u16, u64), &Found)> {
        self.0.iter().filter(|(_, held)| held.fires).map(|(of, held)| (of, &held.found))
    }
}

#[cfg(test)]
mod tests;
