//! By what a search tells one purse from another.

use super::Purse;

impl Purse {
    /// All that decides what the purse does next, but for the demand.
    pub(in super::super) fn essence(&self) -> impl std::hash::Hash + '_ {
        let pockets = [&self.current, &self.next]
            .map(|pocket| pocket.as_ref().map(|pocket| (pocket.rest, pocket.from, pocket.until)));
        let blocked = self.blocked.map(|blocked| (blocked.until, blocked.refused));
        (
            pockets,
            self.good_until,
            self.part,
            self.held,
            blocked,
            self.waits,
            self.is_drawing(),
            self.remaining,
        )
    }
}
