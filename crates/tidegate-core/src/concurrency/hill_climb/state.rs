//! The state of the hill climb: the limit, the base, the score, and the trial in progress.

use super::super::bounds::{Bounds, LIMITS};
use super::measurement::Measurement;
use super::{BEYOND, CAREFUL, GAIN, GROSS, SURE, SUREST, WEIGHT};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::{Tick, nanos, onward};

/// For how many measurements a limit is avoided at which work failed: recovery can take much longer than the visit.
const AVOIDED: u32 = 64;
/// How fast the base follows what is shorter.
const DOWN: f64 = 0.5;
/// The share of the most that was harmless that remains after each measurement: half after 138.
const FADING: f64 = 0.995;
/// Up to this share of failures, and twice the usual one, counts as if nothing failed.
const FEW: f64 = 0.01;

/// What was measured before the limit was changed to see what that does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Trial {
    pub(super) limit: f64,
    /// Goodput per nanosecond.
    pub(super) rate: f64,
    /// Nanoseconds that work took.
    pub(super) latency: f64,
    /// The share that failed.
    pub(super) failed: f64,
}

/// A time, and the limit then.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    at: Tick,
    limit: f64,
}

/// What [`HillClimb`](super::HillClimb) remembers: 312 bytes, and nothing on the heap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HillClimbState {
    pub(super) limit: f64,
    /// Up to here the limit rises by one each time work ends. Work admitted all at once would also end all at once, again
    /// and again, and leave the service idle in between.
    pub(super) target: f64,
    /// The highest limit at which work was quick: growth beyond it can be taken back.
    pub(super) unhurt: f64,
    /// By how much the limit grows for each piece of work.
    pub(super) pace: f64,
    /// Growth was taken back: what there is now is measured before it grows again.
    pub(super) rests: bool,
    pub(super) score: i16,
    /// Nanoseconds that work takes where nothing waits; zero if unknown.
    pub(super) base: f64,
    /// Whether the base is more than a first guess.
    pub(super) certain: bool,
    /// Whether the base was measured where nothing can have waited.
    pub(super) proved: bool,
    /// A limit at which work failed that went well with fewer places, and for how many measurements it is avoided.
    cliff: f64,
    pub(super) cliff_for: u32,
    pub(super) last: Tick,
    /// When the limit was last lowered. What entered before is no evidence.
    pub(super) set_back_at: Tick,
    /// How many have to end until all that was inside then has been followed by others.
    pub(super) to_leave: f64,
    /// How many ended well since then.
    pub(super) ended: f64,
    pub(super) trial: Option<Trial>,
    pub(super) measurement: Measurement,
    /// The limit at the beginning of the measurement.
    measured_at: f64,
    pub(super) usually_failed: f64,
    /// The most that were inside while hardly anything failed.
    harmless: f64,
    /// What ends now entered after `mark`; once it entered after `next`, that takes its place.
    mark: Mark,
    next: Mark,
}

impl HillClimbState {
    pub(super) const fn starting(limit: f64, now: Tick) -> Self {
        let mark = Mark { at: now, limit };
        Self {
            limit,
            target: limit,
            unhurt: limit,
            pace: 1.0,
            rests: false,
            score: SUREST,
            base: 0.0,
            certain: false,
            proved: false,
            cliff: 1.0,
            cliff_for: 0,
            last: now,
            set_back_at: now,
            to_leave: 0.0,
            ended: 0.0,
            trial: None,
            measurement: Measurement::starting(now),
            measured_at: limit,
            usually_failed: 0.0,
            harmless: 0.0,
            mark,
            next: mark,
        }
    }

    /// Returns the state under other bounds: unchanged if the limit lies within them, otherwise at the nearest bound.
    pub(in super::super) fn bounded(&self, bounds: &Bounds) -> Self {
        let mut next = *self;
        if [self.limit, self.target].into_iter().all(|limit| bounds.clamp(limit) == limit) {
            return next;
        }
        next.limit = bounds.clamp(self.target);
        (next.target, next.unhurt, next.trial) = (next.limit, next.limit, None);
        next.measure_anew();
        next
    }

    pub(super) fn turn_to(&mut self, at: Tick) {
        let at = onward(self.last, at);
        if at < self.last {
            // The clock was set back.
            self.trial = None;
            self.set_back_at = at;
            (self.mark, self.next) = (Mark { at, ..self.mark }, Mark { at, ..self.next });
            self.measurement = Measurement::starting(at);
        }
        self.last = at;
    }

    pub(super) fn measure_anew(&mut self) {
        self.measurement = Measurement::starting(self.last);
        self.measured_at = self.limit;
    }

    /// Returns the limit that what ends now found, or a lower one. It has at most doubled since.
    pub(super) fn limit_at_entry(&self) -> f64 {
        self.mark.limit.clamp(self.limit / 2.0, self.limit)
    }

    /// Notes when a piece of work entered that ends now. After each time that work takes, growth that was quick all the
    /// time becomes twice as fast.
    pub(super) fn note_entry(&mut self, entered: Tick) {
        if entered < self.next.at {
            return;
        }
        if self.limit > self.mark.limit && self.score >= SUREST {
            self.pace = (2.0 * self.pace).min(1.0);
        }
        self.mark = self.next;
        self.next = Mark { at: self.last, limit: self.limit };
    }

    pub(super) fn is_rising(&self) -> bool {
        self.limit < self.target
    }

    /// Rises by one towards the target. Returns whether it did.
    pub(super) fn rise(&mut self) -> bool {
        let rises = self.is_rising();
        if rises {
            self.limit = (self.limit + 1.0).min(self.target);
            self.measure_anew();
        }
        rises
    }

    pub(super) fn grow(&mut self, limit: f64) {
        (self.limit, self.target) = (limit, limit);
        if self.limit > 1.1 * self.measured_at + 1.0 {
            // A measurement is of one limit.
            self.measure_anew();
        }
    }

    /// Says whether the limit has grown to more than all that was quick.
    pub(super) fn has_overgrown(&self) -> bool {
        self.limit > 1.1 * self.unhurt + 1.0
    }

    pub(super) fn gain(&mut self) {
        self.score = (self.score + GAIN).min(SUREST);
        if self.score >= SUREST {
            self.unhurt = self.unhurt.max(self.limit_at_entry());
        }
    }

    pub(super) fn lose(&mut self, much: i16) {
        self.score = (self.score - much).max(-SURE);
    }

    /// After the limit was lowered.
    pub(super) fn set_back(&mut self) {
        (self.score, self.pace, self.set_back_at, self.ended) = (0, CAREFUL, self.last, 0.0);
        self.measure_anew();
    }

    pub(super) fn trial_of(&self, measured: &Measurement) -> Option<Trial> {
        let rate = measured.rate(self.last);
        measured.is_comparable(self.last).then(|| Trial {
            limit: self.limit,
            rate,
            latency: measured.latency(),
            failed: measured.failed_share(),
        })
    }

    /// Returns the trial of fewer places if it has cost so much by now that nothing has to be waited for.
    pub(super) fn trial_costs_much(&self) -> Option<Trial> {
        let trial = self.trial?;
        let elapsed = nanos(self.last.since(self.set_back_at)) as f64;
        let expected = self.limit / trial.limit * trial.rate * elapsed;
        let is_cut = self.target < trial.limit;
        let costs = is_cut && elapsed >= GROSS * trial.latency && self.ended * 2.0 < expected;
        costs.then_some(trial)
    }

    /// Ends a trial that has shown that all places were needed.
    pub(super) fn give_back(&mut self, trial: Trial) {
        (self.trial, self.target, self.unhurt) = (None, trial.limit, trial.limit);
        (self.score, self.pace, self.rests, self.to_leave) = (0, 1.0, false, 0.0);
        self.measure_anew();
    }

    /// Notes a limit at which work failed that went well with fewer places.
    pub(super) fn note_cliff(&mut self, limit: f64) {
        (self.cliff, self.cliff_for) = (limit, AVOIDED);
    }

    /// Returns the largest limit to grow to.
    pub(super) fn below_cliff(&self) -> f64 {
        if self.cliff_for > 0 { (self.cliff / BEYOND).max(self.limit) } else { f64::INFINITY }
    }

    pub(super) fn lower_base(&mut self, measured: &Measurement) {
        if measured.is_quicker_than(self.base) {
            self.base += (measured.latency() - self.base) * DOWN;
        }
    }

    /// Learns from a measurement during which the limit did not bind. Slowly, since a load close to the capacity has a
    /// queue that is not part of the base.
    pub(super) fn raise_base(&mut self, measured: &Measurement) {
        let latency = measured.latency();
        if latency > self.base {
            self.base += (latency - self.base) * WEIGHT;
        }
        self.proved = true;
    }

    pub(super) fn note_harmless(&mut self, measured: &Measurement) {
        // With more failures than usual the most that were inside may be what made them.
        self.cliff_for = self.cliff_for.saturating_sub(1);
        let few = FEW + 2.0 * self.usually_failed;
        let harmless = if measured.failed_share() <= few { measured.peak } else { 0.0 };
        self.harmless = (self.harmless * FADING).max(harmless);
    }

    /// Returns the share of the limit with which hardly anything failed, if that is known and less than the limit.
    pub(super) fn harmless_share(&self) -> Option<f64> {
        (self.harmless > 0.0 && self.harmless < self.limit - 0.5)
            .then(|| (self.harmless / self.limit).min(1.0))
    }

    /// Says whether failures may be due to what is inside: to a limit that is reached, or to more than ever went well.
    pub(super) fn is_too_much(&self, measured: &Measurement) -> bool {
        measured.is_full() || self.harmless > 0.0 && measured.peak > BEYOND * self.harmless
    }
}

impl Mark {
    fn until(self, last: Tick) -> Self {
        Self { at: self.at.min(last), ..self }
    }
}

impl Bytes for Mark {
    fn write(&self, out: &mut Writer) {
        out.tick(self.at);
        out.f64(self.limit);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { at: from.tick()?, limit: from.within("limit at a time", LIMITS)? })
    }
}

impl Bytes for Trial {
    fn write(&self, out: &mut Writer) {
        for number in [self.limit, self.rate, self.latency, self.failed] {
            out.f64(number);
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let limit = from.within("limit before", LIMITS)?;
        let rate = from.within("rate before", 0.0..=f64::MAX)?;
        let latency = from.within("latency before", 0.0..=u64::MAX as f64)?;
        Ok(Self { limit, rate, latency, failed: from.within("failed before", 0.0..=1.0)? })
    }
}

impl Bytes for HillClimbState {
    fn write(&self, out: &mut Writer) {
        for number in [self.limit, self.target, self.unhurt, self.pace] {
            out.f64(number);
        }
        // From the least score on.
        out.u32(u32::from(self.score.saturating_add(SURE).unsigned_abs()));
        out.f64(self.base);
        for flag in [self.rests, self.certain, self.proved, self.trial.is_some()] {
            out.flag(flag);
        }
        out.f64(self.cliff);
        out.u32(self.cliff_for);
        out.tick(self.last);
        out.tick(self.set_back_at);
        out.f64(self.to_leave);
        out.f64(self.ended);
        self.trial.unwrap_or(Trial { limit: 1.0, rate: 0.0, latency: 0.0, failed: 0.0 }).write(out);
        self.measurement.write(out);
        for number in [self.measured_at, self.usually_failed, self.harmless] {
            out.f64(number);
        }
        self.mark.write(out);
        self.next.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (limit, target) = (from.within("limit", LIMITS)?, from.within("target", LIMITS)?);
        let (unhurt, pace) = (from.within("unhurt", LIMITS)?, from.within("pace", 0.0..=1.0)?);
        let score = i16::try_from(from.u32()?).unwrap_or(i16::MAX).saturating_sub(SURE).min(SUREST);
        let base = from.within("base", 0.0..=u64::MAX as f64)?;
        let (rests, certain) = (from.flag("rests")?, from.flag("certain")?);
        let (proved, tries) = (from.flag("proved")?, from.flag("tries")?);
        let (cliff, cliff_for) = (from.within("cliff", LIMITS)?, from.u32()?.min(AVOIDED));
        let last = from.tick()?;
        // What lies ahead would make it deaf.
        let set_back_at = from.tick()?.min(last);
        let to_leave = from.within("to leave", 0.0..=Bounds::MOST as f64)?;
        let (ended, trial) = (from.within("ended", 0.0..=f64::MAX)?, Trial::read(from)?);
        Ok(Self {
            limit,
            target,
            unhurt,
            pace,
            rests,
            score,
            base,
            certain,
            proved,
            cliff,
            cliff_for,
            last,
            set_back_at,
            to_leave,
            ended,
            trial: tries.then_some(trial),
            measurement: Measurement::read(from)?.until(last),
            measured_at: from.within("limit measured", LIMITS)?,
            usually_failed: from.within("usually failed", 0.0..=1.0)?,
            harmless: from.within("harmless", 0.0..=f64::MAX)?,
            mark: Mark::read(from)?.until(last),
            next: Mark::read(from)?.until(last),
        })
    }
}
