//! How much a purse holds, for those who look without taking.

use tidegate_core::{Cost, Tick};

use super::{GivenBack, Look, Pocket, Purse};

impl Purse {
    /// Says whether a request would find its units here, as [`Purse::look`] does, and changes nothing.
    pub(in super::super) fn would_grant(&self, cost: Cost, kept_back: u64, now: Tick, part: u32) -> bool {
        let mut purse = self.clone();
        purse.look(cost, kept_back, (now, part), &mut GivenBack::new()) == Look::Ready
    }

    /// Returns how many units are held, whether they can be spent by now or not.
    pub(in super::super) fn left(&self) -> u64 {
        [&self.current, &self.next].into_iter().flatten().map(Pocket::left).sum()
    }

    /// Returns how many units can be spent at once.
    pub(in super::super) fn ready(&self, now: Tick) -> u64 {
        let both = [&self.current, &self.next].into_iter().flatten();
        both.filter(|pocket| pocket.from <= now && now < pocket.until).map(Pocket::left).sum()
    }

    /// Returns how many units can be spent at once or are in the hands of requests.
    pub(in super::super) fn outstanding(&self, now: Tick) -> u64 {
        self.ready(now).min(self.most_held()).saturating_add(self.held)
    }

    /// Returns how many units are held whose time has not come.
    pub(in super::super) fn reserved(&self, now: Tick) -> u64 {
        let both = [&self.current, &self.next].into_iter().flatten();
        both.filter(|pocket| pocket.from > now).map(Pocket::left).sum()
    }

    /// Says whether nothing is lost if the purse is forgotten.
    pub(in super::super) fn is_idle(&self, now: Tick) -> bool {
        let quiet = now.since(self.touched) >= self.terms.lasts;
        self.left() == 0 && self.held == 0 && self.drawing.is_none() && quiet
    }
}
