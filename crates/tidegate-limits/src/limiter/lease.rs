//! Leases: units that a thread draws in advance and spends without touching shared memory.
//!
//! A thread keeps a few leases, one for each limiter that it checks ([`PLACES`], indexed by the limiter's number). A
//! lease is valid while the shared tick does not change, for a millisecond at most. So units spent from it were drawn
//! no longer ago than that, and the bound of [`crate::Precision::Shared`] holds for leases unchanged. Unspent units
//! go back into the limit before anything else is drawn, and at the latest when the thread ends.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_core::rate::GcraWord;
use tidegate_core::{Cost, Finish, Outcome, Receipt, Tick};

use super::shared::LimiterState;
use super::word::Undecided;
use crate::answer::CheckResult;
use crate::clock::SystemClock;
use crate::store::{Ending, Op};

/// The most units drawn at once: spread over this many, a draw costs less than the thread's own counter.
const LARGEST: u64 = 64;

/// A draw takes at most this part of the remaining units, so that threads near the limit draw single units.
const PART: u64 = 8;

/// The number of leases of one thread. Two limiters whose numbers map to the same index evict each other's lease: the
/// answers stay right, but are no faster than without leases.
const PLACES: usize = 16;

/// The units that a thread has drawn from one limiter. Each field is a cell of its own, so that spending writes one
/// number.
// Aligned, so that an element's address is computed by a shift.
#[repr(align(128))]
struct Lease {
    /// The number of the limiter; 0 for none.
    number: Cell<u64>,
    /// The shared tick of the draw.
    tick: Cell<u64>,
    /// The units not spent yet.
    left: Cell<u64>,
    /// The limit's form, its word after the draw and its scaled time: the data for answers.
    drawn: Cell<Option<Drawn>>,
}

#[derive(Clone, Copy)]
struct Drawn {
    form: GcraWord,
    word: u64,
    now: u64,
    /// How many units were drawn.
    size: u64,
    /// The sum of all units given back by leases before the draw, see [`Returns`](super::shared::Returns).
    returned: u64,
    /// The limiter's terms at the draw. Units drawn under other terms are not given back.
    terms: u64,
}

impl Drawn {
    /// Returns the receipt of the draw, with its position moved by the amount that leases have given back since;
    /// `None` for a draw of zero units, which does not occur.
    fn receipt(&self, tick: Tick, returned: u64) -> Option<Receipt> {
        let cost = Cost::new(self.size)?;
        Some(Receipt { at: tick, act: tick, cost, mark: self.form.mark(self.word.saturating_sub(returned)) })
    }
}

impl Lease {
    const fn none() -> Self {
        Self { number: Cell::new(0), tick: Cell::new(0), left: Cell::new(0), drawn: Cell::new(None) }
    }

    /// Spends units of the lease that the limiter of this number drew at this tick; `None` if there is none, or it
    /// has too few left.
    #[inline]
    fn spend<T: CheckResult>(&self, number: u64, tick: Tick, units: u64) -> Option<T> {
        let left = self.left.get();
        if left < units || self.tick.get() != tick.as_nanos() || self.number.get() != number {
            return None;
        }
        self.left.set(left - units);
        self.result()
    }

    /// Makes the answer for the units just spent. Reads nothing if only a yes is needed.
    #[inline]
    fn result<T: CheckResult>(&self) -> Option<T> {
        T::permitted_after(|| {
            let Drawn { form, word, now, .. } = self.drawn.get()?;
            Some(form.report(form.give_back(word, self.left.get()), now))
        })
    }
}

thread_local! {
    // Separate from `LEASE_OWNERS`: a thread-local without a destructor needs no check whether it is still alive.
    static LEASES: [Lease; PLACES] = const { [const { Lease::none() }; PLACES] };
    static LEASE_OWNERS: RefCell<LeaseOwners> = const { RefCell::new(LeaseOwners([const { Weak::new() }; PLACES])) };
}

/// The limiters that the leases of a thread go back to. A lease does not keep its limiter alive.
struct LeaseOwners([Weak<LimiterState>; PLACES]);

impl Drop for LeaseOwners {
    fn drop(&mut self) {
        LEASES.with(|leases| leases.iter().zip(&self.0).for_each(|(lease, owner)| give_back(owner, lease)));
    }
}

/// Spends units of the thread's lease, if it has enough and the shared tick is kept.
#[inline]
pub(super) fn spend_fast<T: CheckResult>(shared: &LimiterState, units: u64) -> Result<T, Undecided> {
    let tick = SystemClock::shared().ok_or(Undecided::NotAsked)?;
    LEASES
        .with(|leases| leases[shared.number as usize % PLACES].spend(shared.number, tick, units))
        .ok_or(Undecided::NotAsked)
}

/// Spends units of the thread's lease, or draws a new one; `None` if neither is possible.
pub(super) fn spend<T: CheckResult>(shared: &Arc<LimiterState>, units: u64) -> Option<T> {
    let tick = shared.time.shared()?;
    LEASES.with(|leases| {
        let lease = &leases[shared.number as usize % PLACES];
        lease.spend(shared.number, tick, units).or_else(|| draw(shared, lease, tick, units))
    })
}

/// Draws a lease, and spends `units` of it.
fn draw<T: CheckResult>(shared: &Arc<LimiterState>, lease: &Lease, tick: Tick, units: u64) -> Option<T> {
    if lease.left.get() > 0 {
        assign_lease(shared, lease)?;
    }
    // Read first, so that everything given back after this counts as later than the draw.
    let returned = shared.returns.sum.load(Ordering::Acquire);
    // The terms are read before the word. After a change in between, the lease carries the old terms, and so is not
    // given back to the new limit.
    let terms = shared.word.terms();
    let (form, word) = shared.word.read()?;
    let now = form.scaled(tick)?;
    // Tested by multiplication rather than computed by division: most draws are of the largest size, or impossible.
    let holds = |units: u64| form.take(word, now, units.saturating_mul(PART)).is_some();
    if !holds(units.saturating_add(1)) {
        return None;
    }
    let size = if holds(LARGEST) { LARGEST } else { form.remaining(word, now) / PART };
    if size <= units {
        return None;
    }
    // If the lease was this limiter's before, its owner is set already.
    if lease.number.get() != shared.number {
        assign_lease(shared, lease)?;
    }
    let next = form.take(word, now, size).filter(|next| shared.word.exchange(word, *next))?;
    lease.tick.set(tick.as_nanos());
    lease.left.set(size - units);
    lease.drawn.set(Some(Drawn { form, word: next, now, size, returned, terms }));
    lease.result()
}

/// Gives back the units left in the lease, and assigns the lease to this limiter. `None` while the thread ends, when
/// nothing is leased any more.
fn assign_lease(shared: &Arc<LimiterState>, lease: &Lease) -> Option<()> {
    LEASE_OWNERS
        .try_with(|owners| {
            let owner = &mut owners.borrow_mut().0[shared.number as usize % PLACES];
            give_back(owner, lease);
            if lease.number.replace(shared.number) != shared.number {
                *owner = Arc::downgrade(shared);
            }
        })
        .ok()
}

/// Gives back the units that a lease still holds and that time has not given back already.
///
/// A lease may be hours old. Time has then refilled the limit, and others have spent the units again. Of the units
/// drawn, only those are still charged that lie between now and the arrival time of the draw, minus the amount that
/// leases gave back since. Time has returned the others, and giving those back too would return them twice.
fn give_back(owner: &Weak<LimiterState>, lease: &Lease) {
    let left = lease.left.replace(0);
    let (Some(left), Some(drawn), Some(shared)) = (Cost::new(left), lease.drawn.take(), owner.upgrade())
    else {
        return;
    };
    let giving = shared.returns.giving.lock();
    let read = shared.word.read();
    if shared.number != lease.number.get() || shared.word.terms() != drawn.terms {
        return;
    }
    // After reading the word: no charge in it has a later tick than this.
    let now = shared.time.now();
    let Some(scaled) = drawn.form.scaled(now) else { return };
    let returned = shared.returns.sum.load(Ordering::Relaxed).wrapping_sub(drawn.returned);
    let held = drawn.form.outstanding(drawn.word.saturating_sub(returned), scaled);
    let Some(left) = Cost::new(left.units().min(held)) else { return };
    // While others wait for the limit, or reservations may still be settled, the units are given back under the lock,
    // as a charge that was only partly spent: the word does not record promises to waiters.
    let reserved = shared.returns.receipts.load(Ordering::Relaxed) > now.as_nanos();
    let by_word = !reserved
        && read.is_some_and(|(form, word)| {
            let next = form.give_back(word, left.units());
            let given = !form.is_used_up(word, scaled) && shared.word.exchange(word, next);
            if given {
                // Release, after the word: a draw that sees the old word counts this as later.
                shared.returns.sum.fetch_add(word - next, Ordering::Release);
            }
            given
        });
    drop(giving);
    if !by_word && let Some(receipt) = drawn.receipt(Tick::from_nanos(lease.tick.get()), returned) {
        let finish = Finish { used: drawn.size.saturating_sub(left.units()), outcome: Outcome::Ignored };
        let ending = [Ending::new(receipt, finish)];
        shared
            .with_cells(now, |limits| limits.settle(now, Op::Finish(&ending), receipt.cost, Duration::ZERO));
    }
}
