//! [`Enter`], the future that waits for a place in a bulkhead.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::{Cost, Criticality, NotACost, Priority, Tick};

use super::Permit;
use super::build::TurnedAway;
use super::moving::LawTimes;
use super::places::EnterFailure;
use super::state::BulkheadState;
use super::waiters::{Answer, PlaceRequest, Ticket};
use crate::answer::TakeError;
use crate::block_on::block_on;
use crate::clock::Sleep;
use crate::deadline::{self, Deadline};
use crate::key::Key;
use crate::observer::PlaceDid;
use crate::priority::named_or_carried;
use crate::refusal_reason::NoPlace;
use crate::wait::TimeBound;

/// A future that ends with a [`Permit`]; made by [`Bulkhead::enter`](crate::Bulkhead::enter).
///
/// Nothing happens before the first poll: only then does the caller join the queue, and only then does its timeout
/// start. It waits no longer than the deadline that the task [carries](crate::deadline::carried) at the first poll or
/// try, whatever its own bound ([`Enter::within`], [`Enter::until`]) is. Callers of higher priority enter first; among
/// equals the bulkhead's order decides ([`QueueOrder`](crate::QueueOrder)). No caller overtakes the waiter whose turn
/// is next, even if that waiter needs more places than are free. The future owns its bulkhead, so it can be stored and
/// spawned, and runs on any executor. It does not allocate unless it has to wait.
///
/// # Errors
/// In each case no place is taken, and [`Denied::no_place`](crate::Denied::no_place) says why.
///
/// * [`TakeError::Denied`] with [`Retry::Unknown`](crate::Retry::Unknown): its deadline, the one that the task carries,
///   or the bulkhead's longest wait passed, the queue is full, a more important caller took this one's position in the
///   queue, the turn is not expected before the deadline, or a throttle refused.
/// * [`TakeError::Denied`] with [`Retry::Never`](crate::Retry::Never): more places are asked for than there are (with a
///   law: than there can be), or its own deadline had passed before the first poll, or no place is free and the carried
///   deadline has passed.
/// * [`TakeError::NotACost`]: `places` is zero or negative.
///
/// # Cancel safety
/// Dropping the future before it completes removes the caller from the queue. A place that was already given to it goes
/// to the next waiter.
///
/// # Panics
/// When polled again after it ended.
#[must_use = "nobody enters unless awaited"]
pub struct Enter {
    shared: Arc<BulkheadState>,
    places: Result<Cost, NotACost>,
    /// `None`: the priority that the task carries.
    priority: Option<Priority>,
    tenant: SmallVec<[u8; 32]>,
    bound: TimeBound,
    /// The deadline that the task carried when [`Enter::try_now`] found no place.
    carried: Option<Deadline>,
    /// When the caller arrived; [`Tick::EPOCH`] if the bulkhead measures no times.
    arrived: Tick,
    /// The level at which it arrived: the task may carry another one when the entry is dropped.
    level: Criticality,
    /// Until when the caller waits for the answer, if it said so and a law learns from it.
    deadline: Option<Tick>,
    stage: EnterStage,
}

type Expiry = (Tick, NoPlace);

const TOO_LATE: TurnedAway = TurnedAway::forever(NoPlace::DeadlineExceeded);

enum EnterStage {
    New,
    Admitted,
    Refused,
    /// Refused before it counted as an arrival: its time was up, or it asks for too many places.
    Tried,
    InQueue {
        ticket: Ticket,
        /// `None`: it waits as long as it takes.
        expiry: Option<Expiry>,
        sleep: Option<Sleep>,
    },
    Ended,
}

impl Enter {
    pub(super) fn new(shared: Arc<BulkheadState>, places: Result<Cost, NotACost>) -> Self {
        Self {
            shared,
            places,
            priority: None,
            tenant: SmallVec::new(),
            bound: TimeBound::NONE,
            carried: None,
            arrived: Tick::EPOCH,
            level: Criticality::default(),
            deadline: None,
            stage: EnterStage::New,
        }
    }

    /// Waits for at most `timeout` from the first poll on; zero does not wait.
    pub const fn within(mut self, timeout: Duration) -> Self {
        self.bound = TimeBound::Within(timeout);
        self
    }

    /// Waits until `deadline` at the latest: an `Instant`, or a tick of the bulkhead's clock. A law that knows
    /// deadlines ([`HillClimb`](tidegate_core::concurrency::HillClimb)) counts work that ends later as lost. If it has
    /// passed before the first poll, the call is refused with [`Retry::Never`](crate::Retry::Never) even while places
    /// are free, since its result comes too late.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.bound = TimeBound::Until(deadline.into());
        self
    }

    /// Sets the priority. A more important caller enters first, replaces the least important waiter of a full queue,
    /// and may use the places that are [kept](crate::Bulkhead::with_keep_for) for its priority. By default the one that
    /// the task [carries](crate::priority::carried) at the first poll or try, or
    /// [`Criticality::Critical`](crate::Criticality::Critical) if it carries none.
    pub fn priority(mut self, priority: impl Into<Priority>) -> Self {
        self.priority = Some(priority.into());
        self
    }

    /// Names the tenant, for a bulkhead with places [divided among tenants](crate::Bulkhead::with_tenants). Other
    /// bulkheads ignore it.
    pub fn of(mut self, tenant: impl Key) -> Self {
        self.tenant = tenant.with_bytes(SmallVec::from_slice);
        self
    }

    /// Enters without waiting, or fails, even if a timeout was set. Takes no lock when nobody waits, the places are not
    /// divided among tenants, and there is no throttle.
    ///
    /// # Errors
    /// As [`Enter`].
    pub fn now(mut self) -> Result<Permit, TakeError> {
        let places = self.places?;
        self.again();
        let answer = match self.arrive(places) {
            Ok(()) => self.enter_now(places),
            Err(refused) => Err(refused),
        };
        self.end(answer, self.arrived)
    }

    /// Enters if that is possible without waiting. After `None`, the entry can be awaited as if this had not been
    /// called. Both count as one arrival, so a [throttle](crate::Bulkhead::with_throttle) is asked once.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Bulkhead;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let database = Bulkhead::new(10)?;
    /// let mut entry = database.enter();
    /// let permit = match entry.try_now() {
    ///     Some(permit) => permit,
    ///     None => entry.await?,
    /// };
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_now(&mut self) -> Option<Permit> {
        let places = self.places.ok()?;
        if !matches!(self.stage, EnterStage::New) {
            return None;
        }
        let Some(granted) = self.arrive(places).and_then(|()| self.enter_now(places)).ok() else {
            self.carried = deadline::carried();
            if matches!(self.stage, EnterStage::New) {
                self.stage = EnterStage::Tried;
            }
            return None;
        };
        self.stage = EnterStage::Ended;
        Some(Permit::new(&self.shared, granted, self.times(self.arrived), Duration::ZERO))
    }

    /// Enters when this caller's turn comes, blocking the calling thread until then.
    ///
    /// # Errors
    /// As [`Enter`].
    pub fn blocking(self) -> Result<Permit, TakeError> {
        block_on(self)
    }

    /// Lets an entry that did not count as an arrival arrive again.
    fn again(&mut self) {
        if matches!(self.stage, EnterStage::Tried) {
            self.stage = EnterStage::New;
        }
    }

    fn enter_now(&self, places: Cost) -> Answer {
        self.shared.enter(places.units(), || self.request(places))
    }

    fn request(&self, places: Cost) -> PlaceRequest<'_> {
        PlaceRequest { places: places.units(), priority: self.effective_priority(), tenant: &self.tenant }
    }

    /// Returns the priority. Called only where it matters, since reading the task's priority has a cost.
    fn effective_priority(&self) -> Priority {
        named_or_carried(self.priority)
    }

    fn arrive(&mut self, places: Cost) -> Result<(), TurnedAway> {
        if self.bound.has_passed(&*self.shared.clock) {
            return Err(TOO_LATE);
        }
        // A caller who asks for more places than it may have does not count as refused for lack of room, so the
        // throttle is not asked.
        if self.shared.is_throttled()
            && let Some(refused) = self.shared.too_many(self.request(places))
        {
            return Err(refused);
        }
        if matches!(self.stage, EnterStage::New) {
            self.arrived = self.shared.begin();
            self.deadline = self.shared.deadline(|| self.bound.until(&*self.shared.clock));
            if self.shared.is_throttled() {
                self.level = self.effective_priority().level();
            }
            let admitted = self.shared.admits(self.arrived, || self.request(places));
            self.stage = if admitted { EnterStage::Admitted } else { EnterStage::Refused };
        }
        let throttled = TurnedAway::now(NoPlace::Throttled);
        if matches!(self.stage, EnterStage::Refused) { Err(throttled) } else { Ok(()) }
    }

    /// Enters at once or joins the queue. `Ok` is the ticket, and when the wait ends and why. `Err` is the answer when
    /// the caller entered without waiting or is refused.
    fn begin(&mut self, places: Cost, cx: &Context<'_>) -> Result<(Ticket, Option<Expiry>), Answer> {
        self.bound = self.bound.on_clock(&*self.shared.clock);
        self.again();
        self.arrive(places).map_err(Err)?;
        let shared = &self.shared;
        let longest = shared.longest_wait();
        if self.bound.is_at_once() || longest.is_zero() {
            return Err(self.enter_now(places));
        }
        // Tried before the clock is read and the waker cloned: a caller who enters at once needs neither.
        match shared.enter_past_line(places.units(), || self.effective_priority()) {
            Ok(granted) => return Err(Ok(granted)),
            Err(EnterFailure::Full | EnterFailure::Locked) => {}
        }
        let now = shared.clock.now();
        let own = self.bound.deadline(&*shared.clock);
        let carried = self.carried.or_else(deadline::carried).map(|until| until.at(&*shared.clock));
        if carried.is_some_and(|carried| carried < now) {
            return Err(Err(TOO_LATE));
        }
        let longest = (longest < Duration::MAX).then(|| now.after(longest));
        let callers = own.into_iter().chain(carried).min();
        let expiry = match (callers, longest) {
            (Some(callers), longest) if longest.is_none_or(|longest| callers <= longest) => {
                Some((callers, NoPlace::DeadlineExceeded))
            }
            (_, longest) => longest.map(|longest| (longest, NoPlace::QueueTimeout)),
        };
        let deadline = expiry.map(|(tick, _)| tick);
        let ticket = shared.join(self.request(places), now, deadline, cx.waker().clone())?;
        Ok((ticket, expiry))
    }

    #[cold]
    fn end_of_a_try(&self) {
        if matches!(self.stage, EnterStage::Admitted) {
            self.turned_away(self.arrived);
        }
        self.shared.tell(PlaceDid::Dropped { waited: Duration::ZERO });
    }

    fn turned_away(&self, at: Tick) {
        self.shared.turned_away(Some(at), self.level, self.wanted());
    }

    /// Returns how many places it asks for; zero if that is not a number of places.
    fn wanted(&self) -> u64 {
        self.places.map_or(0, Cost::units)
    }

    fn times(&self, began: Tick) -> LawTimes {
        LawTimes { began, answered: None, deadline: self.deadline, level: self.level }
    }

    /// Ends with an answer. `began` is when the work begins, or when the caller learns of the refusal.
    fn end(&mut self, answer: Answer, began: Tick) -> Result<Permit, TakeError> {
        let admitted = matches!(self.stage, EnterStage::Admitted | EnterStage::InQueue { .. });
        self.stage = EnterStage::Ended;
        let waited = began.since(self.arrived);
        match answer {
            Ok(granted) => Ok(Permit::new(&self.shared, granted.after(waited), self.times(began), waited)),
            Err(refused) => {
                if admitted {
                    self.turned_away(began);
                }
                Err(self.shared.refuse(refused, waited).into())
            }
        }
    }
}

impl Future for Enter {
    type Output = Result<Permit, TakeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if matches!(
            this.stage,
            EnterStage::New | EnterStage::Admitted | EnterStage::Refused | EnterStage::Tried
        ) {
            let places = match this.places {
                Ok(places) => places,
                Err(error) => {
                    this.stage = EnterStage::Ended;
                    return Poll::Ready(Err(error.into()));
                }
            };
            let (ticket, expiry) = match this.begin(places, cx) {
                Ok(joined) => joined,
                Err(answer) => return Poll::Ready(this.end(answer, this.arrived)),
            };
            // Set before the clock makes a timer, since that may panic: the entry is then dropped, and its drop leaves
            // the queue.
            this.stage = EnterStage::InQueue { ticket, expiry, sleep: None };
        }
        let EnterStage::InQueue { ticket, expiry, sleep } = &mut this.stage else {
            panic!("an entry was polled after it had ended");
        };
        let shared = &this.shared;
        // Read before the place is fetched, since the clock may panic.
        let began = shared.begin();
        if let Some(answer) = shared.ask(ticket, cx.waker().clone()) {
            return Poll::Ready(this.end(answer, began));
        }
        let Some((tick, why)) = *expiry else { return Poll::Pending };
        loop {
            let now = shared.clock.now();
            if now >= tick {
                // A place that was given before this moment is taken, although it comes after the deadline.
                let answer = shared.give_up(ticket, why, now);
                let began = if shared.is_timed() { now } else { Tick::EPOCH };
                return Poll::Ready(this.end(answer, began));
            }
            if sleep.get_or_insert_with(|| shared.clock.sleep_until(tick)).as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            // The timer may end early: it sleeps for a day at most, and a clock may step back. Then a new one is made.
            *sleep = None;
        }
    }
}

impl Drop for Enter {
    fn drop(&mut self) {
        match &self.stage {
            EnterStage::InQueue { ticket, .. } => {
                self.shared.remove_dropped(ticket, self.arrived, self.level, self.wanted());
            }
            EnterStage::Admitted | EnterStage::Refused | EnterStage::Tried => self.end_of_a_try(),
            EnterStage::New | EnterStage::Ended => {}
        }
    }
}

impl fmt::Debug for Enter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            EnterStage::New => "new",
            EnterStage::Tried => "tried",
            EnterStage::Admitted => "admitted",
            EnterStage::Refused => "refused",
            EnterStage::InQueue { .. } => "in the queue",
            EnterStage::Ended => "ended",
        };
        f.debug_struct("Enter")
            .field("places", &self.places)
            .field("priority", &self.priority)
            .field("stage", &stage)
            .finish_non_exhaustive()
    }
}
