//! A PID controller on the rejection ratio: the share that is refused follows how fast the waiting line grows.
//!
//! In each period, so many were let in, and so many began to be worked on. What was let in beyond that has joined the line; what could have
//! been worked on besides was free. The error is `(let in − begun − free)/begun`: above zero the line grows, below zero there is room
//! to spare. The share to refuse is that error and its integral over time, each with a gain. The line then stays short and the places full.
//! A derivative part was found to be of no use, so there is none.
//!
//! # When
//! Right in front of a limit with a line before it, as a server has: it holds the line near nothing without knowing the capacity. Told
//! how the places stand ([`Throttle::sense`]), at least once in each period, it does that well. Wrong in a caller, who does not see the line;
//! and slow in what comes and goes within its period.
//!
//! # Knobs
//! | knob | range | default | |
//! |---|---|---|---|
//! | proportional | 0 to 100 | 0.1 | the gain of the error |
//! | integral | 0 to 100 | 1.4 | the gain of its integral over seconds |
//! | period | 1 ms to 60 s | 500 ms | how often the share changes |
//! | most | 0 to 0.999 | 0.999 | the largest share that is refused |
//!
//! The integral is kept between nothing and the largest share: otherwise a long overload would wind it up, and after the overload the
//! share would stay up for as long. Where nobody tells how the places stand, what ended counts as begun, and the integral loses a
//! twentieth in each period, since nothing else would ever bring it down.
//!
//! # Source
//! Uber's Cinnamon: "PID Controller for Cinnamon", 2023, with its gains and period. The error's form and that the gain is per second are
//! as retold by those who built it again; bounds of the integral, and what holds without news of the places, are ours.

use core::time::Duration;

use super::law::{Arrival, Room, Throttle};
use super::ranking::{MOST_SHARE, Ranking};
use crate::error::QuotaError;
use crate::guard::Outcome;
use crate::knob::in_range;
use crate::time::{Tick, onward};

/// The most periods that count as passed at once: after a rest, one error does not speak for all of it.
const MOST_PERIODS: f64 = 4.0;

/// What the integral keeps in a period in which nobody told how the places stand.
const KEPT: f64 = 0.95;

/// Refuses so that the line in front of the places stays short.
///
/// # Picture
/// [Goodput over time](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-law-pid.svg)
/// of a simulated service whose capacity falls, rises and falls again, at twice its load, beside the default
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use tidegate_core::throttle::{Arrival, Pid, Room, Throttle};
/// use tidegate_core::{Priority, Tick};
///
/// let throttle = Pid::default();
/// let mut state = throttle.start(Tick::EPOCH);
/// for _ in 0..150 {
///     throttle.admit(&mut state, &Arrival { at: Tick::EPOCH, priority: Priority::default(), draw: 0 });
/// }
/// // Half a second later 50 of them still wait: (150 − 100 − 0)/100, times 0.1 + 1.4/2.
/// let now = Tick::from_nanos(500_000_000);
/// throttle.sense(&mut state, now, Room { free: 0, waiting: 50 });
/// assert_eq!(throttle.refused_share(&state, now), 400_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pid {
    proportional: f64,
    integral: f64,
    period: Duration,
    most: f64,
}

/// What [`Pid`] remembers: 120 bytes, and 4 KiB on the heap for the sample of priorities, allocated at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct PidState {
    /// When the period began.
    since: Tick,
    let_in: u64,
    ended: u64,
    /// How the places stood when they were last told of in this period.
    room: Option<Room>,
    /// How many waited at the end of the last period.
    waited: u64,
    /// The integral of the error, its gain included.
    integral: f64,
    share: f64,
    ranking: Ranking,
}

impl Default for Pid {
    fn default() -> Self {
        Self { proportional: 0.1, integral: 1.4, period: Duration::from_millis(500), most: MOST_SHARE }
    }
}

impl Pid {
    /// Sets the gains of the error, and of its integral over seconds; each 0 to 100.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range.
    pub fn gains(self, proportional: f64, integral: f64) -> Result<Self, QuotaError> {
        let gain = |name, gain| in_range(name, gain, &(0.0..=100.0), "is not a gain; use 0 to 100");
        let (proportional, integral) = (gain("proportional", proportional)?, gain("integral", integral)?);
        Ok(Self { proportional, integral, ..self })
    }

    /// Sets how often the share changes, 1 ms to 60 s.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn period(self, period: Duration) -> Result<Self, QuotaError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(60);
        Ok(Self { period: in_range("period", period, &range, "is not a period; use 1 ms to 60 s")?, ..self })
    }

    /// Sets the largest share that is refused, 0 to 0.999.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn most(self, share: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to refuse; use 0 to 0.999";
        Ok(Self { most: in_range("most", share, &(0.0..=MOST_SHARE), want)?, ..self })
    }

    /// Ends the period if it is over, and settles the share for the next.
    fn settle(&self, state: &mut PidState, at: Tick) {
        let at = onward(state.since, at);
        let passed = at.since(state.since);
        // After a long step back of the clock the period begins anew.
        state.since = state.since.min(at);
        if passed < self.period {
            return;
        }
        let (error, kept) = match state.room {
            Some(Room { free, waiting }) => {
                let joined = waiting as f64 - state.waited as f64;
                let begun = (state.let_in as f64 - joined).max(1.0);
                state.waited = waiting;
                ((joined - free as f64) / begun, 1.0)
            }
            None => {
                let ended = state.ended as f64;
                ((state.let_in as f64 - ended) / ended.max(1.0), KEPT)
            }
        };
        let seconds = passed.as_secs_f64().min(self.period.as_secs_f64() * MOST_PERIODS);
        let integral = state.integral * kept + self.integral * error * seconds;
        state.integral = integral.clamp(0.0, self.most);
        state.share = (self.proportional * error + state.integral).clamp(0.0, self.most);
        (state.since, state.let_in, state.ended, state.room) = (at, 0, 0, None);
    }
}

impl Throttle for Pid {
    type State = PidState;

    fn start(&self, now: Tick) -> PidState {
        let ranking = Ranking::new(now);
        let (let_in, ended, room, waited) = (0, 0, None, 0);
        PidState { since: now, let_in, ended, room, waited, integral: 0.0, share: 0.0, ranking }
    }

    fn admit(&self, state: &mut PidState, arrival: &Arrival) -> bool {
        self.settle(state, arrival.at);
        let admitted = !state.ranking.refuses(arrival, state.share);
        state.let_in += u64::from(admitted);
        admitted
    }

    fn learn(&self, state: &mut PidState, at: Tick, _latency: Duration, _outcome: Outcome) {
        state.ended += 1;
        self.settle(state, at);
    }

    fn sense(&self, state: &mut PidState, at: Tick, room: Room) {
        state.room = Some(room);
        self.settle(state, at);
    }

    fn refused_share(&self, state: &PidState, _now: Tick) -> u32 {
        // A share of at most 0.999.
        (state.share * 1e6).round() as u32
    }
}

#[cfg(test)]
mod tests;
