//! What becomes of limits whose cells an engine has lost.
//!
//! A server that was restarted, flushed or replaced by a replica that lagged behind has forgotten what was spent. Who takes a missing cell for
//! a full limit then grants it twice. So each hash of cells holds an epoch: which run of a server wrote last, and when cells of an earlier
//! run were lost. Whoever finds another run there, or no epoch at all, writes down the loss; from then on, cells older than it count as
//! [`AfterLoss`] says, until they are written anew.

use std::sync::Arc;

use tidegate::store::Cell;
use tidegate_core::{Algorithm as _, Ask, Cost, Quota, State, Tick, Transition};

/// How full a limit is taken to be whose cells were lost. Guards (places in flight, breakers) start anew whatever is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLoss {
    /// Empty: nothing is granted twice after a loss that is noticed, and every key waits as if it had spent everything at that moment. Also the first
    /// use of a namespace counts as a loss.
    Empty,
    /// Half full, and one unit at least: at most half a burst is granted twice.
    #[default]
    Half,
    /// Full, as if nothing had been spent: what was spent before can be spent again.
    Full,
}

impl AfterLoss {
    /// Returns how many units of a limit count as spent.
    pub(crate) fn spent(self, limit: u64) -> u64 {
        match self {
            Self::Empty => limit,
            Self::Half => limit - limit.div_ceil(2).max(1).min(limit),
            Self::Full => 0,
        }
    }

    /// Returns the cell to decide by, in place of one that was last written at `written`, or of none, when cells were lost at `lost`;
    /// `None` where the cell that was found holds.
    pub(crate) fn replaced(
        self,
        quota: &Arc<Quota>,
        found: Option<&(Cell, Tick)>,
        lost: Tick,
        now: Tick,
    ) -> Option<Cell> {
        if lost == Tick::EPOCH || quota.is_guard() || found.is_some_and(|(_, written)| *written >= lost) {
            return None;
        }
        let floor = self.spent_at(quota, lost)?;
        if quota.full_at(&floor).is_some_and(|full| full <= now) {
            return None;
        }
        let level = |quota: &Quota, state: &State| {
            let standing = quota.standing(state, now);
            i128::from(standing.remaining) - i128::from(standing.debt)
        };
        if let Some((cell, _)) = found
            && *cell.quota == **quota
            && level(quota, &cell.state) <= level(quota, &floor)
        {
            // What came through the loss is emptier already.
            return None;
        }
        Some(Cell::new(Arc::clone(quota), floor))
    }

    /// Returns the state of a limit that has spent its part of everything at a tick.
    fn spent_at(self, quota: &Quota, at: Tick) -> Option<State> {
        let fresh = quota.fresh(at);
        let standing = quota.standing(&fresh, at);
        let left = standing.limit - self.spent(standing.limit);
        let cost = Cost::new(standing.remaining.saturating_sub(left))?;
        match quota.decide(&fresh, Ask::allow(at, cost)) {
            Transition::Allowed { next, .. } => Some(next),
            Transition::Denied { .. } => None,
        }
    }
}
