//! An admission as a value, which is finished, cancelled, handed on as a ticket, or dropped.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll};
#[cfg(feature = "ticket")]
use std::time::Duration;

use tidegate_core::Outcome;

use super::charged::Charged;
use super::finishing::{AsCharged, Finishing, Held};
#[cfg(feature = "ticket")]
use super::ticket::{SealError, Ticket, TicketKeys};
use super::waits::Progress;
use super::{Check, Gate, GateDecision};
use tidegate_limits::store::{DecidedBy, StoreError};

/// The answer to [`Gate::admit`]: an admission, or the decision that refused it.
#[derive(Debug)]
#[must_use = "an admission that is dropped at once gives its places back"]
#[allow(clippy::large_enum_variant, reason = "a decision is in both; moved once, to where it is used")]
pub enum Entry<G: Deref<Target = Gate>> {
    /// The request may pass, now or after [`GateDecision::wait`].
    Admitted(Admission<G>),
    /// The request may not pass; nothing was charged.
    Refused(GateDecision),
}

impl<G: Deref<Target = Gate>> Entry<G> {
    /// Returns the admission, if it is one.
    #[must_use]
    pub fn admitted(self) -> Option<Admission<G>> {
        match self {
            Self::Admitted(admission) => Some(admission),
            Self::Refused(_) => None,
        }
    }

    /// Returns the decision.
    pub const fn decision(&self) -> &GateDecision {
        match self {
            Self::Admitted(admission) => &admission.decision,
            Self::Refused(decision) => decision,
        }
    }
}

/// Work that a gate has admitted. Dereferences to its [`GateDecision`], and is ended exactly once.
///
/// * [`finish`](Admission::finish): the work was done; limits settle what it spent, and guards and `charge: on-failure` use the outcome;
/// * [`cancel`](Admission::cancel): the work was not done, and nothing was spent;
/// * `into_ticket`: another party reports the end later;
/// * dropped: places of guards are left without an outcome; limits keep what was charged, because the work may have been
///   done. [`undo_if_dropped`](Admission::undo_if_dropped) changes that: dropping then means cancelling.
///
/// `G` dereferences to the gate: `&Gate` from [`Gate::admit`]; with an `Arc<Gate>` in [`Admission::ask`] it may be stored and spawned. Takes about
/// a kilobyte, mostly the decision. Ending it takes one step of each store in which something changes: where places are left, where the outcome
/// decides about a charge, and where more or less was spent than was charged. Other stores are not asked.
///
/// # A store that fails
/// If a store does not settle an ending, the call returns an error, and the parts of other stores are settled all the same. Steps that can be
/// repeated safely are tried once more: leaving places, and cancelling. In all other cases the charges of limits stay, even after
/// `undo_if_dropped`, because the work was done. A store that fails the second time too keeps what it holds; places stay until their time to live
/// is over. The same holds for a store that was [`StoreError::Unavailable`]: it may have settled its part, and giving back twice could give back
/// what others hold.
///
/// # Examples
/// A call to a language model is admitted on an estimate and settled with its real usage:
/// ```
/// use tidegate::clock::ManualClock;
/// use tidegate::gate::{Check, Entry};
/// use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
/// use tidegate::{Cost, Gate, Outcome, Quota};
///
/// let tokens = Policy::new("tokens", Limit::new(Quota::per_minute(1000).gcra()?, "1000/min"));
/// let gate = Gate::in_memory(PolicySet::new(vec![tokens])?, 1000)?.with_clock(ManualClock::default());
/// let request = Descriptor::new();
/// let Entry::Admitted(admission) = gate.admit(Check::of(&request).cost(800)).now()? else { panic!("800 of 1000") };
/// admission.finish(Outcome::Success).used(|_| Some(300)).now()?;
/// assert_eq!(gate.check(Check::of(&request).peek()).now()?.limits[0].decision.standing.remaining, 700);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an admission that is dropped at once gives its places back"]
pub struct Admission<G: Deref<Target = Gate>> {
    held: Held<G>,
    decision: GateDecision,
}

impl Gate {
    /// Decides like [`Gate::check`], and returns the admission as a value that must be ended once; see [`Admission`]. To
    /// store it or send it to other threads, use [`Admission::ask`] with an `Arc` of the gate.
    ///
    /// Costs a check and two allocations, and one step of the store at the end if something changes there.
    pub fn admit<'g, 'a, 'd: 'a>(&'g self, check: impl Into<Check<'a, 'd>>) -> Admitting<'a, 'd, &'g Self> {
        Admission::ask(self, check)
    }
}

/// A request for an admission, decided when it is asked for its answer: at once by [`Admitting::now`], or awaited as a
/// future.
///
/// Errors and cancel safety are those of [`Checking`](super::Checking): nothing stays charged after an error, or after the
/// future was dropped. See [`Gate::admit`] and [`Admission::ask`].
#[must_use = "nothing is admitted before the answer is wanted: call `now`, or await it"]
pub struct Admitting<'a, 'd, G: Deref<Target = Gate>> {
    /// `None` once it is with the future that awaits engines, or with the answer.
    gate: Option<G>,
    check: Check<'a, 'd>,
    progress: Progress<'a, Entry<G>>,
}

impl<G: Deref<Target = Gate>> Admitting<'_, '_, G> {
    /// Decides without waiting.
    ///
    /// # Errors
    /// As for [`Checking`](super::Checking); [`StoreError::MustWait`] if an engine would have to be asked.
    ///
    /// # Panics
    /// If the future was polled before.
    #[inline]
    pub fn now(self) -> Result<Entry<G>, StoreError> {
        let gate = self.gate.expect("not polled before");
        let mut charged = Charged::default();
        let decision = gate.decide(&self.check, &mut charged)?;
        Ok(Admission::entry(gate, decision, charged))
    }
}

impl<'a, G: Deref<Target = Gate> + Unpin + Send + 'a> Future for Admitting<'a, '_, G> {
    type Output = Result<Entry<G>, StoreError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { gate, check, progress } = self.get_mut();
        if let Some(gate) = gate.take() {
            let mut charged = Charged::default();
            if let Poll::Ready(decided) = gate.decide_first(check, &mut charged) {
                *progress = Progress::Over;
                return Poll::Ready(decided.map(|decision| Admission::entry(gate, decision, charged)));
            }
            let check = *check;
            *progress = Progress::Waits(Box::pin(async move {
                let mut charged = Charged::default();
                let decision = gate.decide_later(&check, &mut charged).await?;
                Ok(Admission::entry(gate, decision, charged))
            }));
        }
        progress.poll(cx)
    }
}

impl<G: Deref<Target = Gate>> fmt::Debug for Admitting<'_, '_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitting").field("check", &self.check).finish_non_exhaustive()
    }
}

impl<G: Deref<Target = Gate>> Admission<G> {
    /// Asks a gate through `G`, such as an `Arc` of it. A check that only peeks charges nothing, so its admission leaves
    /// nothing to settle.
    pub fn ask<'a, 'd: 'a>(gate: G, check: impl Into<Check<'a, 'd>>) -> Admitting<'a, 'd, G> {
        Admitting { gate: Some(gate), check: check.into(), progress: Progress::Asked }
    }

    fn entry(gate: G, decision: GateDecision, charged: Charged) -> Entry<G> {
        if !decision.allowed {
            return Entry::Refused(decision);
        }
        let (made, counted) = (gate.now(), gate.begin(&decision));
        let held = Held { gate, charged, made, undo: false, counted, ended: false };
        Entry::Admitted(Self { held, decision })
    }

    /// Returns what was charged.
    pub const fn charged(&self) -> &Charged {
        &self.held.charged
    }

    /// Sets what a drop does: `true` cancels the admission; `false`, the default, leaves its places and keeps its
    /// charges.
    ///
    /// Use `true` until the work begins: then a caller that hangs up before that has spent nothing.
    pub fn undo_if_dropped(mut self, undo: bool) -> Self {
        self.held.undo = undo;
        self
    }

    /// Waits as long as the decision says, by the gate's clock, and returns the admission. Only queues delay.
    ///
    /// # Cancel safety
    /// Dropping the future before it completes cancels the admission, polled or not: a caller that hangs up while delayed has spent nothing, and
    /// later requests wait that much less. Ticks that were promised to other requests stay.
    pub fn delayed(self) -> impl Future<Output = Self> + use<G> {
        let undo = self.held.undo;
        let waiting = self.undo_if_dropped(true);
        async move {
            // The wait counts from a tick of this gate's clock, since an engine dates its decision by its own clock.
            let at = match waiting.decision.by {
                DecidedBy::Local | DecidedBy::Lease => waiting.decision.at,
                DecidedBy::Engine | DecidedBy::Fallback => waiting.held.made,
            };
            let act = at.after(waiting.decision.wait);
            let gate = &waiting.held.gate;
            while gate.now() < act {
                gate.time.clock().sleep_until(act).await;
            }
            waiting.undo_if_dropped(undo)
        }
    }

    /// Ends the admission: the work was done, and every limit keeps what it was charged, unless
    /// [`Finishing::usage`] or [`Finishing::used`] say what was really spent. See [`Gate::finish`] for what is given back,
    /// what is owed, and what the outcome decides.
    pub fn finish<'f>(self, outcome: Outcome) -> Finishing<'f, G> {
        let Self { held, decision } = self;
        Finishing::of(held, decision.policies, outcome, false)
    }

    /// Cancels the admission: the limits are as if it had never been made.
    pub fn cancel<'f>(self) -> Finishing<'f, G, AsCharged> {
        let Self { held, decision } = self;
        Finishing::of(held, decision.policies, Outcome::Ignored, true)
    }

    /// Converts the admission into a ticket, which can be settled once within `ttl`; see [`Tickets::seal`](super::ticket::Tickets::seal). If the ticket
    /// is never settled, all charges stay, and places are left when their time to live is over.
    ///
    /// # Errors
    /// The [`SealError`] together with the unchanged admission.
    #[cfg(feature = "ticket")]
    pub fn into_ticket(mut self, keys: &TicketKeys, ttl: Duration) -> Result<Ticket, Box<(SealError, Self)>> {
        match self.held.gate.tickets().seal(&self.held.charged, keys, ttl, None) {
            Ok(ticket) => {
                self.held.ended = true;
                Ok(ticket)
            }
            Err(error) => Err(Box::new((error, self))),
        }
    }
}

impl<G: Deref<Target = Gate>> Deref for Admission<G> {
    type Target = GateDecision;

    fn deref(&self) -> &GateDecision {
        &self.decision
    }
}

impl<G: Deref<Target = Gate>> fmt::Debug for Admission<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admission")
            .field("decision", &self.decision)
            .field("charged", &self.held.charged)
            .field("undo", &self.held.undo)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, tidegate_loom))]
mod loom_model;
