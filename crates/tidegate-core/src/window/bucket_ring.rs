//! A ring of buckets, numbered by the time that they count, and their total.

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
/// time, whose length the owner of the ring decides.
///
/// Each number of a bucket takes the place of an older one, so counting an event costs the same for any number of
/// buckets, and nothing is allocated after the start.
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

    /// Returns the number of buckets.
    pub(crate) const fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Returns the number of the newest bucket.
    pub(crate) const fn newest(&self) -> u64 {
        self.newest
    }

    /// Returns the total of all buckets.
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

    /// Empties all buckets, and makes `number` the newest.
    pub(crate) fn clear(&mut self, number: u64) {
        self.buckets.fill(C::ZERO);
        (self.total, self.newest) = (C::ZERO, number);
    }

    /// Adds to the newest bucket and to the total.
    pub(crate) fn record(&mut self, add: impl Fn(&mut C)) {
        let newest = self.place(self.newest);
        add(&mut self.buckets[newest]);
        add(&mut self.total);
    }

    /// Returns the total as it is once `number` is the newest bucket.
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

    /// Makes the ring whose buckets lie in memory as given, and whose newest has the number `newest`. What lies where
    /// a ring with so few numbers has no bucket yet is left out.
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
    use super::*;
    use proptest::prelude::*;

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
