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
//!
//! # Settling
//! Each bandwidth gives back by the law of [`line`](super::line), with one book for all. A refill at once adds two cases,
//! for a charge may have begun a period, or kept one running, that without it would have begun later:
//! * Undoing the charge that began the running period begins it anew, where others have been charged since. A period moves once,
//!   so nobody is kept waiting for ever.
//! * Where a period has ended since the charge, and others were charged since, one refill less comes back.

use smallvec::SmallVec;

use super::Algorithm;
use super::book::{Amounts, Book};
use super::exact::mul_div_ceil;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::decision::{Ask, Receipt, Replace, Retry, Standing, Transition};
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
                // Below the period, which fits. The next use of a full bucket starts a period.
                self.level(left, (into % period) as u64)
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

    /// What comes back from `at`, the tick of the level, until a tick not before it.
    fn back_by(&self, level: Level, at: Tick, tick: Tick) -> u128 {
        let elapsed = u128::from(nanos(tick.since(at)));
        let steps = match self.refill {
            Refill::Continuous => elapsed,
            Refill::Interval => (elapsed + u128::from(level.into)) / u128::from(self.rate.period_nanos()),
        };
        steps * u128::from(self.gain)
    }

    /// What would have come back from the first tick of all until the last refill: with what is spent, it stands still while time
    /// passes, and never falls. Below 2^124.
    fn base(&self, level: Level, at: Tick) -> u128 {
        let steps = match self.refill {
            Refill::Continuous => at.as_nanos(),
            Refill::Interval => at.as_nanos().saturating_sub(level.into) / self.rate.period_nanos(),
        };
        u128::from(steps) * u128::from(self.gain)
    }

    /// A level with so much spent. A full bucket has no period running.
    fn level(&self, spent: u128, into: u64) -> Level {
        Level::of(spent, if spent == 0 { 0 } else { into })
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

/// What [`TokenBucket`] remembers of a key: 40 bytes. On the heap, for more than one bandwidth: 24 for each other one and 160 more.
///
/// Charges that are settled out of order need as much, and at most 5 KiB (one bandwidth), until the bucket is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucketState {
    last: Tick,
    first: Level,
    more: Option<Box<More>>,
}

/// What most token buckets do without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct More {
    /// Several bandwidths: all units charged so far. One bandwidth alone tells it by its level.
    charged: u128,
    others: Vec<Level>,
    book: Option<Book>,
}

impl TokenBucketState {
    fn new(last: Tick, levels: &[Level], charged: u128, book: Option<Book>) -> Self {
        let (first, others) = match levels {
            [] => (Level::of(0, 0), [].as_slice()),
            [first, others @ ..] => (*first, others),
        };
        let charged = if others.is_empty() { 0 } else { charged };
        let more = (!others.is_empty() || book.is_some())
            .then(|| Box::new(More { charged, others: others.to_vec(), book }));
        Self { last, first, more }
    }

    fn level(&self, index: usize) -> Option<Level> {
        match (index.checked_sub(1), &self.more) {
            (None, _) => Some(self.first),
            (Some(index), Some(more)) => more.others.get(index).copied(),
            (Some(_), None) => None,
        }
    }

    fn book(&self) -> Option<&Book> {
        self.more.as_ref().and_then(|more| more.book.as_ref())
    }

    fn charged(&self) -> u128 {
        self.more.as_ref().map_or(0, |more| more.charged)
    }
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
}

/// The levels of all bandwidths at one tick. Four lie on the stack; who has more pays for them.
type Levels = SmallVec<[Level; 4]>;

impl TokenBucket {
    /// The most bandwidths that one bucket settles together. Each costs time in every check, and three would do for most.
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

    /// The levels at a tick. One that is missing, as only a foreign state lacks one, is fresh.
    fn levels(&self, state: &TokenBucketState, at: Tick) -> Levels {
        let elapsed = nanos(at.since(state.last));
        let level = |(index, bandwidth): (usize, &Bandwidth)| {
            bandwidth.settle(state.level(index).unwrap_or_else(|| bandwidth.fresh()), elapsed)
        };
        self.bandwidths.iter().enumerate().map(level).collect()
    }

    fn with<'a>(&'a self, levels: &'a Levels) -> impl Iterator<Item = (&'a Bandwidth, Level)> {
        self.bandwidths.iter().zip(levels.iter().copied())
    }

    fn capacity(&self) -> u64 {
        self.bandwidths.iter().map(Bandwidth::capacity).min().unwrap_or(0)
    }

    /// The bandwidth whose level tells the position of a charge; of several, their units are counted.
    fn single(&self) -> Option<&Bandwidth> {
        match self.bandwidths.as_slice() {
            [bandwidth] => Some(bandwidth),
            _ => None,
        }
    }

    /// Where the line of charges would end if nothing had been given back from its middle.
    fn bare_end(&self, levels: &Levels, at: Tick, charged: u128) -> u128 {
        match (self.single(), levels.as_slice()) {
            (Some(one), [level]) => one.base(*level, at).saturating_add(level.spent()),
            _ => charged,
        }
    }

    /// When all is full again.
    fn full(&self, levels: &Levels, at: Tick) -> Tick {
        let waits = self.with(levels).map(|(bandwidth, level)| bandwidth.time_for(level.spent(), level.into));
        at.after(span(waits.max().unwrap_or(0)))
    }

    /// The last promise that the levels show.
    fn shown(&self, levels: &Levels, at: Tick) -> Tick {
        let debts =
            self.with(levels).map(|(bandwidth, level)| (bandwidth, bandwidth.debt(level), level.into));
        let waits =
            debts.map(|(bandwidth, debt, into)| if debt == 0 { 0 } else { bandwidth.time_for(debt, into) });
        at.after(span(waits.max().unwrap_or(0)))
    }

    /// The book of a state, or one that says of it what its levels do.
    fn book(&self, state: &TokenBucketState, levels: &Levels, at: Tick) -> Book {
        let kept = state.book().filter(|book| !book.has_passed(at));
        kept.cloned().unwrap_or_else(|| Book::new(self.full(levels, at), self.shown(levels, at)))
    }

    /// Makes a state, with a book for as long as that says what the levels do not.
    fn state(&self, at: Tick, levels: &Levels, charged: u128, book: Book) -> TokenBucketState {
        let shown = || book.promise.max(at) == self.shown(levels, at);
        let blank = book.is_blank() && book.high <= self.full(levels, at) && shown();
        let book = (!blank && !book.has_passed(at)).then_some(book);
        TokenBucketState::new(at, levels, charged, book)
    }

    /// Books units behind all that was promised, down to [`Rate::MAX_COUNT`] units below empty.
    fn owe(&self, state: &TokenBucketState, at: Tick, units: u64) -> TokenBucketState {
        let units = units.min(Rate::MAX_COUNT);
        let mut levels = self.levels(state, at);
        let mut book = self.book(state, &levels, at);
        if levels.iter().all(|level| level.spent() == 0) {
            book.rest();
        }
        for (bandwidth, level) in self.bandwidths.iter().zip(&mut levels) {
            let deepest = bandwidth.amount(bandwidth.capacity) + bandwidth.amount(Rate::MAX_COUNT);
            let owed = level.spent().saturating_add(bandwidth.amount(units)).min(deepest);
            *level = Level::of(owed.max(level.spent()), level.into);
        }
        book.high = book.high.max(self.full(&levels, at));
        self.state(at, &levels, state.charged().saturating_add(u128::from(units)), book)
    }

    /// What stays charged of a bandwidth when a charge is settled that others, who hold `standing`, came after. May begin the
    /// period anew: `level` is then changed.
    fn floor(&self, index: usize, level: &mut Level, settled: &Settled, book: &mut Book) -> u128 {
        let bandwidth = &self.bandwidths[index];
        let (mut refill, at) = (0, settled.at);
        if bandwidth.refill == Refill::Interval {
            let begun = Tick::from_nanos(at.as_nanos().saturating_sub(level.into));
            if settled.began & (1 << index) != 0 && begun == settled.charged {
                level.into = 0;
                book.restart(index, at);
            } else if begun > settled.charged.max(book.restarted(index)) {
                refill = u128::from(bandwidth.gain);
            }
        }
        let front = bandwidth.back_by(*level, at, book.promise.max(at));
        let floor = front.saturating_add(settled.standing.saturating_mul(self.weight(bandwidth)));
        // What stood before the charge keeps the bucket from having been full in between.
        let before = level.spent().saturating_sub(bandwidth.amount(settled.back)) > floor;
        if before { floor } else { floor.saturating_add(refill) }
    }

    /// What one step of a position weighs in a bandwidth.
    fn weight(&self, bandwidth: &Bandwidth) -> u128 {
        if self.single().is_some() { 1 } else { u128::from(bandwidth.weight) }
    }
}

/// A charge that is being settled with less.
struct Settled {
    at: Tick,
    charged: Tick,
    /// A bit for each bandwidth whose running period was begun by the charge, if nothing of it was used.
    began: u64,
    back: u64,
    /// What others hold who were charged since, in positions.
    standing: u128,
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
        let at = ask.now.max(state.last);
        let mut levels = self.levels(state, at);
        let (mut wait, mut arrival, mut began, mut rested) = (0, 0, 0u64, true);
        for (index, (bandwidth, level)) in self.bandwidths.iter().zip(&mut levels).enumerate() {
            if level.spent() == 0 {
                began |= 1 << index;
            } else {
                rested = false;
            }
            *level = level.charge(bandwidth.amount(units));
            let debt = bandwidth.debt(*level);
            if debt > 0 {
                wait = wait.max(bandwidth.time_for(debt, level.into));
            }
            arrival = arrival.max(bandwidth.time_for(level.spent(), level.into));
        }
        let max_wait = u128::from(nanos(ask.max_wait));
        if wait > max_wait {
            return Transition::Denied { retry: Retry::After(span(wait - max_wait)) };
        }
        let (wait, arrival) = (span(wait), at.after(span(arrival)));
        let act = at.after(wait);
        let charged = state.charged().saturating_add(u128::from(units));
        let end = self.bare_end(&levels, at, charged);
        let (next, given) = match state.book().filter(|book| !book.has_passed(at)) {
            None => (TokenBucketState::new(at, &levels, charged, None), 0),
            Some(book) => {
                let mut book = book.clone();
                if rested {
                    book.rest();
                }
                book.high = book.high.max(arrival);
                if act > at {
                    book.promise = book.promise.max(act);
                }
                let given = book.given;
                (self.state(at, &levels, charged, book), given)
            }
        };
        let first = (u128::from(arrival.as_nanos()) << 64) | u128::from(began);
        let mark = Receipt::mark(first, end.saturating_add(given));
        Transition::Allowed { wait, next, receipt: Receipt { at, act, cost: ask.cost, mark } }
    }

    fn standing(&self, state: &TokenBucketState, now: Tick) -> Standing {
        let (mut remaining, mut debt, mut reset) = (u64::MAX, 0, 0);
        let levels = self.levels(state, now.max(state.last));
        for (bandwidth, level) in self.with(&levels) {
            let left = bandwidth.amount(bandwidth.capacity).saturating_sub(level.spent());
            // At most the capacity, which fits.
            remaining = remaining.min((left / u128::from(bandwidth.weight)) as u64);
            debt = debt.max(bandwidth.debt(level).div_ceil(u128::from(bandwidth.weight)));
            reset = reset.max(bandwidth.time_for(level.spent(), level.into));
        }
        let debt = u64::try_from(debt).unwrap_or(u64::MAX);
        Standing { limit: self.capacity(), remaining, debt, reset_after: span(reset) }
    }

    /// Settles a charge in all bandwidths, see [`Algorithm::settle`] and the file's head.
    fn settle(&self, state: &TokenBucketState, now: Tick, receipt: &Receipt, used: u64) -> TokenBucketState {
        let (units, at) = (receipt.cost.units(), now.max(state.last));
        let Some(back) = units.checked_sub(used) else { return self.owe(state, at, used - units) };
        let (first, position) = receipt.marks();
        let arrival = Tick::from_nanos((first >> 64) as u64);
        let mut levels = self.levels(state, at);
        let mut book = self.book(state, &levels, at);
        let mut end = self.bare_end(&levels, at, state.charged()).saturating_add(book.given);
        // A line whose end cannot be counted any more tells nobody's place.
        let known = position > book.since && position <= end && end < u128::MAX;
        let gone = arrival <= at && arrival < Tick::MAX || levels.iter().all(|level| level.spent() == 0);
        if back == 0 || gone || !known {
            return state.clone();
        }
        let alone = state.book().is_none() && position == end;
        let standing = book.standing_after(position, end);
        // The low half.
        let began = if used == 0 { first as u64 } else { 0 };
        let settled = Settled { at, charged: receipt.at, began, back, standing };
        let mut withheld = Amounts::new();
        for (index, (bandwidth, level)) in self.bandwidths.iter().zip(&mut levels).enumerate() {
            let amount = bandwidth.amount(back);
            let floor = if standing == 0 { 0 } else { self.floor(index, level, &settled, &mut book) };
            let given = amount.min(level.spent().saturating_sub(floor));
            *level = bandwidth.level(level.spent() - given, level.into);
            withheld.push(amount - given);
        }
        book.open(position, self.single().map_or(u128::from(back), |one| one.amount(back)), withheld);
        let released = book.cut(&mut end);
        let promise = book.promise.max(at);
        for (index, (bandwidth, level)) in self.bandwidths.iter().zip(&mut levels).enumerate() {
            let mut spent = level.spent().saturating_sub(released.get(index).copied().unwrap_or(0));
            if bandwidth.refill == Refill::Continuous {
                let front = bandwidth.back_by(*level, at, promise);
                book.release(index, &mut spent, front, self.weight(bandwidth), end);
            }
            *level = bandwidth.level(spent, level.into);
        }
        let full = self.full(&levels, at);
        // Whoever still waits does so within it. If this was the last charge, all is as it was before it.
        book.promise = book.promise.min(if alone && used == 0 { self.shown(&levels, at) } else { full });
        if alone {
            book.high = book.high.min(full);
        }
        if self.single().is_some() {
            book.given = end.saturating_sub(self.bare_end(&levels, at, 0));
        }
        self.state(at, &levels, end, book)
    }

    /// Carries a state over, bandwidth by bandwidth in their order; one without a counterpart starts fresh.
    ///
    /// A period in progress goes on when its length stays, and otherwise starts with the change.
    fn carry(&self, old: &Self, state: &TokenBucketState, now: Tick, how: Replace) -> TokenBucketState {
        let at = now.max(state.last);
        let olds = old.levels(state, at);
        let mut book = old.book(state, &olds, at);
        let before = old.bare_end(&olds, at, state.charged()).saturating_add(book.given);
        let mut from = old.with(&olds);
        let levels: Levels = self
            .bandwidths
            .iter()
            .map(|bandwidth| match from.next() {
                Some((old, level)) => bandwidth.carry(old, level, how),
                None => bandwidth.fresh(),
            })
            .collect();
        let bare = self.bare_end(&levels, at, 0);
        if book.has_passed(at) {
            return TokenBucketState::new(at, &levels, before, None);
        }
        book.rest();
        book.since = before.max(bare);
        book.given = if self.single().is_some() { book.since - bare } else { 0 };
        book.high = book.high.max(self.full(&levels, at));
        if how == Replace::Reset {
            book.promise = Tick::EPOCH;
        }
        let charged = book.since;
        self.state(at, &levels, charged, book)
    }

    /// Returns when all bandwidths are full and no receipt is left; `None` when one of them starts with less than that.
    fn full_at(&self, state: &TokenBucketState) -> Option<Tick> {
        if self.bandwidths.iter().any(|bandwidth| bandwidth.initial < bandwidth.capacity) {
            return None;
        }
        let full = self.full(&self.levels(state, state.last), state.last);
        Some(full.max(state.book().map_or(full, |book| book.high))).filter(|full| *full < Tick::MAX)
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
        let others = self.more.as_ref().map_or([].as_slice(), |more| &more.others);
        out.tick(self.last);
        // At most eight.
        out.u8(1 + others.len() as u8);
        for level in [self.first].iter().chain(others) {
            out.u128(level.spent());
            out.u64(level.into);
        }
        if !others.is_empty() {
            out.u128(self.charged());
        }
        Book::write_some(self.book(), out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (last, count) = (from.tick()?, from.u8()?);
        if count == 0 || usize::from(count) > TokenBucket::MAX_BANDWIDTHS {
            return Err(DecodeError::Value { field: "bandwidths" });
        }
        let levels = (0..count).map(|_| Ok(Level::of(from.u128()?, from.u64()?)));
        let levels = levels.collect::<Result<Levels, DecodeError>>()?;
        let charged = if count > 1 { from.u128()? } else { 0 };
        Ok(Self::new(last, &levels, charged, Book::read_some(from)?))
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
