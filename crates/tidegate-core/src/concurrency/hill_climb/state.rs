//! What the hill climb knows: the limit and the trial, the goodput, the base, and which hints held.

use super::super::bounds::{Bounds, LIMITS};
use super::cliff::Cliff;
use super::epoch::{Epoch, Evidence, Reading};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;

/// How far the limit is moved without a hint: throughput then changes by a fifth at most, which 150 samples show.
pub(super) const STEP: f64 = 1.2;
/// How far it is moved with one: it doubles.
pub(super) const LEAP: f64 = 2.0;
/// While the limit does not bind it is at least so many times what Little's law asks for: a spike to twice the load finds places.
pub(super) const HEADROOM: f64 = 2.0;
/// A goodput that differs by this share from the one known is that of another service: what was known is forgotten. Half of 160 samples
/// that come at random stay within it by five deviations.
pub(super) const CHANGED: f64 = 0.4;

/// What [`HillClimb`](super::HillClimb) remembers: 256 bytes, and nothing on the heap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HillClimbState {
    /// The limit that holds between experiments.
    pub(super) limit: f64,
    /// The limit that is tried now.
    pub(super) trial: Option<f64>,
    /// The limit that holds at this moment: it grows by one with each end until it is the one above.
    pub(super) allowed: f64,
    pub(super) epoch: Epoch,
    /// What is known of the goodput at the limit.
    pub(super) known: Option<Reading>,
    /// The mean latency without a queue, in nanoseconds; zero before anything was measured.
    pub(super) base: f64,
    /// Whether the base was measured while nobody can have waited.
    pub(super) base_proved: bool,
    /// Whether a step has brought, or cost, goodput in proportion: nobody waited then, so the base is about right.
    pub(super) base_likely: bool,
    /// The highest goodput of late, which slowly fades.
    pub(super) best: f64,
    /// Whether the next experiment without a hint goes up.
    pub(super) upwards: bool,
    /// Whether goodput has not contradicted the hint that more places are needed, and that fewer are.
    pub(super) may_leap: bool,
    pub(super) may_plunge: bool,
    /// Whether more places have not been tried in vain since most of the best goodput was lost.
    pub(super) may_regain: bool,
    /// Whether more places were tried because most of the best goodput was lost, since the goodput was last forgotten.
    pub(super) regaining: bool,
    pub(super) cliff: Cliff,
    /// Measurements before the next experiment.
    pub(super) rests: u32,
    /// Experiments in a row that changed nothing.
    pub(super) rejected: u32,
}

impl HillClimbState {
    /// Returns the state before the first sample.
    pub(super) fn starting(limit: f64, now: Tick) -> Self {
        Self {
            limit,
            trial: None,
            allowed: limit,
            epoch: Epoch::starting(now, 0.0),
            known: None,
            base: 0.0,
            base_proved: false,
            base_likely: false,
            best: 0.0,
            upwards: true,
            may_leap: true,
            may_plunge: true,
            may_regain: true,
            regaining: false,
            cliff: Cliff::UNKNOWN,
            rests: 0,
            rejected: 0,
        }
    }

    /// Returns what of the state holds under other bounds: all of it where the limit lies within them; else it begins anew at the nearest
    /// limit, with the base and the best that it knows.
    pub(in super::super) fn bounded(&self, bounds: &Bounds) -> Self {
        let is_within = |limit: f64| bounds.clamp(limit) == limit;
        let mut next = *self;
        if is_within(self.limit) && is_within(self.allowed) && self.trial.is_none_or(is_within) {
            return next;
        }
        (next.limit, next.trial) = (bounds.nearest(self.limit), None);
        next.allowed = next.limit;
        next.epoch = self.epoch.anew();
        next.forget();
        next
    }

    /// The limit that is tried, or holds.
    pub(super) fn goal(&self) -> f64 {
        self.trial.unwrap_or(self.limit)
    }

    /// What the measurement that goes on has to show.
    pub(super) fn evidence(&self) -> Evidence {
        let ratio = self.trial.map_or(1.0, |trial| trial / self.limit);
        let step = match (&self.trial, &self.known) {
            (Some(_), _) => (ratio - 1.0).abs(),
            (None, None) => LEAP - 1.0,
            (None, Some(_)) => (STEP - 1.0).max(1.0 / self.limit),
        };
        // Fewer places cost at most their share.
        let expected = self.known.as_ref().map_or(0.0, |known| known.rate * ratio.min(1.0));
        Evidence { step, expected }
    }

    /// Takes the base from a reading: down in some steps, and up slowly, only while the limit does not bind, since a load close to the
    /// capacity has a queue that is not part of the base.
    pub(super) fn learn_base(&mut self, reading: &Reading, idle: bool) {
        self.base_proved |= idle && reading.proves_latency();
        let weight = match reading.latency {
            latency if self.base == 0.0 && latency > 0.0 => 1.0,
            latency if latency < self.base && reading.proves_latency() => 0.5,
            latency if latency > self.base && idle => 0.02,
            _ => 0.0,
        };
        self.base += (reading.latency - self.base) * weight;
    }

    /// Forgets what was known of the goodput, and what hints came to.
    pub(super) fn forget(&mut self) {
        (self.known, self.may_leap, self.may_plunge) = (None, true, true);
        (self.rests, self.rejected, self.regaining) = (0, 0, false);
    }
}

impl Bytes for HillClimbState {
    fn write(&self, out: &mut Writer) {
        out.f64(self.limit);
        out.flag(self.trial.is_some());
        out.f64(self.trial.unwrap_or(1.0));
        out.f64(self.allowed);
        self.epoch.write(out);
        out.flag(self.known.is_some());
        self.known.unwrap_or_default().write(out);
        out.f64(self.base);
        out.f64(self.best);
        // In one byte, so that what was written without the second is read as it was.
        out.two_flags(self.base_proved, self.base_likely);
        for flag in [self.upwards, self.may_leap, self.may_plunge] {
            out.flag(flag);
        }
        out.two_flags(self.may_regain, self.regaining);
        self.cliff.write(out);
        out.u32(self.rests);
        out.u32(self.rejected);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (limit, tries) = (from.within("limit", LIMITS)?, from.flag("tries")?);
        let (trial, allowed) = (from.within("trial", LIMITS)?, from.within("allowed", LIMITS)?);
        let (epoch, knows, known) = (Bytes::read(from)?, from.flag("knows")?, Bytes::read(from)?);
        let (base, best) = (from.within("base", 0.0..=f64::MAX)?, from.within("best", 0.0..=f64::MAX)?);
        let (base_proved, base_likely) = from.two_flags("base proved")?;
        let (upwards, may_leap) = (from.flag("upwards")?, from.flag("may leap")?);
        let may_plunge = from.flag("may plunge")?;
        let (may_regain, regaining) = from.two_flags("may regain")?;
        Ok(Self {
            limit,
            trial: tries.then_some(trial),
            allowed,
            epoch,
            known: knows.then_some(known),
            base,
            best,
            base_proved,
            base_likely,
            upwards,
            may_leap,
            may_plunge,
            may_regain,
            regaining,
            cliff: Bytes::read(from)?,
            rests: from.u32()?,
            rejected: from.u32()?,
        })
    }
}
