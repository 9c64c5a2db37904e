//! Divides one limit among holders that grant it on their own, such as proxies whose bucket can only be replaced as a
//! whole. Three rules keep the sum within the limit:
//!
//! * **Rates.** The rates of all buckets that may be in use never exceed the limit's rate. A smaller bucket is handed
//!   out first; the rate that it frees counts as free once its holder has reported afterwards, or once the old bucket
//!   has expired.
//! * **Bursts.** A new bucket starts full, so handing it out grants its burst at once, even in place of another; so
//!   the burst is paid for out of a *purse*: the limit's own burst, refilled by the rate that is not handed out.
//! * **Ends.** A bucket expires unless it is renewed. So the part of a holder that vanishes is freed, and a holder
//!   that is cut off stops.
//!
//! The bound, for any span of time and whatever holders do: at most `burst + rate · span` units, plus, for each
//! holder that took part, its *least*: the units that one of its requests takes. The least lets a newcomer start
//! while the whole burst is handed out, and allows more holders than the burst has requests.
//!
//! A sixteenth of the rate is kept for newcomers. A quarter of the rest is divided equally, and three quarters in
//! proportion to the units that each holder was asked for. A newcomer's first bucket has at most an eighth of the free
//! rate.
//!
//! A report costs a few dozen nanoseconds. Finding expired buckets scans all holders, once in the lifetime of a
//! bucket.

use core::time::Duration;

use crate::time::{Tick, nanos};

/// The number of a holder in its division. It is reused after the holder has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderId(usize);

/// One limit and the holders of its parts. About 150 bytes for each holder.
#[derive(Clone, Debug)]
pub struct Division {
    rate: u64,
    period: u64,
    burst: u64,
    at: Tick,
    /// Pays for new buckets, in scaled units: one unit is `period`, and each nanosecond adds the free rate.
    purse: u128,
    /// The sum of the rates handed out: for each holder, the largest that may be in use.
    given: u64,
    /// The sum of the bursts of all buckets that may be in use.
    bursts: u64,
    least_sum: u64,
    /// The units that all holders still here were asked for, per period.
    demand: u64,
    present: u64,
    holders: Vec<Option<Holder>>,
    vacant: Vec<usize>,
    next_end: Tick,
}

impl Division {
    /// The part of the rate that is divided equally, as a divisor.
    const ALIKE: u64 = 4;
    /// The part of the rate that is kept for newcomers, as a divisor.
    const KEPT: u64 = 16;
    /// The most of the free rate that a newcomer's first bucket gets where there are other holders, as a divisor.
    const FIRST: u64 = 8;
    /// Makes the division of a limit of `rate` units in each `period` and at most `burst` at once, `left` of them
    /// unspent. A rate, burst or period (in nanoseconds) of zero counts as one.
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
            least_sum: 0,
            demand: 0,
            present: 0,
            holders: Vec::new(),
            vacant: Vec::new(),
            next_end: Tick::MAX,
        }
    }

    /// Returns how many holders there are, including those that have left and may still use their bucket.
    #[must_use]
    pub const fn holders(&self) -> usize {
        self.holders.len() - self.vacant.len()
    }

    /// Adds a holder. Until it reports, its demand counts as the average of the others. It adds `least` units to the
    /// purse, as many as one of its requests takes, and is offered no smaller burst; 0 counts as 1.
    pub fn join(&mut self, least: u64, now: Tick) -> HolderId {
        self.advance(now);
        let least = least.max(1);
        let demand = self.demand.checked_div(self.present).unwrap_or(0);
        self.demand = self.demand.saturating_add(demand);
        self.present += 1;
        self.least_sum = self.least_sum.saturating_add(least);
        self.purse = self.purse.saturating_add(u128::from(least) * u128::from(self.period));
        let holder = Some(Holder::new(demand, least, now));
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

    /// Raises the units that one request of a holder takes, and adds the difference to the purse. A smaller number
    /// changes nothing.
    pub fn raise_least(&mut self, holder: HolderId, least: u64, now: Tick) {
        self.advance(now);
        let Some(Some(one)) = self.holders.get_mut(holder.0) else { return };
        let more = least.saturating_sub(one.least);
        one.least += more;
        self.least_sum = self.least_sum.saturating_add(more);
        self.purse = self.purse.saturating_add(u128::from(more) * u128::from(self.period));
    }

    /// Notes the units that a holder was asked for since its last report, allowed or not. More than the whole limit
    /// counts as the whole. Frees the bucket that was replaced, once the holder must have the new one.
    pub fn report(&mut self, holder: HolderId, asked: u64, now: Tick) {
        self.advance(now);
        let (rate, period) = (self.rate, self.period);
        let Some(one) = self.holders.get_mut(holder.0).and_then(Option::as_mut) else { return };
        let (before, freed) = (one.demand, one.free_old(now));
        one.note(asked, rate, period, now);
        self.demand = self.demand.saturating_sub(before).saturating_add(one.demand);
        self.freed(freed);
    }

    /// Returns the largest bucket that a holder may be given now, without giving it. `None`: the holder keeps the bucket that
    /// it has, or none, because another one would not be safe yet, or its burst cannot be paid.
    pub fn offer(&mut self, holder: HolderId, now: Tick) -> Option<Bucket> {
        self.advance(now);
        let Some(Some(one)) = self.holders.get(holder.0) else { return None };
        if one.is_replacing() || one.has_left {
            return None;
        }
        let (has, target, free) = (one.bucket, self.target(one), self.rate - self.given);
        let rate = if has.rate == 0 {
            target.min(if self.present == 1 { free } else { free.div_ceil(Self::FIRST) })
        } else if target > has.rate {
            target.min(has.rate + free.saturating_sub(self.kept()))
        } else {
            target
        };
        let paid = u64::try_from(self.purse / u128::from(self.period)).unwrap_or(u64::MAX);
        let share = (u128::from(self.burst) * u128::from(rate) / u128::from(self.rate)) as u64;
        let bucket = Bucket { rate, burst: share.max(one.least).min(paid) };
        // A bucket of too little burst is worse than the current one; a better one is possible when the purse has filled.
        let too_little = has.rate > 0 && bucket.burst < share.div_ceil(4);
        if rate == 0 || bucket.burst < one.least || too_little {
            return None;
        }
        Some(bucket)
    }

    /// Replaces a holder's bucket by one that lasts until the tick `until`. Says whether it may be handed out: it may if
    /// it is no larger than the offer made at the same moment.
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

    /// Extends the life of a holder's bucket to `until`. Returns false if the holder has no bucket or has left.
    pub fn renew(&mut self, holder: HolderId, until: Tick, now: Tick) -> bool {
        self.advance(now);
        let Some(Some(one)) = self.holders.get_mut(holder.0) else { return false };
        if one.bucket.rate == 0 || one.has_left {
            return false;
        }
        one.until = one.until.max(until);
        true
    }

    /// Removes a holder. It may use its bucket until that expires; its number is reused afterwards.
    pub fn leave(&mut self, holder: HolderId) {
        let Some(Some(one)) = self.holders.get_mut(holder.0) else { return };
        if one.has_left {
            return;
        }
        one.has_left = true;
        self.demand = self.demand.saturating_sub(one.demand);
        self.present -= 1;
        if one.bucket.rate == 0 && !one.is_replacing() {
            self.forget(holder.0);
        }
    }

    /// Advances the time: fills the purse, and ends expired buckets.
    pub fn advance(&mut self, now: Tick) {
        // Counts the rates handed out so far. A bucket that expired meanwhile counts as handed out up to this tick.
        let passed = u128::from(now.as_nanos().saturating_sub(self.at.as_nanos()));
        self.at = self.at.max(now);
        self.purse += u128::from(self.rate - self.given).saturating_mul(passed);
        if self.next_end <= self.at {
            self.end_buckets();
        }
        let room = self.burst.saturating_add(self.least_sum).saturating_sub(self.bursts);
        self.purse = self.purse.min(u128::from(room) * u128::from(self.period));
    }

    fn end_buckets(&mut self) {
        self.next_end = Tick::MAX;
        for at in 0..self.holders.len() {
            let Some(one) = &mut self.holders[at] else { continue };
            let mut freed = if one.old_until() <= self.at { one.drop_old() } else { Bucket::default() };
            if one.bucket.rate > 0 && one.until <= self.at {
                let current = one.drop_current();
                freed = Bucket { rate: freed.rate + current.rate, burst: freed.burst + current.burst };
                // A holder that let its bucket expire has not reported for long, so its demand counts as 0.
                if !one.has_left {
                    self.demand = self.demand.saturating_sub(one.demand);
                    one.demand = 0;
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

    fn forget(&mut self, at: usize) {
        let Some(gone) = self.holders[at].take() else { return };
        self.least_sum = self.least_sum.saturating_sub(gone.least);
        self.vacant.push(at);
    }

    fn freed(&mut self, freed: Bucket) {
        self.given -= freed.rate;
        self.bursts -= freed.burst;
    }

    const fn kept(&self) -> u64 {
        self.rate / Self::KEPT
    }

    /// Returns the rate that a holder should have if nothing prevents it; at least 1.
    fn target(&self, one: &Holder) -> u64 {
        let (rate, present) = (self.rate - self.kept(), self.present.max(1));
        if self.demand == 0 {
            return (rate / present).max(1);
        }
        let alike = rate / Self::ALIKE;
        let by_demand = u128::from(rate - alike) * u128::from(one.demand) / u128::from(self.demand);
        // At most the rate, because no holder's demand exceeds the sum of all.
        (alike / present + by_demand as u64).max(1)
    }
}

/// A token bucket that one holder is given. It starts full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Units that return in each period of the division; 0: there is no bucket.
    pub rate: u64,
    /// Units that it holds at most, and at the start.
    pub burst: u64,
}

impl Bucket {
    /// Says whether the bucket `by` differs enough to be handed out in place of this one: its rate differs by more
    /// than an eighth, or its burst is at least twice as large, because each replacement is paid for. Any bucket is
    /// worth more than none.
    #[must_use]
    pub const fn is_worth_replacing(self, by: Self) -> bool {
        by.rate.abs_diff(self.rate) > self.rate / 8 || by.burst / 2 >= self.burst
    }
}

/// The longest time for a message to a holder and its answer. A report that comes later than this after a bucket was
/// handed out was written by a holder that has that bucket.
const ROUND_TRIP: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
struct Holder {
    /// The units that it was asked for lately, per period.
    demand: u64,
    /// Whether `demand` comes from a report. If not, it is the average of the other holders.
    known: bool,
    /// The units that it was asked for since `since`.
    counting: u64,
    since: Tick,
    bucket: Bucket,
    until: Tick,
    old: Option<Old>,
    has_left: bool,
    /// The units that one of its requests takes.
    least: u64,
}

#[derive(Clone, Copy, Debug)]
struct Old {
    bucket: Bucket,
    until: Tick,
    replaced: Tick,
}

impl Holder {
    /// Reports that follow each other more closely than this, in nanoseconds, are counted together.
    const CLOSE: u64 = 500_000_000;

    fn new(demand: u64, least: u64, now: Tick) -> Self {
        Self {
            demand,
            known: false,
            counting: 0,
            since: now,
            bucket: Bucket::default(),
            until: now,
            old: None,
            has_left: false,
            least,
        }
    }

    /// Notes the units that it was asked for. A rise counts at once, a fall by half, so that a pause does not cost
    /// the holder its part.
    fn note(&mut self, asked: u64, rate: u64, period: u64, now: Tick) {
        self.counting = self.counting.saturating_add(asked);
        let passed = now.as_nanos().saturating_sub(self.since.as_nanos());
        if passed < Self::CLOSE {
            return;
        }
        let seen = u128::from(self.counting) * u128::from(period) / u128::from(passed);
        // At most the rate, which fits 64 bits.
        let seen = seen.min(u128::from(rate)) as u64;
        self.demand = if self.known && seen < self.demand { u64::midpoint(seen, self.demand) } else { seen };
        (self.known, self.counting, self.since) = (true, 0, now);
    }

    const fn is_replacing(&self) -> bool {
        self.old.is_some()
    }

    /// Returns the rate that counts as handed out: the largest that may be in use.
    fn counted(&self) -> u64 {
        self.old.map_or(0, |old| old.bucket.rate).max(self.bucket.rate)
    }

    fn replace(&mut self, bucket: Bucket, until: Tick, now: Tick) {
        if self.bucket.rate > 0 {
            self.old = Some(Old { bucket: self.bucket, until: self.until, replaced: now });
        }
        (self.bucket, self.until) = (bucket, until);
    }

    /// Frees the replaced bucket if a report at `now` proves that it is not in use; returns what this frees.
    fn free_old(&mut self, now: Tick) -> Bucket {
        match self.old {
            Some(old) if now >= old.replaced.after(ROUND_TRIP) => self.drop_old(),
            _ => Bucket::default(),
        }
    }

    fn old_until(&self) -> Tick {
        self.old.map_or(Tick::MAX, |old| old.until)
    }

    /// Forgets the replaced bucket; returns the rate and burst that this frees.
    fn drop_old(&mut self) -> Bucket {
        let before = self.counted();
        let burst = self.old.take().map_or(0, |old| old.bucket.burst);
        Bucket { rate: before - self.counted(), burst }
    }

    fn drop_current(&mut self) -> Bucket {
        let before = self.counted();
        let burst = core::mem::take(&mut self.bucket).burst;
        Bucket { rate: before - self.counted(), burst }
    }
}

#[cfg(test)]
mod tests;
