//! Windows of time, divided into buckets: sums over them, and their greatest value, in constant time for each event.
//! When the clock steps back, an event before the newest bucket counts in it. After a step back of more than
//! [`MAX_STEP_BACK`], the window starts anew.

use core::time::Duration;
use std::collections::VecDeque;

use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::error::{QuotaError, in_range};
use crate::time::{MAX_STEP_BACK, Tick, nanos};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buckets {
    length_ns: u64,
    count: u32,
}

const DAY_NS: u64 = 86_400_000_000_000;
const MOST_BUCKETS: u32 = 1000;

impl Buckets {
    /// Divides `window`, 1 ms to a day, into `count` buckets, 1 to 1000; the length of a bucket is rounded down to nanoseconds.
    pub(crate) fn new(window: Duration, count: u32) -> Result<Self, QuotaError> {
        let range = Duration::from_millis(1)..=Duration::from_nanos(DAY_NS);
        let window = in_range("window", window, &range, "is not a window; use 1 ms to a day")?;
        let count =
            in_range("buckets", count, &(1..=MOST_BUCKETS), "is not a number of buckets; use 1 to 1000")?;
        Ok(Self { length_ns: nanos(window) / u64::from(count), count })
    }

    pub(crate) const fn known(window_ms: u64, count: u32) -> Self {
        Self { length_ns: window_ms * 1_000_000 / count as u64, count }
    }

    pub(crate) fn index(self, at: Tick) -> u64 {
        at.as_nanos() / self.length_ns
    }

    /// Says whether the clock has stepped back so far since the bucket `newest` that a window has to start anew.
    pub(crate) fn is_set_back(self, newest: u64, at: Tick) -> bool {
        let index = self.index(at);
        index < newest && newest - index > nanos(MAX_STEP_BACK) / self.length_ns + 1
    }

    pub(crate) fn per_second(self) -> f64 {
        1e9 / self.length_ns as f64
    }

    pub(crate) const fn count(self) -> u32 {
        self.count
    }
}

impl Bytes for Buckets {
    fn write(&self, out: &mut Writer) {
        out.u64(self.length_ns);
        out.u32(self.count);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (length_ns, count) = (from.u64()?, from.u32()?);
        let is_one = (1..=DAY_NS).contains(&length_ns) && (1..=MOST_BUCKETS).contains(&count);
        is_one.then_some(Self { length_ns, count }).ok_or(DecodeError::Value { field: "window" })
    }
}

/// The greatest of one value per bucket, over a window. For the least, negate the values. Each value enters once and
/// leaves once. Keeps only values that no later one has reached: at most one for each bucket, all allocated at the
/// start.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Peak {
    /// Numbers of buckets ascending, values descending.
    values: VecDeque<(u64, f64)>,
}

impl Peak {
    pub(crate) fn new(buckets: Buckets) -> Self {
        Self { values: VecDeque::with_capacity(buckets.count as usize + 1) }
    }

    /// Adds the value of a bucket, whose number must be larger than any before it.
    pub(crate) fn push(&mut self, index: u64, value: f64) {
        while self.values.back().is_some_and(|&(_, topped)| topped <= value) {
            self.values.pop_back();
        }
        self.values.push_back((index, value));
    }

    pub(crate) fn forget_before(&mut self, oldest: u64) {
        while self.values.front().is_some_and(|&(index, _)| index < oldest) {
            self.values.pop_front();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.values.clear();
    }

    pub(crate) fn get(&self) -> Option<f64> {
        self.values.front().map(|&(_, value)| value)
    }
}

impl Bytes for Peak {
    fn write(&self, out: &mut Writer) {
        // At most one for each bucket.
        out.u32(self.values.len() as u32);
        for (index, value) in &self.values {
            out.u64(*index);
            out.f64(*value);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = from.u32()?;
        if count as usize > from.left() / 16 {
            return Err(DecodeError::Short);
        }
        let mut values = VecDeque::with_capacity(count as usize);
        for _ in 0..count {
            let (index, value) = (from.u64()?, from.within("peak", f64::MIN..=f64::MAX)?);
            if values.back().is_some_and(|&(newest, less)| newest >= index || less <= value) {
                return Err(DecodeError::Value { field: "peak" });
            }
            values.push_back((index, value));
        }
        Ok(Self { values })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sums<const K: usize>(BucketRing<[u64; K]>);

impl<const K: usize> Sums<K> {
    pub(crate) fn new(buckets: Buckets, now: Tick) -> Self {
        Self(BucketRing::new(buckets.count, buckets.index(now)))
    }

    pub(crate) fn advance(&mut self, buckets: Buckets, at: Tick) {
        if self.is_set_back(buckets, at) {
            self.0.clear(buckets.index(at));
        } else {
            self.0.advance(buckets.index(at));
        }
    }

    /// Says whether the clock has stepped back so far that the window starts anew at `at`.
    pub(crate) fn is_set_back(&self, buckets: Buckets, at: Tick) -> bool {
        buckets.is_set_back(self.0.newest(), at)
    }

    pub(crate) fn totals_at(&self, buckets: Buckets, at: Tick) -> [u64; K] {
        if self.is_set_back(buckets, at) { [0; K] } else { self.0.total_at(buckets.index(at)) }
    }

    pub(crate) fn count(&mut self, which: usize) {
        self.0.record(|sums| sums[which] += 1);
    }

    pub(crate) fn totals(&self) -> [u64; K] {
        self.0.total()
    }
}

/// What a bucket counts.
pub(crate) trait Count: Copy {
    /// Nothing counted.
    const ZERO: Self;

    /// Adds the counts of another bucket.
    fn plus(self, other: Self) -> Self;

    /// Subtracts counts that were added before.
    fn minus(self, other: Self) -> Self;
}

impl<const K: usize> Count for [u64; K] {
    const ZERO: Self = [0; K];

    fn plus(mut self, other: Self) -> Self {
        self.iter_mut().zip(other).for_each(|(sum, more)| *sum += more);
        self
    }

    fn minus(mut self, other: Self) -> Self {
        self.iter_mut().zip(other).for_each(|(sum, less)| *sum -= less);
        self
    }
}

/// The newest buckets, as many as were asked for at the start, and their total. Bucket `n` covers the `n`-th span of
/// time. Counting costs the same for any number of buckets. Nothing is allocated after the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketRing<C> {
    /// Bucket `n` lies at index `n` modulo the number of buckets.
    buckets: Box<[C]>,
    total: C,
    newest: u64,
}

impl<C: Count> BucketRing<C> {
    /// Makes `count` empty buckets, at least one; the newest has the number `newest`.
    pub(crate) fn new(count: u32, newest: u64) -> Self {
        let buckets = vec![C::ZERO; count.max(1) as usize].into();
        Self { buckets, total: C::ZERO, newest }
    }

    pub(crate) const fn len(&self) -> usize {
        self.buckets.len()
    }

    pub(crate) const fn newest(&self) -> u64 {
        self.newest
    }

    pub(crate) const fn total(&self) -> C {
        self.total
    }

    fn place(&self, number: u64) -> usize {
        // Less than the number of buckets.
        (number % self.buckets.len() as u64) as usize
    }

    /// Makes `number` the newest bucket, and forgets the buckets that it displaces. Changes nothing if a newer one has
    /// begun.
    pub(crate) fn advance(&mut self, number: u64) {
        let passed = number.saturating_sub(self.newest);
        if passed >= self.buckets.len() as u64 {
            self.clear(number);
            return;
        }
        for begun in 1..=passed {
            let place = self.place(self.newest + begun);
            self.total = self.total.minus(core::mem::replace(&mut self.buckets[place], C::ZERO));
        }
        self.newest += passed;
    }

    pub(crate) fn clear(&mut self, number: u64) {
        self.buckets.fill(C::ZERO);
        (self.total, self.newest) = (C::ZERO, number);
    }

    pub(crate) fn record(&mut self, add: impl Fn(&mut C)) {
        let newest = self.place(self.newest);
        add(&mut self.buckets[newest]);
        add(&mut self.total);
    }

    pub(crate) fn total_at(&self, number: u64) -> C {
        self.leave_out(self.total, self.newest, number)
    }

    /// Returns `total` less the buckets that are among the newest while `from` is the newest of all, and no longer
    /// once `to` is. Buckets after [`BucketRing::newest`] are empty.
    pub(crate) fn leave_out(&self, total: C, from: u64, to: u64) -> C {
        let oldest = |newest: u64| newest.saturating_sub(self.buckets.len() as u64 - 1);
        // The newest bucket leaves only for numbers after it, so it is not the largest number.
        let gone = oldest(from)..oldest(to).min(self.newest.saturating_add(1));
        gone.fold(total, |total, number| total.minus(self.buckets[self.place(number)]))
    }

    /// Returns the numbers of the buckets and what they count, the newest first. There are none before number zero.
    pub(crate) fn newest_first(&self) -> impl Iterator<Item = (u64, C)> + '_ {
        let numbers = (0..self.buckets.len() as u64).map_while(|back| self.newest.checked_sub(back));
        numbers.map(|number| (number, self.buckets[self.place(number)]))
    }

    /// Returns the buckets as they lie in memory: bucket `n` at index `n` modulo their number.
    pub(crate) fn in_memory_order(&self) -> &[C] {
        &self.buckets
    }

    /// Makes the ring whose buckets lie in memory as given, and whose newest has the number `newest`.
    pub(crate) fn from_memory_order(buckets: &[C], newest: u64) -> Self {
        let given = Self { buckets: buckets.into(), total: C::ZERO, newest };
        given.renumbered(newest)
    }

    /// Returns the same buckets under other numbers, the newest as `newest`. Buckets that would lie before number zero
    /// are left out.
    pub(crate) fn renumbered(&self, newest: u64) -> Self {
        let buckets = vec![C::ZERO; self.buckets.len()].into_boxed_slice();
        let mut ring = Self { buckets, total: C::ZERO, newest };
        for (number, counts) in self.newest_first() {
            let Some(number) = newest.checked_sub(self.newest - number) else { break };
            let place = ring.place(number);
            ring.buckets[place] = counts;
            ring.total = ring.total.plus(counts);
        }
        ring
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUCKETS: Buckets = Buckets::known(1000, 10);

    fn at(millis: u64) -> Tick {
        Tick::EPOCH.after(Duration::from_millis(millis))
    }

    #[test]
    fn a_window_is_refused_by_name() {
        let text = |result: Result<Buckets, QuotaError>| result.unwrap_err().to_string();
        assert_eq!(text(Buckets::new(Duration::ZERO, 10)), "window 0ns is not a window; use 1 ms to a day");
        let want = "buckets 0 is not a number of buckets; use 1 to 1000";
        assert_eq!(text(Buckets::new(Duration::from_secs(1), 0)), want);
        assert_eq!(Buckets::new(Duration::from_secs(1), 10), Ok(BUCKETS));
        assert_eq!((BUCKETS.length_ns, BUCKETS.per_second()), (100_000_000, 10.0));
    }

    #[test]
    fn after_a_long_step_back_a_window_begins_anew() {
        let mut sums = Sums::<1>::new(BUCKETS, at(60_000));
        sums.count(0);
        for (millis, total) in [(50_000, 1), (49_800, 0)] {
            assert_eq!(sums.totals_at(BUCKETS, at(millis)), [total], "at {millis} ms");
        }
        sums.advance(BUCKETS, at(49_800));
        sums.count(0);
        assert_eq!((sums.totals_at(BUCKETS, at(50_700)), sums.totals_at(BUCKETS, at(50_800))), ([1], [0]));
        sums.advance(BUCKETS, Tick::MAX);
        assert_eq!(sums.totals(), [0]);
    }

    proptest! {
        #[test]
        fn sums_and_peaks_are_those_of_a_list_of_all_events(
            steps in prop::collection::vec((0u64..300, any::<bool>()), 1..200),
        ) {
            let (mut sums, mut peak) = (Sums::<1>::new(BUCKETS, at(0)), Peak::new(BUCKETS));
            let capacity = peak.values.capacity();
            let (mut now, mut events, mut pushed) = (0, Vec::new(), Vec::new());
            for (step, back) in steps {
                // Now and then the clock steps back; an event counts at the latest time then.
                now += step;
                let time = at(if back { now.saturating_sub(9000) } else { now });
                sums.advance(BUCKETS, time);
                let newest = if back { sums.0.newest() } else { now / 100 };
                prop_assert_eq!(newest, sums.0.newest());
                sums.count(0);
                events.push(newest);
                let live = events.iter().filter(|&&index| index + 10 > newest).count() as u64;
                prop_assert_eq!(sums.totals_at(BUCKETS, time), [live]);
                prop_assert_eq!(sums.totals(), [live]);

                if pushed.last().is_none_or(|&(index, _)| index < newest) {
                    let value = f64::from((step as u32 * 7919) % 31);
                    peak.push(newest, value);
                    pushed.push((newest, value));
                }
                peak.forget_before(newest.saturating_sub(9));
                let live = pushed.iter().filter(|(index, _)| index + 10 > newest).map(|&(_, value)| value);
                prop_assert_eq!(peak.get(), live.reduce(f64::max));
                prop_assert!(peak.values.len() <= 10 && peak.values.capacity() == capacity, "nothing is allocated");
            }
        }
    }

    /// The total of the events in the `count` buckets up to `newest`, counted from scratch.
    fn recounted(events: &[u64], count: u32, newest: u64) -> [u64; 1] {
        let held = |event: &&u64| **event <= newest && newest - **event < u64::from(count);
        [events.iter().filter(held).count() as u64]
    }

    proptest! {
        #[test]
        fn a_ring_counts_what_a_list_counts(
            count in 1_u32..9,
            first in prop_oneof![0..20_u64, Just(u64::MAX - 60)],
            steps in prop::collection::vec(0..12_u64, 1..60),
            (ahead, back) in (0..20_u64, 0..40_u64),
        ) {
            let (mut ring, mut events, mut now) = (BucketRing::<[u64; 1]>::new(count, first), Vec::new(), first);
            for step in steps {
                now = now.saturating_add(step);
                ring.advance(now);
                ring.record(|counts| counts[0] += 1);
                events.push(now);
                prop_assert_eq!(ring.total(), recounted(&events, count, now));
                // What a view of later buckets leaves is what moving on leaves, in one step or in two.
                let (sooner, later) = (now.saturating_add(ahead), now.saturating_add(2 * ahead));
                let mut moved = ring.clone();
                for number in [sooner, later] {
                    moved.advance(number);
                    prop_assert_eq!(ring.total_at(number), moved.total());
                    prop_assert_eq!(moved.total(), recounted(&events, count, number));
                }
                prop_assert_eq!(ring.leave_out(ring.total_at(sooner), sooner, later), moved.total());
                prop_assert_eq!(ring.leave_out(ring.total(), now, now.saturating_sub(1)), ring.total());
                prop_assert_eq!(&BucketRing::from_memory_order(ring.in_memory_order(), now), &ring);
                // Under earlier numbers the buckets keep their distances.
                let earlier = ring.renumbered(now - back.min(now));
                let shifted: Vec<u64> =
                    events.iter().filter_map(|event| event.checked_sub(back.min(now))).collect();
                prop_assert_eq!(earlier.total(), recounted(&shifted, count, earlier.newest()));
                let listed = earlier.newest_first().fold([0], |sum, (_, counts)| sum.plus(counts));
                prop_assert_eq!(listed, earlier.total());
            }
        }
    }

    #[test]
    fn what_lies_outside_a_young_ring_is_left_out() {
        let ring = BucketRing::from_memory_order(&[[5], [6], [7]], 1);
        assert_eq!((ring.total(), ring.in_memory_order()), ([11], &[[5], [6], [0]][..]));
        assert_eq!(ring.newest_first().collect::<Vec<_>>(), [(1, [6]), (0, [5])]);
    }
}
