//! The limits in plain rational arithmetic: tokens in a bucket, departures from a queue, permits on a slope. Nothing
//! here is scaled, packed or fast.

use num_bigint::BigInt;
use num_rational::BigRational;
use tidegate_core::Rate;
use tidegate_core::rate::Refill;

pub(crate) type Q = BigRational;

pub(crate) fn q(n: impl Into<BigInt>) -> Q {
    Q::from_integer(n.into())
}

/// Returns whole nanoseconds, rounded up; 0 if negative.
pub(crate) fn whole(ns: &Q) -> u128 {
    u128::try_from(ns.ceil().to_integer()).unwrap_or(0)
}

fn zero() -> Q {
    q(0)
}

/// The answer to a request: a wait, or a refusal with the least wait after which it is allowed.
pub(crate) type Answer = Result<u128, Option<u128>>;

/// What a state says is spent of one bandwidth: the units, and the ns of the current period that have passed.
pub(crate) type Spent = (Q, u64);

pub(crate) trait Model {
    /// Decides, and charges if allowed.
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> Answer;
    /// Returns the units left now, the units below empty, and the ns until full.
    fn standing(&self, now: u64) -> (u64, u64, u128);
    /// Continues from a state after a checked settlement; see [`crate::buckets_model::ledger`].
    fn adopt(&mut self, last: u64, spent: &[Spent]);
}

fn answer(wait: u128, max_wait: u64) -> Answer {
    if wait <= u128::from(max_wait) { Ok(wait) } else { Err(Some(wait - u128::from(max_wait))) }
}

/// One bandwidth: its tokens, which are negative while reservations wait.
#[derive(Clone)]
pub(crate) struct Band {
    pub(crate) rate: Rate,
    pub(crate) capacity: u64,
    pub(crate) refill: Refill,
    pub(crate) tokens: Q,
    /// When the current period began.
    anchor: u64,
}

impl Band {
    pub(crate) fn new(rate: Rate, capacity: u64, initial: u64, refill: Refill, now: u64) -> Self {
        let period = rate.period_nanos();
        let anchor = if refill == Refill::Aligned { now / period * period } else { now };
        Self { rate, capacity, refill, tokens: q(initial), anchor }
    }

    pub(crate) fn advance(&mut self, last: u64, now: u64) {
        let period = self.rate.period_nanos();
        let gained = if self.refill != Refill::Continuous {
            let periods = (now - self.anchor) / period;
            self.anchor += periods * period;
            q(periods) * q(self.rate.count())
        } else {
            Q::new(BigInt::from(now - last) * self.rate.count(), period.into())
        };
        self.tokens = (&self.tokens + &gained).min(q(self.capacity));
        if self.tokens == q(self.capacity) && self.refill != Refill::Aligned {
            self.anchor = now;
        }
    }

    /// Adopts what a state says.
    pub(crate) fn start(&mut self, last: u64, spent: Q, into: u64) {
        self.tokens = q(self.capacity) - spent;
        self.anchor = match self.refill {
            Refill::Aligned => {
                let period = self.rate.period_nanos();
                assert!(into == 0 || into == period + last % period, "{into} at {last}");
                last / period * period
            }
            _ => last - into,
        };
    }

    /// Ns until one token returns with a continuous refill.
    pub(crate) fn time_of_one(&self) -> Q {
        Q::new(self.rate.period_nanos().into(), self.rate.count().into())
    }

    /// When the current period began; for a full bucket, now.
    pub(crate) fn began(&self) -> u64 {
        self.anchor
    }

    /// When the current period ends; for a full bucket, when a period that begins now would end.
    pub(crate) fn next_refill(&self) -> u64 {
        self.anchor + self.rate.period_nanos()
    }

    /// Ns until `missing` tokens are back.
    fn time_for(&self, missing: &Q, now: u64) -> u128 {
        if *missing <= zero() {
            return 0;
        }
        if self.refill != Refill::Continuous {
            let periods = whole(&(missing / q(self.rate.count())));
            return periods * u128::from(self.rate.period_nanos()) - u128::from(now - self.anchor);
        }
        whole(&(missing * Q::new(self.rate.period_nanos().into(), self.rate.count().into())))
    }
}

/// A token bucket of several bandwidths; with one bandwidth it is also the model of GCRA and the leaky bucket.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) bands: Vec<Band>,
    pub(crate) last: u64,
}

impl Bucket {
    pub(crate) fn advance(&mut self, now: u64) -> u64 {
        let now = now.max(self.last);
        for band in &mut self.bands {
            band.advance(self.last, now);
        }
        self.last = now;
        now
    }

    fn capacity(&self) -> u64 {
        self.bands.iter().map(|band| band.capacity).min().unwrap()
    }
}

impl Model for Bucket {
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> Answer {
        if cost > self.capacity() {
            return Err(None);
        }
        let mut taken = self.clone();
        let now = taken.advance(now);
        let mut wait = 0;
        for band in &mut taken.bands {
            band.tokens -= q(cost);
            wait = wait.max(band.time_for(&-&band.tokens, now));
        }
        let answer = answer(wait, max_wait);
        if answer.is_ok() {
            *self = taken;
        }
        answer
    }

    fn standing(&self, now: u64) -> (u64, u64, u128) {
        let mut at = self.clone();
        let now = at.advance(now);
        let left = |band: &Band| u64::try_from(band.tokens.floor().to_integer()).unwrap_or(0);
        let debt = |band: &Band| below(&band.tokens);
        let reset = |band: &Band| band.time_for(&(q(band.capacity) - &band.tokens), now);
        let bands = &at.bands;
        (
            bands.iter().map(left).min().unwrap(),
            bands.iter().map(debt).max().unwrap(),
            bands.iter().map(reset).max().unwrap(),
        )
    }

    fn adopt(&mut self, last: u64, spent: &[Spent]) {
        self.last = last;
        for (band, (spent, into)) in self.bands.iter_mut().zip(spent) {
            band.start(last, spent.clone(), *into);
        }
    }
}

/// Returns the whole units below empty, rounded up.
fn below(tokens: &Q) -> u64 {
    let debt = (-tokens).max(zero()).ceil().to_integer();
    u64::try_from(debt).unwrap_or(u64::MAX)
}

/// Departures one interval apart.
pub(crate) struct Queue {
    pub(crate) rate: Rate,
    pub(crate) slack: u64,
    pub(crate) places: u64,
    /// When the next unit leaves unless it comes later; far in the past for an idle queue.
    pub(crate) next: Q,
    pub(crate) last: u64,
}

impl Queue {
    pub(crate) fn interval(&self) -> Q {
        Q::new(self.rate.period_nanos().into(), self.rate.count().into())
    }

    fn earliest(&self, now: u64) -> Q {
        (q(now) - q(self.slack) * self.interval()).max(self.next.clone())
    }
}

impl Model for Queue {
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> Answer {
        let (now, interval) = (now.max(self.last), self.interval());
        let rested = q(cost - 1) - q(self.slack);
        if rested > q(self.places) || &rested * &interval > q(max_wait) {
            return Err(None);
        }
        let last_unit = self.earliest(now) + q(cost - 1) * &interval;
        let wait = whole(&(&last_unit - q(now)));
        // The job joins once at most `places` departures lie between then and its last unit's departure.
        let room = whole(&(&last_unit - q(self.places) * &interval - q(now)));
        let late = wait.saturating_sub(max_wait.into());
        if room.max(late) > 0 {
            return Err(Some(room.max(late)));
        }
        self.next = &last_unit + interval;
        self.last = now;
        Ok(wait)
    }

    fn standing(&self, now: u64) -> (u64, u64, u128) {
        let now = now.max(self.last);
        let (start, interval) = (self.earliest(now), self.interval());
        let behind = (q(now) - &start) / &interval + q(1);
        let left = u64::try_from(behind.floor().to_integer()).unwrap_or(0);
        (left, below(&behind), whole(&(start + q(self.slack) * interval - q(now))))
    }

    fn adopt(&mut self, last: u64, spent: &[Spent]) {
        self.last = last;
        self.next = q(last) + (&spent[0].0 - q(self.slack)) * self.interval();
    }
}

/// Guava's slope over stored permits. Moments lie on the grid to which the limit rounds.
pub(crate) struct Slope {
    pub(crate) rate: Rate,
    pub(crate) burst: u64,
    pub(crate) period: u64,
    pub(crate) factor: Q,
    pub(crate) next: Q,
    pub(crate) stored_ns: Q,
    pub(crate) last: u64,
}

fn grid() -> Q {
    q(1u64 << 32)
}

fn grid_up(ns: &Q) -> Q {
    (ns * grid()).ceil() / grid()
}

fn grid_down(ns: &Q) -> Q {
    (ns * grid()).floor() / grid()
}

impl Slope {
    fn stable(&self) -> Q {
        Q::new(self.rate.period_nanos().into(), self.rate.count().into())
    }

    /// Returns the most permits stored, and the threshold above which a permit costs more.
    fn permits(&self) -> (Q, Q) {
        let (stable, period) = (self.stable(), q(self.period));
        let threshold = &period / (q(2) * &stable);
        let max = &threshold + q(2) * &period / (&stable + &stable * &self.factor);
        (max, threshold)
    }

    fn rest(&mut self, now: u64) {
        if q(now) > self.next {
            self.stored_ns = (&self.stored_ns + q(now) - &self.next).min(q(self.period));
            self.next = q(now);
        }
        self.last = now;
    }

    fn take(&mut self, cost: u64) {
        let (max, threshold) = self.permits();
        let per_permit = q(self.period) / &max;
        let left = (&self.stored_ns - grid_down(&(q(cost) * &per_permit))).max(zero());
        let foot = grid_down(&(&threshold * &per_permit));
        let above = |ns: &Q| ((ns - &foot) / &per_permit).max(zero());
        let (from, to) = (above(&self.stored_ns), above(&left));
        let slope = self.stable() * (&self.factor - q(1)) / (max - threshold);
        // The area between the slope and the stable price, from one number of permits to another.
        let extra = (&from - &to) * (&from + &to) * slope / q(2);
        self.next += grid_up(&(q(cost) * self.stable())) + grid_up(&extra);
        self.stored_ns = left;
    }
}

impl Model for Slope {
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> Answer {
        let now = now.max(self.last);
        if cost > self.burst {
            return Err(None);
        }
        let wait = whole(&(&self.next - q(now)));
        let answer = answer(wait, max_wait);
        if answer.is_ok() {
            self.rest(now);
            self.take(cost);
        }
        answer
    }

    fn standing(&self, now: u64) -> (u64, u64, u128) {
        let wait = whole(&(&self.next - q(now.max(self.last))));
        let debt = (&self.next - q(now.max(self.last))).max(zero()) / self.stable();
        let debt = u64::try_from(debt.ceil().to_integer()).unwrap_or(u64::MAX).min(Rate::MAX_COUNT);
        (if wait == 0 { self.burst } else { 0 }, debt, wait)
    }

    /// Settlements of a slope have tests of their own.
    fn adopt(&mut self, _last: u64, _spent: &[Spent]) {}
}
