//! One limit divided over several who grant it on their own: each holds a token bucket, and all of them together stay within the limit.
//!
//! Made for proxies that decide by themselves between two reports, and can only be told their bucket anew. Three rules keep the sum:
//!
//! * **Rates.** The rates of all buckets that may be in use never exceed the limit's. A smaller bucket is handed out first; what it
//!   frees counts as free when its holder has reported afterwards, or when the old bucket has expired.
//! * **Bursts.** A new bucket starts full, so handing one out grants its burst at once, also where it replaces another. Each is paid for out of a
//!   *purse*: the limit's own burst, filled by whatever rate is not handed out.
//! * **Ends.** A bucket ends with its time unless it is renewed. So a holder that vanishes frees its part, and one that is cut off stops.
//!
//! The bound, for any span of time and whatever holders do: at most `burst + rate · span` units, and for each holder that took part its *least* more:
//! what a single request of his takes. That lets a newcomer begin where all of the burst is handed out, and is why there may be more holders than the
//! burst has requests.
//!
//! A quarter of the rate goes to all alike, three quarters by what each was asked for, and a sixteenth is kept for who comes next: his first bucket
//! has an eighth of what is free. A bucket is worth replacing only where its rate is off by more than an eighth or its burst by half, because each
//! replacement is paid for: [`Bucket::is_worth_replacing`].
//!
//! Nothing here reads a clock. A report costs a few dozen nanoseconds; expired buckets are looked for among all holders, once in the time that a bucket
//! lasts.

mod bucket;
mod holder;
#[cfg(test)]
mod tests;

use core::time::Duration;

pub use self::bucket::Bucket;
use self::holder::Holder;
use crate::time::{Tick, nanos};

/// What a holder may be given now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The bucket that it has, or none: another one would not be safe yet, or cannot be paid.
    Keep,
    /// At most this bucket.
    UpTo(Bucket),
}

/// The number of a holder in its division, until it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderId(usize);

/// One limit and all who hold a part of it. About 150 bytes for each holder.
#[derive(Clone, Debug)]
pub struct Division {
    rate: u64,
    /// Nanoseconds.
    period: u64,
    burst: u64,
    at: Tick,
    /// What new buckets are paid with; a unit weighs the period, as a nanosecond returns the free rate.
    purse: u128,
    /// The rates that are handed out, of each holder the largest that may be in use.
    given: u64,
    /// The bursts of all buckets that may be in use.
    bursts: u64,
    /// What all holders brought with them.
    brought: u64,
    /// What the holders that are here were asked for, in units of a period.
    asked: u64,
    /// Holders that have not left.
    here: u64,
    holders: Vec<Option<Holder>>,
    vacant: Vec<usize>,
    /// No bucket ends before this.
    next_end: Tick,
}

impl Division {
    /// The part of the rate that goes to all alike, as a divisor.
    const ALIKE: u64 = 4;
    /// The part of the rate that is kept for newcomers, as a divisor.
    const KEPT: u64 = 16;
    /// The part of the free rate that a newcomer's first bucket has at most, as a divisor, where there are others.
    const FIRST: u64 = 8;
    /// How long a message to a holder and its answer take at most: a report that comes later than this after a bucket was handed out was
    /// written by a holder that has it.
    pub const ROUND_TRIP: Duration = holder::ROUND_TRIP;

    /// Makes the division of a limit of `rate` units in each `period` and at most `burst` at once, of which `left` are unspent. A rate, a
    /// burst or a period of zero counts as one.
    #[must_use]
    pub fn new(rate: u64, period: Duration, burst: u64, left: u64, now: Tick) -> Self {
        let (rate, period, burst) = (rate.max(1), nanos(period).max(1), burst.max(1));
        Self {
            rate,
            period,
            burst,
            at: now,
            purse: u128::from(left.min(burst)) * u128::from(period),
            given: 0,
            bursts: 0,
            brought: 0,
            asked: 0,
            here: 0,
            holders: Vec::new(),
            vacant: Vec::new(),
            next_end: Tick::MAX,
        }
    }

    /// Returns the units of the limit in each period.
    #[must_use]
    pub const fn rate(&self) -> u64 {
        self.rate
    }

    /// Returns the rates that are handed out, of each holder the largest that may be in use: never more than [`Division::rate`].
    #[must_use]
    pub const fn given(&self) -> u64 {
        self.given
    }

    /// Says whether nobody holds anything.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.holders() == 0
    }

    /// Returns how many holders there are, with those that have left and may still use their bucket.
    #[must_use]
    pub const fn holders(&self) -> usize {
        self.holders.len() - self.vacant.len()
    }

    /// Takes a holder in, which is asked for as much as the others until it reports. It brings `least` units with it, as many as one request of his
    /// takes, and is offered no smaller burst; 0 counts as 1.
    pub fn join(&mut self, least: u64, now: Tick) -> HolderId {
        self.advance(now);
        let least = least.max(1);
        let asked = self.asked.checked_div(self.here).unwrap_or(0);
        self.asked = self.asked.saturating_add(asked);
        self.here += 1;
        self.brought = self.brought.saturating_add(least);
        self.purse = self.purse.saturating_add(u128::from(least) * u128::from(self.period));
        let holder = Some(Holder::new(asked, least, now));
        let at = match self.vacant.pop() {
            Some(at) => {
                self.holders[at] = holder;
                at
            }
            None => {
                self.holders.push(holder);
                self.holders.len() - 1
            }
        };
        HolderId(at)
    }

    /// Raises what one request of a holder takes, and what it brought with it by as much; fewer units than before change nothing.
    pub fn raise_least(&mut self, holder: HolderId, least: u64, now: Tick) {
        self.advance(now);
        let Some(Some(one)) = self.holders.get_mut(holder.0) else { return };
        let more = least.saturating_sub(one.least);
        one.least += more;
        self.brought = self.brought.saturating_add(more);
        self.purse = self.purse.saturating_add(u128::from(more) * u128::from(self.period));
    }

    /// Notes what a holder was asked for since its last report, allowed or not. Asking for more than the whole limit counts as the whole.
    pub fn report(&mut self, holder: HolderId, asked: u64, now: Tick) {
        self.advance(now);
        let (rate, period) = (self.rate, self.period);
        let Some(one) = self.holders.get_mut(holder.0).and_then(Option::as_mut) else { return };
        let (before, freed) = (one.asked, one.free_old(now));
        one.note(asked, (rate, period), now);
        self.asked = self.asked.saturating_sub(before).saturating_add(one.asked);
        self.freed(freed);
    }

    /// Returns what a holder may be given now, without giving it.
    pub fn offer(&mut self, holder: HolderId, now: Tick) -> Offer {
        self.advance(now);
        let Some(Some(one)) = self.holders.get(holder.0) else { return Offer::Keep };
        if one.is_replacing() || one.has_left {
            return Offer::Keep;
        }
        let (has, target, free) = (one.bucket, self.target(one), self.rate - self.given);
        let rate = if has.rate == 0 {
            target.min(if self.here == 1 { free } else { free.div_ceil(Self::FIRST) })
        } else if target > has.rate {
            target.min(has.rate + free.saturating_sub(self.kept()))
        } else {
            target
        };
        let paid = u64::try_from(self.purse / u128::from(self.period)).unwrap_or(u64::MAX);
        let share = (u128::from(self.burst) * u128::from(rate) / u128::from(self.rate)) as u64;
        let bucket = Bucket { rate, burst: share.max(one.least).min(paid) };
        // One of little burst is worse than the one that it has: the purse fills.
        let too_little = has.rate > 0 && bucket.burst < share.div_ceil(4);
        if rate == 0 || bucket.burst < one.least || too_little {
            return Offer::Keep;
        }
        Offer::UpTo(bucket)
    }

    /// Gives a holder a bucket in place of the one that it has, until that tick. Says whether it may be handed out: it may if it is no larger
    /// than what was offered just now.
    #[must_use = "a bucket that was not granted must not be handed out"]
    pub fn grant(&mut self, holder: HolderId, bucket: Bucket, until: Tick, now: Tick) -> bool {
        self.advance(now);
        let price = u128::from(bucket.burst) * u128::from(self.period);
        let free = self.rate - self.given;
        let Some(Some(one)) = self.holders.get_mut(holder.0) else { return false };
        let more = bucket.rate.saturating_sub(one.counted());
        if one.is_replacing() || one.has_left || bucket.rate == 0 || bucket.burst == 0 {
            return false;
        }
        if more > free || price > self.purse {
            return false;
        }
        one.replace(bucket, until, now);
        self.purse -= price;
        self.given += more;
        self.bursts += bucket.burst;
        self.next_end = self.next_end.min(until);
        true
    }

    /// Lets a holder keep its bucket until that tick; says whether it has one.
    pub fn renew(&mut self, holder: HolderId, until: Tick, now: Tick) -> bool {
        self.advance(now);
        let Some(Some(one)) = self.holders.get_mut(holder.0) else { return false };
        if one.bucket.rate == 0 || one.has_left {
            return false;
        }
        one.until = one.until.max(until);
        true
    }

    /// Lets a holder go. It may use its bucket until that ends, and its number is given to somebody else then.
    pub fn leave(&mut self, holder: HolderId) {
        let Some(Some(one)) = self.holders.get_mut(holder.0) else { return };
        if one.has_left {
            return;
        }
        one.has_left = true;
        self.asked = self.asked.saturating_sub(one.asked);
        self.here -= 1;
        if one.bucket.rate == 0 && !one.is_replacing() {
            self.forget(holder.0);
        }
    }

    /// Lets time pass: the purse fills, and buckets end.
    pub fn advance(&mut self, now: Tick) {
        // By the rates handed out until now: of a bucket that ended meanwhile, its rate counts up to this tick.
        let passed = u128::from(now.as_nanos().saturating_sub(self.at.as_nanos()));
        self.at = self.at.max(now);
        self.purse += u128::from(self.rate - self.given).saturating_mul(passed);
        if self.next_end <= self.at {
            self.end_buckets();
        }
        let room = self.burst.saturating_add(self.brought).saturating_sub(self.bursts);
        self.purse = self.purse.min(u128::from(room) * u128::from(self.period));
    }

    /// Ends the buckets whose time is over, and finds the next tick at which one ends.
    fn end_buckets(&mut self) {
        self.next_end = Tick::MAX;
        for at in 0..self.holders.len() {
            let Some(one) = &mut self.holders[at] else { continue };
            let mut freed = if one.old_until() <= self.at { one.drop_old() } else { Bucket::default() };
            if one.bucket.rate > 0 && one.until <= self.at {
                let current = one.drop_current();
                freed = Bucket { rate: freed.rate + current.rate, burst: freed.burst + current.burst };
                // Whoever let it end did not report for long.
                if !one.has_left {
                    self.asked = self.asked.saturating_sub(one.asked);
                    one.asked = 0;
                }
            }
            self.next_end = self.next_end.min(one.old_until());
            if one.bucket.rate > 0 {
                self.next_end = self.next_end.min(one.until);
            }
            let gone = one.has_left && one.bucket.rate == 0 && !one.is_replacing();
            self.freed(freed);
            if gone {
                self.forget(at);
            }
        }
    }

    /// Forgets a holder that has left and has nothing in use.
    fn forget(&mut self, at: usize) {
        let Some(gone) = self.holders[at].take() else { return };
        self.brought = self.brought.saturating_sub(gone.least);
        self.vacant.push(at);
    }

    fn freed(&mut self, freed: Bucket) {
        self.given -= freed.rate;
        self.bursts -= freed.burst;
    }

    /// Returns the rate that is kept for newcomers.
    const fn kept(&self) -> u64 {
        self.rate / Self::KEPT
    }

    /// Returns the rate that a holder is to have if nothing stands in its way; at least 1.
    fn target(&self, one: &Holder) -> u64 {
        let (rate, here) = (self.rate - self.kept(), self.here.max(1));
        if self.asked == 0 {
            return (rate / here).max(1);
        }
        let alike = rate / Self::ALIKE;
        let by_asked = u128::from(rate - alike) * u128::from(one.asked) / u128::from(self.asked);
        // At most the rate, since nobody asks for more than all do.
        (alike / here + by_asked as u64).max(1)
    }
}
