//! The state of a breaker, and its byte form.

use core::time::Duration;

use super::forced::{Force, Forced, WouldTrip};
use super::outcomes::{Outcomes, Totals};
use super::parameters::{CircuitBreaker, Evaluate};
use super::rules::Figure;
use crate::algorithm::Storable;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::concurrency::ConcurrencyState;
use crate::time::{Tick, nanos};

/// What a [`CircuitBreaker`] remembers of a key: about 150 bytes, and the window: a quarter of a byte for each call
/// that it counts, or twelve bytes for each bucket. While probes are in flight, also 16 bytes for each distinct tick
/// at which their places lapse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitBreakerState {
    /// Boxed, because most limits have states of a few words, and all states lie in one table.
    pub(super) inner: Box<StateFields>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateFields {
    /// Receipts from before this tick do not count: the key was reset, or was not known then.
    pub(super) since: Tick,
    pub(super) last: Tick,
    /// When the time to live of the last call that entered ends.
    pub(super) busy_until: Tick,
    /// Counts the changes between closed, open and half-open. Receipts with another count do not count for this one.
    pub(super) epoch: u64,
    /// The open time of the last trip in nanoseconds, without jitter; 0 if no trip is remembered.
    pub(super) last_open_time: u64,
    pub(super) phase: Phase,
    pub(super) forced: Option<Forced>,
    /// How often it would have opened since it was forced to measure only.
    pub(super) would_trip: Option<WouldTrip>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Closed {
        since: Tick,
        outcomes: Outcomes,
        /// Failures since the last success.
        consecutive: u32,
        /// Whether a breaker that sheds was last seen to refuse calls.
        shedding: bool,
    },
    Open {
        since: Tick,
        until: Tick,
        /// `None` if a person opened it.
        by: Option<Figure>,
    },
    HalfOpen {
        step: u8,
        inside: ConcurrencyState,
        totals: Totals,
    },
}

/// The condition of a breaker, as shown to people and observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Condition {
    /// Every call passes, and its outcome is counted.
    Closed,
    /// A breaker that sheds refuses a share of the calls; those that enter are counted.
    Shedding {
        /// The share that is refused, in millionths.
        share: u32,
        /// The figure that goes beyond its threshold.
        by: Figure,
    },
    /// Every call is refused.
    Open {
        /// The tick at which it opened.
        since: Tick,
        /// The tick at which it admits a probe.
        until: Tick,
        /// The figure that tripped it; `None` after a person opened it.
        by: Option<Figure>,
    },
    /// A few calls pass, to try the service.
    HalfOpen {
        /// How many steps of recovery were taken: 0 during the first probes.
        step: u8,
        /// How many calls are in flight.
        in_flight: u64,
        /// How many may be in flight now: the places of this step, or fewer if its judgement needs fewer calls.
        at_most: u64,
        /// The outcomes of the calls that ended in this step.
        totals: Totals,
    },
    /// A person has forced it into a state.
    Forced {
        /// The forced state.
        to: Force,
        /// When it ends; `None` if it ends only by hand.
        until: Option<Tick>,
    },
}

impl Condition {
    /// Returns the condition's word: `closed`, `shedding`, `open`, `half-open`, `forced-open`, `forced-closed`,
    /// `metrics-only` or `disabled`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Shedding { .. } => "shedding",
            Self::Open { .. } => "open",
            Self::HalfOpen { .. } => "half-open",
            Self::Forced { to: Force::Open, .. } => "forced-open",
            Self::Forced { to: Force::Closed, .. } => "forced-closed",
            Self::Forced { to: Force::MetricsOnly, .. } => "metrics-only",
            Self::Forced { to: Force::Disabled, .. } => "disabled",
        }
    }
}

/// How long a breaker that never forgets a trip remembers that a person had opened it, in nanoseconds after the
/// forced state has ended: the default of [`forget_after`](super::BreakerBuilder::forget_after).
const HAND_REMEMBERED: u64 = 300_000_000_000;

impl Phase {
    pub(super) fn closed(at: Tick) -> Self {
        Self::Closed { since: at, outcomes: Outcomes::None, consecutive: 0, shedding: false }
    }
}

impl StateFields {
    pub(super) fn fresh(at: Tick) -> Self {
        Self {
            since: at,
            last: at,
            busy_until: at,
            epoch: 0,
            last_open_time: 0,
            phase: Phase::closed(at),
            forced: None,
            would_trip: None,
        }
    }

    pub(super) fn measures_only(&self) -> bool {
        matches!(&self.forced, Some(Forced { to: Force::MetricsOnly, .. }))
    }

    /// Says whether it is open or half-open only because a person opened it: no trip is remembered.
    const fn opened_by_hand(&self) -> bool {
        self.last_open_time == 0 && !matches!(self.phase, Phase::Closed { .. })
    }

    /// Returns the tick from which it has been idle for so long that it becomes new; [`Tick::MAX`] means never.
    pub(super) fn idle_at(&self, forget_after: u64) -> Tick {
        // Here there is no trip to remember, and an unused key must not be kept for ever.
        let forget_after =
            if forget_after == u64::MAX && self.opened_by_hand() { HAND_REMEMBERED } else { forget_after };
        let forced = self.forced.as_ref().map_or(Tick::EPOCH, |forced| forced.until);
        if forget_after == u64::MAX || forced == Tick::MAX {
            return Tick::MAX;
        }
        let used = match self.phase {
            Phase::Open { until, .. } => self.last.max(until),
            _ => self.last,
        };
        used.max(self.busy_until).max(forced).after(Duration::from_nanos(forget_after))
    }

    pub(super) fn recovered_at(&self, closed_since: Tick, forget_after: u64) -> Tick {
        match (self.last_open_time, forget_after) {
            (0, _) => Tick::EPOCH,
            (_, u64::MAX) => Tick::MAX,
            (_, forget_after) => closed_since.after(Duration::from_nanos(forget_after)),
        }
    }
}

impl Storable for CircuitBreaker {
    type State = CircuitBreakerState;

    fn last_change(&self, state: &CircuitBreakerState) -> Option<Tick> {
        Some(state.inner.last)
    }

    /// Every tick moves back by the same time; buckets of time move by whole buckets.
    fn set_back(&self, state: &CircuitBreakerState, to: Tick) -> CircuitBreakerState {
        let mut next = state.clone();
        let (inner, by) = (&mut *next.inner, state.inner.last.since(to));
        let moved = |tick: &mut Tick| {
            if *tick != Tick::MAX {
                *tick = tick.before(by);
            }
        };
        moved(&mut inner.since);
        moved(&mut inner.busy_until);
        match &mut inner.phase {
            Phase::Closed { since, outcomes, .. } => {
                outcomes.set_back(inner.last, to);
                moved(since);
            }
            Phase::Open { since, until, .. } => {
                moved(since);
                moved(until);
            }
            Phase::HalfOpen { step, inside, .. } => {
                *inside = self.parameters.places(*step).set_back(inside, to);
            }
        }
        if let Some(forced) = &mut inner.forced {
            moved(&mut forced.until);
        }
        if let Some(would_trip) = &mut inner.would_trip {
            moved(&mut would_trip.at);
        }
        inner.last = to;
        next
    }

    fn largest(&self) -> usize {
        let closed = 8 + 4 + Outcomes::largest(self.parameters.window);
        let half_open = 1 + self.parameters.places(self.parameters.steps).largest() + 12;
        5 * 8
            + 1
            + closed.max(half_open).max(8 + 8 + 1 + Figure::LARGEST)
            + Forced::LARGEST
            + WouldTrip::LARGEST
    }
}

impl CircuitBreaker {
    /// Returns the next tick after `last`, and not after `at`, at which figures are compared at intervals.
    pub(super) fn next_evaluation(&self, last: Tick, at: Tick) -> Option<Tick> {
        let Evaluate::Every(span) = self.parameters.evaluate else { return None };
        let span = nanos(span).max(1);
        let next = (last.as_nanos() / span).checked_add(1)?.checked_mul(span)?;
        (next <= at.as_nanos()).then_some(Tick::from_nanos(next))
    }
}

impl Bytes for CircuitBreakerState {
    fn write(&self, out: &mut Writer) {
        let inner = &*self.inner;
        out.tick(inner.since);
        out.tick(inner.last);
        out.tick(inner.busy_until);
        out.u64(inner.epoch);
        out.u64(inner.last_open_time);
        match &inner.phase {
            Phase::Closed { since, outcomes, consecutive, shedding } => {
                // Its own tag, so that forms written before breakers could shed still read the same.
                out.u8(if *shedding { 3 } else { 0 });
                out.tick(*since);
                outcomes.write(out);
                out.u32(*consecutive);
            }
            Phase::Open { since, until, by } => {
                out.u8(1);
                out.tick(*since);
                out.tick(*until);
                out.u8(u8::from(by.is_some()));
                by.iter().for_each(|figure| figure.write(out));
            }
            Phase::HalfOpen { step, inside, totals } => {
                out.u8(2);
                out.u8(*step);
                inside.write(out);
                totals.write(out);
            }
        }
        inner.forced.write(out);
        if inner.measures_only() {
            inner.would_trip.write(out);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (since, last, busy_until) = (from.tick()?, from.tick()?, from.tick()?);
        let (epoch, last_open_time) = (from.u64()?, from.u64()?);
        let phase = match from.u8()? {
            tag @ (0 | 3) => Phase::Closed {
                since: from.tick()?,
                outcomes: Bytes::read(from)?,
                consecutive: from.u32()?,
                shedding: tag == 3,
            },
            1 => {
                let (since, until, known) = (from.tick()?, from.tick()?, from.u8()?);
                Phase::Open { since, until, by: (known != 0).then(|| Figure::read(from)).transpose()? }
            }
            2 => {
                let (step, inside, totals) = (from.u8()?, Bytes::read(from)?, Bytes::read(from)?);
                if step > CircuitBreaker::MAX_STEPS {
                    return Err(DecodeError::Value { field: "step" });
                }
                Phase::HalfOpen { step, inside, totals }
            }
            _ => return Err(DecodeError::Value { field: "phase" }),
        };
        let forced = Bytes::read(from)?;
        let mut inner =
            StateFields { since, last, busy_until, epoch, last_open_time, phase, forced, would_trip: None };
        if inner.measures_only() {
            inner.would_trip = Bytes::read(from)?;
        }
        Ok(Self { inner: Box::new(inner) })
    }
}
