//! The generic cell rate algorithm: a token bucket kept as a schedule.
//!
//! One number says everything: the *theoretical arrival time* (TAT), the tick at which the limit would be full again if
//! nothing more were asked. Against counting tokens it has the smallest state and gives `retry_after` by a subtraction.
//!
//! With a rate of `c` units per `p` nanoseconds in lowest terms, one unit takes `p/c` ns, which is rarely whole. The TAT is
//! therefore kept in units of `1/c` ns: a unit then takes exactly `p`, a nanosecond exactly `c`, and nothing is ever rounded
//! until a wait leaves the door.

mod word;

pub use word::{GcraReport, GcraWord};

use core::time::Duration;

use super::Algorithm;
use super::exact::mul_div_ceil;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Cost, Receipt, Replace, Retry, Standing, Transition};
use crate::quota::{QuotaError, burst_in_range};
use crate::time::{Rate, Tick, nanos, span};

/// A rate and a burst, decided by the generic cell rate algorithm.
///
/// # Source
/// ITU-T Recommendation I.371, GCRA in its virtual scheduling form. Burst here counts the first unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    rate: Rate,
    burst: u64,
    /// Units per `unit` nanoseconds, in lowest terms: how much scaled time passes in a nanosecond.
    scale: u64,
    /// How much scaled time one unit takes.
    unit: u64,
}

/// What [`Gcra`] remembers of a key, 40 bytes in the library's memory: one number, the tick it was last changed at, and
/// a promise that only cancelling looks at.
// Packed to eight bytes: two numbers of 128 bits would else pad every state of every algorithm to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub struct GcraState {
    /// Theoretical arrival time in units of `1/c` ns, `c` being the reduced count of the rate.
    tat: u128,
    last: Tick,
    /// A promise that the arrival time no longer shows, because units before it were given back: somebody acts as late as
    /// this, in the same units.
    promised: u128,
}

/// The law, over scaled time of 64 bits in a word and of 128 in the general form: what a charge makes of the arrival time. It may
/// act as soon as that is no more than the whole burst away.
#[inline]
fn arrival<T: Ord>(tat: T, now: T, charge: T, plus: impl FnOnce(T, T) -> T) -> T {
    plus(tat.max(now), charge)
}

impl Gcra {
    /// Makes a limit of `rate` that grants at most `burst` units at once, from 1 to [`Rate::MAX_COUNT`].
    ///
    /// # Errors
    /// [`QuotaError::Burst`] when the burst is out of range.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::{rate::Gcra, Algorithm, Ask, Cost, Rate, Retry, Tick, Transition};
    ///
    /// let limit = Gcra::new(Rate::new(10, Duration::from_secs(1))?, 1)?;
    /// let now = Tick::from_secs(1);
    /// let Transition::Allowed { next, .. } = limit.decide(&limit.fresh(now), Ask::allow(now, Cost::ONE)) else { panic!() };
    /// let again = limit.decide(&next, Ask::allow(now, Cost::ONE));
    /// assert_eq!(again, Transition::Denied { retry: Retry::After(Duration::from_millis(100)) });
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    pub fn new(rate: Rate, burst: u64) -> Result<Self, QuotaError> {
        let burst = burst_in_range(burst)?;
        let (scale, unit) = rate.reduced();
        Ok(Self { rate, burst, scale, unit })
    }

    /// Returns the rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns the burst.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// Scaled time of a tick. Below 2^124, since a scale is at most 2^60.
    fn scaled(&self, tick: Tick) -> u128 {
        u128::from(tick.as_nanos()) * u128::from(self.scale)
    }

    /// Scaled time that `units` take. Below 2^126, since a unit is at most 2^62.
    fn time_of(&self, units: u64) -> u128 {
        u128::from(units) * u128::from(self.unit)
    }

    /// Scaled time until the limit is full, at a tick not before the last change.
    fn spent(&self, state: &GcraState, now: Tick) -> u128 {
        state.tat.saturating_sub(self.scaled(now))
    }

    /// Scaled time of the latest promise made: whoever reserved acts by then.
    fn promised(&self, state: &GcraState) -> u128 {
        let shown = state.tat.saturating_sub(self.time_of(self.burst));
        shown.max(state.promised).max(self.scaled(state.last))
    }

    /// Gives `cost` back of a charge that is as good as gone at `until`, parts of a unit included: no more than time returns from `now`
    /// until then. Returns also by how much sooner the limit is full. `until` may be rounded up to the nanosecond.
    #[must_use]
    pub fn refund_until(
        &self,
        state: &GcraState,
        now: Tick,
        cost: Cost,
        until: Tick,
    ) -> (GcraState, Duration) {
        let left = self.scaled(until).saturating_sub(self.scaled(now.max(state.last)));
        // What rounding up may have added.
        let left = left.saturating_sub(u128::from(self.scale - 1));
        let restored = self.time_of(cost.units()).min(left);
        (self.give_back(state, now, restored), span(restored.div_ceil(u128::from(self.scale))))
    }

    /// Gives units back that stand before promises which stay.
    fn give_back(&self, state: &GcraState, now: Tick, restored: u128) -> GcraState {
        let last = now.max(state.last);
        let mut promised = state.promised;
        if restored > 0 {
            promised = self.promised(state);
        }
        GcraState { tat: state.tat.saturating_sub(restored), last, promised }
    }
}

impl Algorithm for Gcra {
    type State = GcraState;

    fn fresh(&self, now: Tick) -> GcraState {
        GcraState { tat: 0, last: now, promised: 0 }
    }

    fn decide(&self, state: &GcraState, ask: Ask) -> Transition<GcraState> {
        let units = ask.cost.units();
        if units > self.burst {
            return Transition::NEVER;
        }
        let at = ask.now.max(state.last);
        let now = self.scaled(at);
        let tat = arrival(state.tat, now, self.time_of(units), u128::saturating_add);
        let act = tat.saturating_sub(self.time_of(self.burst)).max(now);
        if act == now {
            let receipt = Receipt { at, act: at, cost: ask.cost, mark: Receipt::mark(now, 0) };
            let next = GcraState { tat, last: at, promised: state.promised };
            return Transition::Allowed { wait: Duration::ZERO, next, receipt };
        }
        let wait = (act - now).div_ceil(u128::from(self.scale));
        let max_wait = u128::from(nanos(ask.max_wait));
        if wait > max_wait {
            return Transition::Denied { retry: Retry::After(span(wait - max_wait)) };
        }
        let wait = span(wait);
        let receipt = Receipt { at, act: at.after(wait), cost: ask.cost, mark: Receipt::mark(act, 0) };
        Transition::Allowed { wait, next: GcraState { tat, last: at, promised: state.promised }, receipt }
    }

    fn standing(&self, state: &GcraState, now: Tick) -> Standing {
        let spent = self.spent(state, now.max(state.last));
        let (full, unit) = (self.time_of(self.burst), u128::from(self.unit));
        let (left, debt) = (full.saturating_sub(spent) / unit, spent.saturating_sub(full).div_ceil(unit));
        Standing {
            limit: self.burst,
            // At most the burst, which fits.
            remaining: left as u64,
            debt: u64::try_from(debt).unwrap_or(u64::MAX),
            reset_after: span(spent.div_ceil(u128::from(self.scale))),
        }
    }

    fn refund(&self, state: &GcraState, now: Tick, cost: Cost) -> GcraState {
        self.give_back(state, now, self.time_of(cost.units()))
    }

    fn cancel(&self, state: &GcraState, now: Tick, receipt: &Receipt) -> GcraState {
        let last = now.max(state.last);
        if receipt.act < last {
            return *state;
        }
        // Whoever reserved after the receipt counts on all that returns until then. A mark may lie within the nanosecond
        // before its act, which is by then nobody's.
        let relied_on = self.promised(state).saturating_sub(receipt.marks().0.max(self.scaled(last)));
        let restored = self.time_of(receipt.cost.units()).saturating_sub(relied_on);
        if relied_on == 0 {
            // The last in line: the arrival time without it shows the promise before.
            return GcraState { tat: state.tat.saturating_sub(restored), last, promised: state.promised };
        }
        self.give_back(state, now, restored)
    }

    fn carry(&self, old: &Self, state: &GcraState, now: Tick, how: Replace) -> GcraState {
        let last = now.max(state.last);
        let spent = old.spent(state, last);
        // Within the limit and beyond it: what a reservation has promised stays promised whatever the new limit is.
        let full = old.time_of(old.burst);
        let (within, debt) = (spent.min(full), spent.saturating_sub(full));
        let convert = |scaled| mul_div_ceil(scaled, u128::from(self.unit), u128::from(old.unit));
        let within = match how {
            Replace::AsIs => convert(within).min(self.time_of(self.burst)),
            Replace::Proportional => mul_div_ceil(within, self.time_of(self.burst), full),
            Replace::Reset => return self.fresh(last),
        };
        let tat = self.scaled(last).saturating_add(within).saturating_add(convert(debt));
        // The tick of a promise does not depend on the rate; rounded up, so that cancelling restores too little, if anything.
        let promised = state.promised.div_ceil(u128::from(old.scale)).min(u128::from(u64::MAX));
        GcraState { tat, last, promised: promised * u128::from(self.scale) }
    }

    fn full_at(&self, state: &GcraState) -> Option<Tick> {
        let full = state.tat.max(state.promised).div_ceil(u128::from(self.scale));
        u64::try_from(full).ok().map(Tick::from_nanos)
    }
}

impl Bytes for Gcra {
    fn write(&self, out: &mut Writer) {
        out.rate(self.rate);
        out.u64(self.burst);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (rate, burst) = (from.rate()?, from.u64()?);
        Self::new(rate, burst).map_err(|_| DecodeError::Value { field: "burst" })
    }
}

impl Bytes for GcraState {
    fn write(&self, out: &mut Writer) {
        out.tick(self.last);
        out.u128(self.tat);
        out.u128(self.promised);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { last: from.tick()?, tat: from.u128()?, promised: from.u128()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(count: u64, burst: u64) -> Gcra {
        Gcra::new(Rate::new(count, Duration::from_secs(1)).unwrap(), burst).unwrap()
    }

    fn ms(ms: u64) -> Tick {
        Tick::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_timeline() {
        let limit = per_second(10, 3);
        let mut state = limit.fresh(ms(0));
        // (ms, cost, allowed, retry after ms, remaining afterwards)
        for (at, cost, expected, retry, remaining) in [
            (0, 1, true, 0, 2),
            (0, 2, true, 0, 0),
            (0, 1, false, 100, 0),
            (99, 1, false, 1, 0),
            (100, 1, true, 0, 0),
            (400, 3, true, 0, 0),
            (400, 2, false, 200, 0),
            (100, 1, false, 100, 0), // a step back stands still at 400
        ] {
            let verdict = limit.decide(&state, Ask::allow(ms(at), Cost::new(cost).unwrap()));
            match verdict {
                Transition::Allowed { next, .. } => {
                    assert!(expected, "at {at}");
                    state = next;
                }
                Transition::Denied { retry: told } => {
                    assert!(!expected, "at {at}");
                    assert_eq!(told.after(), Some(Duration::from_millis(retry)), "at {at}");
                }
            }
            assert_eq!(limit.standing(&state, ms(at)).remaining, remaining, "at {at}");
        }
    }

    #[test]
    fn cancelling_restores_what_nobody_relied_on() {
        let limit = per_second(1, 1);
        let reserve = |state: &GcraState| {
            let ask = Ask::within(ms(0), Cost::ONE, Duration::from_secs(60));
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else {
                panic!("within a minute")
            };
            (next, receipt)
        };
        let (a, _) = reserve(&limit.fresh(ms(0)));
        let (b, second) = reserve(&a);
        let (c, third) = reserve(&b);
        assert_eq!(limit.cancel(&c, ms(0), &third), b, "the last one is undone entirely");
        assert_eq!(limit.cancel(&c, ms(0), &second), c, "the third still counts on the second's place");
        assert_eq!(limit.cancel(&b, ms(0), &second), a);
    }

    /// Four wait behind one spent unit, at 4 per second with a burst of 3, for 3, 3, 1 and 1 units. Three of them go away:
    /// the last; the second, on one unit of which the third relies; the first. Giving back of the second lowers the arrival
    /// time below what the third was promised. When the promise was read off it all the same, the first gave back what the
    /// third still counted on, and four units acted at one tick.
    #[test]
    fn a_promise_outlives_the_cancellation_of_what_came_before_it() {
        let limit = per_second(4, 3);
        let mut state = limit.fresh(ms(0));
        let reserve = |state: &mut GcraState, units| {
            let ask = Ask::within(ms(0), Cost::new(units).unwrap(), Duration::MAX);
            let Transition::Allowed { next, receipt, .. } = limit.decide(state, ask) else { panic!() };
            *state = next;
            receipt
        };
        let [_, first, second, third, fourth] = [1, 3, 3, 1, 1].map(|units| reserve(&mut state, units));
        assert_eq!(third.act, ms(1250));
        for gone in [fourth, second, first] {
            state = limit.cancel(&state, ms(0), &gone);
        }
        assert_eq!(
            reserve(&mut state, 3).act,
            ms(1500),
            "one unit acts at 1250 ms, and two are back by then"
        );
    }

    #[test]
    fn a_changed_limit_keeps_what_was_spent() {
        let (old, new) = (per_second(10, 100), per_second(5, 50));
        let ask = Ask::allow(ms(0), Cost::new(40).unwrap());
        let Transition::Allowed { next: spent, .. } = old.decide(&old.fresh(ms(0)), ask) else { panic!() };
        let left = |how| new.standing(&new.carry(&old, &spent, ms(0), how), ms(0)).remaining;
        assert_eq!(left(Replace::AsIs), 10);
        assert_eq!(left(Replace::Proportional), 30);
        assert_eq!(left(Replace::Reset), 50);
    }
}
