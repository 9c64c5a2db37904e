//! The token bucket: capacity that is spent at once and comes back at a rate, or at several rates together.
//!
//! A bucket holds up to *capacity* tokens; a unit of cost takes one. What sets this file apart from [`Gcra`](super::Gcra),
//! which is the same law for one bandwidth, is all that a schedule of one number cannot say:
//! * **Several bandwidths, settled together.** "10 per second, and 100 per hour": a cost takes from every one or from none;
//!   what is available is the least of them, the wait the longest.
//! * **Refill at once.** [`Refill::Interval`] adds the whole count when a period has passed and nothing before, as quotas
//!   that people read on a price list do. A period starts with the first use of a full bucket: a full bucket that nobody
//!   touches is then the same as none, and may be forgotten.
//! * **A start that is not full**, so that a fleet that restarts does not get its burst twice.
//!
//! Tokens are counted by what is *spent*, not by what is left: a reservation may spend more than the capacity, which a
//! number of tokens left could not say without a sign. For a continuous refill of `c` units per `p` ns in lowest terms,
//! the spent amount is kept in `1/p` of a unit: a unit weighs exactly `p`, a nanosecond brings back exactly `c`, and
//! nothing is rounded before a wait leaves the door.
//!
//! # Limits
//! With several bandwidths each keeps its own schedule, and a wait is the longest of theirs. Work that one bandwidth holds
//! back can therefore reach a faster one in a bunch when it acts; no bandwidth ever grants more than its own account
//! allows.

use smallvec::SmallVec;

use super::Algorithm;
use super::exact::mul_div_ceil;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Retry, Standing, Transition};
use crate::quota::{QuotaError, burst_in_range};
use crate::time::{Rate, Tick, nanos, span};

/// How the tokens of a [`Bandwidth`] come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Refill {
    /// Evenly: after half of the period half of the count is back.
    #[default]
    Continuous,
    /// All at once: the whole count at the end of each period, counted from the first use of a full bucket.
    Interval,
}

/// One rate of a [`TokenBucket`], with its capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bandwidth {
    rate: Rate,
    capacity: u64,
    initial: u64,
    refill: Refill,
    /// What a nanosecond brings back (continuous) or a period does (interval), in amounts.
    gain: u64,
    /// What one unit weighs: the reduced period (continuous), or one (interval).
    weight: u64,
}

impl Bandwidth {
    /// Makes a bandwidth of `rate` with a capacity of 1 to [`Rate::MAX_COUNT`] tokens, which refills evenly and starts full.
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the capacity is out of range.
    pub fn new(rate: Rate, capacity: u64) -> Result<Self, QuotaError> {
        let capacity = burst_in_range(capacity)?;
        Ok(Self { initial: capacity, ..Self::weighed(rate, capacity, Refill::Continuous) })
    }

    fn weighed(rate: Rate, capacity: u64, refill: Refill) -> Self {
        let (gain, weight) = match refill {
            Refill::Continuous => rate.reduced(),
            Refill::Interval => (rate.count(), 1),
        };
        Self { rate, capacity, initial: 0, refill, gain, weight }
    }

    /// Sets how tokens come back.
    #[must_use]
    pub fn refill(self, refill: Refill) -> Self {
        Self { initial: self.initial, ..Self::weighed(self.rate, self.capacity, refill) }
    }

    /// Sets how many tokens a key has when it is first met, from 0 to the capacity.
    ///
    /// A bucket that starts below its capacity is never as good as forgotten, see [`Algorithm::full_at`]: a store keeps
    /// such a key until it needs the place.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when there are more than the bucket holds.
    pub fn initial(self, tokens: u64) -> Result<Self, QuotaError> {
        if tokens > self.capacity {
            return Err(QuotaError::Parameter {
                name: "initial tokens",
                value: tokens.to_string(),
                want: "are more than the bucket holds; use at most its capacity",
            });
        }
        Ok(Self { initial: tokens, ..self })
    }

    /// Returns the rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the capacity.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The amount of a number of units. Below 2^126, since a weight is at most 2^62.
    fn amount(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.weight)
    }

    fn fresh(&self) -> Level {
        Level::of(self.amount(self.capacity - self.initial), 0)
    }

    /// What a level becomes when `elapsed` ns pass.
    fn settle(&self, level: Level, elapsed: u64) -> Level {
        let (spent, gain) = (level.spent(), u128::from(self.gain));
        match self.refill {
            Refill::Continuous => Level::of(spent.saturating_sub(u128::from(elapsed) * gain), 0),
            Refill::Interval => {
                let period = u128::from(self.rate.period_nanos());
                let into = u128::from(level.into) + u128::from(elapsed);
                let left = spent.saturating_sub((into / period).saturating_mul(gain));
                // Below the period, which fits. A full bucket has no period running: the next use starts one.
                let into = if left == 0 { 0 } else { (into % period) as u64 };
                Level::of(left, into)
            }
        }
    }

    /// The ns that pass until `amount` has come back to a level.
    fn time_for(&self, amount: u128, into: u64) -> u128 {
        let steps = amount.div_ceil(u128::from(self.gain));
        match self.refill {
            Refill::Continuous => steps,
            Refill::Interval => {
                steps.saturating_mul(u128::from(self.rate.period_nanos())).saturating_sub(u128::from(into))
            }
        }
    }

    /// What is spent beyond the capacity: what reservations have been promised and is not there yet.
    fn debt(&self, level: Level) -> u128 {
        level.spent().saturating_sub(self.amount(self.capacity))
    }

    /// What came back between two ticks, the later being the one that `level` was settled at.
    fn returned(&self, level: Level, from: Tick, to: Tick) -> u128 {
        let to = match self.refill {
            Refill::Continuous => return u128::from(nanos(to.since(from))) * u128::from(self.gain),
            Refill::Interval => Tick::from_nanos(to.as_nanos().saturating_sub(level.into)),
        };
        let refills = nanos(to.since(from)).div_ceil(self.rate.period_nanos());
        u128::from(refills) * u128::from(self.gain)
    }

    fn carry(&self, old: &Self, level: Level, how: Replace) -> Level {
        let full = old.amount(old.capacity);
        let (within, debt) = (level.spent().min(full), old.debt(level));
        let convert = |amount| mul_div_ceil(amount, u128::from(self.weight), u128::from(old.weight));
        let within = match how {
            Replace::AsIs => convert(within).min(self.amount(self.capacity)),
            Replace::Proportional => mul_div_ceil(within, self.amount(self.capacity), full),
            Replace::Reset => return self.fresh(),
        };
        let same_period = self.refill == old.refill && self.rate.period() == old.rate.period();
        Level::of(within.saturating_add(convert(debt)), if same_period { level.into } else { 0 })
    }
}

/// One bandwidth or several, decided together: all of them grant a cost or none does.
///
/// # Source
/// The meter of RFC 2697 and RFC 4115 for a single bandwidth; that several are settled as one, and the refill at once, are
/// known from Bucket4j.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    bandwidths: SmallVec<[Bandwidth; 1]>,
}

/// What [`TokenBucket`] remembers of a key: 40 bytes, and for more than one bandwidth 24 for each on the heap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucketState {
    last: Tick,
    levels: SmallVec<[Level; 1]>,
}

/// One bandwidth at the tick of the last change. Two halves instead of a `u128` spare its alignment: a state stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    spent: [u64; 2],
    /// Interval refill: ns of the running period that have passed.
    into: u64,
}

impl Level {
    fn of(spent: u128, into: u64) -> Self {
        // Both halves fit by construction.
        Self { spent: [(spent >> 64) as u64, spent as u64], into }
    }

    fn spent(self) -> u128 {
        (u128::from(self.spent[0]) << 64) | u128::from(self.spent[1])
    }

    fn charge(self, amount: u128) -> Self {
        Self::of(self.spent().saturating_add(amount), self.into)
    }

    fn give_back(self, amount: u128) -> Self {
        Self::of(self.spent().saturating_sub(amount), self.into)
    }
}

/// Where a mark keeps the number of its bandwidth: a debt that a reservation may carry is below 2^124, as a wait is below
/// 2^64 ns and at most 2^60 return in one.
const MARK_SHIFT: u32 = 124;

impl TokenBucket {
    /// The most bandwidths that one bucket settles together. Each costs time in every check and three would do for most;
    /// a receipt has room for the number of one in fifteen.
    pub const MAX_BANDWIDTHS: usize = 8;

    /// Makes a bucket of one bandwidth.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::{Bandwidth, Refill, TokenBucket}, Algorithm, Ask, Cost, Rate, Retry, Tick, Transition};
    ///
    /// let rate = Rate::new(100, Duration::from_secs(3600))?;
    /// let limit = TokenBucket::new(Bandwidth::new(rate, 100)?.refill(Refill::Interval));
    /// let (now, all) = (Tick::from_secs(10), Cost::new(100).unwrap());
    /// let Transition::Allowed { next, .. } = limit.decide(&limit.fresh(now), Ask::allow(now, all)) else { panic!() };
    /// let half_an_hour_later = Ask::allow(Tick::from_secs(10 + 1800), Cost::ONE);
    /// let denied = limit.decide(&next, half_an_hour_later);
    /// assert_eq!(denied, Transition::Denied { retry: Retry::After(Duration::from_secs(1800)) });
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn new(bandwidth: Bandwidth) -> Self {
        Self { bandwidths: SmallVec::from_buf([bandwidth]) }
    }

    /// Makes a bucket of 1 to [`TokenBucket::MAX_BANDWIDTHS`] bandwidths.
    ///
    /// An allowed check on more than one allocates its next state.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when there are none or too many.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::{Bandwidth, TokenBucket}, Algorithm, Rate, Tick};
    ///
    /// let second = Bandwidth::new(Rate::new(10, Duration::from_secs(1))?, 10)?;
    /// let hour = Bandwidth::new(Rate::new(100, Duration::from_secs(3600))?, 100)?;
    /// let limit = TokenBucket::several([second, hour])?;
    /// assert_eq!(limit.standing(&limit.fresh(Tick::EPOCH), Tick::EPOCH).limit, 10);
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn several(bandwidths: impl IntoIterator<Item = Bandwidth>) -> Result<Self, QuotaError> {
        let bandwidths: SmallVec<[Bandwidth; 1]> =
            bandwidths.into_iter().take(Self::MAX_BANDWIDTHS + 1).collect();
        if bandwidths.is_empty() || bandwidths.len() > Self::MAX_BANDWIDTHS {
            return Err(QuotaError::Parameter {
                name: "bandwidths:",
                value: bandwidths.len().to_string(),
                want: "in one bucket are not a limit; use 1 to 8",
            });
        }
        Ok(Self { bandwidths })
    }

    /// Returns the bandwidths, in the order given.
    #[must_use]
    pub fn bandwidths(&self) -> &[Bandwidth] {
        &self.bandwidths
    }

    /// The bandwidths with their levels at a tick. A level that is missing, as only a foreign state lacks one, is fresh.
    fn settled<'a>(
        &'a self,
        state: &'a TokenBucketState,
        at: Tick,
    ) -> impl Iterator<Item = (&'a Bandwidth, Level)> + Clone {
        let elapsed = nanos(at.since(state.last));
        self.bandwidths.iter().enumerate().map(move |(index, bandwidth)| {
            let level = state.levels.get(index).map_or_else(|| bandwidth.fresh(), |level| *level);
            (bandwidth, bandwidth.settle(level, elapsed))
        })
    }

    fn capacity(&self) -> u64 {
        self.bandwidths.iter().map(Bandwidth::capacity).min().unwrap_or(0)
    }

    /// How much of the place of `receipt` those after it rely on: the amount, and the bandwidth in whose weight it is.
    ///
    /// `None` when the receipt did not wait: then all debt is of those after it. Otherwise the bandwidth it waited for
    /// longest has not been idle since, and there its distance to the last promise is exact.
    fn relied_on(&self, state: &TokenBucketState, receipt: &Receipt) -> Option<(usize, u128)> {
        let index = usize::try_from(receipt.marks().0 >> MARK_SHIFT).ok()?.checked_sub(1)?;
        let (bandwidth, level) = (self.bandwidths.get(index)?, *state.levels.get(index)?);
        let promised = receipt.marks().0 & ((1 << MARK_SHIFT) - 1);
        let since = bandwidth.debt(level).saturating_add(bandwidth.returned(level, receipt.at, state.last));
        Some((index, since.saturating_sub(promised)))
    }
}

impl Algorithm for TokenBucket {
    type State = TokenBucketState;

    fn fresh(&self, now: Tick) -> TokenBucketState {
        TokenBucketState { last: now, levels: self.bandwidths.iter().map(Bandwidth::fresh).collect() }
    }

    fn decide(&self, state: &TokenBucketState, ask: Ask) -> Transition<TokenBucketState> {
        let units = ask.cost.units();
        if units > self.capacity() {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.last);
        let charged = self
            .settled(state, at)
            .map(|(bandwidth, level)| (bandwidth, level.charge(bandwidth.amount(units))));
        let (mut wait, mut mark) = (0, 0);
        for (number, (bandwidth, level)) in (1u128..).zip(charged.clone()) {
            let debt = bandwidth.debt(level);
            let own = bandwidth.time_for(debt, level.into);
            if debt > 0 && own > wait {
                // A debt with bits in the number's place waits longer than any caller may and is denied below.
                (wait, mark) = (own, (number << MARK_SHIFT) | debt);
            }
        }
        let max_wait = u128::from(nanos(ask.max_wait));
        if wait > max_wait {
            return Transition::Denied { retry: Retry::After(span(wait - max_wait)) };
        }
        let wait = span(wait);
        let receipt = Receipt { at, act: at.after(wait), cost: ask.cost, mark: Receipt::mark(mark, 0) };
        let levels = charged.map(|(_, level)| level).collect();
        Transition::Allowed { wait, next: TokenBucketState { last: at, levels }, receipt }
    }

    fn standing(&self, state: &TokenBucketState, now: Tick) -> Standing {
        let (mut remaining, mut reset) = (u64::MAX, 0);
        for (bandwidth, level) in self.settled(state, now.max(state.last)) {
            let left = bandwidth.amount(bandwidth.capacity).saturating_sub(level.spent());
            // At most the capacity, which fits.
            remaining = remaining.min((left / u128::from(bandwidth.weight)) as u64);
            reset = reset.max(bandwidth.time_for(level.spent(), level.into));
        }
        Standing { limit: self.capacity(), remaining, debt: 0, reset_after: span(reset) }
    }

    fn refund(&self, state: &TokenBucketState, now: Tick, cost: Cost) -> TokenBucketState {
        let last = now.max(state.last);
        let levels =
            self.settled(state, last).map(|(b, level)| level.give_back(b.amount(cost.units()))).collect();
        TokenBucketState { last, levels }
    }

    /// Takes back a charge that nobody after it waits behind; any other stays charged.
    ///
    /// Giving a part back would hide the promises behind it from the level, and the next cancellation would give back what
    /// is still relied on. A period that the charge began keeps running. Where giving back has filled an interval's bucket
    /// while reservations wait, its next use begins a new period, and cancelling one of them may restore a refill less than
    /// it took.
    fn cancel(&self, state: &TokenBucketState, now: Tick, receipt: &Receipt) -> TokenBucketState {
        let last = now.max(state.last);
        if receipt.act < last {
            return state.clone();
        }
        let others_follow = self.relied_on(state, receipt).is_none_or(|(_, amount)| amount > 0);
        if others_follow && self.settled(state, last).any(|(bandwidth, level)| bandwidth.debt(level) > 0) {
            return state.clone();
        }
        let units = receipt.cost.units();
        let levels =
            self.settled(state, last).map(|(bandwidth, level)| level.give_back(bandwidth.amount(units)));
        TokenBucketState { last, levels: levels.collect() }
    }

    /// Carries a state over, bandwidth by bandwidth in their order; one without a counterpart starts fresh.
    ///
    /// A period in progress goes on when its length stays, and otherwise starts with the change.
    fn carry(&self, old: &Self, state: &TokenBucketState, now: Tick, how: Replace) -> TokenBucketState {
        let last = now.max(state.last);
        let mut olds = old.settled(state, last);
        let levels = self.bandwidths.iter().map(|bandwidth| match olds.next() {
            Some((old, level)) => bandwidth.carry(old, level, how),
            None => bandwidth.fresh(),
        });
        TokenBucketState { last, levels: levels.collect() }
    }

    /// Returns when all bandwidths are full; `None` when one of them starts with less than that.
    fn full_at(&self, state: &TokenBucketState) -> Option<Tick> {
        if self.bandwidths.iter().any(|bandwidth| bandwidth.initial < bandwidth.capacity) {
            return None;
        }
        let wait =
            self.settled(state, state.last).map(|(b, level)| b.time_for(level.spent(), level.into)).max()?;
        let full = u128::from(state.last.as_nanos()).saturating_add(wait);
        u64::try_from(full).ok().map(Tick::from_nanos)
    }
}

impl Bytes for TokenBucket {
    fn write(&self, out: &mut Writer) {
        // At most eight.
        out.u8(self.bandwidths.len() as u8);
        for bandwidth in &self.bandwidths {
            out.rate(bandwidth.rate);
            out.u64(bandwidth.capacity);
            out.u64(bandwidth.initial);
            out.u8(match bandwidth.refill {
                Refill::Continuous => 0,
                Refill::Interval => 1,
            });
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut bandwidths = SmallVec::<[Bandwidth; 1]>::new();
        let count = from.u8()?;
        if usize::from(count) > Self::MAX_BANDWIDTHS {
            return Err(DecodeError::Value { field: "bandwidths" });
        }
        for _ in 0..count {
            let (rate, capacity, initial) = (from.rate()?, from.u64()?, from.u64()?);
            let refill = match from.u8()? {
                0 => Refill::Continuous,
                1 => Refill::Interval,
                _ => return Err(DecodeError::Value { field: "refill" }),
            };
            let bandwidth =
                Bandwidth::new(rate, capacity).map_err(|_| DecodeError::Value { field: "capacity" })?;
            let bandwidth = bandwidth.refill(refill).initial(initial);
            bandwidths.push(bandwidth.map_err(|_| DecodeError::Value { field: "initial tokens" })?);
        }
        Self::several(bandwidths).map_err(|_| DecodeError::Value { field: "bandwidths" })
    }
}

impl Bytes for TokenBucketState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        // At most eight.
        out.u8(self.levels.len() as u8);
        for level in &self.levels {
            out.u128(level.spent());
            out.u64(level.into);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, count) = (from.tick()?, from.u8()?);
        if usize::from(count) > TokenBucket::MAX_BANDWIDTHS {
            return Err(DecodeError::Value { field: "bandwidths" });
        }
        let levels = (0..count).map(|_| Ok(Level::of(from.u128()?, from.u64()?)));
        Ok(Self { last, levels: levels.collect::<Result<_, DecodeError>>()? })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    fn per_second(count: u64, capacity: u64) -> Bandwidth {
        Bandwidth::new(Rate::new(count, Duration::from_secs(1)).unwrap(), capacity).unwrap()
    }

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    /// (ms, cost, denied for this many ms, remaining afterwards)
    fn timeline(limit: &TokenBucket, rows: &[(u64, u64, Option<u64>, u64)]) {
        let mut state = limit.fresh(ms(0));
        for &(at, cost, denied, remaining) in rows {
            match limit.decide(&state, Ask::allow(ms(at), Cost::new(cost).unwrap())) {
                Transition::Allowed { next, .. } => {
                    assert_eq!(denied, None, "at {at}");
                    state = next;
                }
                Transition::Denied { retry } => {
                    assert_eq!(retry.after(), denied.map(Duration::from_millis), "at {at}");
                }
            }
            assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
        }
    }

    #[test]
    fn a_continuous_timeline() {
        let rows = [
            (0, 3, None, 0),
            (0, 1, Some(100), 0),
            (150, 1, None, 0),
            (199, 1, Some(1), 0),
            (500, 3, None, 0),
        ];
        timeline(&TokenBucket::new(per_second(10, 3)), &rows);
    }

    #[test]
    fn an_interval_brings_all_at_once_and_starts_with_the_first_use() {
        let rows = [
            (700, 2, None, 1), // the period starts here, not at 0
            (1200, 1, None, 0),
            (1699, 1, Some(1), 0),
            (1700, 1, None, 2),
            (5000, 3, None, 0), // full since 2700: a new period starts
            (5999, 1, Some(1), 0),
            (5300, 1, Some(700), 0),
            (6000, 1, None, 2),
        ];
        timeline(&TokenBucket::new(per_second(3, 3).refill(Refill::Interval)), &rows);
    }

    #[test]
    fn several_bandwidths_grant_together_or_not_at_all() {
        let limit = TokenBucket::several([per_second(10, 2), per_second(1, 3)]).unwrap();
        let rows = [
            (0, 2, None, 0),
            (100, 1, None, 0),
            (200, 1, Some(800), 0),
            (1000, 1, None, 0),
            (9000, 2, None, 0),
        ];
        timeline(&limit, &rows);
    }

    #[test]
    fn an_empty_start_fills_at_the_rate() {
        let limit = TokenBucket::new(per_second(10, 3).initial(0).unwrap());
        timeline(&limit, &[(0, 1, Some(100), 0), (99, 1, Some(1), 0), (100, 1, None, 0), (900, 3, None, 0)]);
        assert_eq!(limit.full_at(&limit.fresh(ms(0))), None);
    }

    #[test]
    fn cancelling_gives_back_what_nobody_waits_behind_in_every_bandwidth() {
        let slow = Bandwidth::new(Rate::new(1, Duration::from_secs(1)).unwrap(), 1).unwrap();
        let limit = TokenBucket::several([per_second(10, 5), slow]).unwrap();
        let reserve = |state: &TokenBucketState| {
            let ask = Ask::within(ms(0), Cost::ONE, Duration::from_secs(60));
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
                panic!("within a minute")
            };
            (next, receipt)
        };
        let (a, _) = reserve(&limit.fresh(ms(0)));
        let (b, second) = reserve(&a);
        let (c, third) = reserve(&b);
        assert_eq!(limit.cancel(&c, ms(0), &third), b);
        assert_eq!(limit.cancel(&c, ms(0), &second), c, "the third counts on the second's place");
        assert_eq!(limit.cancel(&b, ms(0), &second), a);
    }

    #[test]
    fn a_changed_limit_keeps_what_was_spent() {
        let (old, new) = (TokenBucket::new(per_second(10, 100)), TokenBucket::new(per_second(5, 50)));
        let ask = Ask::allow(ms(0), Cost::new(40).unwrap());
        let Transition::Allowed { next: spent, .. } = old.decide(&old.fresh(ms(0)), ask) else { panic!() };
        let left = |how| new.standing(&new.carry(&old, &spent, ms(0), how), ms(0)).remaining;
        assert_eq!([Replace::AsIs, Replace::Proportional, Replace::Reset].map(left), [10, 30, 50]);
    }
}
