//! What a store keeps of one key, as limits change and keys are forgotten under it.

use std::borrow::Cow;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::bytes::{Bytes, DecodeError, Reader, Writer};
use tidegate_core::{Algorithm, Ask, Quota, Retry, State, Tick, Transition};

use super::step::Charge;

/// States of more bytes than this are long lists of what was charged.
const LONG_STATE: usize = 1024;

/// The most decisions about such a state, to find a wait.
const FEW: u32 = 6;

/// The first byte of a cell's byte form.
const CELL: u8 = 0;

/// The first byte of the form of a cell that was reset; two ticks follow: of the reset, and until when it matters.
const RESET_CELL: u8 = 1;

/// What a store keeps of one key: the state, and the quota it was written under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The limit that gives the state its meaning; a changed limit carries it over on next use.
    pub quota: Arc<Quota>,
    /// What was spent.
    pub state: State,
    /// That the key was reset, or came under a limit of another kind, for as long as charges from before might still be ended.
    pub(super) forgotten: Option<Box<Forgotten>>,
}

/// When a key was reset, or its limit's kind changed. Charges made at or before that tick are void: nothing of them comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Forgotten {
    pub(in crate::store) at: Tick,
    /// From this tick on, time has returned all that was charged before.
    pub(in crate::store) until: Tick,
}

impl Cell {
    /// Makes a cell of a key that was never reset, and whose limit never changed its kind.
    #[must_use]
    pub const fn new(quota: Arc<Quota>, state: State) -> Self {
        Self { quota, state, forgotten: None }
    }

    /// Says whether quota and state are all that the cell holds: the key was not reset, nor came under a limit of another kind, while
    /// charges from before might still be ended.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.forgotten.is_none()
    }

    /// Returns the tick from which the cell is as good as none; `None` when it never is by itself.
    #[must_use]
    pub fn full_at(&self) -> Option<Tick> {
        let full = self.quota.full_at(&self.state)?;
        Some(self.forgotten.as_ref().map_or(full, |forgotten| full.max(forgotten.until)))
    }
}

impl Cell {
    /// Says whether the cell is under the limit of a charge.
    #[inline]
    fn is_under(&self, charge: &Charge<'_>) -> bool {
        // The pointer first: policies share one quota among all keys, and comparing quotas field by field costs more.
        Arc::ptr_eq(&self.quota, charge.quota) || self.quota == *charge.quota
    }
}

/// Returns the cell that a charge meets: none where it is under another limit and as good as none by now.
///
/// Stores may delete such cells ([`Write::keep`](super::Write::keep)), and a charge must be answered alike where that has happened and where
/// it has not. To carry the cell over would differ: nothing would come back of charges made up to the tick of the change, the one that
/// brings it about included. Under their own limit, cells that are as good as none make no difference, and are not looked at.
pub(super) fn met<'c>(charge: &Charge<'_>, cell: Option<&'c Cell>, now: Tick) -> Option<&'c Cell> {
    cell.filter(|cell| cell.is_under(charge) || cell.full_at().is_none_or(|full| full > now))
}

/// Returns the state of a cell as the charge's quota sees it. A state that a fast clock wrote, too far ahead of `now`, is set back
/// ([`Quota::set_back`]).
pub(super) fn current<'c>(charge: &Charge<'_>, cell: Option<&'c Cell>, now: Tick) -> Cow<'c, State> {
    let Some(cell) = cell else { return Cow::Owned(charge.quota.fresh(now)) };
    if cell.is_under(charge) {
        return cell.quota.set_back(&cell.state, now).map_or(Cow::Borrowed(&cell.state), Cow::Owned);
    }
    Cow::Owned(carried(charge, cell, now))
}

/// Returns the state of a cell under another limit as the charge's quota sees it.
#[cold]
fn carried(charge: &Charge<'_>, cell: &Cell, now: Tick) -> State {
    let Some(cell) = met(charge, Some(cell), now) else { return charge.quota.fresh(now) };
    let back = cell.quota.set_back(&cell.state, now);
    charge.quota.carry(&cell.quota, back.as_ref().unwrap_or(&cell.state), now, charge.replace)
}

/// Returns when a charge that the cell's limit refuses is worth repeating, as `ruled` by the state that [`current`] gave.
///
/// A refusal does not take a key over, so under a changed limit what was spent comes back as the limit before it says, and whoever comes
/// later meets what is then left, seen by the new one. The wait that the new limit names knows nothing of that.
pub(super) fn retry(charge: &Charge<'_>, cell: Option<&Cell>, now: Tick, ruled: Retry) -> Retry {
    match (ruled, met(charge, cell, now)) {
        (Retry::After(wait), Some(cell)) if !cell.is_under(charge) => {
            retry_under_change(charge, cell, now, wait)
        }
        _ => ruled,
    }
}

/// Searches the least wait after which the charge is allowed if the key stays under its old limit until then: at least that, and at most a
/// thousandth more. Starts from the wait that the new limit names, and takes some twenty to thirty decisions. Of a long log or many buckets
/// each carries the whole list over, so there are [few](FEW) of them, and the wait may be longer than it has to be.
#[cold]
fn retry_under_change(charge: &Charge<'_>, cell: &Cell, now: Tick, named: Duration) -> Retry {
    let decide = |wait: u64| {
        let at = now.after(Duration::from_nanos(wait));
        charge.quota.decide(&carried(charge, cell, at), Ask::within(at, charge.cost, charge.max_wait))
    };
    let is_allowed = |wait: u64| matches!(decide(wait), Transition::Allowed { .. });
    // From there on the key is as good as a new one.
    let fresh = cell.full_at().map_or(u64::MAX, Tick::as_nanos).saturating_sub(now.as_nanos());
    let mut enough = u64::try_from(named.as_nanos()).unwrap_or(u64::MAX).clamp(1, fresh.max(1));
    let mut short = 0;
    let mut left = if cell.state.encode().len() > LONG_STATE { FEW } else { u32::MAX };
    while !is_allowed(enough) {
        if enough >= fresh {
            return match decide(fresh) {
                Transition::Denied { retry: Retry::After(more) } => {
                    Retry::After(Duration::from_nanos(fresh).saturating_add(more))
                }
                Transition::Denied { retry } => retry,
                Transition::Allowed { .. } => Retry::After(Duration::from_nanos(fresh)),
            };
        }
        short = enough;
        left = left.saturating_sub(1);
        enough = if left == 0 { fresh } else { enough.saturating_mul(2).min(fresh) };
    }
    while left > 0 && enough - short > 1 + short / 1024 {
        left -= 1;
        let middle = short + (enough - short) / 2;
        if is_allowed(middle) {
            enough = middle;
        } else {
            short = middle;
        }
    }
    Retry::After(Duration::from_nanos(enough))
}

/// Puts a state in place. The quota's `Arc` is cloned only where the quota changed, because all keys share its reference count.
pub(super) fn keep(cell: &mut Option<Cell>, quota: &Arc<Quota>, state: State, now: Tick) {
    let forgotten = match cell {
        Some(cell) if Arc::ptr_eq(&cell.quota, quota) && cell.forgotten.is_none() => {
            cell.state = state;
            return;
        }
        Some(cell) if discriminant(&*cell.quota) != discriminant(&**quota) => other_kind(cell, now),
        Some(cell) => cell.forgotten.take().filter(|forgotten| forgotten.until > now),
        None => None,
    };
    *cell = Some(Cell { quota: Arc::clone(quota), state, forgotten });
}

/// Returns what is void of a cell whose limit changes to another kind.
///
/// Receipts name the state of the limit they were made under. A state that was carried to another kind and back is another one, which may
/// have been full meanwhile: a charge from before is not to be found in it, and would give back what came later. Places of guards
/// are found by their own receipts; what a guard's cell says of the limits before it still holds after it.
fn other_kind(cell: &Cell, now: Tick) -> Option<Box<Forgotten>> {
    let until = match &cell.forgotten {
        _ if !cell.quota.is_guard() => cell.full_at().unwrap_or(Tick::MAX),
        Some(forgotten) => forgotten.until,
        None => return None,
    };
    if until <= now {
        return None;
    }
    // Charges of this very step are not void, so those up to the nanosecond before are; unless the kind changes twice in one nanosecond.
    let before = Tick::from_nanos(now.as_nanos().saturating_sub(1));
    let twice = cell.forgotten.as_ref().is_some_and(|forgotten| forgotten.at >= before);
    Some(Box::new(Forgotten { at: if twice { now } else { before }, until }))
}

impl Cell {
    /// Returns the byte form: the quota, then the state, so that a node with another configuration can carry it over.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new(if self.forgotten.is_some() { RESET_CELL } else { CELL });
        if let Some(forgotten) = &self.forgotten {
            out.tick(forgotten.at);
            out.tick(forgotten.until);
        }
        self.quota.write(&mut out);
        self.state.write(&mut out);
        out.finish()
    }

    /// Returns the most bytes that [`Cell::encode`] gives for a key under a limit.
    #[must_use]
    pub fn largest(quota: &Quota) -> usize {
        // Two ticks, the note of a reset; headers are counted with the quota and with the state.
        2 * size_of::<u64>() + quota.encode().len() + quota.largest_state()
    }

    /// Reads a byte form.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no cell.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, mut from) = Reader::open(bytes)?;
        let forgotten = match kind {
            CELL => None,
            RESET_CELL => Some(Box::new(Forgotten { at: from.tick()?, until: from.tick()? })),
            _ => return Err(DecodeError::Kind { kind }),
        };
        let cell =
            Self { quota: Arc::new(Quota::read(&mut from)?), state: State::read(&mut from)?, forgotten };
        from.close().map(|()| cell)
    }
}
