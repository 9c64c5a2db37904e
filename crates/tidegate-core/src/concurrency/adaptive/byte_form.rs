//! The functions of laws that stores need: the byte forms of states, their largest size, and carrying a state to
//! changed knobs.

use super::{Adaptive, AdaptiveState};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::concurrency::bounds::Bounds;
use crate::concurrency::law::Law;
use crate::concurrency::{HillClimb, HillClimbState};
use crate::time::Tick;

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
        // All other forms have a fixed size. BBR's grows by two values for each bucket of its window, Vegas' by four
        // while the limit is held down, and the hill climb's where callers say how long they wait.
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
