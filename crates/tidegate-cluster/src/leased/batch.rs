//! A batch: units that were drawn in one call and not yet spent.

use std::sync::Arc;

use tidegate_core::{Cost, Quota, Receipt, Tick};

/// The rest of one draw, and from when and until when it may be spent, by this node's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// The limit that it was drawn from.
    pub(super) quota: Arc<Quota>,
    /// The receipt of the units left; its cost is their number. `None` when all are spent.
    pub(super) rest: Option<Receipt>,
    pub(super) from: Tick,
    pub(super) until: Tick,
    /// The units that the draw left to requests of higher priority.
    pub(super) kept_back: u64,
    /// The next draw is made when fewer units than this are left.
    pub(super) low: u64,
}

/// Units that were taken out of a batch. They may be put back until the request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Portion {
    /// The receipt of the batch's units before these were taken.
    before: Receipt,
    pub(super) cost: Cost,
}

impl Batch {
    #[inline]
    pub(super) fn left(&self) -> u64 {
        self.rest.map_or(0, |rest| rest.cost.units())
    }

    /// Takes units out; `None` if there are too few.
    #[inline]
    pub(super) fn take(&mut self, cost: Cost) -> Option<Portion> {
        let before = self.rest?;
        let left = before.cost.units().checked_sub(cost.units())?;
        self.rest = Cost::new(left).map(|cost| self.without_first(before, cost));
        Some(Portion { before, cost })
    }

    /// Puts units back that were the last to be taken out; `false` if others were taken since.
    pub(super) fn put_back(&mut self, portion: &Portion) -> bool {
        let Portion { before, cost } = portion;
        let after =
            Cost::new(before.cost.units() - cost.units()).map(|cost| self.without_first(*before, cost));
        let adjacent = after == self.rest;
        // A batch that is all spent does not show which draw it was.
        if adjacent && self.rest.is_some() {
            self.rest = Some(*before);
        }
        adjacent && after.is_some()
    }

    /// Takes out all units beyond `most`, and returns their receipt.
    pub(super) fn trim(&mut self, most: u64) -> Option<Receipt> {
        let rest = self.rest?;
        let Some(kept) = Cost::new(most) else { return self.rest.take() };
        // The units taken out are the last of the draw, and those kept are the first.
        let (first, last) = self.quota.split(&rest, kept)?;
        self.rest = Some(first);
        Some(last)
    }

    /// Returns the receipt of the last units of a draw: it has the mark of the whole, except that it does not open a
    /// window that the first units have opened.
    fn without_first(&self, whole: Receipt, cost: Cost) -> Receipt {
        match *self.quota {
            Quota::FixedWindow(_) => Receipt { cost, mark: [0; 4], ..whole },
            _ => Receipt { cost, ..whole },
        }
    }
}

impl Portion {
    /// Returns a receipt of these units alone, as the engine would have given it for a separate charge.
    pub(super) fn receipt(&self, quota: &Quota) -> Receipt {
        match quota.split(&self.before, self.cost) {
            Some((first, _)) => first,
            // They were all units of the batch.
            None => self.before,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_core::{Algorithm, Ask, State, Transition};

    use super::*;

    fn units(units: u64) -> Cost {
        Cost::new(units).unwrap()
    }

    fn batch(quota: &Arc<Quota>, cost: u64) -> (Batch, State) {
        let now = Tick::from_secs(5);
        let Transition::Allowed { next, receipt, .. } =
            quota.decide(&quota.fresh(now), Ask::allow(now, units(cost)))
        else {
            panic!("within the limit")
        };
        let quota = Arc::clone(quota);
        let batch = Batch { quota, rest: Some(receipt), from: now, until: Tick::MAX, kept_back: 0, low: 0 };
        (batch, next)
    }

    #[test]
    fn what_is_put_back_in_order_is_as_if_never_taken() {
        let quota = Arc::new(Quota::per_second(9).burst(20).gcra().unwrap());
        let (mut batch, _) = batch(&quota, 10);
        let before = batch.clone();
        let first = batch.take(units(3)).unwrap();
        let second = batch.take(units(4)).unwrap();
        assert!(batch.take(units(4)).is_none());
        assert!(!batch.put_back(&first), "others were taken since");
        assert!(batch.put_back(&second) && batch.put_back(&first));
        assert_eq!(batch, before);
        assert!(!batch.put_back(&second), "nothing is put back twice");
    }

    /// Portions, trimmed units and the rest are settled separately, and leave the limit as if only the units used had
    /// been charged.
    #[test]
    fn every_part_of_a_batch_is_settled_by_itself() {
        let quotas = [
            Quota::per_second(9).burst(20).gcra().unwrap(),
            Quota::per_second(9).burst(20).token_bucket().unwrap(),
            Quota::per_second(20).fixed_window().unwrap(),
        ];
        for quota in quotas.map(Arc::new) {
            let now = Tick::from_secs(5);
            let (mut batch, mut state) = batch(&quota, 12);
            let one = batch.take(units(3)).unwrap().receipt(&quota);
            let two = batch.take(units(2)).unwrap().receipt(&quota);
            let trimmed = batch.trim(5).unwrap();
            let left = batch.rest.unwrap();
            assert_eq!((trimmed.cost.units(), left.cost.units()), (2, 5));
            for (receipt, used) in [(left, 0), (two, 1), (trimmed, 0), (one, 3)] {
                state = quota.settle(&state, now, &receipt, used);
            }
            assert_eq!(quota.standing(&state, now).remaining, 16, "{quota:?}");
        }
    }
}
