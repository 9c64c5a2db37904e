//! How long the caller of a request still waits: bounds delays, and is stated to policies with a deadline.

use tidegate_core::Tick;

use super::{Check, Gate};
use crate::policy::{Descriptor, Line, PolicySet, shortest_time_left, state_time_left};
use tidegate_limits::deadline::Deadline;

impl Gate {
    /// Adds to a request's description how long its caller still waits, as the attribute `request.header.grpc-timeout`:
    /// for a caller whose deadline is known otherwise than from the described headers, such as the one that the task
    /// [carries](tidegate_limits::deadline::carried). Adds nothing if no policy in force has a
    /// [deadline](crate::Policy::deadline), or if the description states no more time than this
    /// ([`time_left`](crate::policy::time_left)).
    ///
    /// [`Check::deadline`](field@Check::deadline) does not do this: it is the time until which an answer of the gate is
    /// useful, and a proxy that asks for a decision may wait less time for it than its client waits for the request.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tidegate::clock::ManualClock;
    /// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
    /// use tidegate::{Gate, Quota, Tick};
    ///
    /// let mut search = Policy::new("search", Limit::new(Quota::per_second(50).gcra()?, "50/s"));
    /// search.deadline = Some(Duration::from_millis(200));
    /// let gate = Gate::in_memory(PolicySet::new(vec![search])?, 1000)?.with_clock(ManualClock::default());
    ///
    /// let mut request = Descriptor::new();
    /// gate.state_time_left(&mut request, Tick::from_nanos(100_000_000));
    /// assert!(!gate.check(&request).now()?.allowed, "100 ms are left, and it needs 200");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn state_time_left(&self, request: &mut Descriptor<'_>, until: impl Into<Deadline>) {
        if self.policies.load().has_deadlines() {
            let until = until.into().at(self.time.clock());
            state_time_left(request, until.since(self.time.now()));
        }
    }

    /// Awaits a future until a deadline by the gate's clock; `None` if it was not ready by then. It is polled at least once.
    ///
    /// For the end of an admission, whose caller should not wait for it without a bound: an engine that is being asked
    /// settles its part in the background then ([`Finishing`](super::Finishing)).
    ///
    /// # Cancel safety
    /// Dropping it drops the future.
    ///
    /// # Examples
    /// ```
    /// use tidegate::Gate;
    /// use tidegate::policy::PolicySet;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gate = Gate::in_memory(PolicySet::default(), 1000)?;
    /// assert_eq!(gate.within(gate.now(), async { 7 }).await, Some(7));
    /// assert_eq!(gate.within(gate.now(), std::future::pending::<u32>()).await, None);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn within<T>(
        &self,
        deadline: impl Into<Deadline>,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let until = deadline.into().at(self.time.clock());
        self.before(Some(until), future).await
    }

    /// Returns the tick of a check's deadline, by the gate's clock.
    #[inline]
    pub(super) fn tick_of(&self, check: &Check<'_, '_>) -> Option<Tick> {
        check.deadline.map(|deadline| deadline.at(self.time.clock()))
    }

    /// Shortens the delays that queues may accept, so that none ends after the check's deadline or after the caller has
    /// stopped waiting.
    ///
    /// The time in the request's headers bounds delays only: an engine that is given up at a time that the caller chose
    /// would leave the decision to its fallback, so a caller could get through by sending a header.
    #[inline]
    pub(super) fn shorten_waits(
        &self,
        policies: &PolicySet,
        at: Tick,
        check: &Check<'_, '_>,
        lines: &mut [Line<'_>],
    ) {
        if policies.delays() {
            self.shorten(at, check, lines);
        }
    }

    #[inline(never)]
    fn shorten(&self, at: Tick, check: &Check<'_, '_>, lines: &mut [Line<'_>]) {
        let until_deadline = self.tick_of(check).map(|deadline| deadline.since(at));
        let said = shortest_time_left(check.request).map(|(left, ..)| left);
        let Some(left) = until_deadline.into_iter().chain(said).min() else { return };
        for line in lines {
            line.max_wait = line.max_wait.min(left);
        }
    }
}
