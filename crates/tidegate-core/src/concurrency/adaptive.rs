//! An enum of all control laws, read from the word that a policy file uses.

use core::fmt;
use core::str::FromStr;

use super::aimd::{Aimd, AimdState};
use super::bbr::{Bbr, BbrState};
use super::gradient::{Gradient, GradientState};
use super::hill_climb::{HillClimb, HillClimbState};
use super::law::{Law, Sample, Signal};
use super::min_latency::{MinLatency, MinLatencyState};
use super::vegas::{Vegas, VegasState};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::concurrency::bounds::Bounds;
use crate::time::Tick;

/// One of the control laws, chosen by its word.
///
/// Parsed from its word, with the law's default knobs: `hill-climb`, `aimd`, `vegas`, `gradient`, `min-latency` or
/// `bbr`.
///
/// # Examples
/// ```
/// use tidegate_core::concurrency::{Adaptive, Bounds, Law, Vegas};
/// use tidegate_core::Tick;
///
/// let law: Adaptive = "vegas".parse()?;
/// assert_eq!(law, Adaptive::Vegas(Vegas::default()));
/// assert_eq!(law.limit(&law.start(Tick::EPOCH)), 20);
/// let text = "fast".parse::<Adaptive>().unwrap_err().to_string();
/// assert_eq!(text, "is not a law; use hill-climb, aimd, vegas, gradient, min-latency or bbr");
/// # Ok::<(), tidegate_core::concurrency::ParseLawError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Adaptive {
    /// Moves to the limit at which most work ends well, found by experiment: the default.
    HillClimb(HillClimb),
    /// Grows by one for each success, shrinks by a tenth for each overload.
    Aimd(Aimd),
    /// Keeps a short queue, whose length it infers from latencies.
    Vegas(Vegas),
    /// Compares the latest latency with a long average.
    Gradient(Gradient),
    /// Compares the median latency with one that was measured while few were inside.
    MinLatency(MinLatency),
    /// While the processor is busy, limits to the highest throughput multiplied by the least latency.
    Bbr(Bbr),
}

/// The state of an [`Adaptive`] law: 320 bytes, and the heap memory of its law's state.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AdaptiveState {
    /// Of [`HillClimb`].
    HillClimb(HillClimbState),
    /// Of [`Aimd`].
    Aimd(AimdState),
    /// Of [`Vegas`].
    Vegas(VegasState),
    /// Of [`Gradient`].
    Gradient(GradientState),
    /// Of [`MinLatency`].
    MinLatency(MinLatencyState),
    /// Of [`Bbr`].
    Bbr(BbrState),
}

impl Adaptive {
    fn all() -> [Self; 6] {
        [
            Self::HillClimb(HillClimb::default()),
            Self::Aimd(Aimd::default()),
            Self::Vegas(Vegas::default()),
            Self::Gradient(Gradient::default()),
            Self::MinLatency(MinLatency::default()),
            Self::Bbr(Bbr::default()),
        ]
    }

    /// Returns the law's word: `hill-climb`, `aimd`, `vegas`, `gradient`, `min-latency` or `bbr`.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::HillClimb(_) => "hill-climb",
            Self::Aimd(_) => "aimd",
            Self::Vegas(_) => "vegas",
            Self::Gradient(_) => "gradient",
            Self::MinLatency(_) => "min-latency",
            Self::Bbr(_) => "bbr",
        }
    }
}

impl Adaptive {
    /// Updates the state by a reading of the processor that holds until the next one. Laws other than BBR ignore it.
    pub(super) fn sense_once(&self, state: &mut AdaptiveState, at: Tick, thousandths: u16) {
        if let (Self::Bbr(law), AdaptiveState::Bbr(state)) = (self, state) {
            law.sense_once(state, at, thousandths);
        }
    }
}

impl fmt::Display for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The error for a text that is not the word of a law. Its message completes a sentence that begins with the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a law; use hill-climb, aimd, vegas, gradient, min-latency or bbr")]
pub struct ParseLawError;

impl FromStr for Adaptive {
    type Err = ParseLawError;

    fn from_str(text: &str) -> Result<Self, ParseLawError> {
        Self::all().into_iter().find(|law| law.as_str() == text).ok_or(ParseLawError)
    }
}

/// A state of another law, left from before the law was replaced, counts as no state: the limit is the law's start.
impl Law for Adaptive {
    type State = AdaptiveState;

    fn start(&self, now: Tick) -> AdaptiveState {
        match self {
            Self::HillClimb(law) => AdaptiveState::HillClimb(law.start(now)),
            Self::Aimd(law) => AdaptiveState::Aimd(law.start(now)),
            Self::Vegas(law) => AdaptiveState::Vegas(law.start(now)),
            Self::Gradient(law) => AdaptiveState::Gradient(law.start(now)),
            Self::MinLatency(law) => AdaptiveState::MinLatency(law.start(now)),
            Self::Bbr(law) => AdaptiveState::Bbr(law.start(now)),
        }
    }

    fn limit(&self, state: &AdaptiveState) -> u64 {
        match (self, state) {
            (Self::HillClimb(law), AdaptiveState::HillClimb(state)) => law.limit(state),
            (Self::Aimd(law), AdaptiveState::Aimd(state)) => law.limit(state),
            (Self::Vegas(law), AdaptiveState::Vegas(state)) => law.limit(state),
            (Self::Gradient(law), AdaptiveState::Gradient(state)) => law.limit(state),
            (Self::MinLatency(law), AdaptiveState::MinLatency(state)) => law.limit(state),
            (Self::Bbr(law), AdaptiveState::Bbr(state)) => law.limit(state),
            (law, _) => law.limit(&law.start(Tick::EPOCH)),
        }
    }

    fn learn(&self, state: &mut AdaptiveState, sample: &Sample) {
        match (self, &mut *state) {
            (Self::HillClimb(law), AdaptiveState::HillClimb(state)) => law.learn(state, sample),
            (Self::Aimd(law), AdaptiveState::Aimd(state)) => law.learn(state, sample),
            (Self::Vegas(law), AdaptiveState::Vegas(state)) => law.learn(state, sample),
            (Self::Gradient(law), AdaptiveState::Gradient(state)) => law.learn(state, sample),
            (Self::MinLatency(law), AdaptiveState::MinLatency(state)) => law.learn(state, sample),
            (Self::Bbr(law), AdaptiveState::Bbr(state)) => law.learn(state, sample),
            (law, _) => *state = law.start(sample.at),
        }
    }

    fn counts_ignored(&self, state: &AdaptiveState) -> bool {
        matches!((self, state), (Self::Vegas(law), AdaptiveState::Vegas(state)) if law.counts_ignored(state))
    }

    fn sense(&self, state: &mut AdaptiveState, at: Tick, signal: Signal) {
        match (self, &mut *state) {
            (Self::HillClimb(law), AdaptiveState::HillClimb(state)) => law.sense(state, at, signal),
            (Self::Aimd(law), AdaptiveState::Aimd(state)) => law.sense(state, at, signal),
            (Self::Vegas(law), AdaptiveState::Vegas(state)) => law.sense(state, at, signal),
            (Self::Gradient(law), AdaptiveState::Gradient(state)) => law.sense(state, at, signal),
            (Self::MinLatency(law), AdaptiveState::MinLatency(state)) => law.sense(state, at, signal),
            (Self::Bbr(law), AdaptiveState::Bbr(state)) => law.sense(state, at, signal),
            (law, _) => *state = law.start(at),
        }
    }
}

const HILL_CLIMB: u8 = 1;
const AIMD: u8 = 2;
const VEGAS: u8 = 3;
const GRADIENT: u8 = 4;
const MIN_LATENCY: u8 = 5;
const BBR: u8 = 6;
/// A hill climb that holds no places in reserve; its state has the same form as that of law 1.
const HILL_CLIMB_WITHOUT_RESERVE: u8 = 7;

impl Adaptive {
    /// Returns the bounds of the limit.
    #[must_use]
    pub const fn bounds(&self) -> Bounds {
        match self {
            Self::HillClimb(law) => law.bounds,
            Self::Aimd(law) => law.bounds,
            Self::Vegas(law) => law.bounds,
            Self::Gradient(law) => law.bounds,
            Self::MinLatency(law) => law.bounds,
            Self::Bbr(law) => law.bounds,
        }
    }

    /// Returns the same law with other bounds.
    #[must_use]
    pub const fn with_bounds(self, bounds: Bounds) -> Self {
        match self {
            Self::HillClimb(law) => Self::HillClimb(law.bounds(bounds)),
            Self::Aimd(law) => Self::Aimd(law.bounds(bounds)),
            Self::Vegas(law) => Self::Vegas(law.bounds(bounds)),
            Self::Gradient(law) => Self::Gradient(law.bounds(bounds)),
            Self::MinLatency(law) => Self::MinLatency(law.bounds(bounds)),
            Self::Bbr(law) => Self::Bbr(law.bounds(bounds)),
        }
    }

    /// Carries a state that was made under `old` knobs over to these. Returns `None` if nothing of it holds: another
    /// law, or BBR with another window. A limit outside the bounds moves to the nearest bound.
    pub(in crate::concurrency) fn carried(&self, old: &Self, state: &AdaptiveState) -> Option<AdaptiveState> {
        match (self, old, state) {
            (Self::HillClimb(law), Self::HillClimb(_), AdaptiveState::HillClimb(state)) => {
                Some(AdaptiveState::HillClimb(state.bounded(&law.bounds)))
            }
            (Self::Bbr(law), Self::Bbr(old), AdaptiveState::Bbr(_)) => {
                (law.window == old.window).then(|| state.clone())
            }
            // These laws clamp the limit to the bounds each time they read it.
            (Self::Aimd(_), Self::Aimd(_), AdaptiveState::Aimd(_))
            | (Self::Vegas(_), Self::Vegas(_), AdaptiveState::Vegas(_))
            | (Self::Gradient(_), Self::Gradient(_), AdaptiveState::Gradient(_))
            | (Self::MinLatency(_), Self::MinLatency(_), AdaptiveState::MinLatency(_)) => Some(state.clone()),
            _ => None,
        }
    }

    /// Returns the largest number of bytes that a state of this law is written in.
    pub(in crate::concurrency) fn largest(&self) -> usize {
        let mut out = Writer::default();
        self.start(Tick::EPOCH).write(&mut out);
        // BBR's form grows by two values for each bucket of its window, Vegas' by four while the limit is held down,
        // and the hill climb's where callers say how long they wait.
        let grows = match self {
            Self::HillClimb(_) => HillClimbState::RESERVE_BYTES,
            Self::Vegas(_) => 4 * 8,
            Self::Bbr(law) => 2 * 16 * law.window.count() as usize,
            _ => 0,
        };
        out.finish().len() + grows
    }
}

impl Bytes for Adaptive {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::HillClimb(law) if law.reserves => (out.u8(HILL_CLIMB), law.write(out)),
            Self::HillClimb(law) => (out.u8(HILL_CLIMB_WITHOUT_RESERVE), law.write(out)),
            Self::Aimd(law) => (out.u8(AIMD), law.write(out)),
            Self::Vegas(law) => (out.u8(VEGAS), law.write(out)),
            Self::Gradient(law) => (out.u8(GRADIENT), law.write(out)),
            Self::MinLatency(law) => (out.u8(MIN_LATENCY), law.write(out)),
            Self::Bbr(law) => (out.u8(BBR), law.write(out)),
        };
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            HILL_CLIMB => Bytes::read(from).map(Self::HillClimb),
            HILL_CLIMB_WITHOUT_RESERVE => {
                HillClimb::read(from).map(|law| Self::HillClimb(law.without_reserve()))
            }
            AIMD => Bytes::read(from).map(Self::Aimd),
            VEGAS => Bytes::read(from).map(Self::Vegas),
            GRADIENT => Bytes::read(from).map(Self::Gradient),
            MIN_LATENCY => Bytes::read(from).map(Self::MinLatency),
            BBR => Bytes::read(from).map(Self::Bbr),
            _ => Err(DecodeError::Value { field: "law" }),
        }
    }
}

impl Bytes for AdaptiveState {
    fn write(&self, out: &mut Writer) {
        match self {
            Self::HillClimb(state) => (out.u8(HILL_CLIMB), state.write(out)),
            Self::Aimd(state) => (out.u8(AIMD), state.write(out)),
            Self::Vegas(state) => (out.u8(VEGAS), state.write(out)),
            Self::Gradient(state) => (out.u8(GRADIENT), state.write(out)),
            Self::MinLatency(state) => (out.u8(MIN_LATENCY), state.write(out)),
            Self::Bbr(state) => (out.u8(BBR), state.write(out)),
        };
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match from.u8()? {
            HILL_CLIMB => Bytes::read(from).map(Self::HillClimb),
            AIMD => Bytes::read(from).map(Self::Aimd),
            VEGAS => Bytes::read(from).map(Self::Vegas),
            GRADIENT => Bytes::read(from).map(Self::Gradient),
            MIN_LATENCY => Bytes::read(from).map(Self::MinLatency),
            BBR => Bytes::read(from).map(Self::Bbr),
            _ => Err(DecodeError::Value { field: "law" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_law_is_read_as_it_is_shown() {
        for law in Adaptive::all() {
            assert_eq!(law.to_string().parse(), Ok(law));
        }
        for text in ["", "AIMD", "vegas ", "fixed"] {
            assert_eq!(text.parse::<Adaptive>(), Err(ParseLawError), "{text:?}");
        }
    }

    #[test]
    fn a_state_of_another_law_counts_as_none() {
        let sample = Sample {
            at: Tick::EPOCH,
            latency: core::time::Duration::from_millis(1),
            held: core::time::Duration::from_millis(1),
            in_flight: 1,
            places: 1,
            time_left: None,
            outcome: crate::guard::Outcome::Success,
        };
        for law in Adaptive::all() {
            for other in Adaptive::all() {
                let (mut state, fresh) = (other.start(Tick::EPOCH), law.start(Tick::EPOCH));
                assert_eq!(law.limit(&state), law.limit(&fresh), "{law} with the state of {other}");
                law.learn(&mut state, &sample);
                law.sense(&mut state, Tick::EPOCH, Signal::Cpu(500));
                assert_eq!(core::mem::discriminant(&state), core::mem::discriminant(&fresh));
            }
        }
    }
}
