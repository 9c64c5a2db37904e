//! A [`Cell`]: what a store keeps of one key.

use std::borrow::Cow;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::bytes::{Bytes, DecodeError, Reader, Writer};
use tidegate_core::{Algorithm, Ask, Quota, Retry, State, Tick, Transition};

use super::step::Charge;

/// States of more bytes are long lists of charges.
const LONG_STATE: usize = 1024;

/// The most decisions that the search for a wait takes on such a state.
const FEW: u32 = 6;

const CELL: u8 = 0;

/// The first byte of the byte form of a cell that was reset. Two ticks follow: the tick of the reset, and the tick
/// until which it matters.
const RESET_CELL: u8 = 1;

/// The data that a store keeps for one key: the state, and the quota it was written under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The limit that the state was written under; when the key's limit has changed, the state is carried over on next
    /// use.
    pub quota: Arc<Quota>,
    /// What was spent.
    pub state: State,
    /// A note that the key was reset, or came under a limit of another kind; kept for as long as charges from before
    /// might still be ended.
    #[doc(hidden)]
    pub forgotten: Option<Box<Forgotten>>,
}

/// How full a limit is assumed to be after an engine has lost its cell. Guards (places in flight, breakers) always
/// start anew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterLoss {
    /// Empty: nothing is granted twice after a detected loss, and every key waits as if it had spent everything at that
    /// moment. The first use of a namespace counts as a loss too.
    Empty,
    /// Half full, with at least one unit: at most half a burst is granted twice.
    #[default]
    Half,
    /// Full, as if nothing had been spent: units spent before the loss can be spent again.
    Full,
}

/// When a key was reset, or its limit changed to another kind. Charges made at or before that tick are void: they give
/// nothing back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// When it was.
    pub at: Tick,
    /// From this tick on, the refill has returned everything that was charged before.
    pub until: Tick,
}

impl Cell {
    /// Makes a cell for a key that was never reset, and whose limit never changed to another kind.
    #[must_use]
    pub const fn new(quota: Arc<Quota>, state: State) -> Self {
        Self { quota, state, forgotten: None }
    }

    /// Returns whether the cell holds only quota and state: without a note that the key was reset, or came under a
    /// limit of another kind, while charges from before might still be ended.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.forgotten.is_none()
    }

    /// Returns the tick from which the cell is equivalent to no cell; `None` if time alone never makes it so.
    #[must_use]
    pub fn full_at(&self) -> Option<Tick> {
        let full = self.quota.full_at(&self.state)?;
        Some(self.forgotten.as_ref().map_or(full, |forgotten| full.max(forgotten.until)))
    }
}

impl Cell {
    /// Returns whether the cell differs from no cell at a tick.
    pub(super) fn matters(&self, now: Tick) -> bool {
        self.full_at().is_none_or(|full| full > now)
    }

    /// Returns whether the cell is under the limit of a charge.
    #[inline]
    pub fn is_under(&self, charge: &Charge<'_>) -> bool {
        // Pointers are compared first: all keys of a policy share one quota, and comparing quotas field by field costs
        // more.
        Arc::ptr_eq(&self.quota, charge.quota) || self.quota == *charge.quota
    }
}

/// Returns the cell that counts for a charge: `None` where the cell is under another limit and equivalent to no cell by
/// now.
///
/// Stores may delete such cells ([`Write::keep`](tidegate_cluster::Write::keep)), and the answer to a charge must not depend on
/// whether one was deleted. Carrying the cell over would change the answer: charges made up to the tick of the change,
/// including the charge that causes it, would give nothing back. Under its own limit, such a cell does not change any
/// answer, so that case is not checked.
pub(super) fn met<'c>(charge: &Charge<'_>, cell: Option<&'c Cell>, now: Tick) -> Option<&'c Cell> {
    cell.filter(|cell| cell.is_under(charge) || cell.matters(now))
}

/// Returns the state of a cell, converted to the charge's quota. A state that a fast clock has written, too far ahead
/// of `now`, is set back ([`Quota::set_back`]).
pub(super) fn current<'c>(charge: &Charge<'_>, cell: Option<&'c Cell>, now: Tick) -> Cow<'c, State> {
    let Some(cell) = cell else { return Cow::Owned(charge.quota.fresh(now)) };
    if cell.is_under(charge) {
        return charge.quota.set_back(&cell.state, now).map_or(Cow::Borrowed(&cell.state), Cow::Owned);
    }
    Cow::Owned(carried(charge, cell, now))
}

#[cold]
fn carried(charge: &Charge<'_>, cell: &Cell, now: Tick) -> State {
    let Some(cell) = met(charge, Some(cell), now) else { return charge.quota.fresh(now) };
    let back = cell.quota.set_back(&cell.state, now);
    charge.quota.carry(&cell.quota, back.as_ref().unwrap_or(&cell.state), now, charge.rules.replace)
}

/// Returns when a refused charge is worth repeating. `ruled` is the retry that the charge's limit gave for the state
/// from [`current`].
///
/// A refusal does not carry the key over to a changed limit. Until a charge is allowed, the units refill by the old
/// limit, and a later charge converts what is then left. The wait that the new limit gave does not account for that.
pub(super) fn retry(charge: &Charge<'_>, cell: Option<&Cell>, now: Tick, ruled: Retry) -> Retry {
    match (ruled, met(charge, cell, now)) {
        (Retry::After(wait), Some(cell)) if !cell.is_under(charge) => {
            retry_under_change(charge, cell, now, wait)
        }
        _ => ruled,
    }
}

/// Searches for the least wait after which the charge is allowed if the key stays under its old limit until then. The
/// result is at least that wait, and at most a thousandth more. The search starts from the wait that the new limit
/// named, and takes about twenty to thirty decisions. For a long log or many buckets, each decision carries the whole
/// list over, so at most [`FEW`] are made, and the wait may be longer than necessary.
#[cold]
fn retry_under_change(charge: &Charge<'_>, cell: &Cell, now: Tick, named: Duration) -> Retry {
    let decide = |wait: u64| {
        let at = now.after(Duration::from_nanos(wait));
        charge.quota.decide(&carried(charge, cell, at), Ask::within(at, charge.cost, charge.max_wait))
    };
    let is_allowed = |wait: u64| matches!(decide(wait), Transition::Allowed { .. });
    // After this wait, the key is equivalent to a new one.
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

/// Replaces the state of a cell. Clones the quota's `Arc` only where the quota changed, because all keys share its
/// reference count.
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

/// Returns the note of void charges for a cell whose limit changes to another kind.
///
/// A receipt refers to a state of the limit that it was made under. A state that was carried to another kind of limit
/// and back is a different one, and may have been full in between. A charge from before cannot be found in it, and
/// ending it would give back what was charged later. Places of guards are found by their own receipts, so a guard's
/// cell keeps the note of the limits before it, without a new one.
fn other_kind(cell: &Cell, now: Tick) -> Option<Box<Forgotten>> {
    let until = match &cell.forgotten {
        _ if !cell.quota.is_guard() => cell.full_at().unwrap_or(Tick::MAX),
        Some(forgotten) => forgotten.until,
        None => return None,
    };
    if until <= now {
        return None;
    }
    // Charges of this very step are not void, so the note covers those up to the nanosecond before; if the kind changes
    // twice within one nanosecond, it covers those up to `now`.
    let before = Tick::from_nanos(now.as_nanos().saturating_sub(1));
    let twice = cell.forgotten.as_ref().is_some_and(|forgotten| forgotten.at >= before);
    Some(Box::new(Forgotten { at: if twice { now } else { before }, until }))
}

impl Cell {
    /// Returns the byte form: the quota, then the state. With the quota, a node with another configuration can carry
    /// the state over.
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

    /// Returns the largest number of bytes that [`Cell::encode`] returns for a key under a limit.
    #[must_use]
    pub fn largest(quota: &Quota) -> usize {
        // Two ticks for the note of a reset; the headers are counted with the quota and the state.
        2 * size_of::<u64>() + quota.encode().len() + quota.largest_state()
    }

    /// Reads a byte form.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are not a cell.
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
