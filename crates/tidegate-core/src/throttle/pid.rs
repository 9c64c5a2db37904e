//! A PID controller on the rejection ratio: the refused share follows how fast the waiting queue grows.
//!
//! In each period some arrivals are admitted (`let in`) and some work is started (`begun`). `free` is the work that
//! could have been started in addition. The error is `(let in − begun − free)/begun`. The refused share is that error
//! plus its integral over time, each with a gain.
//!
//! It sits in front of a limit with a queue, and has to be told the state of the places ([`Throttle::sense`]) at
//! least once in each period. While nobody does, finished work counts as begun, and the integral loses a twentieth in
//! each period, since nothing else would bring it down. A caller does not see the queue, so this law is not for
//! callers; and it reacts slowly to load that comes and goes within one period. The integral is clamped between zero
//! and the largest share, so that a long overload does not wind it up, and keep the share high for as long afterwards.
//!
//! # Source
//! Uber's Cinnamon: "PID Controller for Cinnamon", 2023, with its gains and period. The form of the error, and the
//! gain being per second, follow published reimplementations. The bounds of the integral, and the behaviour without
//! reports about the places, are Tidegate's own.

use core::time::Duration;

use super::{Arrival, MOST_SHARE, Ranking, Room, Throttle};
use crate::error::{QuotaError, in_range};
use crate::guard::Outcome;
use crate::time::{Tick, onward};

/// The most periods that count as passed at once, so that one error does not stand for all of a long rest.
const MOST_PERIODS: f64 = 4.0;

/// The factor on the integral for a period in which nobody reported the state of the places.
const KEPT: f64 = 0.95;

/// Refuses arrivals so that the queue in front of the places stays short.
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

/// The state of [`Pid`]: 120 bytes, and 4 KiB on the heap for the sample of priorities, allocated at the start.
#[derive(Clone, Debug, PartialEq)]
pub struct PidState {
    since: Tick,
    let_in: u64,
    ended: u64,
    /// The state of the places as last reported in this period.
    room: Option<Room>,
    waited: u64,
    /// The integral of the error, multiplied by its gain.
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
    /// Sets the gains of the error and of its integral over seconds, each 0 to 100; 0.1 and 1.4 by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when one is out of range.
    pub fn gains(self, proportional: f64, integral: f64) -> Result<Self, QuotaError> {
        let gain = |name, gain| in_range(name, gain, &(0.0..=100.0), "is not a gain; use 0 to 100");
        let (proportional, integral) = (gain("proportional", proportional)?, gain("integral", integral)?);
        Ok(Self { proportional, integral, ..self })
    }

    /// Sets how often the share changes: every 1 ms to 60 s, 500 ms by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn period(self, period: Duration) -> Result<Self, QuotaError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(60);
        Ok(Self { period: in_range("period", period, &range, "is not a period; use 1 ms to 60 s")?, ..self })
    }

    /// Sets the largest share that is refused, 0 to 0.999, which is the default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn most(self, share: f64) -> Result<Self, QuotaError> {
        let want = "is not a share to refuse; use 0 to 0.999";
        Ok(Self { most: in_range("most", share, &(0.0..=MOST_SHARE), want)?, ..self })
    }

    fn settle(&self, state: &mut PidState, at: Tick) {
        let at = onward(state.since, at);
        let passed = at.since(state.since);
        // After the clock was set far back, the period restarts.
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
                let periods = passed.as_secs_f64() / self.period.as_secs_f64();
                ((state.let_in as f64 - ended) / ended.max(1.0), KEPT.powf(periods))
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
        // The share is at most 0.999.
        (state.share * 1e6).round() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority::Priority;

    fn at(millis: u64) -> Tick {
        Tick::EPOCH.after(Duration::from_millis(millis))
    }

    fn arrival(millis: u64, draw: u32) -> Arrival {
        Arrival { at: at(millis), priority: Priority::default(), draw }
    }

    /// Admits `let_in` arrivals at the start of a period, and ends it with a report of the places; returns the share in
    /// millionths.
    fn period(throttle: &Pid, state: &mut PidState, number: u64, let_in: u64, room: Room) -> u32 {
        for _ in 0..let_in {
            assert!(throttle.admit(state, &arrival(number * 500, u32::MAX)));
        }
        throttle.sense(state, at(number * 500 + 500), room);
        throttle.refused_share(state, at(number * 500 + 500))
    }

    /// P = (let in − begun − free)/begun; share = 0.1·P + 1.4·∫P.
    #[test]
    fn the_published_arithmetic() {
        let throttle = Pid::default();
        let mut state = throttle.start(Tick::EPOCH);
        // Of 120, 100 were begun: P = 0.2, and 0.1·0.2 + 1.4·0.2·0.5 s.
        assert_eq!(period(&throttle, &mut state, 0, 120, Room { free: 0, waiting: 20 }), 160_000);
        // The queue does not change: P = 0, and the integral stays.
        assert_eq!(period(&throttle, &mut state, 1, 100, Room { free: 0, waiting: 20 }), 140_000);
        // The queue is gone and ten places are free: begun 100 of 80, P = −0.3.
        assert_eq!(period(&throttle, &mut state, 2, 80, Room { free: 10, waiting: 0 }), 0);
    }

    #[test]
    fn the_share_and_its_integral_stay_in_bounds_so_that_recovery_is_not_late() {
        let throttle = Pid::default();
        let mut state = throttle.start(Tick::EPOCH);
        for number in 0..100 {
            let room = Room { free: 0, waiting: (number + 1) * 1000 };
            assert!(period(&throttle, &mut state, number, 1000, room) <= 999_000);
        }
        // Two periods of rest after fifty seconds of overload.
        for number in 100..102 {
            period(&throttle, &mut state, number, 10, Room { free: 100, waiting: 0 });
        }
        assert_eq!(throttle.refused_share(&state, at(51_000)), 0);
    }

    #[test]
    fn without_news_of_the_places_the_share_rises_with_what_does_not_end_and_fades_by_itself() {
        let throttle = Pid::default();
        let mut state = throttle.start(Tick::EPOCH);
        for number in 0..120 {
            assert!(throttle.admit(&mut state, &arrival(number, u32::MAX)));
            if number < 100 {
                throttle.learn(&mut state, at(number), Duration::ZERO, Outcome::Success);
            }
        }
        throttle.admit(&mut state, &arrival(500, u32::MAX));
        assert_eq!(throttle.refused_share(&state, at(500)), 160_000);
        for number in 2..400 {
            throttle.learn(&mut state, at(number * 500 - 1), Duration::ZERO, Outcome::Success);
            throttle.admit(&mut state, &arrival(number * 500, u32::MAX));
        }
        assert_eq!(throttle.refused_share(&state, at(200_000)), 0);
    }

    /// Regression: a twentieth faded with each arrival after a rest, however long the rest was.
    #[test]
    fn after_an_hour_of_rest_nothing_is_refused() {
        let throttle = Pid::default();
        let mut state = throttle.start(Tick::EPOCH);
        for number in 0..100 {
            period(&throttle, &mut state, number, 1000, Room { free: 0, waiting: (number + 1) * 1000 });
        }
        assert!(throttle.refused_share(&state, at(50_000)) > 900_000);
        throttle.admit(&mut state, &arrival(3_650_000, u32::MAX));
        assert_eq!(throttle.refused_share(&state, at(3_650_000)), 0);
    }

    /// 200 arrive in a second at places that do 100, so half has to be refused. The excess admitted waits, for two
    /// periods at most.
    #[test]
    fn under_twice_the_load_half_is_refused_and_the_line_stays_short() {
        let throttle = Pid::default();
        let mut state = throttle.start(Tick::EPOCH);
        let (mut waiting, mut draw, mut longest, mut shares) = (0u64, 0u32, 0, Vec::new());
        for number in 0..200 {
            for request in 0..100 {
                draw = draw.wrapping_add(0x9E37_79B9);
                waiting += u64::from(throttle.admit(&mut state, &arrival(number * 500 + request * 5, draw)));
            }
            let begun = waiting.min(50);
            waiting -= begun;
            throttle.sense(&mut state, at(number * 500 + 499), Room { free: 50 - begun, waiting });
            if number >= 100 {
                longest = longest.max(waiting);
                shares.push(state.share);
            }
        }
        let mean = shares.iter().sum::<f64>() / shares.len() as f64;
        assert!((0.45..=0.55).contains(&mean), "a mean share of {mean}");
        assert!(longest <= 100, "{longest} waited");
    }

    #[test]
    fn knobs_out_of_range_are_refused() {
        let throttle = Pid::default();
        assert!(throttle.gains(-1.0, 0.0).is_err() && throttle.gains(0.0, f64::NAN).is_err());
        let text = throttle.gains(0.0, 101.0).unwrap_err().to_string();
        assert_eq!(text, "integral 101.0 is not a gain; use 0 to 100");
        assert!(throttle.period(Duration::ZERO).is_err() && throttle.most(1.0).is_err());
    }
}
