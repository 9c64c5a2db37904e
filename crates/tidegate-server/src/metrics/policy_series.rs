//! The series of one policy, counted without a look-up by name.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tidegate::Tick;
use tidegate_core::Rate;

use super::labels::{Decided, DecisionLabels, ModeLabel, PolicyLabel, UnitsFate, UnitsLabels};
use super::{Metrics, new_series};

/// The counters of one policy in one mode, indexed by [`Decided`].
#[derive(Clone, Debug)]
pub(crate) struct Tally(pub(super) [Counter; Decided::ALL.len()]);

impl Tally {
    pub(crate) fn count(&self, decided: Decided) {
        self.0[decided as usize].inc();
    }

    pub(super) fn counted(&self, decided: Decided) -> u64 {
        self.0[decided as usize].get()
    }
}

/// The series of one policy.
#[derive(Debug)]
pub(crate) struct PolicySeries {
    pub(crate) enforce: Tally,
    pub(crate) shadow: Tally,
    /// What a canary's limit decided; made when the policy has its first canary.
    canary: OnceLock<Tally>,
    pub(crate) near: Counter,
    /// Units that settlements returned.
    pub(crate) returned: Counter,
    /// Units that settlements booked beyond the charge.
    pub(crate) owed: Counter,
    pub(crate) utilization: Peak,
    pub(crate) hottest: Hottest,
    /// The gauge of the utilization; set when metrics are read.
    pub(super) shown: Gauge<f64, AtomicU64>,
}

impl PolicySeries {
    pub(crate) fn decisions(&self) -> u64 {
        let all = [&self.enforce, &self.shadow].into_iter().chain(self.canary.get());
        all.flat_map(|tally| &tally.0).map(Counter::get).sum()
    }

    /// Counts the admitted requests in the mode that admitted more: a shadow limit counts beside its policy.
    pub(crate) fn admitted(&self) -> u64 {
        let admitted = |of: &dyn Fn(Decided) -> u64| of(Decided::allowed) + of(Decided::delayed);
        admitted(&|decided| self.enforced(decided)).max(admitted(&|decided| self.shadow.counted(decided)))
    }

    /// Counts what was decided for real: by the limits of the policy, or by that of its canary.
    pub(super) fn enforced(&self, decided: Decided) -> u64 {
        self.enforce.counted(decided) + self.canary.get().map_or(0, |tally| tally.counted(decided))
    }

    /// Returns the counters of decisions in one mode, of a canary's limit or of others.
    pub(crate) fn tally(&self, enforced: bool, canary: bool) -> &Tally {
        match self.canary.get().filter(|_| canary) {
            Some(tally) => tally,
            None if enforced => &self.enforce,
            None => &self.shadow,
        }
    }
}

/// Counts units, saturating: one settlement may owe 2^60 units, and 16 of those would wrap the counter to zero, which reads as a
/// restart.
pub(crate) fn count_units(counter: &Counter, units: u64) {
    // Relaxed: the number stands alone. The loop ends, since each failure means that another thread succeeded.
    let _ = counter
        .inner()
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |counted| Some(counted.saturating_add(units)));
}

/// The most units that policies grant one key at once, by their names.
#[derive(Debug, Default)]
pub(super) struct Limits(pub(super) Mutex<BTreeMap<String, MostUnits>>);

#[derive(Debug, Default)]
pub(super) struct MostUnits {
    /// For keys without a plan; `None` if unlimited.
    pub(super) usual: Option<u64>,
    /// By the plans of the file that have a limit.
    pub(super) plans: BTreeMap<String, u64>,
}

impl Limits {
    /// Registers the gauge of all limits.
    pub(super) fn show(&self, registry: &mut Registry) {
        let family: Family<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>> = new_series(
            registry,
            "policy_limit",
            "The most units that a policy grants one key at once, for each value of rate.by (plan) and for all other keys",
        );
        for (policy, most) in &*self.0.lock() {
            let usual = most.usual.map(|units| (None, units));
            let plans = most.plans.iter().map(|(plan, units)| (Some(plan), *units));
            for (plan, units) in usual.into_iter().chain(plans) {
                let mut labels = vec![("policy", policy.clone())];
                labels.extend(plan.map(|plan| ("plan", plan.clone())));
                family.get_or_create(&labels).set(units as f64);
            }
        }
    }
}

// Makes and drops the series that policies have.

impl Metrics {
    /// Makes the series of a policy. `limit` is the most that it grants; `None` if unlimited.
    pub(crate) fn policy(&self, name: &str, limit: Option<u64>) -> PolicySeries {
        self.limit(name, limit);
        let label = PolicyLabel { policy: name.to_owned() };
        PolicySeries {
            enforce: self.tally(name, ModeLabel::enforce),
            shadow: self.tally(name, ModeLabel::shadow),
            canary: OnceLock::new(),
            near: self.near.get_or_create_owned(&label),
            returned: self.units_of(name, UnitsFate::returned),
            owed: self.units_of(name, UnitsFate::owed),
            utilization: Peak::default(),
            hottest: Hottest::default(),
            shown: self.utilization.get_or_create_owned(&label),
        }
    }

    /// Makes the series of a policy's canary: they exist from its start, so that their first increase is visible.
    pub(crate) fn canary(&self, name: &str, series: &PolicySeries) {
        series.canary.get_or_init(|| self.tally(name, ModeLabel::canary));
    }

    /// Sets the gauge of a policy's limit.
    pub(crate) fn limit(&self, name: &str, limit: Option<u64>) {
        self.limits.0.lock().entry(name.to_owned()).or_default().usual = limit;
    }

    /// Sets the gauges of a policy's limits for plans: the values of the attribute that selects the rate.
    pub(crate) fn limits_of_plans(&self, name: &str, plans: BTreeMap<String, u64>) {
        self.limits.0.lock().entry(name.to_owned()).or_default().plans = plans;
    }

    fn units_of(&self, policy: &str, fate: UnitsFate) -> Counter {
        self.units.get_or_create_owned(&UnitsLabels { policy: policy.to_owned(), fate })
    }

    fn tally(&self, policy: &str, mode: ModeLabel) -> Tally {
        Tally(Decided::ALL.map(|decided| self.decisions_of(policy, decided, mode)))
    }

    fn decisions_of(&self, policy: &str, decision: Decided, mode: ModeLabel) -> Counter {
        self.decisions.get_or_create_owned(&DecisionLabels { policy: policy.to_owned(), decision, mode })
    }

    /// Returns the count of refusals by a list of no policy, under this name.
    pub(crate) fn refused_by_file(&self, name: &str) -> Counter {
        self.decisions_of(name, Decided::denied, ModeLabel::enforce)
    }

    /// Drops the series of a removed policy.
    pub(crate) fn forget(&self, name: &str) {
        let label = PolicyLabel { policy: name.to_owned() };
        self.near.remove(&label);
        self.limits.0.lock().remove(name);
        self.utilization.remove(&label);
        self.protection.forget(name);
        self.requests.forget(name);
        for fate in UnitsFate::ALL {
            self.units.remove(&UnitsLabels { policy: name.to_owned(), fate });
        }
        for decision in Decided::ALL {
            for mode in ModeLabel::ALL {
                self.decisions.remove(&DecisionLabels { policy: name.to_owned(), decision, mode });
            }
        }
    }
}

// The rate at which the busiest keys of a policy are admitted, as a share of what their limit allows.
//
// A limit that refills within a second looks empty between two requests of a key that uses 95 % of it. So admitted
// units are also counted over a span: ten times the time in which the burst returns, at least ten seconds. A burst
// from rest is then at most a tenth of the span's rate.
//
// Some keys are counted, each exactly. Every span, each place takes the key that comes first, unless its key used
// a quarter of its limit: so a key is found the sooner, the busier it is. The share is never too high but by a
// burst; it is too low for a key without a place, and in a key's first span.

const PLACES: usize = 32;

/// The shortest span.
const SHORTEST: u64 = Duration::from_secs(10).as_nanos() as u64;

/// The least share of its limit, as 1 in so many, by which a key keeps its place.
const KEEPS: u64 = 4;

/// The keys of one policy that are counted. Takes memory only for a policy with such a limit.
#[derive(Debug, Default)]
pub(crate) struct Hottest(OnceLock<Box<[KeyRate; PLACES]>>);

#[derive(Debug, Default)]
struct KeyRate {
    /// The upper half of the key's hash, and its last span, modulo 2^32.
    key_and_span: AtomicU64,
    now: AtomicU64,
    before: AtomicU64,
}

/// Units of a key over a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    /// The units admitted in the last span.
    pub(crate) units: u64,
    /// The units that the rate allows in it.
    pub(crate) of: u64,
}

impl Hottest {
    /// Counts admitted units under a rate and a burst. Returns what the key has used; `None` without a place.
    pub(crate) fn admitted(&self, now: Tick, key: u64, units: u64, rate: Rate, burst: u64) -> Option<Used> {
        let period = rate.period().as_nanos();
        let refill = u128::from(burst) * period / u128::from(rate.count());
        let span = u64::try_from(refill * 10).unwrap_or(u64::MAX / 2).max(SHORTEST);
        let of =
            u64::try_from(u128::from(rate.count()) * u128::from(span) / period).unwrap_or(u64::MAX).max(1);
        let (number, into) = (now.as_nanos() / span, now.as_nanos() % span);
        let place = &self.0.get_or_init(Box::default)[key as usize % PLACES];
        let before = place.count(key, number as u32, units, of)?;
        let left = u128::from(before) * u128::from(span - into) / u128::from(span);
        let units = u64::try_from(left).unwrap_or(u64::MAX).saturating_add(place.now.load(Ordering::Relaxed));
        Some(Used { units, of })
    }
}

impl KeyRate {
    /// Returns the units of the span before; `None` if the place has another key.
    fn count(&self, key: u64, span: u32, units: u64, of: u64) -> Option<u64> {
        // Relaxed throughout: only people read it, and a few units in the wrong span do not matter.
        let mine = (key >> 32 | 1) << 32 | u64::from(span);
        let held = self.key_and_span.load(Ordering::Relaxed);
        if held == mine {
            self.now.fetch_add(units, Ordering::Relaxed);
            return Some(self.before.load(Ordering::Relaxed));
        }
        let (is_mine, is_free, since) =
            (held >> 32 == mine >> 32, held >> 32 == 0, span.wrapping_sub(held as u32));
        let used = if since == 1 { self.now.load(Ordering::Relaxed) } else { 0 };
        if !is_mine && !is_free && (since == 0 || used >= of / KEEPS) {
            return None;
        }
        if is_mine && used < of / KEEPS {
            // The next key has its turn: this one would be the first again if it comes regularly.
            let free = u64::from(span);
            let _ = self.key_and_span.compare_exchange(held, free, Ordering::Relaxed, Ordering::Relaxed);
            return None;
        }
        if self.key_and_span.compare_exchange(held, mine, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            // Another thread has begun the span.
            return None;
        }
        let before = if is_mine { used } else { 0 };
        self.before.store(before, Ordering::Relaxed);
        self.now.store(units, Ordering::Relaxed);
        Some(before)
    }
}

// The highest recent utilization of any key's limit.

/// The largest used share of a limit, for this minute and the one before.
#[derive(Debug, Default)]
pub(crate) struct Peak([AtomicU64; 2]);

impl Peak {
    /// The number of bits of a share. The minute is stored above them, so that a newer one is always larger.
    const SHARE_BITS: u32 = 20;
    /// Parts per million.
    const WHOLE: u64 = 1_000_000;

    fn minute(now: Tick) -> u64 {
        now.as_nanos() / 60_000_000_000
    }

    /// Records that `used` of `limit` are in use.
    pub(crate) fn note(&self, now: Tick, used: u64, limit: u64) {
        let share = u128::from(used) * u128::from(Self::WHOLE) / u128::from(limit.max(1));
        let share = u64::try_from(share).unwrap_or(Self::WHOLE).min(Self::WHOLE);
        let minute = Self::minute(now);
        // Relaxed: the number stands alone, and only people read it. Read first, since most checks are below the
        // peak and need no write.
        let (cell, noted) = (&self.0[minute as usize % 2], minute << Self::SHARE_BITS | share);
        if cell.load(Ordering::Relaxed) < noted {
            cell.fetch_max(noted, Ordering::Relaxed);
        }
    }

    pub(crate) fn ratio(&self, now: Tick) -> f64 {
        let minute = Self::minute(now);
        let share = |cell: &AtomicU64| {
            let noted = cell.load(Ordering::Relaxed);
            let recent = minute.saturating_sub(noted >> Self::SHARE_BITS) <= 1;
            if recent { noted & ((1 << Self::SHARE_BITS) - 1) } else { 0 }
        };
        self.0.iter().map(share).max().unwrap_or(0) as f64 / Self::WHOLE as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: 25 settlements of 2^60 units showed as 10376293541461516784 owed, less than the value before.
    #[test]
    fn units_stay_at_the_most_that_a_counter_holds() {
        let counter = Counter::default();
        let mut before = 0;
        for _ in 0..25 {
            count_units(&counter, 1 << 60);
            assert!(counter.get() >= before, "{} after {before}", counter.get());
            before = counter.get();
        }
        assert_eq!(before, u64::MAX);
    }

    fn rate(per_second: u64) -> Rate {
        Rate::new(per_second, Duration::from_secs(1)).unwrap()
    }

    /// The share in percent that each of `keys` has at the end, where key `n` is admitted `n` units a second.
    fn shares(keys: &[u64], seconds: u64) -> Vec<Option<u64>> {
        let hottest = Hottest::default();
        let mut last = vec![None; keys.len()];
        for millis in 0..seconds * 1000 {
            let at = Tick::from_secs(1000).after(Duration::from_millis(millis));
            for (place, key) in keys.iter().enumerate().filter(|(_, key)| millis % (1000 / **key) == 0) {
                // All in one place.
                let hash = (*key << 40) | 5;
                last[place] =
                    hottest.admitted(at, hash, 1, rate(100), 100).map(|used| used.units * 100 / used.of);
            }
        }
        last
    }

    #[test]
    fn a_steady_rate_is_seen_though_the_burst_is_a_second() {
        let share = shares(&[100], 25)[0].unwrap();
        assert!((98..=101).contains(&share), "{share}");
        let share = shares(&[50], 25)[0].unwrap();
        assert!((49..=51).contains(&share), "{share}");
    }

    #[test]
    fn a_burst_from_rest_is_a_tenth() {
        let used = Hottest::default().admitted(Tick::from_secs(1000), 1, 100, rate(100), 100).unwrap();
        assert_eq!(used, Used { units: 100, of: 1000 });
        // A limit whose burst returns within an hour is looked at over ten hours.
        let hour = Rate::new(1000, Duration::from_secs(3600)).unwrap();
        let used = Hottest::default().admitted(Tick::from_secs(1000), 1, 1000, hour, 1000).unwrap();
        assert_eq!(used, Used { units: 1000, of: 10_000 });
    }

    #[test]
    fn a_busy_key_keeps_its_place_and_a_quiet_one_makes_room() {
        assert!(shares(&[100, 2], 35)[0].is_some_and(|share| share > 95), "the busy one");
        assert!(shares(&[2, 100], 35)[1].is_some_and(|share| share > 95), "though the quiet one came first");
    }

    #[test]
    fn a_peak_lasts_until_the_minute_after_the_next_begins() {
        let peak = Peak::default();
        peak.note(Tick::from_secs(60), 9, 10);
        peak.note(Tick::from_secs(119), 1, 10);
        assert_eq!(peak.ratio(Tick::from_secs(119)), 0.9);
        peak.note(Tick::from_secs(125), 2, 10);
        assert_eq!(peak.ratio(Tick::from_secs(179)), 0.9);
        assert_eq!(peak.ratio(Tick::from_secs(180)), 0.2);
        assert_eq!(peak.ratio(Tick::from_secs(900)), 0.0);
        peak.note(Tick::from_secs(900), u64::MAX, 1);
        assert_eq!(peak.ratio(Tick::from_secs(900)), 1.0);
    }
}
