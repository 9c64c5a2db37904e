//! One limit, or several that are charged together.
//!
//! Each check is one step of [`crate::store::execute`], so a limiter decides exactly as a gate over a store does.
//!
//! One GCRA quota, the common case, is one atomic word (the `word` module), and checks of it take no lock. All other
//! states are behind one lock, held for the arithmetic only: no clock is read, no observer called and nothing allocated
//! under it (except for states that grow, such as logs, and lists of more than two quotas). The clock is read before
//! the lock is taken, so two threads may arrive in another order than their ticks. The later arrival with the earlier
//! tick then counts as simultaneous, which never admits too much.

mod shared;
mod word;

use std::cell::{self, RefCell};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::rate::GcraWord;
use tidegate_core::{
    Algorithm, Cost, Finish, NotACost, Outcome, Quota, QuotaError, Receipt, Replace, Standing, Tick,
};

use self::shared::LimiterState;
use self::word::Undecided;
use crate::answer::{Answer, CheckResult, TakeError};
use crate::clock::{Clock, SystemClock, Time};
use crate::observer::Observer;
use crate::precision::Precision;
use crate::reservation::{ChargeOwner, Reservation};
use crate::store::{Cell, Ending, Op};
use crate::wait::Wait;

/// One limit of any [`Quota`], or several that are charged together: all of them or none.
///
/// A clone shares the state and costs one reference count.
///
/// # Examples
/// ```
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::new(Quota::per_second(50).burst(100))?;
/// if limiter.allow().is_allowed() {
///     // do the work
/// }
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
///
/// Ten per second *and* a thousand per hour; the answer names the limit that binds:
/// ```
/// use tidegate::clock::ManualClock;
/// use tidegate::{Limiter, Quota};
///
/// let limiter = Limiter::all([Quota::per_second(10), Quota::per_hour(1000)])?.with_clock(ManualClock::default());
/// for _ in 0..10 {
///     assert!(limiter.allow().is_allowed());
/// }
/// let refused = limiter.allow();
/// assert!(!refused.is_allowed());
/// assert_eq!(refused.binding(), 0);
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Limiter {
    shared: Arc<LimiterState>,
}

impl Limiter {
    /// Makes a limiter that starts full, on the [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError`] names the setting that is out of range.
    pub fn new<Q>(quota: Q) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        Self::all([quota])
    }

    /// Makes a limiter of several quotas. A check passes if all of them allow it, and then all are charged; otherwise none is. Answers name the
    /// binding quota by its index in the list, from 0.
    ///
    /// A check costs one decision per quota. A reservation that waits for one quota is charged to the others when it is made, not when it acts.
    ///
    /// # Errors
    /// [`QuotaError`] names the setting that is out of range, or says that the list is empty.
    pub fn all<Q>(quotas: impl IntoIterator<Item = Q>) -> Result<Self, QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        Ok(Self::of(parse(quotas)?, Time::new(SystemClock::new()), Precision::default(), None))
    }

    fn of(
        quotas: SmallVec<[Arc<Quota>; 1]>,
        time: Time,
        precision: Precision,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        Self { shared: Arc::new(LimiterState::new(quotas, time, precision, observer)) }
    }

    fn source(&self) -> Arc<dyn ChargeOwner> {
        Arc::clone(&self.shared) as Arc<dyn ChargeOwner>
    }

    /// Returns a limiter of the same quotas on `clock`. A construction step: the result starts full and shares nothing with earlier clones,
    /// because ticks of two clocks cannot be compared.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let quotas = self.shared.limits.lock().quotas.clone();
        Self::of(quotas, Time::new(clock), self.shared.precision, self.shared.observer.clone())
    }

    /// Returns a limiter of the same quotas and clock in another [`Precision`]. A construction step.
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        let quotas = self.shared.limits.lock().quotas.clone();
        Self::of(quotas, self.shared.time.new_like(), precision, self.shared.observer.clone())
    }

    /// Returns a limiter of the same quotas and clock that reports its decisions to `observer`. Pass an `Arc` to keep
    /// access to it. A construction step.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        let quotas = self.shared.limits.lock().quotas.clone();
        Self::of(quotas, self.shared.time.new_like(), self.shared.precision, Some(Arc::new(observer)))
    }

    /// Spends one unit now, or refuses and changes nothing.
    ///
    /// For one GCRA quota without an observer this is lock-free: a load of the shared tick and one compare-exchange if permitted, plus a clock
    /// read if refused; [`Precision`] changes this. All others take one clock read and one short lock. Never allocates for quotas whose state has
    /// a fixed size.
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn allow(&self) -> Answer {
        self.shared.decide(Cost::ONE)
    }

    /// Spends `cost` now, or refuses and changes nothing. `cost` is a number, a `NonZero` or a [`Cost`]. A cost above
    /// the burst is refused for good: the answer's `retry()` is [`Retry::Never`](tidegate_core::Retry::Never).
    ///
    /// # Errors
    /// [`NotACost`] for a number that is zero or less. Then nothing is decided, and observers are not told.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::limiter::Retry;
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_minute(10))?.with_clock(ManualClock::default());
    /// assert!(limiter.allow_n(5)?.is_allowed());
    /// let body = [0_u8; 7];
    /// assert!(matches!(limiter.allow_n(body.len())?.retry(), Retry::After(_)), "two are missing");
    /// assert_eq!(limiter.allow_n(11)?.retry(), Retry::Never);
    /// let none = limiter.allow_n(0).unwrap_err();
    /// assert_eq!(none.to_string(), "0 is not a cost; use 1 or more");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allow_n(&self, cost: impl TryInto<Cost, Error: Into<NotACost>>) -> Result<Answer, NotACost> {
        Ok(self.shared.decide(cost.try_into().map_err(Into::into)?))
    }

    /// Spends one unit now and returns whether it did: [`Limiter::allow`] without the rest of the answer, at half the
    /// cost.
    #[must_use = "a refusal goes unnoticed otherwise"]
    #[inline]
    pub fn admit(&self) -> bool {
        self.shared.decide(Cost::ONE)
    }

    /// Spends `cost` now for work that acts after a delay of at most `max_wait`, or refuses and changes nothing.
    ///
    /// Reservations act in the order in which they were made. With a `max_wait` of zero this is [`Limiter::allow`] with
    /// a receipt, which [`Reservation::cancel`] can undo; [`Duration::MAX`] accepts any delay.
    ///
    /// # Errors
    /// [`TakeError::Denied`] if the delay would be longer. Its `retry()` is the wait after which the same ask with the
    /// same `max_wait` succeeds, or [`Retry::Never`](tidegate_core::Retry::Never) for a cost above the burst.
    /// [`TakeError::NotACost`] for zero and less.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_second(1))?.with_clock(ManualClock::default());
    /// let _now = limiter.reserve(1, Duration::ZERO).expect("full");
    /// let later = limiter.reserve(1, Duration::from_secs(5)).expect("within five seconds");
    /// assert_eq!(later.wait(), Duration::from_secs(1));
    /// later.cancel();
    /// assert_eq!(limiter.peek().retry().after(), Some(Duration::from_secs(1)), "as if it had not been");
    /// # Ok::<(), tidegate::QuotaError>(())
    /// ```
    pub fn reserve(
        &self,
        cost: impl TryInto<Cost, Error: Into<NotACost>>,
        max_wait: Duration,
    ) -> Result<Reservation, TakeError> {
        let cost = cost.try_into().map_err(Into::into)?;
        let held = self.shared.charge(self.shared.now(), cost, max_wait)?;
        Ok(Reservation::new(self.source(), held))
    }

    /// Waits until `cost` may be spent: first come, first served. See [`Wait`] for deadlines and dropping.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::{Limiter, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(Quota::per_minute(1))?;
    /// limiter.wait(1).await?;
    ///
    /// let refused = limiter.wait(1).within(Duration::from_secs(1)).await;
    /// assert!(refused.is_err(), "at once: the next unit is a minute away");
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&self, cost: impl TryInto<Cost, Error: Into<NotACost>>) -> Wait {
        Wait::new(self.source(), cost.try_into().map_err(Into::into))
    }

    /// Returns what [`Limiter::allow`] would answer, with the current standing. Changes nothing and tells no observer.
    #[must_use]
    pub fn peek(&self) -> Answer {
        self.shared.peek(Cost::ONE)
    }

    /// Returns what [`Limiter::allow_n`] would answer; see [`Limiter::peek`].
    ///
    /// # Errors
    /// [`NotACost`], as for [`Limiter::allow_n`].
    pub fn peek_n(&self, cost: impl TryInto<Cost, Error: Into<NotACost>>) -> Result<Answer, NotACost> {
        Ok(self.shared.peek(cost.try_into().map_err(Into::into)?))
    }

    /// Returns the current standing; of several quotas, that of the one with the least remaining.
    #[must_use]
    pub fn standing(&self) -> Standing {
        if let Some(answer) = self.shared.peek_by_clock(1) {
            return answer.standing();
        }
        let now = self.shared.now();
        let standing = |(quota, cell): (&Arc<Quota>, &Option<Cell>)| match cell {
            Some(cell) => quota.standing(&cell.state, now),
            None => quota.standing(&quota.fresh(now), now),
        };
        self.shared.with_cells(now, |limits| {
            let each = limits.quotas.iter().zip(&limits.cells).map(standing);
            each.min_by_key(Answer::scarcity).expect("a limiter has a quota")
        })
    }

    /// Returns the current quotas, in order.
    #[must_use]
    pub fn quotas(&self) -> Vec<Arc<Quota>> {
        self.shared.limits.lock().quotas.to_vec()
    }

    /// Replaces the quota by `quota`, for all clones. `how` determines what is carried over of the units spent: with
    /// [`Replace::AsIs`] no caller gets a fresh burst from a change.
    ///
    /// Reservations keep their times. Those made before a change give nothing back when settled or cancelled after it,
    /// since their receipts belong to another limit.
    ///
    /// # Errors
    /// [`QuotaError`] if the new quota is out of range; the old one then stays.
    ///
    /// # Examples
    /// ```
    /// use tidegate::clock::ManualClock;
    /// use tidegate::limiter::Replace;
    /// use tidegate::{Limiter, Quota};
    ///
    /// let limiter = Limiter::new(Quota::per_second(100))?.with_clock(ManualClock::default());
    /// assert!(limiter.allow_n(70)?.is_allowed());
    /// limiter.change(Quota::per_second(80), Replace::AsIs)?;
    /// assert_eq!(limiter.standing().remaining, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn change<Q>(&self, quota: Q, how: Replace) -> Result<(), QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        self.change_all([quota], how)
    }

    /// Replaces the list of quotas. Each new quota takes over the units spent from the old one at the same index. Additional quotas start full,
    /// and the units spent from removed ones are forgotten.
    ///
    /// # Errors
    /// As [`Limiter::change`]; an empty list is refused, too.
    pub fn change_all<Q>(&self, quotas: impl IntoIterator<Item = Q>, how: Replace) -> Result<(), QuotaError>
    where
        Q: TryInto<Quota>,
        QuotaError: From<Q::Error>,
    {
        let quotas = parse(quotas)?;
        let quotas: SmallVec<[Arc<Quota>; 1]> =
            quotas.iter().map(|quota| self.shared.followed(quota)).collect();
        let now = self.shared.now();
        self.shared.with_cells(now, |limits| {
            limits.cells.resize(quotas.len(), None);
            for (cell, quota) in limits.cells.iter_mut().zip(&quotas) {
                if let Some(cell) = cell {
                    cell.state = quota.carry(&cell.quota, &cell.state, now, how);
                    cell.quota = Arc::clone(quota);
                }
            }
            limits.quotas = quotas;
            self.shared.changed();
        });
        Ok(())
    }
}

fn parse<Q>(quotas: impl IntoIterator<Item = Q>) -> Result<SmallVec<[Arc<Quota>; 1]>, QuotaError>
where
    Q: TryInto<Quota>,
    QuotaError: From<Q::Error>,
{
    let quotas: SmallVec<[Arc<Quota>; 1]> =
        quotas.into_iter().map(|quota| Ok(Arc::new(quota.try_into()?))).collect::<Result<_, QuotaError>>()?;
    if quotas.is_empty() {
        let want = "is not a limit; name 1 or more";
        return Err(QuotaError::Parameter { name: "number of quotas", value: 0.to_string(), want });
    }
    Ok(quotas)
}

// Leases: units that a thread draws in advance and spends without touching shared memory.
//
// A lease is valid while the shared tick does not change, for a millisecond at most. So units spent from it were drawn
// no longer ago than that, and the bound of [`crate::Precision::Shared`] holds for leases unchanged. Unspent units go
// back into the limit before anything else is drawn, and at the latest when the thread ends.

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
    number: cell::Cell<u64>,
    tick: cell::Cell<u64>,
    left: cell::Cell<u64>,
    /// The limit's form, its word after the draw and its scaled time: the data for answers.
    drawn: cell::Cell<Option<Drawn>>,
}

#[derive(Clone, Copy)]
struct Drawn {
    form: GcraWord,
    word: u64,
    now: u64,
    size: u64,
    /// The sum of all units given back by leases before the draw, see [`Returns`](shared::Returns).
    returned: u64,
    /// The limiter's terms at the draw. Units drawn under other terms are not given back.
    terms: u64,
}

impl Drawn {
    /// Returns the receipt of the draw, its position moved by the amount that leases have given back since; `None` for
    /// a draw of zero units, which does not occur.
    fn receipt(&self, tick: Tick, returned: u64) -> Option<Receipt> {
        let cost = Cost::new(self.size)?;
        Some(Receipt { at: tick, act: tick, cost, mark: self.form.mark(self.word.saturating_sub(returned)) })
    }
}

impl Lease {
    const fn none() -> Self {
        Self {
            number: cell::Cell::new(0),
            tick: cell::Cell::new(0),
            left: cell::Cell::new(0),
            drawn: cell::Cell::new(None),
        }
    }

    #[inline]
    fn spend<T: CheckResult>(&self, number: u64, tick: Tick, units: u64) -> Option<T> {
        let left = self.left.get();
        if left < units || self.tick.get() != tick.as_nanos() || self.number.get() != number {
            return None;
        }
        self.left.set(left - units);
        self.result()
    }

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

#[inline]
fn spend_fast<T: CheckResult>(shared: &LimiterState, units: u64) -> Result<T, Undecided> {
    let tick = SystemClock::shared().ok_or(Undecided::NotAsked)?;
    LEASES
        .with(|leases| leases[shared.number as usize % PLACES].spend(shared.number, tick, units))
        .ok_or(Undecided::NotAsked)
}

fn spend<T: CheckResult>(shared: &Arc<LimiterState>, units: u64) -> Option<T> {
    let tick = shared.time.shared()?;
    LEASES.with(|leases| {
        let lease = &leases[shared.number as usize % PLACES];
        lease.spend(shared.number, tick, units).or_else(|| draw(shared, lease, tick, units))
    })
}

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

/// Gives back the units that a lease still holds and that time has not given back already. A lease may be hours old.
/// Time has then refilled the limit, and others have spent the units again. Of the units drawn, only those are still
/// charged that lie between now and the arrival time of the draw, minus the amount that leases gave back since. Time
/// has returned the others, and giving those back too would return them twice.
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
            .with_cells(now, |limits| limits.execute(now, Op::Finish(&ending), receipt.cost, Duration::ZERO));
    }
}

#[cfg(all(test, not(tidegate_loom)))]
mod tests {
    use super::*;
    use crate::ManualClock;

    /// A caller of the lock has read the clock before. Regression: a check that came in between, a nanosecond later, counted as lying in the
    /// future, so the other was refused the last unit with a `retry_after` of that nanosecond.
    #[test]
    fn a_charge_of_a_later_tick_does_not_refuse_what_is_there() {
        let clock = ManualClock::default();
        clock.advance(Duration::from_secs(1000));
        let limiter = Limiter::new(Quota::per_second(1).burst(2)).unwrap().with_clock(clock.clone());
        let reserve_at = |tick| limiter.shared.charge(tick, Cost::ONE, Duration::ZERO);
        let read = limiter.shared.now();
        clock.advance(Duration::from_nanos(1));
        assert!(limiter.allow().is_allowed());
        assert!(reserve_at(read).is_ok(), "two were there");
        assert!(reserve_at(read).unwrap_err().retry().after() >= Some(Duration::from_secs(1)));
    }
}
