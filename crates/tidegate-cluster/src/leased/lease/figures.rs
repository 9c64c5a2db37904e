//! Read-only queries: how much a lease holds.

use tidegate_core::{Cost, Tick};

use super::{Batch, GivenBack, Lease, Lookup};

impl Lease {
    /// Returns whether a request would find its units here, as [`Lease::look_up`] does, without changing anything.
    pub(in super::super) fn would_grant(&self, cost: Cost, kept_back: u64, now: Tick, part: u32) -> bool {
        let mut lease = self.clone();
        lease.look_up(cost, kept_back, now, part, &mut GivenBack::new()) == Lookup::Ready
    }

    /// Returns how many units are held, whether or not they can be spent now.
    pub(in super::super) fn units_held(&self) -> u64 {
        [&self.current, &self.next].into_iter().flatten().map(Batch::left).sum()
    }

    /// Returns how many units can be spent now.
    pub(in super::super) fn ready(&self, now: Tick) -> u64 {
        let both = [&self.current, &self.next].into_iter().flatten();
        both.filter(|batch| batch.from <= now && now < batch.until).map(Batch::left).sum()
    }

    /// Returns how many units can be spent now or are taken by requests that are not yet admitted.
    pub(in super::super) fn outstanding(&self, now: Tick) -> u64 {
        self.ready(now).min(self.most_held()).saturating_add(self.held)
    }

    /// Returns how many units are held that may not be spent yet.
    pub(in super::super) fn reserved(&self, now: Tick) -> u64 {
        let both = [&self.current, &self.next].into_iter().flatten();
        both.filter(|batch| batch.from > now).map(Batch::left).sum()
    }

    /// Returns whether nothing is lost if the lease is forgotten.
    pub(in super::super) fn is_idle(&self, now: Tick) -> bool {
        let quiet = now.since(self.touched) >= self.terms.lasts;
        self.units_held() == 0 && self.held == 0 && self.drawing.is_none() && quiet
    }
}
