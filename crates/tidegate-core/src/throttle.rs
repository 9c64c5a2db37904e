//! Throttles: control laws that refuse a share of the arrivals, the least important first, computed from how earlier
//! work ended. A concurrency law limits how many are in flight; a throttle sets the probability of admission. So
//! throttles suit callers, which do not know how many others there are, and can sit in front of a limit on a server.
//! Random draws are passed in, so the same arrivals with the same draws give the same answers.

mod pid;
mod shedding;
mod sre;

use core::fmt::Debug;
use core::time::Duration;

use crate::guard::Outcome;
use crate::priority::{Criticality, Priority};
use crate::time::{Tick, onward};

pub use pid::{Pid, PidState};
pub use shedding::{Shedding, SheddingState};
pub(crate) use sre::excess;
pub use sre::{Sre, SreState};

/// One request that asks to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it arrived.
    pub at: Tick,
    /// How important it is.
    pub priority: Priority,
    /// A number drawn evenly from all of `u32`. Among arrivals of one priority, those with the lowest draws are refused first.
    pub draw: u32,
}

/// The state of the places behind a throttle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// How many more pieces of work could start at once.
    pub free: u64,
    /// How many admitted pieces of work wait for a place.
    pub waiting: u64,
}

/// The parameters of a throttle: they compute an answer from a state and an arrival, and the next state from a state
/// and the end of a piece of work.
///
/// # Laws
/// * *The share stays below one*: some arrivals of each priority are always admitted, so that recovery is noticed.
/// * *More important is refused no more often*: with equal draws, an arrival of higher priority passes wherever one
///   of lower priority does.
/// * *Deterministic*: the same calls give the same answers.
pub trait Throttle: Clone + Debug {
    /// The state that the throttle keeps between calls.
    type State: Clone + Debug;

    /// Returns the state before the first arrival.
    fn start(&self, now: Tick) -> Self::State;

    /// Decides one arrival and counts it, whether admitted or refused.
    fn admit(&self, state: &mut Self::State, arrival: &Arrival) -> bool;

    /// Updates the state by the outcome of admitted work and the time that it took, including its wait in a queue.
    /// Called once for each admitted arrival: with [`Outcome::Ignored`] for work whose outcome is unknown, and with
    /// [`Outcome::Overloaded`] for an arrival that got no place.
    fn learn(&self, state: &mut Self::State, at: Tick, latency: Duration, outcome: Outcome);

    /// Updates the state by the places behind the throttle, when admitted work ends, and when the throttle refuses
    /// although places are free. The default does nothing.
    fn sense(&self, state: &mut Self::State, at: Tick, room: Room) {
        let _ = (state, at, room);
    }

    /// Returns the share of all arrivals to refuse now, in millionths: below a million. The least important are
    /// refused first.
    fn refused_share(&self, state: &Self::State, now: Tick) -> u32;
}

const CELLS: usize = Criticality::ALL.len() * Priority::COHORTS as usize;

const SAMPLE: u32 = 1000;
/// The time after which a sample is complete with fewer arrivals.
const SAMPLE_TIME: Duration = Duration::from_secs(1);

/// An arrival with at least this draw is admitted at any share: the last thousandth of the draws.
const ALWAYS: u32 = u32::MAX - u32::MAX / 1000;

/// The largest share that can be refused: the draws below [`ALWAYS`].
const MOST_SHARE: f64 = 0.999;

/// Decides which arrivals are refused first, by their priority. Holds the last complete sample of arrivals and the sample
/// in progress: 4 KiB on the heap, allocated at the start.
///
/// An arrival's rank is the share of a sample of recent arrivals that is less important than it. Refusing all arrivals
/// with one probability would hit important ones as often as others. An arrival is refused if its rank lies below the
/// refused share. Within one priority the draw decides.
///
/// # Source
/// Uber's Cinnamon maps its ratio to a priority in the same way: "Cinnamon: Using Century Old Tech to Build a Mean
/// Load Shedder", 2023.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ranking {
    /// For each priority, how many arrivals of the complete sample are less important. The last element is the size
    /// of the sample.
    below: Box<[u32]>,
    counts: Box<[u32]>,
    counted: u32,
    since: Tick,
}

impl Ranking {
    fn new(now: Tick) -> Self {
        let cells = |count| vec![0; count].into_boxed_slice();
        Self { below: cells(CELLS + 1), counts: cells(CELLS), counted: 0, since: now }
    }

    /// Counts an arrival, and returns whether it is among the share to refuse.
    fn refuses(&mut self, arrival: &Arrival, share: f64) -> bool {
        self.count(arrival);
        share > 0.0 && arrival.draw < ALWAYS && self.rank(arrival) < share
    }

    fn count(&mut self, arrival: &Arrival) {
        self.counts[cell(arrival.priority)] += 1;
        self.counted += 1;
        // After the clock was set far back, the sample's time restarts.
        self.since = self.since.min(onward(self.since, arrival.at));
        if self.counted >= SAMPLE || arrival.at.since(self.since) >= SAMPLE_TIME {
            let mut sum = 0;
            for (below, count) in self.below.iter_mut().zip(&mut self.counts) {
                *below = sum;
                sum += core::mem::take(count);
            }
            self.below[CELLS] = sum;
            (self.counted, self.since) = (0, onward(self.since, arrival.at));
        }
    }

    /// Returns the share of the sample that is refused before this arrival: 0 to 1. Before the first sample is
    /// complete, the draw alone decides.
    fn rank(&self, arrival: &Arrival) -> f64 {
        let draw = f64::from(arrival.draw) / (u64::from(u32::MAX) + 1) as f64;
        let (cell, all) = (cell(arrival.priority), self.below[CELLS]);
        if all == 0 {
            return draw;
        }
        let (from, to) = (f64::from(self.below[cell]), f64::from(self.below[cell + 1]));
        (from + (to - from) * draw) / f64::from(all)
    }
}

fn cell(priority: Priority) -> usize {
    let cohorts = usize::from(Priority::COHORTS);
    priority.level() as usize * cohorts + (cohorts - 1 - usize::from(priority.cohort()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// One event of a throttle.
    #[derive(Clone, Copy, Debug)]
    enum Event {
        Arrives(Arrival),
        Ends(Tick, Duration, Outcome),
        Stands(Tick, Room),
    }

    fn outcome() -> impl Strategy<Value = Outcome> {
        use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};
        prop::sample::select(vec![Success, CallersFault, Failure, Overloaded, Ignored])
    }

    fn priority() -> impl Strategy<Value = Priority> {
        let level = prop::sample::select(Criticality::ALL.to_vec());
        (level, 0u8..128).prop_map(|(level, cohort)| Priority::of(level).in_cohort(cohort).unwrap())
    }

    /// Ticks: mostly some fractions of a second apart, sometimes anywhere, also backwards.
    fn ticks() -> impl Strategy<Value = Tick> {
        let near = (0u64..20_000_000_000).prop_map(Tick::from_nanos);
        prop_oneof![9 => near, 1 => any::<u64>().prop_map(Tick::from_nanos)]
    }

    fn event() -> impl Strategy<Value = Event> {
        let arrival = (ticks(), priority(), any::<u32>());
        let arrives = arrival.prop_map(|(at, priority, draw)| Event::Arrives(Arrival { at, priority, draw }));
        let ends =
            (ticks(), any::<Duration>(), outcome()).prop_map(|(at, took, how)| Event::Ends(at, took, how));
        let stands = (ticks(), any::<u64>(), any::<u64>());
        let stands = stands.prop_map(|(at, free, waiting)| Event::Stands(at, Room { free, waiting }));
        prop_oneof![6 => arrives, 3 => ends, 1 => stands]
    }

    fn keeps_the_laws<T: Throttle>(throttle: &T, events: &[Event], pair: (Priority, Priority), draw: u32)
    where
        T::State: PartialEq,
    {
        let mut state = throttle.start(Tick::EPOCH);
        let mut again = throttle.start(Tick::EPOCH);
        for event in events {
            let (first, second) = match *event {
                Event::Arrives(arrival) => {
                    (throttle.admit(&mut state, &arrival), throttle.admit(&mut again, &arrival))
                }
                Event::Ends(at, latency, outcome) => {
                    throttle.learn(&mut state, at, latency, outcome);
                    throttle.learn(&mut again, at, latency, outcome);
                    (true, true)
                }
                Event::Stands(at, room) => {
                    throttle.sense(&mut state, at, room);
                    throttle.sense(&mut again, at, room);
                    (true, true)
                }
            };
            assert_eq!(first, second, "the same calls give the same answers");
            assert!(state == again, "the same calls leave the same state, and no number that is none");
            assert!(throttle.refused_share(&state, Tick::from_secs(20)) < 1_000_000);

            let (low, high) = (pair.0.min(pair.1), pair.0.max(pair.1));
            let at = Tick::from_secs(20);
            let admits = |priority, draw| throttle.admit(&mut state.clone(), &Arrival { at, priority, draw });
            assert!(!admits(low, draw) || admits(high, draw), "{low} passes where {high} does not");
            assert!(admits(low, u32::MAX), "some are always let in");
        }
    }

    // The laws stated at `Throttle`, for every implementation, with any arrivals and ends.
    proptest! {
        #[test]
        fn every_throttle_keeps_the_laws(
            events in prop::collection::vec(event(), 1..150),
            pair in (priority(), priority()),
            draw in any::<u32>(),
        ) {
            for throttle in [Sre::default(), Sre::aegis(), Sre::envoy()] {
                keeps_the_laws(&throttle, &events, pair, draw);
            }
            for throttle in [Pid::default(), Pid::default().gains(100.0, 100.0).unwrap()] {
                keeps_the_laws(&throttle, &events, pair, draw);
            }
        }
    }

    /// The sizes that the documentation of each state gives.
    #[test]
    fn states_are_as_small_as_documented() {
        assert_eq!((size_of::<SreState>(), size_of::<PidState>()), (88, 120));
    }

    fn arrival(priority: Priority, draw: u32) -> Arrival {
        Arrival { at: Tick::EPOCH, priority, draw }
    }

    /// A sample with a quarter each: sheddable, sheddable-plus, critical, critical-plus.
    fn quarters() -> Ranking {
        let mut ranking = Ranking::new(Tick::EPOCH);
        for count in 0..SAMPLE as usize {
            ranking.count(&arrival(Criticality::ALL[count % 4].into(), 0));
        }
        ranking
    }

    #[test]
    fn the_least_important_are_refused_first_and_the_last_thousandth_of_draws_never() {
        let refused =
            |level: Criticality, draw: u32, share| quarters().refuses(&arrival(level.into(), draw), share);
        let half = u32::MAX / 2;
        for (share, expected) in [
            (0.0, [false; 4]),
            (0.1, [false; 4]),
            (0.2, [true, false, false, false]),
            (0.5, [true, true, false, false]),
            (0.8, [true, true, true, false]),
            (MOST_SHARE, [true; 4]),
        ] {
            assert_eq!(Criticality::ALL.map(|level| refused(level, half, share)), expected, "share {share}");
            assert_eq!(Criticality::ALL.map(|level| refused(level, u32::MAX, share)), [false; 4]);
        }
    }

    #[test]
    fn cohorts_of_a_level_go_one_after_the_other() {
        let mut ranking = Ranking::new(Tick::EPOCH);
        let cohort = |number| Priority::default().in_cohort(number).unwrap();
        for count in 0..SAMPLE {
            ranking.count(&arrival(cohort((count % 100) as u8), 0));
        }
        let refused = (0..100).filter(|&number| ranking.rank(&arrival(cohort(number), u32::MAX / 2)) < 0.3);
        assert_eq!(refused.collect::<Vec<_>>(), (70..100).collect::<Vec<_>>());
    }

    #[test]
    fn fewer_arrivals_make_a_sample_after_a_second() {
        let mut ranking = Ranking::new(Tick::EPOCH);
        for secs in [0, 0, 1] {
            ranking.count(&Arrival { at: Tick::from_secs(secs), ..arrival(Priority::default(), 0) });
        }
        assert_eq!((ranking.below[CELLS], ranking.counted), (3, 0));
    }
}
