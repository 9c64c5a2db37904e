//! The part of a purse's state that determines its behaviour. The model check treats two purses that are equal in it as
//! the same.

use super::Purse;

impl Purse {
    /// Returns all that determines the purse's behaviour, except for the demand, which only sizes draws.
    pub(in super::super) fn model_state(&self) -> impl std::hash::Hash + '_ {
        let pockets = [&self.current, &self.next]
            .map(|pocket| pocket.as_ref().map(|pocket| (pocket.rest, pocket.from, pocket.until)));
        let refused = (self.refusals.model_state(), self.failed_until);
        (
            pockets,
            self.good_until,
            self.part,
            self.held,
            refused,
            self.waits,
            self.is_drawing(),
            self.remaining,
        )
    }
}
