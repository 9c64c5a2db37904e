//! Hill climbing on *goodput*, the work that succeeds per second: moves the limit to the value at which most work
//! succeeds, and no higher than necessary.
//!
//! Latency alone cannot tell an overloaded service from one whose dependency became slower, and shows nothing where
//! errors come back as fast as ever. So goodput decides: the limit is too high if a smaller one completes as much
//! work. The law measures goodput at its limit, tries another limit for a moment, and keeps that if more places
//! brought more goodput, or if fewer places lost none. Latency decides which try comes next. The *base* is the mean
//! latency without a queue. Close to the base nothing waits, so the law tries twice as many places, or as many as the
//! best recent goodput takes. At twice the base it tries as few places as suffice by Little's law, goodput times base.
//! In between it tries a fifth more or less. A hint that goodput contradicts is not followed again. If fewer places
//! lost goodput in proportion, nothing had waited: the current latency becomes the base, as when a dependency became
//! slower.
//!
//! An answer after its caller's deadline ([`Sample::time_left`]) counts as lost, since nobody uses it. Callers who
//! leave less time than the work takes without a queue are left out. Where callers say how long they wait, the law
//! also holds, at the price of some latency, places in reserve. While the limit does not bind, it learns the base, and
//! raises the limit to 2.25 times what Little's law asks for, so that a spike finds places.
//!
//! With a handful of requests per second it takes minutes to move: a measurement takes twenty or more samples.
//!
//! # Source
//! Trying limits by the throughput they bring: J. L. Hellerstein, V. Morrison, E. Eilebrecht, "Optimizing Concurrency
//! Levels in the .NET ThreadPool", 2008. Marginal gain as the sign of overload: I. Cho et al., "Protego", NSDI 2023.
//! Goodput times base latency: N. Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016.

mod epoch;
mod experiment;
mod reading;
mod reserve;
mod state;
#[cfg(test)]
mod tests;

use super::bounds::Bounds;
use super::{Law, Sample};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::guard::Outcome;
use crate::time::Tick;
use reading::Reading;
pub use state::HillClimbState;
use state::{CHANGED, HEADROOM, LEAP, STEP};

/// The share of the best goodput that remains after each measurement: half after 138.
const FADING: f64 = 0.995;

/// Failures below the limit are due to the load if more work ends than this many times the work that succeeded
/// recently, or if more is inside than while it succeeded.
const OVERLOADED: f64 = 1.1;

/// Moves the limit to the value at which most work succeeds.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-capacity-steps.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside other laws, and
/// [the limit](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-limit.svg) on four services
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::concurrency::{HillClimb, Law, Sample};
/// use tidegate_core::{Outcome, Tick};
///
/// // A service of 50 places and 10 ms, always filled up to the limit.
/// let law = HillClimb::default();
/// let mut state = law.start(Tick::EPOCH);
/// let mut now = Tick::EPOCH;
/// for _ in 0..20_000 {
///     let in_flight = law.limit(&state);
///     let latency = Duration::from_micros(10_000 * in_flight.max(50) / 50);
///     now = now.after(latency / in_flight as u32);
///     law.learn(&mut state, &Sample { at: now, latency, held: latency, in_flight, places: 1, time_left: None, outcome: Outcome::Success });
/// }
/// // Experiments go a fifth up and down.
/// assert!((40..=60).contains(&law.limit(&state)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HillClimb {
    pub(super) bounds: Bounds,
    pub(super) reserves: bool,
}

impl Default for HillClimb {
    fn default() -> Self {
        Self { bounds: Bounds::known(1, Bounds::MOST), reserves: true }
    }
}

impl HillClimb {
    /// Sets the least and the largest limit, and where it starts.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// Holds no places in reserve. Latency under overload then stays near one and a half times that of a service
    /// without a queue. Where a dependency becomes slower, goodput falls until the new limit is found, for some ten
    /// latencies.
    #[must_use]
    pub const fn without_reserve(self) -> Self {
        Self { reserves: false, ..self }
    }

    /// Handles a measurement during which the limit did not bind. `ended` is the work that ended, well or not, per
    /// nanosecond.
    fn idle(&self, state: &mut HillClimbState, reading: &Reading, ended: f64) {
        state.give_up_reserve();
        let limit = state.limit.max(state.trial.take().unwrap_or_default());
        if !reading.failing {
            state.learn_base(reading, true);
            let wanted = (HEADROOM * reading.rate * state.base).min(state.cliff.at() / STEP);
            state.limit = self.bounds.nearest(limit.max(wanted));
        } else if reading.peak > 1.0
            && (ended > state.best * OVERLOADED || state.cliff.is_beyond(reading.peak))
        {
            // Errors that come back at once never fill the limit, and time-outs need not: the number inside now is
            // already too large.
            let fewer = if reading.failed >= 0.5 { LEAP } else { STEP };
            state.limit = self.bounds.nearest(limit.min(reading.peak / fewer));
        }
        // Otherwise failures are not due to the load, as in an outage, and fewer places would only refuse work once
        // the service is well again.
        state.forget();
    }

    fn measured(&self, state: &mut HillClimbState, reading: Reading) {
        if reading.rate == 0.0 {
            // Either too much is inside, or the service is down; fewer places do no harm in the second case.
            let fewer = state.limit / LEAP;
            state.give_up_reserve();
            state.limit = self.bounds.nearest(fewer.min(state.limit));
            state.forget();
            return;
        }
        state.learn_base(&reading, false);
        state.no_reserve_for = state.no_reserve_for.saturating_sub(1);
        if state.reserve.is_some() {
            state.measured_reserve(&self.bounds, reading);
            return;
        }
        match &mut state.known {
            Some(known) if (reading.rate / known.rate - 1.0).abs() <= CHANGED => known.merge(&reading),
            Some(_) => {
                // Part of this measurement may lie before the change, so measure again.
                state.forget();
                return;
            }
            None => state.known = Some(reading),
        }
        if state.rests > 0 {
            state.rests -= 1;
        } else {
            state.experiment(&self.bounds);
        }
    }
}

impl Law for HillClimb {
    type State = HillClimbState;

    fn start(&self, now: Tick) -> HillClimbState {
        HillClimbState::starting(self.bounds.start() as f64, now)
    }

    fn limit(&self, state: &HillClimbState) -> u64 {
        // Clamped here too, because the state may have been made under other bounds.
        self.bounds.clamp(state.limit_in_force) as u64
    }

    fn learn(&self, state: &mut HillClimbState, sample: &Sample) {
        if sample.outcome == Outcome::Ignored {
            return;
        }
        if state.limit_in_force < state.target_limit() {
            // Work admitted all at once would also end all at once, again and again, and leave the service idle in
            // between.
            state.limit_in_force += 1.0;
            state.epoch.wait(sample);
            return;
        }
        let limit = self.limit(state);
        let Some((mut reading, ended)) = state.epoch.take(sample, limit, &state.required()) else { return };
        if !self.reserves {
            reading.share = f64::INFINITY;
        }
        if state.undecided(&reading) {
            state.epoch.go_on(sample, limit, state.base);
            return;
        }
        let raised = state.trial.is_some_and(|trial| trial > state.limit);
        let fell = raised && state.known.is_some_and(|known| reading.rate * 2.0 < known.rate);
        reading.failing = state.cliff.failing(&reading, limit, fell);
        state.best = reading.rate.max(state.best * FADING);
        if reading.too_late {
            state.shrink(&self.bounds, &reading);
        } else if reading.wider {
            state.widen(&self.bounds, &reading);
        } else if !reading.full && !fell {
            self.idle(state, &reading, ended);
        } else if let Some(trial) = state.trial.take() {
            state.judge(&self.bounds, trial, reading);
        } else {
            self.measured(state, reading);
        }
        let moved = state.target_limit() != state.limit_in_force;
        state.limit_in_force = state.limit_in_force.min(state.target_limit());
        state.epoch.next(sample, limit, state.base, moved);
    }
}

/// The form has the bounds alone: [`Adaptive`](super::Adaptive) keeps whether there is a reserve, in its number of
/// the law.
impl Bytes for HillClimb {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { bounds: Bytes::read(from)?, reserves: true })
    }
}
