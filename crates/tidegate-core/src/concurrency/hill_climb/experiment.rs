//! Experiments of the hill climb: which limit is tried next, and whether it is kept.

use super::super::bounds::Bounds;
use super::reading::Reading;
use super::state::{CHANGED, FEW_FAIL, HillClimbState, LEAP, STEP};

/// Up to this many times the base, nothing waits: the mean of 20 exponential latencies has a standard deviation of 22
/// %.
const NO_QUEUE: f64 = 1.22;
/// From this many times the base, most of the time inside is spent waiting.
const LONG_QUEUE: f64 = 2.2;
/// With a long queue, as few places are tried as this many times what Little's law asks for.
const SUFFICE: f64 = 2.0;
/// From this many times the base, fewer places are tried first even if most of the goodput was lost: more would make
/// latencies longer than callers wait.
const VERY_LONG_QUEUE: f64 = 10.0;
/// More places are kept if goodput grew by at least this share of the proportional growth: (without a queue, with a
/// long queue). The longer the queue, the less likely it is that more places are needed.
const WORTH: (f64, f64) = (0.03, 0.4);
/// Fewer places are kept if goodput fell by at most this share of the proportional loss: (without a queue, with a
/// long queue). The negative value means that goodput has to grow.
const LOSS: (f64, f64) = (-0.6, 0.07);
/// If fewer places cost at least this share of the proportional loss, all of them were needed: nothing had waited.
const NEEDED: f64 = 0.5;
/// The number of standard deviations by which a gain has to exceed the border before it may raise the base.
const SURE: f64 = 0.5;
/// The least queue to assume, as a share of a long queue, until the service was seen without one: fewer places are then
/// kept if they change nothing, so that a limit that started too high does not stay.
const DOUBTFUL: f64 = 0.9;
/// After failures as many places are tried as work ended well, times this: a few more only add some failures, while a few
/// less cost goodput.
const MARGIN: f64 = 1.15;
/// After most of the goodput was lost, a step without a queue goes to this many times the places that the best recent
/// goodput takes.
const SPARE: f64 = 1.1;
/// A latency that grew by this factor with fewer places shows that the service has changed.
const SLOWER: f64 = 1.5;
/// One more than the longest rest between two experiments, in measurements, reached after five experiments in a row that
/// changed nothing. A service that changes ends the rest by its goodput.
const MOST_RESTS: u32 = 27;

#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// The relative change of goodput divided by the relative change of the limit: 1 is in proportion.
    gain: f64,
    /// A trial upwards is kept if the gain is at least this, a trial downwards if the gain is at most this.
    border: f64,
    no_queue: bool,
    /// The standard deviation of the gain if successes arrive at random.
    noise: f64,
}

impl HillClimbState {
    pub(super) fn experiment(&mut self, bounds: &Bounds) {
        let Some(known) = self.known else { return };
        if self.raise_reserve(&known, bounds) {
            return;
        }
        let (limit, queue) = (self.limit, known.latency / self.base);
        let cliff = (self.cliff.at() / STEP).max(limit);
        let room = limit + 1.0 <= cliff;
        // Once most of the best goodput is lost, the first try is up: if a dependency became slower that regains the
        // loss, and otherwise it costs some latency. Small steps would take too long.
        let lost = known.rate * 2.0 < self.best;
        self.may_regain |= !lost;
        let step = if lost { LEAP } else { STEP };
        let trial = if known.failing && self.may_plunge {
            // If the service refuses what is too much, the share that ends well is what it takes.
            limit * ((1.0 - known.failed) * MARGIN).clamp(1.0 / LEAP, 1.0 / STEP)
        } else if lost && self.may_regain && room && queue <= VERY_LONG_QUEUE {
            (self.may_regain, self.regaining) = (false, true);
            limit * LEAP
        } else if queue > LONG_QUEUE && self.may_plunge {
            (SUFFICE * known.rate * self.base).clamp(limit / LEAP, limit / STEP)
        } else if queue < NO_QUEUE && self.may_leap && room {
            // The places that the best goodput takes by Little's law: a large step where most places were lost for a
            // while, or the base has grown.
            let takes = self.best * self.base;
            if self.regaining {
                // More would be taken away again. The work inside would then end in waves, with the service idle in
                // between.
                (takes * SPARE).clamp(limit * STEP, limit * LEAP)
            } else {
                takes.max(limit * LEAP)
            }
        } else if self.upwards && room {
            limit * step
        } else {
            limit / step
        };
        // At the least limit the only way is up.
        let trial = if trial < limit && bounds.nearest(limit - 1.0) == limit { limit * STEP } else { trial };
        // The trial differs by at least one place.
        let trial = if trial > limit { trial.max(limit + 1.0).min(cliff) } else { trial.min(limit - 1.0) };
        let trial = bounds.nearest(trial);
        self.upwards = !self.upwards;
        self.trial = (trial != limit).then_some(trial);
    }

    pub(super) fn judge(&mut self, bounds: &Bounds, trial: f64, reading: Reading) {
        let Some(known) = self.known else { return };
        if let Some(reserve) = self.reserve {
            self.judge_raise(&reserve, &known, trial, reading);
            return;
        }
        let (up, ratio) = (trial > self.limit, trial / self.limit);
        let verdict = self.verdict(&known, trial, &reading);
        self.learn_base(&reading, false);
        let sure = verdict.gain >= NEEDED && verdict.gain - SURE * verdict.noise >= verdict.border;
        self.base_likely |= sure;
        // Goodput changed in proportion to the places, so nothing had waited at the larger of the two limits.
        let slowest = if up { known.latency } else { reading.latency };
        let slower = sure && slowest > self.base * NO_QUEUE && !(up && known.queued);
        if slower {
            (self.base, self.base_proved) = (slowest, true);
        }
        let keep = if up { verdict.gain >= verdict.border } else { verdict.gain <= verdict.border };
        if keep {
            // Such places are partly a queue, so their latency is not a base, nor is that with still more places: if
            // the service becomes faster by itself meanwhile, each step seems to have caused that.
            let queued = up && (verdict.gain < NEEDED || known.queued);
            (self.limit, self.known) = (trial, Some(Reading { queued, ..reading }));
            (self.rests, self.rejected) = (0, 0);
            (self.may_leap, self.may_plunge) = (up, self.may_plunge || !up);
            self.may_regain |= up;
            // Go on in the same direction at once. Fewer places that end failures are kept even if they cost goodput: then
            // they were too few.
            self.upwards = up || verdict.gain > LOSS.1;
            self.experiment(bounds);
            return;
        }
        self.upwards = !up;
        // A hint that was wrong is followed again after another experiment.
        self.may_plunge = up;
        if up {
            self.may_leap = false;
            if known.rate * 2.0 < self.best {
                // More places did not regain the loss, so the service can no longer do as much. Try fewer at once.
                self.best = known.rate.max(reading.rate);
                (self.rests, self.rejected) = (0, 0);
                self.experiment(bounds);
                return;
            }
        } else if reading.rate < known.rate * ratio * (1.0 - CHANGED)
            && reading.latency > known.latency * SLOWER
        {
            // Fewer places can neither cost that much goodput nor make the service slower: the service has changed.
            self.forget();
            return;
        } else if slower {
            (self.may_leap, self.rests, self.rejected) = (true, 0, 0);
            self.experiment(bounds);
            return;
        }
        // If nothing waits and nothing got worse, more places are likely to help, so they are tried again soon.
        let worse = verdict.gain <= -NEEDED || reading.failed > known.failed + FEW_FAIL;
        let soon = up && verdict.no_queue && !worse;
        if soon {
            self.rejected = 0;
        }
        self.rest();
    }

    /// Sets the rest before the next experiment: longer the more experiments in a row changed nothing.
    fn rest(&mut self) {
        self.rejected = self.rejected.saturating_add(1);
        self.rests = (1 << self.rejected.min(5)).min(MOST_RESTS) - 1;
    }

    /// Handles a measurement in which most asks took more places at once than the limit has. Each then runs alone under
    /// any limit below its size, so the limit becomes at least the size of one ask.
    pub(super) fn widen(&mut self, bounds: &Bounds, reading: &Reading) {
        let widest = bounds.nearest(reading.peak);
        let tried_fewer = self.trial.take().is_some();
        if widest > self.limit {
            self.limit = widest;
            self.forget();
        } else if tried_fewer {
            (self.upwards, self.may_plunge) = (true, false);
            self.rest();
        }
    }

    /// Says whether a trial lies so close to the border that more samples are worth their time.
    pub(super) fn undecided(&self, reading: &Reading) -> bool {
        let (Some(trial), Some(known)) = (self.trial, &self.known) else { return false };
        if !reading.full || reading.failed >= 0.5 || reading.good == 0.0 || self.epoch.exhausted() {
            return false;
        }
        if let Some(reserve) = &self.reserve {
            return reserve.is_undecided(known, reading);
        }
        let verdict = self.verdict(known, trial, reading);
        (verdict.gain - verdict.border).abs() < verdict.noise
    }

    fn verdict(&self, known: &Reading, trial: f64, reading: &Reading) -> Verdict {
        let step = trial / self.limit - 1.0;
        let queue = known.latency / self.base;
        // A base that was measured with a queue, once steps have confirmed it, decides about more places, not about fewer.
        let trusted = self.base_proved || step > 0.0 && self.base_likely;
        let least = if trusted { 0.0 } else { DOUBTFUL };
        let queued = ((queue - 1.0) / (LONG_QUEUE - 1.0)).clamp(least, 1.0);
        let between = |(none, long): (f64, f64)| none + (long - none) * queued;
        let border = match (step > 0.0, known.failing) {
            (true, _) => between(WORTH),
            (false, true) => NEEDED,
            (false, false) => between(LOSS),
        };
        let noise = (1.0 / reading.good.max(1.0) + 1.0 / known.good.max(1.0)).sqrt() / step.abs();
        Verdict { gain: (reading.rate / known.rate - 1.0) / step, border, no_queue: queue < NO_QUEUE, noise }
    }
}
