//! Experiments: which limit is tried next, and whether it is kept.

use super::super::bounds::Bounds;
use super::epoch::Reading;
use super::state::{CHANGED, HEADROOM, HillClimbState, LEAP, STEP};

/// Up to this many times the base nobody waits: the mean of 20 exponential latencies deviates by 22 %.
const NO_QUEUE: f64 = 1.22;
/// From this many times the base on, most of the time inside is spent waiting.
const LONG_QUEUE: f64 = 2.2;
/// From this many times the base on, fewer places are tried first also where most of the goodput was lost: more would be measured over
/// latencies that are longer still, beyond what callers wait for. A fewer-first experiment on a dependency that became slower is soon over.
const VERY_LONG_QUEUE: f64 = 10.0;
/// More places are kept if goodput grew by at least this share of what they could bring: without a queue, and with a long one. The longer
/// the queue, the less can more places be needed, so the more proof it takes.
const WORTH: (f64, f64) = (0.03, 0.4);
/// Fewer places are kept if goodput fell by at most this share of what they could cost: without a queue, where it has to grow, and with a
/// long one.
const LOSS: (f64, f64) = (-0.6, 0.07);
/// Fewer places that cost at least this share were all needed: nobody had waited.
const NEEDED: f64 = 0.5;
/// By so many deviations a loss has to be beyond doubt before the base goes up.
const SURE: f64 = 0.5;
/// The queue, as a share of a long one, that is assumed at least while nobody has seen the service without one: so much that fewer places which
/// change nothing are kept, or a limit that was too high from the first on would stay.
const DOUBTFUL: f64 = 0.9;
/// After most of the goodput was lost, a step without a queue goes to this many times the places that the best goodput of late takes.
const SPARE: f64 = 1.1;
/// A latency that grew by so much with fewer places is that of another service.
const SLOWER: f64 = 1.5;
/// The longest rest between two experiments, in measurements, after five in a row that changed nothing: experiments cost goodput where the
/// peak is sharp, and a service that changes ends the rest by its goodput.
const MOST_RESTS: u32 = 27;

/// What a trial brought.
#[derive(Clone, Copy, Debug)]
struct Verdict {
    /// The change of goodput over the change of the limit.
    gain: f64,
    /// The gain from which on a trial upwards is kept, and up to which one downwards is.
    border: f64,
    /// Whether nobody waited at the limit.
    no_queue: bool,
    /// The standard deviation of the gain, if what ends well comes at random.
    noise: f64,
}

impl HillClimbState {
    /// Chooses the limit to try next.
    pub(super) fn experiment(&mut self, bounds: &Bounds) {
        let Some(known) = self.known else { return };
        let (limit, queue) = (self.limit, known.latency / self.base);
        let cliff = (self.cliff.at() / STEP).max(limit);
        let room = limit + 1.0 <= cliff;
        // Where most of the best is lost, little steps would take too long. Up first: should a dependency have become slower, that regains
        // what was lost, and otherwise costs some latency; down would cost goodput in the one case and regain none in the other.
        let lost = known.rate * 2.0 < self.best;
        self.may_regain |= !lost;
        let step = if lost { LEAP } else { STEP };
        let trial = if known.failing && self.may_plunge {
            limit / LEAP
        } else if lost && self.may_regain && room && queue <= VERY_LONG_QUEUE {
            (self.may_regain, self.regaining) = (false, true);
            limit * LEAP
        } else if queue > LONG_QUEUE && self.may_plunge {
            (HEADROOM * known.rate * self.base).clamp(limit / LEAP, limit / STEP)
        } else if queue < NO_QUEUE && self.may_leap && room {
            // As many as the best goodput takes by Little's law: far, where most places were lost for a while, or the base has grown.
            let takes = self.best * self.base;
            if self.regaining {
                // More than that would be taken away again. What is inside would then end in waves, between which the service is idle.
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
        // At least one place apart.
        let trial = if trial > limit { trial.max(limit + 1.0).min(cliff) } else { trial.min(limit - 1.0) };
        let trial = bounds.nearest(trial);
        self.upwards = !self.upwards;
        self.trial = (trial != limit).then_some(trial);
    }

    /// Keeps a trial or rejects it.
    pub(super) fn judge(&mut self, bounds: &Bounds, trial: f64, reading: Reading) {
        let Some(known) = self.known else { return };
        let (up, ratio) = (trial > self.limit, trial / self.limit);
        let verdict = self.verdict(&known, trial, &reading);
        self.learn_base(&reading, false);
        let sure = verdict.gain >= NEEDED && verdict.gain - SURE * verdict.noise >= verdict.border;
        self.base_likely |= sure;
        // What more places brought, or fewer cost, in proportion: nobody had waited with so many.
        let slowest = if up { known.latency } else { reading.latency };
        let slower = sure && slowest > self.base * NO_QUEUE && !(up && known.queued);
        if slower {
            (self.base, self.base_proved) = (slowest, true);
        }
        let keep = if up { verdict.gain >= verdict.border } else { verdict.gain <= verdict.border };
        if keep {
            // Places that brought much less than in proportion are partly a queue, whose latency is no base, nor is it with more of them: a
            // service that becomes faster by itself meanwhile looks as if each step had brought that.
            let queued = up && (verdict.gain < NEEDED || known.queued);
            (self.limit, self.known) = (trial, Some(Reading { queued, ..reading }));
            (self.rests, self.rejected) = (0, 0);
            (self.may_leap, self.may_plunge) = (up, self.may_plunge || !up);
            self.may_regain |= up;
            // On in the same direction, at once.
            self.upwards = up;
            self.experiment(bounds);
            return;
        }
        self.upwards = !up;
        // A hint that was wrong is followed again after another experiment.
        self.may_plunge = up;
        if up {
            self.may_leap = false;
            if known.rate * 2.0 < self.best {
                // More places did not regain what was lost, so the service cannot do that any more. Fewer are tried at once.
                self.best = known.rate.max(reading.rate);
                (self.rests, self.rejected) = (0, 0);
                self.experiment(bounds);
                return;
            }
        } else if reading.rate < known.rate * ratio * (1.0 - CHANGED)
            && reading.latency > known.latency * SLOWER
        {
            // Fewer places cannot cost that much, nor make it slower: another service.
            self.forget();
            return;
        } else if slower {
            (self.may_leap, self.rests, self.rejected) = (true, 0, 0);
            self.experiment(bounds);
            return;
        }
        // Where nobody waits and nothing got worse, more places are likely to help, and are tried again soon.
        let soon = up && verdict.no_queue && verdict.gain > -NEEDED;
        if soon {
            self.rejected = 0;
        }
        self.rest();
    }

    /// Rests before the next experiment, the longer the more of them changed nothing.
    fn rest(&mut self) {
        self.rejected = self.rejected.saturating_add(1);
        self.rests = (1 << self.rejected.min(5)).min(MOST_RESTS) - 1;
    }

    /// Takes in that most ask for more places at once than there are. Each then works alone, under any limit below that; so fewer cost
    /// nothing and bring nothing, and the limit is at least what one of them takes.
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

    /// Whether a trial lies so close to the border that more samples are worth their time.
    pub(super) fn undecided(&self, reading: &Reading) -> bool {
        let (Some(trial), Some(known)) = (self.trial, &self.known) else { return false };
        if !reading.full || reading.failed >= 0.5 || reading.good == 0.0 || self.epoch.exhausted() {
            return false;
        }
        let verdict = self.verdict(known, trial, reading);
        (verdict.gain - verdict.border).abs() < verdict.noise
    }

    fn verdict(&self, known: &Reading, trial: f64, reading: &Reading) -> Verdict {
        let step = trial / self.limit - 1.0;
        let queue = known.latency / self.base;
        // A base that was measured with a queue says little of the queue. Where steps bear it out it decides of more places, but not of fewer:
        // those that change nothing are kept until the service was seen without a queue.
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
