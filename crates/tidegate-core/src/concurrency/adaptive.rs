//! The table of all control laws: [`Adaptive`] and [`AdaptiveState`] have one variant for each, and pass every call on to it.

use core::fmt;
use core::str::FromStr;

use super::aimd::{Aimd, AimdState};
use super::bbr::{Bbr, BbrState};
use super::gradient::{Gradient, GradientState};
use super::hill_climb::{HillClimb, HillClimbState};
use super::min_latency::{MinLatency, MinLatencyState};
use super::vegas::{Vegas, VegasState};
use super::{Law, Sample, Signal};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::concurrency::bounds::Bounds;
use crate::time::Tick;

/// The table of laws: byte, word, variant, parameters, state. A released byte is never reused; 1 and 7 were hill climbs
/// with a state of another form.
macro_rules! laws {
    ($($(#[$doc:meta])* $byte:literal $word:literal => $name:ident($law:ty, $state:ty);)*) => {
        /// One of the control laws, chosen by its word.
        ///
        /// Parsed from its word, with the law's default parameters: `hill-climb`, `aimd`, `vegas`, `gradient`,
        /// `min-latency` or `bbr`.
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
        pub enum Adaptive { $($(#[$doc])* $name($law),)* }

        /// The state of an [`Adaptive`] law: 312 bytes, and the heap memory of its law's state.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum AdaptiveState { $($(#[$doc])* $name($state),)* }

        impl Adaptive {
            fn all() -> [Self; 6] {
                [$(Self::$name(<$law>::default()),)*]
            }

            /// Returns the law's word, as it is parsed.
            #[must_use]
            pub const fn as_str(&self) -> &'static str {
                match self { $(Self::$name(_) => $word,)* }
            }

            /// Returns the bounds of the limit.
            #[must_use]
            pub const fn bounds(&self) -> Bounds {
                match self { $(Self::$name(law) => law.bounds,)* }
            }

            /// Returns the same law with other bounds.
            #[must_use]
            pub const fn with_bounds(self, bounds: Bounds) -> Self {
                match self { $(Self::$name(law) => Self::$name(law.bounds(bounds)),)* }
            }
        }

        /// A state of another law, left from before the law was replaced, counts as no state: the limit is the law's start.
        impl Law for Adaptive {
            type State = AdaptiveState;

            fn start(&self, now: Tick) -> AdaptiveState {
                match self { $(Self::$name(law) => AdaptiveState::$name(law.start(now)),)* }
            }

            fn limit(&self, state: &AdaptiveState) -> u64 {
                match (self, state) {
                    $((Self::$name(law), AdaptiveState::$name(state)) => law.limit(state),)*
                    (law, _) => law.limit(&law.start(Tick::EPOCH)),
                }
            }

            fn learn(&self, state: &mut AdaptiveState, sample: &Sample) {
                match (self, &mut *state) {
                    $((Self::$name(law), AdaptiveState::$name(state)) => law.learn(state, sample),)*
                    (law, _) => *state = law.start(sample.at),
                }
            }

            fn counts_ignored(&self, state: &AdaptiveState) -> bool {
                match (self, state) {
                    $((Self::$name(law), AdaptiveState::$name(state)) => law.counts_ignored(state),)*
                    _ => false,
                }
            }

            fn sense(&self, state: &mut AdaptiveState, at: Tick, signal: Signal) {
                match (self, &mut *state) {
                    $((Self::$name(law), AdaptiveState::$name(state)) => law.sense(state, at, signal),)*
                    (law, _) => *state = law.start(at),
                }
            }
        }

        impl Bytes for Adaptive {
            fn write(&self, out: &mut Writer) {
                match self {
                    $(Self::$name(law) => { out.u8($byte); law.write(out); })*
                }
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match from.u8()? {
                    $($byte => Bytes::read(from).map(Self::$name),)*
                    _ => Err(DecodeError::Value { field: "law" }),
                }
            }
        }

        impl Bytes for AdaptiveState {
            fn write(&self, out: &mut Writer) {
                match self { $(Self::$name(state) => { out.u8($byte); state.write(out); })* }
            }

            fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
                match from.u8()? {
                    $($byte => Bytes::read(from).map(Self::$name),)*
                    _ => Err(DecodeError::Value { field: "law" }),
                }
            }
        }
    };
}

laws! {
    /// Moves to the limit at which work hardly waits, and no lower than goodput needs: the default.
    9 "hill-climb" => HillClimb(HillClimb, HillClimbState);
    /// Grows by one for each success, shrinks by a tenth for each overload.
    2 "aimd" => Aimd(Aimd, AimdState);
    /// Keeps a short queue, whose length it infers from latencies.
    3 "vegas" => Vegas(Vegas, VegasState);
    /// Compares the latest latency with a long average.
    4 "gradient" => Gradient(Gradient, GradientState);
    /// Compares the median latency with one that was measured while few were inside.
    5 "min-latency" => MinLatency(MinLatency, MinLatencyState);
    /// While the processor is busy, limits to the highest throughput multiplied by the least latency.
    6 "bbr" => Bbr(Bbr, BbrState);
}

impl Adaptive {
    /// Updates the state by a reading of the processor that holds until the next one. Laws other than BBR ignore it.
    pub(super) fn sense_once(&self, state: &mut AdaptiveState, at: Tick, thousandths: u16) {
        if let (Self::Bbr(law), AdaptiveState::Bbr(state)) = (self, state) {
            law.sense_once(state, at, thousandths);
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
        // BBR's form grows by two values for each bucket of its window, and Vegas' by four while the limit is held down.
        let grows = match self {
            Self::Vegas(_) => 4 * 8,
            Self::Bbr(law) => 2 * 16 * law.window.count() as usize,
            _ => 0,
        };
        out.finish().len() + grows
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
