//! Units drawn ahead by a thread, spent without touching what others share.
//!
//! A thread keeps a few leases, one per limiter it asks ([`PLACES`] by the limiter's number). A lease is good while the shared
//! tick stands still, a millisecond at most: so what is spent from it was drawn no longer ago than that, and the bound
//! of [`crate::Precision::Shared`] holds for leases as it is. What is left of it then goes back into the limit before anything else
//! is drawn, and at the latest when the thread ends.

use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_core::rate::GcraWord;
use tidegate_core::{Cost, Finish, Outcome, Receipt, Tick};

use super::shared::Shared;
use super::word::Undecided;
use crate::answer::Tell;
use crate::clock::SystemClock;
use crate::store::{Ending, Op};

/// The most units drawn at once: the price of a draw, spread over so many, is less than that of a thread's own counter.
const LARGEST: u64 = 64;

/// A draw takes at most this part of what remains, so that threads near the limit draw single units.
const PART: u64 = 8;

/// Leases of one thread. Two limiters whose numbers fall into one place push each other's lease out: the answers stay right, and are no
/// faster than without leases.
const PLACES: usize = 16;

/// What a thread has drawn from one limiter: cells of their own, so that spending writes one number.
// Aligned, so that the place of one is found by a shift.
#[repr(align(128))]
struct Lease {
    /// Of the limiter; 0 for none.
    number: Cell<u64>,
    /// The shared tick of the draw.
    tick: Cell<u64>,
    /// Units not spent yet.
    left: Cell<u64>,
    /// The limit's form, its word after the draw and its scaled time: what answers tell.
    drawn: Cell<Option<Drawn>>,
}

#[derive(Clone, Copy)]
struct Drawn {
    form: GcraWord,
    word: u64,
    now: u64,
    /// How many units were drawn.
    size: u64,
    /// What leases had given back by then, see [`Returns`](super::returns::Returns).
    returned: u64,
    /// The limiter's terms: units drawn under others are not given back.
    terms: u64,
}

impl Drawn {
    /// Returns the receipt of the draw, whose place has moved by what leases have given back since; `None` for none, which is not drawn.
    fn receipt(&self, tick: Tick, returned: u64) -> Option<Receipt> {
        let cost = Cost::new(self.size)?;
        Some(Receipt { at: tick, act: tick, cost, mark: self.form.mark(self.word.saturating_sub(returned)) })
    }
}

impl Lease {
    const fn none() -> Self {
        Self { number: Cell::new(0), tick: Cell::new(0), left: Cell::new(0), drawn: Cell::new(None) }
    }

    /// Spends units of what the limiter of this number drew at this tick; `None` where it drew none, or has not so many left.
    #[inline]
    fn spend<T: Tell>(&self, number: u64, tick: Tick, units: u64) -> Option<T> {
        let left = self.left.get();
        if left < units || self.tick.get() != tick.as_nanos() || self.number.get() != number {
            return None;
        }
        self.left.set(left - units);
        self.tell()
    }

    /// Makes the answer for what was spent just now. Where only a yes is asked for, nothing is read.
    #[inline]
    fn tell<T: Tell>(&self) -> Option<T> {
        T::permitted_after(|| {
            let Drawn { form, word, now, .. } = self.drawn.get()?;
            Some(form.report(form.give_back(word, self.left.get()), now))
        })
    }
}

thread_local! {
    // Apart from the homes below: what has no destructor costs no look at whether it still lives.
    static LEASES: [Lease; PLACES] = const { [const { Lease::none() }; PLACES] };
    static HOMES: RefCell<Homes> = const { RefCell::new(Homes([const { Weak::new() }; PLACES])) };
}

/// The limiters that the leases of a thread are given back to. A lease does not keep its limiter alive.
struct Homes([Weak<Shared>; PLACES]);

impl Drop for Homes {
    fn drop(&mut self) {
        LEASES.with(|leases| leases.iter().zip(&self.0).for_each(|(lease, home)| give_back(home, lease)));
    }
}

/// Spends units of the thread's lease, where there are enough in it and the tick is at hand.
#[inline]
pub(super) fn spend_fast<T: Tell>(shared: &Shared, units: u64) -> Result<T, Undecided> {
    let tick = SystemClock::shared().ok_or(Undecided::NotAsked)?;
    LEASES
        .with(|leases| leases[shared.number as usize % PLACES].spend(shared.number, tick, units))
        .ok_or(Undecided::NotAsked)
}

/// Spends units of the thread's lease, or draws a new one; `None` where there is none to be had.
pub(super) fn spend<T: Tell>(shared: &Arc<Shared>, units: u64) -> Option<T> {
    let tick = shared.time.shared()?;
    LEASES.with(|leases| {
        let lease = &leases[shared.number as usize % PLACES];
        lease.spend(shared.number, tick, units).or_else(|| draw(shared, lease, tick, units))
    })
}

/// Draws, and spends `units` of it.
fn draw<T: Tell>(shared: &Arc<Shared>, lease: &Lease, tick: Tick, units: u64) -> Option<T> {
    if lease.left.get() > 0 {
        move_in(shared, lease)?;
    }
    // Read first: what is given back after this counts as later than the draw.
    let returned = shared.returns.sum.load(Ordering::Acquire);
    // The terms before the word: after a change in between, the lease carries the old terms, and so is not given back to the new limit.
    let terms = shared.word.terms();
    let (form, word) = shared.word.look()?;
    let now = form.scaled(tick)?;
    // Found by multiplying and not by dividing: most draws are of the largest size, or there is none.
    let holds = |units: u64| form.take(word, now, units.saturating_mul(PART)).is_some();
    if !holds(units.saturating_add(1)) {
        return None;
    }
    let size = if holds(LARGEST) { LARGEST } else { form.remaining(word, now) / PART };
    if size <= units {
        return None;
    }
    // A lease of this very limiter is drawn anew without looking where it came from.
    if lease.number.get() != shared.number {
        move_in(shared, lease)?;
    }
    let next = form.take(word, now, size).filter(|next| shared.word.exchange(word, *next))?;
    lease.tick.set(tick.as_nanos());
    lease.left.set(size - units);
    lease.drawn.set(Some(Drawn { form, word: next, now, size, returned, terms }));
    lease.tell()
}

/// Gives back what the place still holds, and makes it this limiter's; `None` while the thread ends, when nothing is leased any
/// more.
fn move_in(shared: &Arc<Shared>, lease: &Lease) -> Option<()> {
    HOMES
        .try_with(|homes| {
            let home = &mut homes.borrow_mut().0[shared.number as usize % PLACES];
            give_back(home, lease);
            if lease.number.replace(shared.number) != shared.number {
                *home = Arc::downgrade(shared);
            }
        })
        .ok()
}

/// Gives back what a lease still holds and time has not given back already.
///
/// A lease may be hours old; time has then filled the limit, and others have spent it again. Of the units drawn, only those are still
/// charged that lie between now and the arrival time of the draw, less what leases gave back since. Time has returned the others, and
/// giving those back too would give them twice.
fn give_back(home: &Weak<Shared>, lease: &Lease) {
    let left = lease.left.replace(0);
    let (Some(left), Some(drawn), Some(shared)) = (Cost::new(left), lease.drawn.take(), home.upgrade())
    else {
        return;
    };
    let giving = shared.returns.giving.lock();
    let read = shared.word.look();
    if shared.number != lease.number.get() || shared.word.terms() != drawn.terms {
        return;
    }
    // After the word: no charge that it holds is of a later tick.
    let now = shared.time.now();
    let Some(scaled) = drawn.form.scaled(now) else { return };
    let returned = shared.returns.sum.load(Ordering::Relaxed).wrapping_sub(drawn.returned);
    let held = drawn.form.outstanding(drawn.word.saturating_sub(returned), scaled);
    let Some(left) = Cost::new(left.units().min(held)) else { return };
    // Where others wait for the limit, or reservations may still be settled, it is given back under the lock, as a charge of which less
    // was spent: the word does not tell what was promised to whom.
    let reserved = shared.returns.receipts.load(Ordering::Relaxed) > now.as_nanos();
    let by_word = !reserved
        && read.is_some_and(|(form, word)| {
            let next = form.give_back(word, left.units());
            let given = !form.is_used_up(word, scaled) && shared.word.exchange(word, next);
            if given {
                // Release, after the word: a draw that sees the word before it counts this as later.
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
