//! The token bucket: capacity that is spent at once and returns at one rate, or at several rates together.
//!
//! For one bandwidth this is the same law as [`Gcra`](super::Gcra). Beyond a schedule of one number it has:
//! * **Several bandwidths, settled together.** A cost is taken from all of them or from none. The wait is the longest
//!   of theirs.
//! * **Refill at once**, by periods that start with the first use of a full bucket ([`Refill::Interval`]), or by the
//!   clock ([`Refill::Aligned`]). Aligned, a charge moves no end, so settling needs none of the cases below. A full
//!   bucket is the same as none, as long as the clock is not set: a level that is kept also keeps when the last refill
//!   was due, so that no end comes twice.
//! * **A start below full**, so that a fleet that restarts does not get its burst twice.
//!
//! The state counts tokens *spent*, since a reservation may spend more than the capacity, which tokens left could not
//! express without a sign. For a continuous refill of `c` units per `p` ns in lowest terms, the spent amount is kept
//! in `1/p` of a unit: a unit weighs exactly `p`, a nanosecond returns exactly `c`, and nothing is rounded before a
//! wait is returned.
//!
//! With several bandwidths each keeps its own schedule. So work that one bandwidth holds back can reach a faster one
//! in a bunch when it acts. No bandwidth ever grants more than its own account allows.
//!
//! # Settling
//! Each bandwidth gives back by the law of [`schedule`](super::schedule), with one book for all. A refill at
//! intervals adds two cases, because a charge may have started a period, or kept one running that would otherwise
//! have started later:
//! * Undoing the charge that started the running period restarts it, if others have been charged since. Only a charge
//!   older than all charges that still stand restarts it, so nobody waits for ever. If others wait for the end of the
//!   period, nothing comes back.
//! * If a period has ended since the charge, and others were charged since, one refill less comes back. If less than
//!   one refill would come back, the others may get a refill that would have come later without the charge, by less
//!   than a period. This is the only case in which settling leaves a limit fuller.

mod bandwidth;
mod state;

use core::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Algorithm, Storable};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
use crate::error::QuotaError;
use crate::time::{Tick, Wall, WallAhead, nanos, span};
use state::{Level, Levels, MOST_BANDWIDTHS};

pub use bandwidth::{Bandwidth, Refill};
pub use state::TokenBucketState;

/// One or several bandwidths, decided together: either all of them grant a cost, or none does.
///
/// # Source
/// The meter of RFC 2697 and RFC 4115 for a single bandwidth. Settling several as one, and the refill at once, are
/// known from Bucket4j.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    bandwidths: SmallVec<[Bandwidth; 1]>,
    /// Read for aligned refills only.
    wall: Wall,
}

impl TokenBucket {
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
        Self { bandwidths: SmallVec::from_buf([bandwidth]), wall: Wall::default() }
    }

    /// Makes a bucket of 1 to 8 bandwidths. With more than one, an allowed check allocates its next state.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when there are none or too many.
    pub fn several(bandwidths: impl IntoIterator<Item = Bandwidth>) -> Result<Self, QuotaError> {
        let bandwidths: SmallVec<[Bandwidth; 1]> = bandwidths.into_iter().take(MOST_BANDWIDTHS + 1).collect();
        if bandwidths.is_empty() || bandwidths.len() > MOST_BANDWIDTHS {
            return Err(QuotaError::Parameter {
                name: "bandwidths:",
                value: bandwidths.len().to_string(),
                want: "in one bucket are not a limit; use 1 to 8",
            });
        }
        Ok(Self { bandwidths, wall: Wall::default() })
    }

    pub(crate) fn follow_wall(&self, wall: &WallAhead) {
        self.wall.follow(wall);
    }

    /// Returns the bandwidths, in the order given.
    #[must_use]
    pub fn bandwidths(&self) -> &[Bandwidth] {
        &self.bandwidths
    }

    /// Returns the state of a bucket with one bandwidth, last changed at `last`: the amount spent, and with a refill at
    /// once the nanoseconds of the running period that have passed.
    pub(crate) fn owing(last: Tick, spent: u128, into: u64) -> TokenBucketState {
        TokenBucketState::new(last, &[Level::of(spent, into)], 0, None)
    }

    /// Returns the levels at a tick. A missing level counts as fresh; that happens only in a state decoded from foreign bytes.
    fn levels(&self, state: &TokenBucketState, at: Tick) -> Levels {
        let elapsed = nanos(at.since(state.last));
        let level = |(index, bandwidth): (usize, &Bandwidth)| {
            let level = state.level(index).unwrap_or_else(|| bandwidth.fresh());
            bandwidth.advance(level, state.last, elapsed, &self.wall)
        };
        self.bandwidths.iter().enumerate().map(level).collect()
    }

    fn with<'a>(&'a self, levels: &'a Levels) -> impl Iterator<Item = (&'a Bandwidth, Level)> {
        self.bandwidths.iter().zip(levels.iter().copied())
    }

    fn capacity(&self) -> u64 {
        self.bandwidths.iter().map(Bandwidth::capacity).min().unwrap_or(0)
    }

    /// Returns the bandwidth if there is only one: its level tells the position of a charge. With several bandwidths,
    /// positions count units.
    fn single(&self) -> Option<&Bandwidth> {
        match self.bandwidths.as_slice() {
            [bandwidth] => Some(bandwidth),
            _ => None,
        }
    }

    /// Returns where the line of charges would end if nothing had been given back from its middle.
    fn bare_end(&self, levels: &Levels, at: Tick, charged: u128) -> u128 {
        match (self.single(), levels.as_slice()) {
            (Some(one), [level]) => one.base(*level, at, &self.wall).saturating_add(level.spent()),
            _ => charged,
        }
    }

    /// Decides for one bandwidth without a book: nearly every check of nearly every bucket.
    fn decide_alone(
        &self,
        one: &Bandwidth,
        state: &TokenBucketState,
        ask: Ask,
    ) -> Transition<TokenBucketState> {
        let at = ask.now.max(state.last);
        let before = one.advance(state.first, state.last, nanos(at.since(state.last)), &self.wall);
        let (level, wait) = one.charge(before, ask.cost.units(), at, &self.wall);
        let wait = match granted(wait, ask) {
            Ok(wait) => wait,
            Err(refused) => return refused,
        };
        // With an even refill, the position tells when the charge runs out, so no division is needed here.
        let runs_out = match one.refill {
            Refill::Continuous => u128::from(one.gain),
            Refill::Interval | Refill::Aligned => {
                let arrival = at.after(span(one.time_for(level.spent(), level, at, &self.wall)));
                by_tick(arrival, u64::from(before.spent() == 0))
            }
        };
        let mark = Receipt::mark(runs_out, one.base(level, at, &self.wall).saturating_add(level.spent()));
        let next = TokenBucketState { last: at, first: level, more: None };
        Transition::Allowed { wait, next, receipt: Receipt { at, act: at.after(wait), cost: ask.cost, mark } }
    }

    /// Decides for several bandwidths, or with a book. Not inlined, so that the usual path stays small.
    #[inline(never)]
    fn decide_together(&self, state: &TokenBucketState, ask: Ask) -> Transition<TokenBucketState> {
        let units = ask.cost.units();
        let at = ask.now.max(state.last);
        let mut levels = self.levels(state, at);
        let (mut wait, mut began, mut rested) = (0, 0u64, true);
        for (index, (bandwidth, level)) in self.bandwidths.iter().zip(&mut levels).enumerate() {
            if level.spent() == 0 {
                began |= 1 << index;
            } else {
                rested = false;
            }
            let (charged, own) = bandwidth.charge(*level, units, at, &self.wall);
            *level = charged;
            wait = wait.max(own);
        }
        let wait = match granted(wait, ask) {
            Ok(wait) => wait,
            Err(refused) => return refused,
        };
        let act = at.after(wait);
        let charged = state.charged().saturating_add(u128::from(units));
        let end = self.bare_end(&levels, at, charged);
        let arrival = self.full(&levels, at);
        let (next, given) = match state.book().filter(|book| !book.has_passed(at)) {
            None => (TokenBucketState::new(at, &levels, charged, None), 0),
            Some(book) => {
                let mut book = book.clone();
                if rested {
                    book.clear_holes();
                }
                book.expires = book.expires.max(arrival);
                if act > at {
                    book.promise = book.promise.max(act);
                }
                book.bound(at);
                let given = book.given;
                (self.state(at, &levels, charged, book, false), given)
            }
        };
        let mark = Receipt::mark(by_tick(arrival, began), end.wrapping_add(given));
        Transition::Allowed { wait, next, receipt: Receipt { at, act, cost: ask.cost, mark } }
    }

    /// Returns when all bandwidths are full again.
    fn full(&self, levels: &Levels, at: Tick) -> Tick {
        let waits = self
            .with(levels)
            .map(|(bandwidth, level)| bandwidth.time_for(level.spent(), level, at, &self.wall));
        at.after(span(waits.max().unwrap_or(0)))
    }

    /// Returns when the last charge acts, as far as the levels show it.
    fn shown(&self, levels: &Levels, at: Tick) -> Tick {
        let waits = self.with(levels).map(|(bandwidth, level)| match bandwidth.debt(level) {
            0 => 0,
            debt => bandwidth.time_for(debt, level, at, &self.wall),
        });
        at.after(span(waits.max().unwrap_or(0)))
    }
}

/// Returns the first half of a mark: the tick at which the charge runs out, and a bit for each period that it began.
fn by_tick(arrival: Tick, began: u64) -> u128 {
    (u128::from(arrival.as_nanos()) << 64) | u128::from(began)
}

/// Returns the wait, given in ns, if the request accepts it; otherwise the refusal.
fn granted(wait: u128, ask: Ask) -> Result<Duration, Transition<TokenBucketState>> {
    let max_wait = u128::from(nanos(ask.max_wait));
    if wait > max_wait {
        return Err(Transition::Denied { retry: Retry::After(span(wait - max_wait)) });
    }
    Ok(span(wait))
}

impl Storable for TokenBucket {
    type State = TokenBucketState;

    fn last_change(&self, state: &TokenBucketState) -> Option<Tick> {
        Some(state.last)
    }

    fn set_back(&self, state: &TokenBucketState, to: Tick) -> TokenBucketState {
        self.rewound(state, to)
    }

    fn shortened(&self, state: &TokenBucketState) -> Option<TokenBucketState> {
        state.shortened()
    }

    fn largest(&self) -> usize {
        TokenBucketState::largest(self.bandwidths.len())
    }
}

impl Algorithm for TokenBucket {
    type State = TokenBucketState;

    fn fresh(&self, now: Tick) -> TokenBucketState {
        let levels: Levels = self.bandwidths.iter().map(Bandwidth::fresh).collect();
        TokenBucketState::new(now, &levels, 0, None)
    }

    fn decide(&self, state: &TokenBucketState, ask: Ask) -> Transition<TokenBucketState> {
        let units = ask.cost.units();
        if units > self.capacity() {
            return Transition::NEVER;
        }
        if let (Some(one), None) = (self.single(), &state.more) {
            return self.decide_alone(one, state, ask);
        }
        self.decide_together(state, ask)
    }

    fn standing(&self, state: &TokenBucketState, now: Tick) -> Standing {
        let (mut remaining, mut debt, mut reset) = (u64::MAX, 0, 0);
        let at = now.max(state.last);
        let levels = self.levels(state, at);
        for (bandwidth, level) in self.with(&levels) {
            let left = bandwidth.amount(bandwidth.capacity()).saturating_sub(level.spent());
            // At most the capacity, which fits 64 bits.
            remaining = remaining.min((left / u128::from(bandwidth.weight)) as u64);
            debt = debt.max(bandwidth.debt(level).div_ceil(u128::from(bandwidth.weight)));
            reset = reset.max(bandwidth.time_for(level.spent(), level, at, &self.wall));
        }
        let debt = u64::try_from(debt).unwrap_or(u64::MAX);
        Standing { limit: self.capacity(), remaining, debt, reset_after: span(reset) }
    }

    /// Settles a charge in all bandwidths, see the module.
    fn settle(&self, state: &TokenBucketState, now: Tick, receipt: &Receipt, used: u64) -> TokenBucketState {
        let (units, at) = (receipt.cost.units(), now.max(state.last));
        match units.checked_sub(used) {
            Some(0) => state.clone(),
            Some(back) => self.give_back(state, at, receipt, back),
            None => self.owe(state, at, used - units),
        }
    }

    /// Carries a state over, bandwidth by bandwidth in their order; one without a counterpart starts fresh. A period
    /// in progress continues if its length stays the same; otherwise it starts with the change, or is the clock's.
    fn carry(&self, old: &Self, state: &TokenBucketState, now: Tick, how: Replace) -> TokenBucketState {
        self.carried(old, state, now.max(state.last), how)
    }

    /// Returns when all bandwidths are full and every receipt has run out; `None` if a bandwidth starts below full.
    fn full_at(&self, state: &TokenBucketState) -> Option<Tick> {
        if self.bandwidths.iter().any(|bandwidth| bandwidth.initial < bandwidth.capacity()) {
            return None;
        }
        let full = self.full(&self.levels(state, state.last), state.last);
        Some(full.max(state.book().map_or(full, |book| book.expires))).filter(|full| *full < Tick::MAX)
    }
}

impl Bytes for TokenBucket {
    fn write(&self, out: &mut Writer) {
        // At most eight.
        out.u8(self.bandwidths.len() as u8);
        for bandwidth in &self.bandwidths {
            bandwidth.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = from.u8()?;
        if usize::from(count) > MOST_BANDWIDTHS {
            return Err(DecodeError::Value { field: "bandwidths" });
        }
        let bandwidths = (0..count).map(|_| Bandwidth::read(from));
        let bandwidths = bandwidths.collect::<Result<SmallVec<[_; 1]>, _>>()?;
        Self::several(bandwidths).map_err(|_| DecodeError::Value { field: "bandwidths" })
    }
}

#[cfg(test)]
mod tests;
