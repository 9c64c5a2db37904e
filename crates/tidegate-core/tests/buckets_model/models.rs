//! What the limits are meant to be, in plain rational arithmetic: tokens in a bucket, departures from a queue, permits on
//! a slope. Nothing here is scaled, packed or fast.

use num_bigint::BigInt;
use num_rational::BigRational;
use tidegate_core::Rate;

pub(crate) type Q = BigRational;

pub(crate) fn q(n: impl Into<BigInt>) -> Q {
    Q::from_integer(n.into())
}

/// Whole nanoseconds, rounded up; nothing when negative.
pub(crate) fn whole(ns: &Q) -> u128 {
    u128::try_from(ns.ceil().to_integer()).unwrap_or(0)
}

fn zero() -> Q {
    q(0)
}

/// The answer to an ask: a wait, or a refusal with the least wait that helps.
pub(crate) type Answer = Result<u128, Option<u128>>;

/// One charge as the model remembers it: what it took, and where its promise lay.
#[derive(Clone)]
pub(crate) struct Charge {
    pub(crate) cost: u64,
    pub(crate) act: u128,
    promises: Vec<Q>,
}

pub(crate) trait Model {
    /// Decides; when allowed, takes, and says what it took.
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> (Answer, Option<Charge>);
    /// Units left now, and ns until full.
    fn standing(&self, now: u64) -> (u64, u128);
    fn refund(&mut self, now: u64, cost: u64);
    fn cancel(&mut self, now: u64, charge: &Charge);
    /// Whether what was just given back ended a period: charges that wait across it are restored on the safe side only.
    fn period_ended(&self) -> bool {
        false
    }
}

fn answer(wait: u128, max_wait: u64) -> Answer {
    if wait <= u128::from(max_wait) { Ok(wait) } else { Err(Some(wait - u128::from(max_wait))) }
}

/// One bandwidth: tokens, below zero while reservations wait.
#[derive(Clone)]
pub(crate) struct Band {
    pub(crate) rate: Rate,
    pub(crate) capacity: u64,
    pub(crate) interval: bool,
    pub(crate) tokens: Q,
    /// All that ever came back, were there no brim: the axis on which promises lie.
    returned: Q,
    anchor: u64,
}

impl Band {
    pub(crate) fn new(rate: Rate, capacity: u64, initial: u64, interval: bool, now: u64) -> Self {
        Self { rate, capacity, interval, tokens: q(initial), returned: zero(), anchor: now }
    }

    fn advance(&mut self, last: u64, now: u64) {
        let period = self.rate.period_nanos();
        let gained = if self.interval {
            let periods = (now - self.anchor) / period;
            self.anchor += periods * period;
            q(periods) * q(self.rate.count())
        } else {
            Q::new(BigInt::from(now - last) * self.rate.count(), period.into())
        };
        self.tokens = (&self.tokens + &gained).min(q(self.capacity));
        self.returned += gained;
        if self.tokens == q(self.capacity) {
            self.anchor = now;
        }
    }

    /// Ns until `missing` tokens are back.
    fn time_for(&self, missing: &Q, now: u64) -> u128 {
        if *missing <= zero() {
            return 0;
        }
        if self.interval {
            let periods = whole(&(missing / q(self.rate.count())));
            return periods * u128::from(self.rate.period_nanos()) - u128::from(now - self.anchor);
        }
        whole(&(missing * Q::new(self.rate.period_nanos().into(), self.rate.count().into())))
    }

    fn debt(&self) -> Q {
        (-&self.tokens).max(zero())
    }

    fn give_back(&mut self, units: Q) {
        self.tokens = (&self.tokens + units).min(q(self.capacity));
    }
}

/// Token bucket of several bandwidths; of one it is GCRA and the leaky meter too.
#[derive(Clone)]
pub(crate) struct Bucket {
    pub(crate) bands: Vec<Band>,
    pub(crate) last: u64,
    /// Whether a charge that others wait behind gives back the part that they do not rely on.
    pub(crate) in_parts: bool,
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
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> (Answer, Option<Charge>) {
        if cost > self.capacity() {
            return (Err(None), None);
        }
        let mut taken = self.clone();
        let now = taken.advance(now);
        let mut wait = 0;
        for band in &mut taken.bands {
            band.tokens -= q(cost);
            wait = wait.max(band.time_for(&-&band.tokens, now));
        }
        let answer = answer(wait, max_wait);
        if answer.is_err() {
            return (answer, None);
        }
        let promises = taken.bands.iter().map(|band| &band.returned + band.debt()).collect();
        *self = taken;
        (answer, Some(Charge { cost, act: u128::from(now) + wait, promises }))
    }

    fn standing(&self, now: u64) -> (u64, u128) {
        let mut at = self.clone();
        let now = at.advance(now);
        let left = |band: &Band| u64::try_from(band.tokens.floor().to_integer()).unwrap_or(0);
        let reset = |band: &Band| band.time_for(&(q(band.capacity) - &band.tokens), now);
        (at.bands.iter().map(left).min().unwrap(), at.bands.iter().map(reset).max().unwrap())
    }

    fn refund(&mut self, now: u64, cost: u64) {
        self.advance(now);
        for band in &mut self.bands {
            band.give_back(q(cost));
        }
    }

    fn period_ended(&self) -> bool {
        self.bands.iter().any(|band| band.interval && band.tokens == q(band.capacity))
    }

    fn cancel(&mut self, now: u64, charge: &Charge) {
        if charge.act < u128::from(now.max(self.last)) {
            return;
        }
        // Where the last promise lies beyond the charge's own, others rely on the gap: on what is still owed of it.
        let relied_on = |band: &Band, promise: &Q| (&band.returned + band.debt() - promise).max(zero());
        let relied_on: Vec<_> =
            self.bands.iter().zip(&charge.promises).map(|(b, p)| relied_on(b, p)).collect();
        let before = self.clone();
        self.advance(now);
        let owed = |(band, relied_on): (&Band, &Q)| relied_on.min(&band.debt()) > &zero();
        if !self.in_parts && self.bands.iter().zip(&relied_on).any(owed) {
            *self = before;
            return;
        }
        for (band, relied_on) in self.bands.iter_mut().zip(relied_on) {
            band.give_back((q(charge.cost) - relied_on.min(band.debt())).max(zero()));
        }
    }
}

/// Departures one interval apart.
pub(crate) struct Queue {
    pub(crate) rate: Rate,
    pub(crate) slack: u64,
    pub(crate) places: u64,
    /// When the next unit leaves if it does not come too late; far back for a queue at rest.
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
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> (Answer, Option<Charge>) {
        let (now, interval) = (now.max(self.last), self.interval());
        let rested = q(cost - 1) - q(self.slack);
        if rested > q(self.places) || &rested * &interval > q(max_wait) {
            return (Err(None), None);
        }
        let last_unit = self.earliest(now) + q(cost - 1) * &interval;
        let wait = whole(&(&last_unit - q(now)));
        // It joins once `places` departures reach from then to its last unit's.
        let room = whole(&(&last_unit - q(self.places) * &interval - q(now)));
        let late = wait.saturating_sub(max_wait.into());
        if room.max(late) > 0 {
            return (Err(Some(room.max(late))), None);
        }
        self.next = &last_unit + interval;
        self.last = now;
        let promises = vec![last_unit.max(q(now))];
        (Ok(wait), Some(Charge { cost, act: u128::from(now) + wait, promises }))
    }

    fn standing(&self, now: u64) -> (u64, u128) {
        let now = now.max(self.last);
        let (start, interval) = (self.earliest(now), self.interval());
        let behind = (q(now) - &start) / &interval;
        let left = u64::try_from((behind + q(1)).floor().to_integer()).unwrap_or(0);
        (left, whole(&(start + q(self.slack) * interval - q(now))))
    }

    fn refund(&mut self, now: u64, cost: u64) {
        self.last = now.max(self.last);
        self.next -= q(cost) * self.interval();
    }

    fn cancel(&mut self, now: u64, charge: &Charge) {
        if charge.act < u128::from(now.max(self.last)) {
            return;
        }
        self.last = now.max(self.last);
        let promised = &self.next - self.interval();
        let relied_on = (promised - (&charge.promises[0]).max(&q(self.last))).max(zero());
        self.next -= (q(charge.cost) * self.interval() - relied_on).max(zero());
    }
}

/// Guava's slope over stored permits; moments lie on the grid that the limit promises to round to.
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

    /// The most permits stored, and the threshold above which one costs more.
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
        // The area between the slope and the stable price, between two numbers of permits.
        let extra = (&from - &to) * (&from + &to) * slope / q(2);
        self.next += grid_up(&(q(cost) * self.stable())) + grid_up(&extra);
        self.stored_ns = left;
    }
}

impl Model for Slope {
    fn decide(&mut self, now: u64, cost: u64, max_wait: u64) -> (Answer, Option<Charge>) {
        let now = now.max(self.last);
        if cost > self.burst {
            return (Err(None), None);
        }
        let wait = whole(&(&self.next - q(now)));
        let answer = answer(wait, max_wait);
        if answer.is_err() {
            return (answer, None);
        }
        self.rest(now);
        let before = vec![self.next.clone(), self.stored_ns.clone()];
        self.take(cost);
        let promises = before.into_iter().chain([self.next.clone(), self.stored_ns.clone()]).collect();
        (answer, Some(Charge { cost, act: u128::from(now) + wait, promises }))
    }

    fn standing(&self, now: u64) -> (u64, u128) {
        let wait = whole(&(&self.next - q(now.max(self.last))));
        (if wait == 0 { self.burst } else { 0 }, wait)
    }

    fn refund(&mut self, now: u64, cost: u64) {
        let now = now.max(self.last);
        self.rest(now);
        let (max, _) = self.permits();
        self.next = (&self.next - grid_down(&(q(cost) * self.stable()))).max(q(now));
        let permits = grid_up(&(q(cost) * q(self.period) / max));
        self.stored_ns = (&self.stored_ns + permits).min(q(self.period));
    }

    fn cancel(&mut self, now: u64, charge: &Charge) {
        let undisturbed = [&self.next, &self.stored_ns] == [&charge.promises[2], &charge.promises[3]];
        if charge.act >= u128::from(now.max(self.last)) && undisturbed {
            (self.next, self.stored_ns) = (charge.promises[0].clone(), charge.promises[1].clone());
            self.last = now.max(self.last);
        }
    }
}
