//! The treatment of limits whose cells an engine has lost.
//!
//! A server that was restarted, flushed or replaced by a lagging replica has forgotten what was spent: if a missing
//! cell counted as a full limit, it would be granted again. So each hash of cells holds an epoch: the server run that
//! wrote last, and the time when cells of an earlier run were lost. A call that finds another run, or no epoch,
//! records the loss. From then on, cells older than the loss count as [`AfterLoss`] says, until they are written anew.

use std::sync::Arc;

use tidegate::store::{AfterLoss, Cell};
use tidegate_core::{Algorithm as _, Ask, Cost, Quota, State, Tick, Transition};

pub(crate) fn spent(after_loss: AfterLoss, limit: u64) -> u64 {
    match after_loss {
        AfterLoss::Empty => limit,
        AfterLoss::Half => limit - limit.div_ceil(2).max(1).min(limit),
        AfterLoss::Full => 0,
    }
}

/// Returns the cell to decide by if cells were lost at `lost`; `None` if the found cell, last written at `written`, is
/// valid.
pub(crate) fn replaced(
    after_loss: AfterLoss,
    quota: &Arc<Quota>,
    found: Option<&(Cell, Tick)>,
    lost: Tick,
    now: Tick,
) -> Option<Cell> {
    if lost == Tick::EPOCH || quota.is_guard() || found.is_some_and(|(_, written)| *written >= lost) {
        return None;
    }
    let floor = spent_at(after_loss, quota, lost)?;
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
        // It is emptier already.
        return None;
    }
    Some(Cell::new(Arc::clone(quota), floor))
}

fn spent_at(after_loss: AfterLoss, quota: &Quota, at: Tick) -> Option<State> {
    let fresh = quota.fresh(at);
    let standing = quota.standing(&fresh, at);
    let left = standing.limit - spent(after_loss, standing.limit);
    let cost = Cost::new(standing.remaining.saturating_sub(left))?;
    match quota.decide(&fresh, Ask::allow(at, cost)) {
        Transition::Allowed { next, .. } => Some(next),
        Transition::Denied { .. } => None,
    }
}
