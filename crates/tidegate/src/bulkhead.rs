//! A fixed number of places, so that one kind of work cannot take everything.
//!
//! A limiter counts how often something is asked for; a bulkhead counts how much of it is under way. Ten slow calls to one
//! service hold ten places until they end, and the eleventh is refused or waits, while calls to other services have bulkheads of
//! their own. The law is core's ([`tidegate_core::concurrency::Concurrency`]); here are the lock around it, the line of
//! those who wait, and the permit that returns its place by itself.

mod enter;
mod line;
#[cfg(all(test, tidegate_loom))]
mod loom_model;
mod permit;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use enter::Enter;
use line::Line;
pub use permit::Permit;
use permit::Shared;
use tidegate_core::concurrency::Concurrency;
use tidegate_core::{Cost, NotACost, QuotaError, Standing};

use crate::answer::{Denied, TakeError};
use crate::block_on::block_on;
use crate::clock::{Clock, SystemClock};
use crate::deadline::Deadline;

/// How many callers may wait unless told otherwise: as many as there can be places.
const ROOM: usize = Concurrency::MAX_PLACES as usize;

/// Limits how much work is under way at once, in one process.
///
/// A clone shares the places. Entering and leaving is one short lock without allocation where nobody waits; each waiter takes an entry in a
/// list, which is bounded.
///
/// # Examples
/// ```
/// use tidegate::{Bulkhead, Outcome};
///
/// let reports = Bulkhead::new(2)?;
/// let permit = reports.try_enter()?;
/// let other = reports.try_enter()?;
/// assert!(reports.try_enter().is_err(), "two are under way");
///
/// drop(permit); // returns its place, whatever happened
/// other.leave(Outcome::Success); // returns its place, and says how the work went
/// assert_eq!(reports.standing().remaining, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Bulkhead {
    shared: Arc<Shared>,
}

impl Bulkhead {
    /// Makes a bulkhead of `max` places, 1 to [`Concurrency::MAX_PLACES`], for which up to 65,536 callers wait; deadlines go by the
    /// [`SystemClock`].
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when `max` is out of range.
    pub fn new(max: u64) -> Result<Self, QuotaError> {
        Ok(Self::build(Arc::new(SystemClock::new()), Line::new(Concurrency::new(max)?, ROOM)))
    }

    fn build(clock: Arc<dyn Clock>, line: Line) -> Self {
        Self { shared: Shared::new(clock, line) }
    }

    /// Returns a bulkhead with as many places and room for as many waiters, whose deadlines go by `clock`. A step of construction: the
    /// result is empty and shares nothing with earlier clones.
    #[must_use]
    pub fn with_clock(self, clock: impl Clock + 'static) -> Self {
        let line = self.shared.line.lock().again();
        Self::build(Arc::new(clock), line)
    }

    /// Returns a bulkhead with as many places and the same clock, where at most `waiting` callers wait for a place; zero refuses a caller
    /// who cannot enter at once. A step of construction, as [`Bulkhead::with_clock`] is.
    #[must_use]
    pub fn with_room(self, waiting: usize) -> Self {
        let guard = self.shared.line.lock().guard();
        Self::build(Arc::clone(&self.shared.clock), Line::new(guard, waiting))
    }

    /// Enters with one place, now or not at all.
    ///
    /// # Errors
    /// [`Denied`] with [`Retry::Unknown`](crate::Retry::Unknown) when all places are taken, or others wait for one.
    pub fn try_enter(&self) -> Result<Permit, Denied> {
        self.enter_now(Cost::ONE)
    }

    /// Enters with several places, all now or none.
    ///
    /// # Errors
    /// [`TakeError::Denied`] as [`Bulkhead::try_enter`]; with [`Retry::Never`](crate::Retry::Never) when there are not so many places. [`TakeError::NotACost`] for
    /// zero and less.
    pub fn try_enter_n(
        &self,
        places: impl TryInto<Cost, Error: Into<NotACost>>,
    ) -> Result<Permit, TakeError> {
        let places = places.try_into().map_err(Into::into)?;
        Ok(self.enter_now(places)?)
    }

    fn enter_now(&self, places: Cost) -> Result<Permit, Denied> {
        let answer = self.shared.line.lock().enter(places);
        self.shared.permit(answer)
    }

    /// Enters with one place, when it is this caller's turn.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::Bulkhead;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let database = Bulkhead::new(10)?;
    /// let _permit = database.enter().within(Duration::from_millis(50)).await?;
    /// // do the work; the place returns with the permit
    /// # Ok(())
    /// # }
    /// ```
    pub fn enter(&self) -> Enter {
        self.enter_n(Cost::ONE)
    }

    /// Enters with several places, when it is this caller's turn.
    pub fn enter_n(&self, places: impl TryInto<Cost, Error: Into<NotACost>>) -> Enter {
        Enter::new(Arc::clone(&self.shared), places.try_into().map_err(Into::into))
    }

    /// Enters with one place within `timeout`, holding the calling thread meanwhile.
    ///
    /// # Errors
    /// As [`Enter`].
    pub fn blocking_enter(&self, timeout: Duration) -> Result<Permit, TakeError> {
        block_on(self.enter().within(timeout))
    }

    /// Enters with one place until `deadline`, holding the calling thread meanwhile.
    ///
    /// # Errors
    /// As [`Enter`].
    pub fn blocking_enter_until(&self, deadline: impl Into<Deadline>) -> Result<Permit, TakeError> {
        block_on(self.enter().until(deadline))
    }

    /// Changes the number of places. Whoever is inside stays inside: a lowered number admits nobody until enough have left. A waiter who
    /// asks for more places than there are now is refused for good.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when `max` is out of range; nothing changes then.
    pub fn change(&self, max: u64) -> Result<(), QuotaError> {
        let guard = Concurrency::new(max)?;
        let due = self.shared.line.lock().change(guard);
        due.settle();
        Ok(())
    }

    /// Returns the number of places and how many are free; `debt` counts those inside beyond a lowered number. Places given to a waiter who
    /// has not been polled since count as taken.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.shared.line.lock().standing()
    }

    /// Returns how many wait for a place.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.line.lock().waiting()
    }
}

impl fmt::Debug for Bulkhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulkhead").field("standing", &self.standing()).finish_non_exhaustive()
    }
}
