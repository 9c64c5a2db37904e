//! A limit that a law moves, and what is measured beside it: how long work takes, how fast turns come, and how many places
//! important callers use.
//!
//! Each permit that is left brings a sample. Usually no thread waits for another's sample: a thread that finds the law
//! locked puts its sample into an inbox, and the next sample takes it along. So a sample may be late by one permit, and
//! none is lost. A thread that finds the inbox full as well waits for the law.

use std::time::Duration;
use std::{fmt, mem};

use tidegate_core::concurrency::{Concurrency, Law, Sample, Signal};
use tidegate_core::time::nanos;
use tidegate_core::{Criticality, Priority, Tick};

use crate::sync::unexplored::AtomicU64 as PlainU64;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// The most samples that wait for a locked law: many more than arrive while it processes one, unless the thread that
/// holds it is preempted.
const INBOX: usize = 256;

pub(super) struct Moving {
    /// Held while samples are passed to the law, and while the resulting limit is set under the lock of the queue. Never
    /// taken while that lock is held.
    law: Mutex<Box<dyn ErasedLaw>>,
    inbox: Mutex<Vec<Sample>>,
    /// Whether the law counted work of unknown outcome when it was last told something. Read without the law's lock.
    counts_ignored: AtomicBool,
}

impl Moving {
    pub(super) fn new<L>(law: L, now: Tick) -> Self
    where
        L: Law + Send + 'static,
        L::State: Send,
    {
        let state = law.start(now);
        Self::with(Box::new(LawWithState { law, state }))
    }

    fn with(law: Box<dyn ErasedLaw>) -> Self {
        Self { law: Mutex::new(law), inbox: Mutex::new(Vec::new()), counts_ignored: AtomicBool::new(false) }
    }

    pub(super) fn restarted(&self, now: Tick) -> Self {
        Self::with(self.law.lock().restarted(now))
    }

    pub(super) fn limit(&self) -> u64 {
        places(&**self.law.lock())
    }

    #[inline]
    pub(super) fn counts_ignored(&self) -> bool {
        // A hint: the law decides under its lock.
        self.counts_ignored.load(Ordering::Relaxed)
    }

    /// Passes a sample of unknown outcome to the law if it counts such work now. Waits for the law's lock. `apply` sets
    /// the resulting limit.
    pub(super) fn count_ignored<T>(&self, sample: &Sample, apply: impl FnOnce(u64) -> T) -> Option<T> {
        let mut law = self.law.lock();
        if !law.counts_ignored() {
            return None;
        }
        law.learn(sample);
        self.note(&**law);
        Some(apply(places(&**law)))
    }

    fn note(&self, law: &dyn ErasedLaw) {
        self.counts_ignored.store(law.counts_ignored(), Ordering::Relaxed);
    }

    pub(super) fn learn<T>(&self, sample: Sample, apply: impl FnOnce(u64) -> T) -> Option<T> {
        let mut law = match self.law.try_lock() {
            Some(law) => law,
            None => {
                let mut inbox = self.inbox.lock();
                if inbox.len() < INBOX {
                    inbox.push(sample);
                    return None;
                }
                drop(inbox);
                self.law.lock()
            }
        };
        // A separate statement: a lock taken in the head of the loop would be held until the loop ends.
        let earlier = mem::take(&mut *self.inbox.lock());
        for earlier in earlier {
            law.learn(&earlier);
        }
        law.learn(&sample);
        self.note(&**law);
        Some(apply(places(&**law)))
    }

    pub(super) fn sense<T>(&self, at: Tick, signal: Signal, apply: impl FnOnce(u64) -> T) -> T {
        let mut law = self.law.lock();
        law.sense(at, signal);
        self.note(&**law);
        apply(places(&**law))
    }
}

impl fmt::Debug for Moving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.law.lock().fmt(f)
    }
}

fn places(law: &dyn ErasedLaw) -> u64 {
    law.limit().clamp(1, Concurrency::MAX_PLACES)
}

trait ErasedLaw: fmt::Debug + Send {
    fn learn(&mut self, sample: &Sample);
    fn counts_ignored(&self) -> bool;
    fn sense(&mut self, at: Tick, signal: Signal);
    fn limit(&self) -> u64;
    fn restarted(&self, now: Tick) -> Box<dyn ErasedLaw>;
}

#[derive(Debug)]
struct LawWithState<L: Law> {
    law: L,
    state: L::State,
}

impl<L> ErasedLaw for LawWithState<L>
where
    L: Law + Send + 'static,
    L::State: Send,
{
    fn learn(&mut self, sample: &Sample) {
        self.law.learn(&mut self.state, sample);
    }

    fn counts_ignored(&self) -> bool {
        self.law.counts_ignored(&self.state)
    }

    fn sense(&mut self, at: Tick, signal: Signal) {
        self.law.sense(&mut self.state, at, signal);
    }

    fn limit(&self) -> u64 {
        self.law.limit(&self.state)
    }

    fn restarted(&self, now: Tick) -> Box<dyn ErasedLaw> {
        let state = self.law.start(now);
        Box::new(Self { law: self.law.clone(), state })
    }
}

/// The weight of one sample in the mean is 1/32, so about the last hundred count.
const WEIGHT: u64 = 32;

/// The shortest bound on a wait in a short queue: timers are exact only to some milliseconds.
const LEAST_WAIT: Duration = Duration::from_millis(5);

const MOST_WAIT: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(super) struct LawTimes {
    pub(super) began: Tick,
    pub(super) answered: Option<Tick>,
    /// Until when the caller waits, if it said so and there is a law.
    pub(super) deadline: Option<Tick>,
    /// The level at which a throttle has admitted the caller; of no meaning without a throttle.
    pub(super) level: Criticality,
}

/// The mean time from entering to leaving, in nanoseconds; zero until the first permit has left.
#[derive(Debug, Default)]
pub(super) struct MeanLatency(AtomicU64);

impl MeanLatency {
    /// Adds one sample to the mean. Of two samples at once one may be lost, which does not matter in a mean of about a
    /// hundred.
    pub(super) fn learn(&self, latency: Duration) {
        let latency = nanos(latency);
        // Relaxed, here and below: no other data depends on the number.
        let mean = self.0.load(Ordering::Relaxed);
        let next = match mean {
            0 => latency,
            mean => mean - mean / WEIGHT + latency / WEIGHT,
        };
        self.0.store(next, Ordering::Relaxed);
    }

    /// Returns the longest wait in a short queue, which is so many halves of the mean.
    pub(super) fn short_wait(&self, halves: u64) -> Duration {
        let half = self.0.load(Ordering::Relaxed) / 2;
        Duration::from_nanos(half.saturating_mul(halves)).clamp(LEAST_WAIT, MOST_WAIT)
    }
}

const LEVELS: usize = Criticality::ALL.len();

/// How fast the recent use rises to what is wanted, in nanoseconds: long enough that a burst of some milliseconds moves it
/// little, and shorter than most of the work that a throttle waits for.
const RISES_OVER: f64 = 0.1e9;

/// How fast it falls, in nanoseconds: what was used a minute ago counts for a third. Six hundred times slower than the rise,
/// so of a number that varies by chance it is a high value, reached or exceeded for a hundredth of the time.
const FALLS_OVER: f64 = 60e9;

/// How many places the more important callers used of late. So many are kept for them: long work that is less important
/// would otherwise take each place that is idle for a moment, and hold it when the next important caller comes. Where a
/// limit falls, it holds more than that all the same; so an important caller does not count what it [holds](Self::below).
///
/// What they use now counts towards it, so no place is kept twice. Callers that wait count too: they would use a place.
#[derive(Debug, Default)]
pub(super) struct RecentUse {
    /// How many places the callers of each level hold or wait for.
    wanted: [PlainU64; LEVELS],
    /// How many they hold.
    held: [PlainU64; LEVELS],
    /// How many places were used of late above each level but the highest: the bits of a floating-point number. Of two
    /// updates at once one may be lost.
    above: [PlainU64; LEVELS - 1],
    /// The tick of the last update, in nanoseconds.
    updated: PlainU64,
}

impl RecentUse {
    /// Lets the time until now pass. Called at each arrival, since arrivals at random see how it is on average.
    pub(super) fn pass(&self, now: Tick, limit: u64) {
        // Relaxed, here and below: no other data depends on the numbers.
        let before = self.updated.swap(now.as_nanos(), Ordering::Relaxed);
        let passed = now.as_nanos().saturating_sub(before) as f64;
        for (level, above) in self.above.iter().enumerate() {
            let used = f64::from_bits(above.load(Ordering::Relaxed));
            let wanted = self.wanted_above(level).min(limit) as f64;
            let over = if wanted > used { RISES_OVER } else { FALLS_OVER };
            let next = used + (wanted - used) * (passed / over).min(1.0);
            above.store(next.to_bits(), Ordering::Relaxed);
        }
    }

    /// Counts places that a caller wants from now on.
    pub(super) fn wants(&self, level: Criticality, places: u64) {
        self.wanted[level as usize].fetch_add(places, Ordering::Relaxed);
    }

    /// Counts places that a caller has returned, or no longer waits for.
    pub(super) fn gone(&self, level: Criticality, places: u64) {
        self.wanted[level as usize].fetch_sub(places, Ordering::Relaxed);
    }

    fn wanted_above(&self, level: usize) -> u64 {
        self.wanted[level + 1..].iter().map(|wanted| wanted.load(Ordering::Relaxed)).sum()
    }

    /// Returns how many places a caller of a priority has to leave free. The last place is kept from nobody.
    pub(super) fn kept(&self, priority: Priority, limit: u64) -> u64 {
        let level = priority.level() as usize;
        let Some(above) = self.above.get(level) else { return 0 };
        let used = f64::from_bits(above.load(Ordering::Relaxed)).round() as u64;
        used.saturating_sub(self.wanted_above(level)).min(limit.saturating_sub(1))
    }

    /// Counts places that a caller holds from now on.
    pub(super) fn holds(&self, level: Criticality, places: u64) {
        self.held[level as usize].fetch_add(places, Ordering::Relaxed);
    }

    /// Counts places that a caller will return now.
    pub(super) fn returns(&self, level: Criticality, places: u64) {
        self.held[level as usize].fetch_sub(places, Ordering::Relaxed);
    }

    /// Returns how many places callers of lower levels hold.
    pub(super) fn below(&self, level: Criticality) -> u64 {
        self.held[..level as usize].iter().map(|held| held.load(Ordering::Relaxed)).sum()
    }

    /// Returns how many of `limit` places count as taken, if `taken` are: those that are kept from the least important
    /// caller who is here count too. To a law the limit would otherwise seem not to bind while it refuses that caller.
    pub(super) fn taken(&self, taken: u64, limit: u64) -> u64 {
        let is_here = |level: &Criticality| self.wanted[*level as usize].load(Ordering::Relaxed) > 0;
        let Some(least) = Criticality::ALL.into_iter().find(is_here) else { return taken };
        taken.max(taken.saturating_add(self.kept(Priority::of(least), limit)).min(limit))
    }
}

/// The weight of one measurement in the average is 1/8, so about the last dozen turns count.
const PACE_WEIGHT: u64 = 8;

/// The average time between two places given to waiters. Measured only while the queue was never empty in between:
/// otherwise it would measure the time between arrivals, not how fast places become free.
#[derive(Debug, Default)]
pub(super) struct PlacePace {
    /// When the last waiter was served, or when the first waiter joined an empty queue. `None` while nobody waits.
    last: Option<Tick>,
    /// Nanoseconds from one place to the next; `None` before the first measurement.
    per_place: Option<u64>,
}

impl PlacePace {
    pub(super) fn begin(&mut self, now: Tick) {
        self.last = Some(now);
    }

    pub(super) fn end(&mut self) {
        self.last = None;
    }

    pub(super) fn turn(&mut self, now: Tick, places: u64) {
        let Some(last) = self.last else { return };
        self.last = Some(now.max(last));
        let took = nanos(now.since(last)) / places.max(1);
        self.per_place = Some(match self.per_place {
            None => took,
            Some(average) => average - average / PACE_WEIGHT + took / PACE_WEIGHT,
        });
    }

    /// Returns the expected time until this many places have been given; `None` before the first measurement.
    pub(super) fn expected(&self, places: u64) -> Option<Duration> {
        self.per_place.map(|nanos| Duration::from_nanos(nanos.saturating_mul(places)))
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_short_wait_is_half_of_what_work_takes_within_bounds() {
        let latency = MeanLatency::default();
        assert_eq!(latency.short_wait(1), LEAST_WAIT, "nobody has left");
        latency.learn(Duration::from_millis(40));
        assert_eq!(latency.short_wait(1), Duration::from_millis(20));
        for _ in 0..200 {
            latency.learn(Duration::from_millis(100));
        }
        let wait = latency.short_wait(1);
        assert!(wait > Duration::from_millis(49) && wait <= Duration::from_millis(50), "{wait:?}");
        for _ in 0..200 {
            latency.learn(Duration::MAX);
        }
        assert_eq!(latency.short_wait(1), MOST_WAIT);
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod recent_use_tests {
    use tidegate_core::Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};

    use super::*;

    /// Lets `count` milliseconds pass, with an arrival in each.
    fn millis(recent: &RecentUse, from: u64, count: u64) -> u64 {
        (from..from + count).for_each(|at| recent.pass(Tick::from_nanos(at * 1_000_000), 100));
        from + count
    }

    fn kept(recent: &RecentUse) -> [u64; LEVELS] {
        Criticality::ALL.map(|level| recent.kept(level.into(), 20))
    }

    #[test]
    fn what_the_more_important_used_within_a_minute_is_kept_for_them() {
        let recent = RecentUse::default();
        let now = millis(&recent, 1, 1);
        recent.wants(Critical, 6);
        recent.wants(CriticalPlus, 2);
        assert_eq!(kept(&recent), [0; LEVELS], "they have just come");
        let now = millis(&recent, now, 1_000);
        assert_eq!(kept(&recent), [0; LEVELS], "and hold what they use");
        recent.gone(Critical, 5);
        assert_eq!(kept(&recent), [5, 5, 0, 0]);
        recent.gone(CriticalPlus, 2);
        assert_eq!(kept(&recent), [7, 7, 2, 0]);
        let now = millis(&recent, now, 42_000);
        assert_eq!(kept(&recent)[0], 3, "half of it is forgotten");
        millis(&recent, now, 600_000);
        assert_eq!(kept(&recent), [0; LEVELS], "only one is still here");
    }

    #[test]
    fn the_last_place_is_kept_from_nobody() {
        let recent = RecentUse::default();
        let now = millis(&recent, 1, 1);
        recent.wants(CriticalPlus, 70);
        millis(&recent, now, 5_000);
        recent.gone(CriticalPlus, 70);
        assert_eq!(kept(&recent), [19, 19, 19, 0]);
        assert_eq!(recent.kept(SheddablePlus.into(), 1), 0);
        assert_eq!(recent.kept(SheddablePlus.into(), 0), 0, "a limit is never zero, and an answer exists");
    }

    #[test]
    fn what_is_kept_counts_as_taken_while_somebody_is_refused_for_it() {
        let recent = RecentUse::default();
        let now = millis(&recent, 1, 1);
        recent.wants(Critical, 8);
        millis(&recent, now, 2_000);
        recent.gone(Critical, 6);
        assert_eq!(recent.taken(2, 20), 2, "nobody less important is here");
        recent.wants(Sheddable, 5);
        assert_eq!(recent.taken(7, 20), 13);
        assert_eq!(recent.taken(17, 20), 20, "never more than all");
        assert_eq!(recent.taken(25, 20), 25, "unless more are");
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod pace_tests {
    use super::*;

    #[test]
    fn the_average_follows_the_turns_and_not_the_idle_time() {
        let mut pace = PlacePace::default();
        pace.turn(Tick::from_secs(1), 1);
        assert_eq!(pace.expected(1), None, "nobody waited");
        pace.begin(Tick::from_secs(10));
        pace.turn(Tick::from_secs(12), 2);
        assert_eq!(pace.expected(3), Some(Duration::from_secs(3)));
        pace.end();
        pace.begin(Tick::from_secs(1000));
        for second in 1..200 {
            pace.turn(Tick::from_secs(1000 + 9 * second), 1);
        }
        let expected = pace.expected(1).unwrap().as_secs_f64();
        assert!((8.9..=9.0).contains(&expected), "{expected}");
        pace.turn(Tick::EPOCH, u64::MAX);
        assert!(pace.expected(u64::MAX).is_some(), "a clock that steps back is no harm");
    }
}
