//! A GCRA state in one 64-bit word.
//!
//! The word is the arrival time alone, in the same scaled time as the general form, but counted from an origin of its
//! own. So 64 bits last for 146 years of a limit whose unit takes whole nanoseconds, and for `2⁶² / scale`
//! nanoseconds of any other. Nothing is rounded, so a word and a [`GcraState`] of the same history give the same
//! answers as long as the word can be used. A word holds neither the tick of the last change (ticks must not step
//! back), nor promises that the arrival time no longer shows (see [`GcraWord::narrow`]).

use core::hint::cold_path;
use core::time::Duration;

use super::{Gcra, GcraReport, GcraState, whole};
use crate::rate::schedule::{Pace, Schedule, arrival};
use crate::time::Tick;

/// The largest scaled time. A full burst is less than this, and a word with debts less than three times this, which
/// fits 64 bits.
const LIMIT: u64 = 1 << 62;

/// The shortest time for which a word form is worth making, in nanoseconds: an hour. Then a new origin is taken.
const SHORTEST: u64 = 3_600_000_000_000;

/// A [`Gcra`] whose states are words. Six numbers, `Copy`; every call takes a few instructions and never allocates.
///
/// The word 0 is a limit that was never used, and so is full.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::{rate::{Gcra, GcraWord}, Rate, Retry, Tick};
///
/// let limit = Gcra::new(Rate::new(10, Duration::from_secs(1))?, 2)?;
/// let start = Tick::from_secs(1_700_000_000);
/// let word = GcraWord::new(&limit, start).expect("a unit takes 100 ms, in whole nanoseconds");
/// let now = word.scaled(start).expect("the origin itself");
/// let spent = word.take(0, now, 1).and_then(|one| word.take(one, now, 1)).expect("a burst of two");
/// assert_eq!(word.take(spent, now, 1), None);
/// assert_eq!(word.report(spent, now).retry(1), Retry::After(Duration::from_millis(100)));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcraWord {
    /// Scaled time that one unit takes; never zero. The type does not say so, because a reader of atomics would have
    /// to check it.
    unit: u64,
    full: u64,
    /// Scaled time that passes in a nanosecond; never zero.
    scale: u64,
    /// The tick at which scaled time is 0, in nanoseconds.
    origin: u64,
    /// How many nanoseconds from the origin a word can represent.
    lasts: u64,
    burst: u64,
}

impl GcraWord {
    /// A number that is not a word and is larger than every word: a marker for users that keep words in atomics.
    /// [`GcraWord::take`] refuses any units on it.
    pub const NONE: u64 = 3 * LIMIT;

    /// Makes the word form of a limit, counted from `origin`. `None`: a word would not last an hour, or the burst
    /// takes 2⁶² or more of scaled time.
    #[must_use]
    pub fn new(limit: &Gcra, origin: Tick) -> Option<Self> {
        let Pace { scale, unit, at_once: burst } = limit.pace;
        let full = unit.checked_mul(burst).filter(|full| *full < LIMIT)?;
        let origin = origin.as_nanos();
        let lasts = LIMIT / scale;
        (lasts >= SHORTEST).then_some(Self { unit, full, scale, origin, lasts, burst })
    }

    /// Makes the form from the numbers that [`GcraWord::parts`] returned. With other numbers its answers mean
    /// nothing, but taking units does not panic: a reader may use numbers first and check afterwards whether they
    /// belong together.
    #[must_use]
    #[inline]
    pub const fn from_parts([unit, full, scale, origin, lasts, burst]: [u64; 6]) -> Self {
        Self { unit, full, scale, origin, lasts, burst }
    }

    /// Returns the numbers of the form, to be kept in atomics.
    #[must_use]
    pub const fn parts(&self) -> [u64; 6] {
        [self.unit, self.full, self.scale, self.origin, self.lasts, self.burst]
    }

    /// Returns the tick at which scaled time is 0.
    #[must_use]
    pub const fn origin(&self) -> Tick {
        Tick::from_nanos(self.origin)
    }

    /// Returns the burst.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns the scaled time at a tick: 0 up to the origin, `None` after the last tick that a word can represent.
    #[must_use]
    #[inline]
    pub fn scaled(&self, tick: Tick) -> Option<u64> {
        let (elapsed, early) = tick.as_nanos().overflowing_sub(self.origin);
        if early {
            // Marked as cold, so that the usual case does not select between two numbers.
            cold_path();
            return Some(0);
        }
        (elapsed <= self.lasts).then_some(elapsed.wrapping_mul(self.scale))
    }

    /// Spends `units` at once. Returns the next word; `None`: they cannot be spent now.
    ///
    /// `now` comes from [`GcraWord::scaled`]. Units above the burst are always refused.
    #[must_use]
    #[inline]
    pub fn take(&self, word: u64, now: u64, units: u64) -> Option<u64> {
        // One unit fits every burst.
        if units > 1 && units > self.burst {
            return None;
        }
        // A word is below 2⁶³ + 2⁶², so a burst can be added without overflow.
        let tat = arrival(word, now, self.time_of(units), u64::wrapping_add);
        (tat <= now.wrapping_add(self.full)).then_some(tat)
    }

    /// Returns the report of a word at one moment, to be computed when it is read.
    #[must_use]
    #[inline]
    pub const fn report(&self, word: u64, now: u64) -> GcraReport {
        let Self { unit, scale, burst, .. } = *self;
        GcraReport { unit, scale, burst, spent: word.saturating_sub(now) }
    }

    #[inline]
    const fn time_of(&self, units: u64) -> u64 {
        units.wrapping_mul(self.unit)
    }

    /// Returns how many units could be spent at once.
    #[must_use]
    #[inline]
    pub fn remaining(&self, word: u64, now: u64) -> u64 {
        whole(self.full.saturating_sub(word.saturating_sub(now)), self.unit)
    }

    /// Returns how many whole units are spent and have not returned yet.
    #[must_use]
    #[inline]
    pub fn outstanding(&self, word: u64, now: u64) -> u64 {
        whole(word.saturating_sub(now), self.unit)
    }

    /// Gives `units` back, up to a full limit.
    #[must_use]
    #[inline]
    pub const fn give_back(&self, word: u64, units: u64) -> u64 {
        word.saturating_sub(units.saturating_mul(self.unit))
    }

    /// Returns the spent share of the limit, in units of 2⁻³²; above 2³² for debts.
    #[must_use]
    pub fn spent_share(&self, word: u64, now: u64) -> u64 {
        let share = (u128::from(word.saturating_sub(now)) << 32) / u128::from(self.full);
        // `full` is at least 1 and a word below 2^64. So this saturates only for debts that no store meets.
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Says whether a word represents a full limit, which is equivalent to no word at all.
    #[must_use]
    #[inline]
    pub const fn is_full(&self, word: u64, now: u64) -> bool {
        word <= now
    }

    /// Says whether not even one unit is left.
    #[must_use]
    #[inline]
    pub fn is_used_up(&self, word: u64, now: u64) -> bool {
        word.saturating_sub(now) > self.full.wrapping_sub(self.unit)
    }

    /// Returns the state that a word represents. `now` must not be before the word's last change.
    #[must_use]
    pub fn widen(&self, word: u64, now: Tick) -> GcraState {
        GcraState(Schedule::new(self.widened(word), now))
    }

    /// Returns the word of a state at `now`. `None`: the state needs the general form, because charges were settled
    /// out of order or the limit was changed, and receipts from before may still be settled; or `now` or a debt is
    /// beyond the range of a word.
    #[must_use]
    pub fn narrow(&self, state: &GcraState, now: Tick) -> Option<u64> {
        let GcraState(line) = state;
        let now = now.max(line.last);
        if line.book.as_ref().is_some_and(|book| !book.has_passed(now)) || self.scaled(now).is_none() {
            return None;
        }
        // An arrival time before the origin lies in the past, so the limit is full.
        let word = u64::try_from(line.tat().saturating_sub(self.origin_scaled())).ok()?;
        // Below `NONE`, because a full burst is below `LIMIT`.
        (word <= LIMIT * 2 + self.full).then_some(word)
    }

    /// Returns the mark of a receipt for units spent at once; `word` is the word after they were taken.
    #[must_use]
    #[inline]
    pub fn mark(&self, word: u64) -> [u64; 4] {
        Pace { scale: self.scale, unit: self.unit, at_once: self.burst }.mark(self.widened(word))
    }

    #[inline]
    fn widened(&self, word: u64) -> u128 {
        if word == 0 { 0 } else { self.origin_scaled() + u128::from(word) }
    }

    fn origin_scaled(&self) -> u128 {
        u128::from(self.origin) * u128::from(self.scale)
    }

    /// Returns how long the word form lasts from its origin.
    #[must_use]
    pub const fn lasts(&self) -> Duration {
        Duration::from_nanos(self.lasts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Algorithm;
    use crate::decision::{Ask, Cost, Receipt, Transition};
    use crate::time::Rate;

    fn limit(count: u64, period: u64, burst: u64) -> Gcra {
        Gcra::new(Rate::new(count, Duration::from_nanos(period)).unwrap(), burst).unwrap()
    }

    proptest! {
        /// The word and the general form give the same answer to each of the same requests.
        #[test]
        fn a_word_answers_like_the_general_form(
            count in prop_oneof![1u64..2000, Just(999_983), Just(1_000_000)],
            period in prop_oneof![Just(1_000_000_000u64), Just(60_000_000_000), 1u64..1_000_000_000_000],
            burst in 1u64..2000,
            origin in 0u64..2_000_000_000_000_000_000,
            asks in prop::collection::vec((0u64..3_000_000_000, 1u64..5, 0u8..10), 1..60),
        ) {
            let general = limit(count, period, burst);
            let origin = Tick::from_nanos(origin);
            let Some(form) = GcraWord::new(&general, origin) else { return Ok(()) };
            let (mut tick, mut word, mut state) = (origin, 0, general.fresh(origin));
            for (pause, units, kind) in asks {
                tick = tick.after(Duration::from_nanos(if kind < 3 { 0 } else { pause >> (3 * (kind - 3)) }));
                let Some(now) = form.scaled(tick) else { break };
                let cost = Cost::new(units).unwrap();
                let transition = general.decide(&state, Ask::allow(tick, cost));
                match (transition, form.take(word, now, units)) {
                    (Transition::Allowed { next, receipt, .. }, Some(taken)) => {
                        prop_assert_eq!(receipt.mark, form.mark(taken));
                        (state, word) = (next, taken);
                    }
                    (Transition::Denied { retry }, None) => {
                        prop_assert_eq!(retry, form.report(word, now).retry(units));
                    }
                    (general, narrow) => prop_assert!(false, "{:?} against {:?}", general, narrow),
                }
                prop_assert_eq!(general.standing(&state, tick), form.report(word, now).standing());
                prop_assert_eq!(form.remaining(word, now), form.report(word, now).standing().remaining);
                prop_assert_eq!(form.narrow(&state, tick), Some(word));
                prop_assert_eq!(form.is_used_up(word, now), form.remaining(word, now) == 0);
                let widened = form.widen(word, tick);
                prop_assert_eq!(general.standing(&widened, tick), general.standing(&state, tick));
                prop_assert_eq!(general.full_at(&widened), general.full_at(&state));
            }
        }
    }

    #[test]
    fn limits_that_a_word_cannot_follow_for_an_hour_are_left_to_the_general_form() {
        let origin = Tick::from_secs(1);
        assert!(GcraWord::new(&limit(999_999_937, 1_000_000_000, 1000), origin).is_none());
        assert!(GcraWord::new(&limit(1, 1 << 40, 1 << 40), origin).is_none(), "a full limit is too long");
        let odd = GcraWord::new(&limit(999_983, 1_000_000_000, 1000), origin).unwrap();
        assert!(odd.lasts() > Duration::from_secs(3600));
        assert_eq!(odd.scaled(origin.after(odd.lasts() + Duration::from_secs(1))), None);
    }

    #[test]
    fn no_word_refuses_whatever_is_asked_of_it() {
        let origin = Tick::from_secs(1);
        for limit in [limit(1, 1, 1), limit(1, (1 << 62) - 1, 1), limit(1, 1 << 30, (1 << 32) - 1)] {
            let form = GcraWord::new(&limit, origin).unwrap();
            let last = form.scaled(origin.after(form.lasts())).unwrap();
            for (now, units) in [(0, 1), (last, 1), (0, form.burst()), (last, form.burst())] {
                assert_eq!(form.take(GcraWord::NONE, now, units), None, "{form:?}");
            }
        }
    }

    #[test]
    fn what_a_word_cannot_hold_is_not_narrowed() {
        let limit = limit(1, 1_000_000_000, 4);
        let origin = Tick::from_secs(100);
        let form = GcraWord::new(&limit, origin).unwrap();
        let charge = |state: &GcraState| {
            let ask = Ask::allow(origin, Cost::new(2).unwrap());
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!("four") };
            (next, receipt)
        };
        let (one, first) = charge(&limit.fresh(origin));
        let (two, second) = charge(&one);
        let last = limit.settle(&two, origin, &second, 1);
        assert_eq!(form.narrow(&last, origin), form.take(0, 0, 3), "nobody stands behind it");
        let middle = limit.settle(&two, origin, &first, 0);
        assert_eq!(form.narrow(&middle, origin), None, "the second may still be settled");
        assert_eq!(
            form.narrow(&middle, Tick::from_secs(104)),
            form.take(0, 0, 2),
            "by then it gives nothing"
        );
    }

    #[test]
    fn a_receipt_of_a_word_settles_the_general_form() {
        let limit = limit(3, 1_000_000_000, 4);
        let origin = Tick::from_secs(100);
        let form = GcraWord::new(&limit, origin).unwrap();
        let (one, three) = (form.take(0, 0, 1).unwrap(), form.take(0, 0, 3).unwrap());
        let cost = Cost::new(2).unwrap();
        let receipt = Receipt { at: origin, act: origin, cost, mark: form.mark(three) };
        let settled = limit.settle(&form.widen(three, origin), origin, &receipt, 0);
        assert_eq!(form.narrow(&settled, origin), Some(one));
    }
}
