//! One holder: its bucket, the replaced bucket while that may still be in use, and the units that it was asked for.

use core::time::Duration;

use super::bucket::Bucket;
use crate::time::Tick;

/// The longest time for a message to a holder and its answer.
pub(super) const ROUND_TRIP: Duration = Duration::from_secs(2);

/// The buckets and the demand of a holder.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    /// The units that it was asked for lately, per period.
    pub(super) demand: u64,
    /// Whether `demand` comes from a report. If not, it is the average of the other holders.
    known: bool,
    /// The units that it was asked for since `since`.
    counting: u64,
    since: Tick,
    pub(super) bucket: Bucket,
    pub(super) until: Tick,
    /// The replaced bucket, while it may still be in use.
    old: Option<Old>,
    pub(super) has_left: bool,
    /// The units that one of its requests takes.
    pub(super) least: u64,
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

    pub(super) fn new(demand: u64, least: u64, now: Tick) -> Self {
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
    pub(super) fn note(&mut self, asked: u64, rate: u64, period: u64, now: Tick) {
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

    /// Says whether the replaced bucket may still be in use.
    pub(super) const fn is_replacing(&self) -> bool {
        self.old.is_some()
    }

    /// Returns the rate that counts as handed out: the largest that may be in use.
    pub(super) fn counted(&self) -> u64 {
        self.old.map_or(0, |old| old.bucket.rate).max(self.bucket.rate)
    }

    pub(super) fn replace(&mut self, bucket: Bucket, until: Tick, now: Tick) {
        if self.bucket.rate > 0 {
            self.old = Some(Old { bucket: self.bucket, until: self.until, replaced: now });
        }
        (self.bucket, self.until) = (bucket, until);
    }

    /// Frees the replaced bucket if a report at `now` proves that it is not in use; returns the rate and burst that this frees.
    pub(super) fn free_old(&mut self, now: Tick) -> Bucket {
        match self.old {
            Some(old) if now >= old.replaced.after(ROUND_TRIP) => self.drop_old(),
            _ => Bucket::default(),
        }
    }

    /// Returns when the replaced bucket expires; [`Tick::MAX`] if there is none.
    pub(super) fn old_until(&self) -> Tick {
        self.old.map_or(Tick::MAX, |old| old.until)
    }

    /// Forgets the replaced bucket; returns the rate and burst that this frees.
    pub(super) fn drop_old(&mut self) -> Bucket {
        let before = self.counted();
        let burst = self.old.take().map_or(0, |old| old.bucket.burst);
        Bucket { rate: before - self.counted(), burst }
    }

    /// Forgets the current bucket; returns the rate and burst that this frees.
    pub(super) fn drop_current(&mut self) -> Bucket {
        let before = self.counted();
        let burst = core::mem::take(&mut self.bucket).burst;
        Bucket { rate: before - self.counted(), burst }
    }
}
