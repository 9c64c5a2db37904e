//! Climbs while work is quick, and asks goodput whether what it climbed was a hill: moves the limit to where work takes
//! hardly longer than without a queue, and no lower than the work that succeeds per second, the *goodput*, needs.
//!
//! The *base* is how long work takes where nothing waits: a geometric mean, so that a part that hangs does not move it.
//! Work is *quick* if it takes at most a quarter longer. The *score* rises with each quick piece of work that found the
//! limit reached, and falls with each slow one; it stays where it is if a third is quick.
//!
//! * With a high score the limit grows by one for each piece of work: it doubles within the time that work takes. After
//!   a setback it begins with an eighth of that.
//! * If the score falls to zero after that, the limit goes back to where all was quick.
//! * With a low score a fifth of the places is taken away, and what entered after that is measured. If goodput fell by
//!   at least half as much, nothing had waited: all the places were needed, as when a dependency became slower. They are
//!   given back, and what work takes now is the base, up to twice the old one. Otherwise they were a queue.
//! * If work takes far longer than that, half as many places more are given for a second measurement. If goodput rises by
//!   half as much, what work takes now is the base, however long that is.
//! * If much work comes too late for its caller, or fails, places are taken away without a question. A limit at which
//!   work failed that went well with fewer places is avoided for a while.
//! * While the limit does not bind, the base is learnt, and the limit becomes at least 2.25 times what is inside, so that
//!   a spike finds places.
//!
//! What hangs holds its place, and the rest stays quick: so the limit grows by as much as hangs.
//!
//! An answer after its caller's deadline ([`Sample::time_left`]) is late: nobody uses it. Callers who leave less time
//! than the work takes without a queue are left out.
//!
//! # Source
//! Growth by one for each piece of work, and care after a setback: V. Jacobson, "Congestion Avoidance and Control",
//! SIGCOMM 1988. Scores that add up evidence until it suffices: E. S. Page, "Continuous Inspection Schemes", 1954.
//! Trying limits by the throughput they bring: J. L. Hellerstein, V. Morrison, E. Eilebrecht, "Optimizing Concurrency
//! Levels in the .NET ThreadPool", 2008. Marginal gain as the sign of overload: I. Cho et al., "Protego", NSDI 2023.

mod measurement;
mod state;
#[cfg(test)]
mod tests;

use super::bounds::Bounds;
use super::{Law, Sample};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::guard::Outcome;
use crate::time::{Tick, nanos};
pub use state::HillClimbState;
use state::Trial;

/// Work is quick if it takes at most this many times the base.
const QUICK: f64 = 1.25;
/// While the base is not yet certain the limit grows with work of at most this many times the base.
const QUICK_AT_FIRST: f64 = 1.875;

/// The share of the limit that counts as all of it; small limits have to be reached exactly.
const REACHED: f64 = 0.9;

/// What a quick piece of work adds to the score.
const GAIN: i16 = 2;
/// What a slow piece of work takes from the score.
const LOSS: i16 = 1;
/// What a late or refused piece of work takes from the score: one in four is too much.
const HEAVY_LOSS: i16 = 6;
/// From this score on the limit grows, and from its negative on it shrinks. Chance alone takes dozens of pieces of work
/// for the way between.
const SURE: i16 = 10;
/// The highest score.
const SUREST: i16 = 20;

/// By how much the limit grows for each piece of work after a setback. It doubles with each time that work takes.
const CAREFUL: f64 = 0.125;
/// The share of the places that remains in a trial. Smaller cuts show less, larger ones cost more where they are wrong.
const KEPT: f64 = 0.8;
/// Goodput that falls by this share of what was taken away shows that it was needed.
const NEEDED: f64 = 0.5;
/// By how much one trial raises the base at most: its goodput may have fallen for another reason.
const MOST_RISE: f64 = 2.0;
/// Work that takes this many times the base, and needs its places, has a second trial.
const JUMP: f64 = 2.5;
/// How many times the places of before a second trial has.
const RAISED: f64 = 1.5;
/// A trial ends early, after this many times what work took before, if it has cost half of its share of the goodput.
const GROSS: f64 = 6.0;

/// The share of the places that remains if four fifths of the work come too late or fail.
const USELESS_KEPT: f64 = 0.25;
/// The share of the places that remains if a quarter of the work comes too late.
const LATE_KEPT: f64 = 0.7;
/// Failures are put to a trial if their share is at least this, and [`UNUSUAL`] above the usual one.
const FAILING: f64 = 1.0 / 3.0;
const UNUSUAL: f64 = 0.25;
/// Failures of up to this share more than usual count as nothing.
const USUAL: f64 = 0.1;
/// How fast the usual share of failures follows: half in 14 measurements.
const WEIGHT: f64 = 0.05;

/// While the limit does not bind it is at least this many times what is inside.
const HEADROOM: f64 = 2.25;
/// More inside than this many times what was there while work ended well is too much if work fails.
const BEYOND: f64 = 1.1;

/// Moves the limit to where work takes hardly longer than without a queue.
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
/// // A quarter longer than without a queue is quick.
/// assert!((45..=70).contains(&law.limit(&state)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HillClimb {
    pub(super) bounds: Bounds,
}

impl Default for HillClimb {
    fn default() -> Self {
        Self { bounds: Bounds::known(1, Bounds::MOST) }
    }
}

/// What one piece of work tells.
#[derive(Clone, Copy, Debug)]
struct Seen {
    entered: Tick,
    /// Nanoseconds in the place.
    held: f64,
    /// It ended well, and in time.
    good: bool,
    /// How long it took tells how long work takes. A caller's mistake is often found before the work begins.
    timed: bool,
    late: bool,
    /// It was late because its caller left less time than the work takes.
    hopeless: bool,
    quick: bool,
    /// It found the limit reached.
    full: bool,
}

impl HillClimb {
    /// Sets the least and the largest limit, and where it starts.
    #[must_use]
    pub const fn bounds(self, bounds: Bounds) -> Self {
        Self { bounds }
    }

    fn see(&self, state: &HillClimbState, sample: &Sample) -> Seen {
        // At least 1, so that it has a logarithm.
        let held = (nanos(sample.held) as f64).max(1.0);
        let late = sample.is_late();
        let good = !late && matches!(sample.outcome, Outcome::Success | Outcome::CallersFault);
        let timed = good && sample.outcome == Outcome::Success;
        let time_left = sample.time_left.map(|time_left| nanos(time_left) as f64);
        Seen {
            entered: state.last.before(sample.held),
            held,
            good,
            timed,
            late,
            hopeless: late && time_left.is_some_and(|time_left| time_left < state.base),
            quick: timed && held <= state.base * QUICK,
            full: sample.in_flight as f64 >= REACHED * state.limit_at_entry().floor(),
        }
    }

    fn set(&self, state: &mut HillClimbState, limit: f64) {
        state.limit = self.bounds.clamp(limit);
        (state.target, state.unhurt) = (state.limit, state.limit);
    }

    /// Takes places away, so that this share of them remains; to see what that does, if there is a trial.
    fn cut(&self, state: &mut HillClimbState, kept: f64, trial: Option<Trial>) {
        let measured = &state.measurement;
        let from = if measured.is_full() { state.limit } else { state.limit.min(measured.peak) };
        let to = self.bounds.clamp((from * kept).min(from - 1.0).round());
        state.trial = None;
        state.to_leave = from;
        if to < state.limit {
            state.trial = trial;
            self.set(state, to);
        } else if trial.is_some() {
            // With the fewest places nothing waits: what work takes now is the base.
            state.base = state.base.max(measured.latency().min(state.base * MOST_RISE));
            state.proved = true;
        }
        state.set_back();
    }

    /// Handles a piece of work while the base is not known for certain.
    fn begin(&self, state: &mut HillClimbState, seen: &Seen) {
        let measured = state.measurement;
        let grows = state.base == 0.0 || seen.held <= state.base * QUICK_AT_FIRST;
        if seen.timed && seen.full && grows {
            self.set(state, state.limit + 1.0);
        }
        if !measured.has_some() {
            return;
        }
        let latency = measured.latency();
        if measured.is_useless() {
            // The guess stands, if there is one.
            state.certain = state.base > 0.0;
            self.cut(state, USELESS_KEPT, None);
        } else if latency > 0.0 && (measured.is_late() || measured.has_turned_over()) {
            (state.base, state.certain, state.score) = (latency, true, SUREST);
            state.proved = !measured.is_full();
            state.measure_anew();
        } else {
            // What takes longest ends last.
            state.base = state.base.max(latency);
        }
    }

    /// Handles the end of the measurement with more places: whether goodput has risen by half of their share.
    fn judge_raised(&self, state: &mut HillClimbState, trial: Trial) {
        let measured = state.measurement;
        let (given, gained) = (state.limit / trial.limit - 1.0, measured.rate(state.last) / trial.rate - 1.0);
        let helps = !measured.is_full() || gained >= NEEDED * given;
        let latency = measured.latency();
        if helps && latency > 0.0 && !measured.is_slightly_late() && measured.failed_share() < FAILING {
            state.base = latency.max(1.0);
            (state.trial, state.score, state.pace, state.unhurt) = (None, SURE, 1.0, state.limit);
            state.measure_anew();
        } else {
            (state.trial, state.to_leave) = (None, state.limit);
            self.set(state, trial.limit);
            state.set_back();
        }
    }

    /// Handles the end of the measurement after a cut.
    fn judge(&self, state: &mut HillClimbState, trial: Trial) {
        if state.limit > trial.limit {
            self.judge_raised(state, trial);
            return;
        }
        let measured = state.measurement;
        let latency = measured.latency();
        let taken = 1.0 - state.limit / trial.limit;
        let lost = 1.0 - measured.rate(state.last) / trial.rate;
        // Fewer places that end failures were too many, whatever they cost: a few more would only fail.
        let ended = trial.failed >= FAILING && measured.failed_share() * 2.0 <= trial.failed;
        if ended {
            state.note_cliff(trial.limit);
        }
        if lost >= NEEDED * taken && !measured.is_slightly_late() && !ended {
            let jumped = latency > state.base * JUMP;
            if latency > state.base * QUICK || latency > 0.0 && !state.proved {
                state.base = latency.min(state.base * MOST_RISE).max(1.0);
            }
            state.proved = true;
            state.give_back(trial);
            if jumped {
                state.target = self.bounds.clamp((trial.limit * RAISED).round());
                state.trial = (state.target > trial.limit).then_some(trial);
            }
        } else {
            state.lower_base(&measured);
            (state.trial, state.score, state.pace, state.rests) = (None, 0, CAREFUL, false);
            if !state.proved
                && let Some(trial) = state.trial_of(&measured)
            {
                // Nobody knows yet where nothing waits.
                self.cut(state, KEPT, Some(trial));
                return;
            }
            state.measure_anew();
        }
    }

    /// Handles a low score.
    fn shrink(&self, state: &mut HillClimbState) {
        let measured = state.measurement;
        if measured.is_late() && measured.is_full() {
            self.cut(state, LATE_KEPT, None);
        } else if !measured.is_full() {
            state.score = 0;
        } else if let Some(trial) = state.trial_of(&measured) {
            self.cut(state, KEPT, Some(trial));
        }
    }

    /// Handles a measurement that is large enough, without a trial.
    fn measured(&self, state: &mut HillClimbState) {
        let measured = state.measurement;
        let failed = measured.failed_share();
        state.rests = false;
        state.lower_base(&measured);
        state.note_harmless(&measured);
        let unusual = failed >= FAILING && failed >= state.usually_failed + UNUSUAL;
        state.usually_failed =
            if unusual { failed } else { state.usually_failed + (failed - state.usually_failed) * WEIGHT };
        if !measured.is_full() {
            state.raise_base(&measured);
            let wanted = HEADROOM * measured.mean_inside();
            if wanted > state.limit && failed < FAILING && measured.latency() < state.base * QUICK {
                self.set(state, wanted.round());
            }
        } else if (unusual || !state.proved)
            && let Some(trial) = state.trial_of(&measured)
        {
            self.cut(state, KEPT, Some(trial));
            return;
        }
        state.measure_anew();
    }

    /// Takes the measurement into account: judges, shrinks or learns.
    fn conclude(&self, state: &mut HillClimbState) {
        let measured = state.measurement;
        if measured.has_some() && measured.is_useless() && state.is_too_much(&measured) {
            // Either too much is inside, or the service is down; fewer places do no harm in the second case.
            let kept = state.harmless_share().filter(|_| !measured.is_late());
            if kept.is_some() {
                state.note_cliff(state.limit);
            }
            self.cut(state, kept.unwrap_or(USELESS_KEPT), None);
        } else if let Some(trial) = state.trial {
            if measured.is_enough(state.last, state.base) {
                self.judge(state, trial);
            }
        } else if state.score <= -SURE && measured.has_some() && !state.is_rising() {
            self.shrink(state);
        } else if measured.is_enough(state.last, state.base) {
            self.measured(state);
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
        self.bounds.clamp(state.limit) as u64
    }

    /// Work that was given up after a long time was slow.
    fn counts_ignored(&self, _: &HillClimbState) -> bool {
        true
    }

    fn learn(&self, state: &mut HillClimbState, sample: &Sample) {
        state.turn_to(sample.at);
        let seen = self.see(state, sample);
        if sample.outcome == Outcome::Ignored {
            let counts = state.certain && seen.entered >= state.set_back_at;
            if counts && seen.held > state.base * QUICK {
                state.lose(LOSS);
            }
            return;
        }
        if sample.places as f64 > state.limit {
            // Such work runs alone under any smaller limit.
            self.set(state, sample.places as f64);
        }
        let rises = state.rise();
        state.note_entry(seen.entered);
        if let Some(trial) = state.trial_costs_much() {
            state.give_back(trial);
        }
        state.ended += f64::from(u8::from(seen.good));
        if state.to_leave > 0.0 {
            state.to_leave = (state.to_leave - sample.places as f64).max(0.0);
            if state.to_leave == 0.0 {
                state.measure_anew();
            }
            return;
        }
        if seen.entered < state.set_back_at || seen.hopeless && state.measurement.has_good() {
            return;
        }
        state.measurement.count(&seen, sample, state.last, state.base);
        if !state.certain {
            self.begin(state, &seen);
            return;
        }
        if seen.quick && seen.full {
            state.gain();
        } else if seen.late || sample.outcome == Outcome::Overloaded {
            state.lose(HEAVY_LOSS);
        } else if !seen.good {
            if state.measurement.failed_share() > state.usually_failed + USUAL {
                state.lose(HEAVY_LOSS);
            }
        } else if seen.timed && !seen.quick {
            state.lose(LOSS);
        }
        if state.trial.is_none() && !rises && seen.full {
            if seen.quick && state.score >= SURE && !state.rests {
                let grown = state.limit + state.pace * sample.places as f64;
                state.grow(self.bounds.clamp(grown.min(state.below_cliff())));
            }
            if state.score <= 0 && state.has_overgrown() {
                let to = state.unhurt;
                state.to_leave = state.limit;
                self.set(state, to);
                state.set_back();
                state.rests = true;
                return;
            }
        }
        self.conclude(state);
    }
}

impl Bytes for HillClimb {
    fn write(&self, out: &mut Writer) {
        self.bounds.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { bounds: Bytes::read(from)? })
    }
}
