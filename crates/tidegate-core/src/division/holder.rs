//! One holder of a part: the bucket that it has, the one before it while that may still be in use, and what it was asked for.

use core::time::Duration;

use super::bucket::Bucket;
use crate::time::Tick;

/// How long a message to a holder and its answer take at most.
pub(super) const ROUND_TRIP: Duration = Duration::from_secs(2);

/// What a holder has and wants.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    /// What it was asked for lately, in units of a period.
    pub(super) asked: u64,
    /// Whether that is known by a report, and not taken from the others.
    known: bool,
    /// What it was asked for since `since`.
    counting: u64,
    since: Tick,
    pub(super) bucket: Bucket,
    pub(super) until: Tick,
    /// The bucket that was replaced, while nobody knows that it is not in use.
    old: Option<Old>,
    pub(super) has_left: bool,
    /// What one request of his takes.
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

    pub(super) fn new(asked: u64, least: u64, now: Tick) -> Self {
        Self {
            asked,
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

    /// Counts what it was asked for: more counts at once, less by halves, so that a pause costs nobody his part.
    pub(super) fn note(&mut self, asked: u64, (rate, period): (u64, u64), now: Tick) {
        self.counting = self.counting.saturating_add(asked);
        let passed = now.as_nanos().saturating_sub(self.since.as_nanos());
        if passed < Self::CLOSE {
            return;
        }
        let seen = u128::from(self.counting) * u128::from(period) / u128::from(passed);
        // At most the rate, which fits.
        let seen = seen.min(u128::from(rate)) as u64;
        self.asked = if self.known && seen < self.asked { u64::midpoint(seen, self.asked) } else { seen };
        (self.known, self.counting, self.since) = (true, 0, now);
    }

    /// Says whether the bucket before the one that it has may still be in use.
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

    /// Frees the bucket before the one that it has, where a report at `now` says that it is not in use; returns what that frees.
    pub(super) fn free_old(&mut self, now: Tick) -> Bucket {
        match self.old {
            Some(old) if now >= old.replaced.after(ROUND_TRIP) => self.drop_old(),
            _ => Bucket::default(),
        }
    }

    /// Returns when the bucket before the one that it has ends; never where there is none.
    pub(super) fn old_until(&self) -> Tick {
        self.old.map_or(Tick::MAX, |old| old.until)
    }

    /// Forgets the bucket before the one that it has; returns what that frees.
    pub(super) fn drop_old(&mut self) -> Bucket {
        let before = self.counted();
        let burst = self.old.take().map_or(0, |old| old.bucket.burst);
        Bucket { rate: before - self.counted(), burst }
    }

    /// Forgets the bucket that it has; returns what that frees.
    pub(super) fn drop_current(&mut self) -> Bucket {
        let before = self.counted();
        let burst = core::mem::take(&mut self.bucket).burst;
        Bucket { rate: before - self.counted(), burst }
    }
}
