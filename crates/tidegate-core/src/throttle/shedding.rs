//! Shedding by priority: refuses on arrival the requests that the queue would turn away anyway.
//!
//! A request that waits without ever getting a place is refused late, and inserting it into the queue costs time. The
//! share to admit in the next period is the last one, multiplied by the share of the admitted requests that found room
//! and by 1.2: a little more than can be worked on, so that the queue is never empty and additional room is noticed.
//! It falls by at most a fifth: while a service stands still for a moment its queue turns everything away, and a
//! throttle that followed would leave places idle afterwards.
//!
//! It has to know which requests were turned away from the queue ([`Throttle::learn`] with [`Outcome::Overloaded`])
//! and when places are free ([`Throttle::sense`]), which ends the shedding within ten such reports, each at least a
//! tenth of a period after the last. Without a queue, places would be empty while it learns.
//!
//! # Source
//! Setting a threshold on level and cohort by counting recent arrivals: H. Zhou et al., "Overload Control for Scaling
//! WeChat Microservices" (DAGOR), 2018. There the threshold moves by 5 % down and 1 % up each second.

use core::time::Duration;

use super::{Arrival, MOST_SHARE, Ranking, Room, Throttle};
use crate::error::{QuotaError, in_range};
use crate::guard::Outcome;
use crate::time::{Tick, onward};

/// The least number of admitted requests for a period to count.
const FEWEST: u64 = 20;
/// A report of free places takes effect at most this many times in a period.
const LOOKS: u32 = 10;
/// The least factor on the admitted share in a period.
const KEPT: f64 = 0.8;
/// The factor on the admitted share for each report of free places.
const OPENING: f64 = 2.0;

/// Refuses the least important arrivals while the queue behind it turns some away.
///
/// # Picture
/// [A storm of retries](https://github.com/tidegate/tidegate/blob/main/docs/images/overload-storm.svg)
/// on three simulated services in a chain, which shed in this way, beside Vegas and no protection
/// ([seventeen services](https://github.com/tidegate/tidegate/blob/main/docs/protection/overload.md)).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::throttle::{Arrival, Shedding, Throttle};
/// use tidegate_core::{Outcome, Priority, Tick};
///
/// let throttle = Shedding::default();
/// let mut state = throttle.start(Tick::EPOCH);
/// let arrival = Arrival { at: Tick::EPOCH, priority: Priority::default(), draw: 0 };
/// for count in 0..100 {
///     throttle.admit(&mut state, &arrival);
///     // The queue had room for three of four.
///     let outcome = if count % 4 != 0 { Outcome::Success } else { Outcome::Overloaded };
///     throttle.learn(&mut state, Tick::EPOCH, Duration::from_millis(5), outcome);
/// }
/// // A tenth of a second later three quarters are admitted, times 1.2.
/// assert_eq!(throttle.refused_share(&state, Tick::from_nanos(100_000_000)), 100_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shedding {
    period: Duration,
    surplus: f64,
}

/// The state of [`Shedding`]: about 100 bytes, and 4 KiB on the heap for the sample of priorities, allocated at the
/// start.
#[derive(Clone, Debug, PartialEq)]
pub struct SheddingState {
    since: Tick,
    looked: Tick,
    let_in: u64,
    turned_away: u64,
    open: f64,
    ranking: Ranking,
}

impl Default for Shedding {
    fn default() -> Self {
        Self { period: Duration::from_millis(100), surplus: 1.2 }
    }
}

impl Shedding {
    /// Sets how often the share changes: every 1 ms to 60 s, 100 ms by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn period(self, period: Duration) -> Result<Self, QuotaError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(60);
        Ok(Self { period: in_range("period", period, &range, "is not a period; use 1 ms to 60 s")?, ..self })
    }

    /// Sets how many are admitted for each that finds room, 1.01 to 10; 1.2 by default.
    ///
    /// # Errors
    /// [`QuotaError::Parameter`] when it is out of range.
    pub fn surplus(self, surplus: f64) -> Result<Self, QuotaError> {
        Ok(Self {
            surplus: in_range("surplus", surplus, &(1.01..=10.0), "is not a surplus; use 1.01 to 10")?,
            ..self
        })
    }

    fn settle(&self, state: &mut SheddingState, at: Tick) {
        let at = onward(state.since, at);
        state.since = state.since.min(at);
        if at.since(state.since) < self.period || state.let_in < FEWEST {
            return;
        }
        state.open = self.opening(state);
        (state.since, state.let_in, state.turned_away) = (at, 0, 0);
    }

    fn opening(&self, state: &SheddingState) -> f64 {
        // A request that waits long may be turned away in a later period than it was admitted in.
        let away = state.turned_away.min(state.let_in);
        let room = (state.let_in - away) as f64 / state.let_in.max(1) as f64;
        (state.open * (room * self.surplus).max(KEPT)).clamp(1.0 - MOST_SHARE, 1.0)
    }
}

impl Throttle for Shedding {
    type State = SheddingState;

    fn start(&self, now: Tick) -> SheddingState {
        SheddingState {
            since: now,
            looked: now,
            let_in: 0,
            turned_away: 0,
            open: 1.0,
            ranking: Ranking::new(now),
        }
    }

    fn admit(&self, state: &mut SheddingState, arrival: &Arrival) -> bool {
        self.settle(state, arrival.at);
        let refused = state.ranking.refuses(arrival, 1.0 - state.open);
        state.let_in += u64::from(!refused);
        !refused
    }

    fn learn(&self, state: &mut SheddingState, _: Tick, _: Duration, outcome: Outcome) {
        state.turned_away += u64::from(outcome == Outcome::Overloaded);
    }

    fn sense(&self, state: &mut SheddingState, at: Tick, room: Room) {
        let at = onward(state.looked, at);
        // The clock was set far back.
        state.looked = state.looked.min(at);
        if room.free > 0 && room.waiting == 0 && at.since(state.looked) >= self.period / LOOKS {
            state.open = (state.open * OPENING).min(1.0);
            state.looked = at;
        }
    }

    fn refused_share(&self, state: &SheddingState, now: Tick) -> u32 {
        let over = onward(state.since, now).since(state.since) >= self.period && state.let_in >= FEWEST;
        let open = if over { self.opening(state) } else { state.open };
        ((1.0 - open) * 1e6) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::priority::{Criticality, Priority};

    /// A second of arrivals, one in each tenth of a millisecond; `room` of a hundred find room.
    fn overloaded(room: u64) -> (Shedding, SheddingState, [u64; 4]) {
        let throttle = Shedding::default();
        let mut state = throttle.start(Tick::EPOCH);
        let (mut let_in, mut served) = ([0; 4], 0);
        for count in 0..10_000_u64 {
            let at = Tick::from_nanos(count * 100_000);
            let level = count as usize % 4;
            let arrival = Arrival {
                at,
                priority: Priority::of(Criticality::ALL[level]),
                draw: (count * 0x9e37_79b9) as u32,
            };
            if throttle.admit(&mut state, &arrival) {
                let_in[level] += u64::from(count >= 7_500);
                let outcome =
                    if served * 100 < count * room { Outcome::Success } else { Outcome::Overloaded };
                served += u64::from(outcome == Outcome::Success);
                throttle.learn(&mut state, at, Duration::ZERO, outcome);
            }
        }
        (throttle, state, let_in)
    }

    #[test]
    fn a_fifth_more_is_let_in_than_finds_room_and_the_least_important_are_refused() {
        let (throttle, state, let_in) = overloaded(40);
        let share = throttle.refused_share(&state, Tick::EPOCH);
        assert!((500_000..540_000).contains(&share), "{share} of a million: 1 − 1.2 · 0.4");
        assert_eq!(let_in[3], 625, "all of the most important in the last quarter");
        assert!(let_in[0] < 10, "{let_in:?}");
    }

    #[test]
    fn a_period_in_which_nobody_finds_room_closes_the_door_by_a_fifth() {
        let (throttle, mut state, _) = overloaded(40);
        let before = 1.0 - f64::from(throttle.refused_share(&state, Tick::EPOCH)) / 1e6;
        for count in 0..1_000 {
            let at = Tick::from_nanos(1_000_000_000 + count * 100_000);
            let arrival = Arrival { at, priority: Priority::default(), draw: (count * 0x9e37_79b9) as u32 };
            if throttle.admit(&mut state, &arrival) {
                throttle.learn(&mut state, at, Duration::ZERO, Outcome::Overloaded);
            }
        }
        let after = 1.0 - f64::from(throttle.refused_share(&state, Tick::from_nanos(1_100_000_000))) / 1e6;
        assert!((after / before - 0.8).abs() < 0.01, "{before}, then {after}");
    }

    #[test]
    fn free_places_open_the_door_within_a_tenth_of_a_second() {
        let (throttle, mut state, _) = overloaded(10);
        assert!(throttle.refused_share(&state, Tick::EPOCH) > 800_000);
        for look in 0..5 {
            let at = Tick::from_nanos(1_100_000_000 + look * 10_000_000);
            throttle.sense(&mut state, at, Room { free: 3, waiting: 0 });
        }
        assert_eq!(throttle.refused_share(&state, Tick::EPOCH), 0);
    }

    #[test]
    fn whoever_turns_nobody_away_is_left_alone() {
        let (throttle, state, _) = overloaded(100);
        assert_eq!(throttle.refused_share(&state, Tick::EPOCH), 0);
    }

    #[test]
    fn knobs_out_of_range_are_refused_by_name() {
        let refused =
            |result: Result<Shedding, QuotaError>| result.map(drop).map_err(|error| error.to_string());
        let surplus = "surplus 1.0 is not a surplus; use 1.01 to 10".to_owned();
        assert_eq!(refused(Shedding::default().surplus(1.0)), Err(surplus));
        let period = "period 0ns is not a period; use 1 ms to 60 s".to_owned();
        assert_eq!(refused(Shedding::default().period(Duration::ZERO)), Err(period));
    }
}
