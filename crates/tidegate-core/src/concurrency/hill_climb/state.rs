//! The state of the hill climb: the limit and the trial, the goodput, the base latency, and which hints proved right.

use super::super::bounds::{Bounds, LIMITS};
use super::epoch::{Epoch, FEWER, Required};
use super::reading::{Cliff, Reading};
use super::reserve::{FOLLOWS, Reserve, Shares};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::time::Tick;

/// The factor by which the limit moves without a hint. Throughput then changes by a fifth at most, which 150 samples
/// show.
pub(super) const STEP: f64 = 1.2;
/// The factor by which it moves with a hint: it doubles.
pub(super) const LEAP: f64 = 2.0;
/// While the limit does not bind it is at least this many times what Little's law asks for: a spike to more
/// than twice the load finds places.
pub(super) const HEADROOM: f64 = 2.25;
/// If the goodput differs from the known one by more than this share, the service has changed. The rate of 160
/// samples that arrive at random has a standard deviation of 8 %, so it stays within this share by five of them.
pub(super) const CHANGED: f64 = 0.4;
/// More places are worth keeping, or trying again soon, only if they add at most this share of failures.
pub(super) const FEW_FAIL: f64 = 0.05;

/// No rest between experiments, and no time without a reserve, lasts for more measurements.
pub(super) const LONGEST_WAIT: u32 = 128;

/// What [`HillClimb`](super::HillClimb) remembers: 320 bytes, and nothing on the heap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HillClimbState {
    /// The limit that holds between experiments.
    pub(super) limit: f64,
    /// The limit of the experiment in progress.
    pub(super) trial: Option<f64>,
    /// The limit in force right now. After a raise it grows by one each time work ends, until it reaches the trial or
    /// the limit.
    pub(super) limit_in_force: f64,
    pub(super) epoch: Epoch,
    /// The measured goodput at the limit.
    pub(super) known: Option<Reading>,
    pub(super) base: f64,
    /// Whether the base was measured while nothing can have waited.
    pub(super) base_proved: bool,
    /// Whether a step has gained or lost goodput in proportion: nothing waited then, so the base is about right.
    pub(super) base_likely: bool,
    pub(super) best: f64,
    pub(super) upwards: bool,
    /// Whether goodput has not yet contradicted the hint that more places are needed (`may_leap`) or that fewer are
    /// (`may_plunge`).
    pub(super) may_leap: bool,
    pub(super) may_plunge: bool,
    /// Whether a loss of most of the best goodput may be answered with more places: false once that was tried in vain
    /// during the loss.
    pub(super) may_regain: bool,
    /// Whether more places were tried because of such a loss since the goodput was last forgotten.
    pub(super) regaining: bool,
    pub(super) cliff: Cliff,
    pub(super) rests: u32,
    pub(super) rejected: u32,
    pub(super) reserve: Option<Reserve>,
    /// For how many measurements at the limit no reserve is begun, because the last raise was taken back.
    pub(super) no_reserve_for: u32,
}

impl HillClimbState {
    pub(super) fn starting(limit: f64, now: Tick) -> Self {
        Self {
            limit,
            trial: None,
            limit_in_force: limit,
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
            reserve: None,
            no_reserve_for: 0,
        }
    }

    /// Returns the state under other bounds. If all limits lie within them the state is unchanged. Otherwise it
    /// restarts at the nearest limit, and keeps the base and the best goodput.
    pub(in super::super) fn bounded(&self, bounds: &Bounds) -> Self {
        let is_within = |limit: f64| bounds.clamp(limit) == limit;
        let mut next = *self;
        let settled = self.reserve.map_or(self.limit, |reserve| reserve.settled);
        if is_within(settled)
            && is_within(self.limit)
            && is_within(self.limit_in_force)
            && self.trial.is_none_or(is_within)
        {
            return next;
        }
        (next.limit, next.trial) = (bounds.nearest(settled), None);
        next.limit_in_force = next.limit;
        next.epoch = self.epoch.anew();
        next.forget();
        next
    }

    pub(super) fn target_limit(&self) -> f64 {
        self.trial.unwrap_or(self.limit)
    }

    pub(super) fn required(&self) -> Required {
        let ratio = self.trial.map_or(1.0, |trial| trial / self.limit);
        let step = match (&self.trial, &self.known) {
            // A small loss has to show.
            (Some(_), _) if self.reserve.is_some() => STEP - 1.0,
            (Some(_), _) => (ratio - 1.0).abs(),
            (None, None) => LEAP - 1.0,
            (None, Some(_)) => (STEP - 1.0).max(1.0 / self.limit),
        };
        // Fewer places cost at most their share of the goodput.
        let expected = self.known.as_ref().map_or(0.0, |known| known.rate * ratio.min(1.0));
        Required { step, expected, base: self.base }
    }

    /// Updates the base from a reading: quickly downwards; slowly upwards, and only while the limit does not bind,
    /// since a load close to the capacity has a queue that is not part of the base.
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

    /// Handles a measurement in which most work came too late for its caller.
    pub(super) fn shrink(&mut self, bounds: &Bounds, reading: &Reading) {
        let fewer = self.limit.min(reading.peak) / FEWER;
        self.give_up_reserve();
        (self.limit, self.trial) = (bounds.nearest(fewer.min(self.limit)), None);
        self.forget();
    }

    pub(super) fn forget(&mut self) {
        (self.known, self.may_leap, self.may_plunge) = (None, true, true);
        (self.rests, self.rejected, self.regaining) = (0, 0, false);
        self.reserve = None;
    }
}

impl HillClimbState {
    /// How many bytes [`write_reserve`](Self::write_reserve) adds.
    pub(in super::super) const RESERVE_BYTES: usize = 3 * 8 + 1 + (2 * 8 + 1 + 4) + 8 + 4;

    fn knows_of_time(&self) -> bool {
        let share = self.known.map_or(f64::INFINITY, |known| known.share);
        self.epoch.shares != Shares::NONE
            || self.reserve.is_some()
            || self.no_reserve_for > 0
            || share.is_finite()
    }

    fn write_reserve(&self, out: &mut Writer) {
        self.epoch.shares.write(out);
        out.flag(self.reserve.is_some());
        self.reserve.unwrap_or(Reserve::NONE).write(out);
        out.f64(self.known.map_or(f64::INFINITY, |known| known.share));
        out.u32(self.no_reserve_for);
    }

    fn read_reserve(&mut self, from: &mut Reader<'_>) -> Result<(), DecodeError> {
        self.epoch.shares = Bytes::read(from)?;
        let (holds, reserve) = (from.flag("holds a reserve")?, Reserve::read(from)?);
        // A reserve without a measurement at its limit, or below the settled limit, is not one of ours.
        let is_possible = self.known.is_some() && reserve.settled <= self.limit;
        self.reserve = (holds && is_possible).then_some(reserve);
        let share = from.within("share", 0.0..=f64::INFINITY)?;
        if let Some(known) = &mut self.known {
            known.share = share;
        }
        self.no_reserve_for = from.u32()?.min(LONGEST_WAIT);
        Ok(())
    }
}

impl Bytes for HillClimbState {
    fn write(&self, out: &mut Writer) {
        out.f64(self.limit);
        out.flag(self.trial.is_some());
        out.f64(self.trial.unwrap_or(1.0));
        out.f64(self.limit_in_force);
        self.epoch.write(out);
        out.flag(self.known.is_some());
        self.known.unwrap_or(Reading::NONE).write(out);
        out.f64(self.base);
        out.f64(self.best);
        // One byte, so that older forms still read the same.
        out.two_flags(self.base_proved, self.base_likely);
        for flag in [self.upwards, self.may_leap, self.may_plunge] {
            out.flag(flag);
        }
        out.two_flags(self.may_regain, self.regaining);
        self.cliff.write(out);
        out.u32(self.rests);
        // Written only where it is used, so that older forms still read the same.
        if !self.knows_of_time() {
            out.u32(self.rejected.min(FOLLOWS - 1));
            return;
        }
        out.u32(self.rejected.min(FOLLOWS - 1) | FOLLOWS);
        self.write_reserve(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (limit, tries) = (from.within("limit", LIMITS)?, from.flag("tries")?);
        let (trial, limit_in_force) = (from.within("trial", LIMITS)?, from.within("allowed", LIMITS)?);
        let (epoch, knows, known) = (Bytes::read(from)?, from.flag("knows")?, Bytes::read(from)?);
        let (base, best) = (from.within("base", 0.0..=f64::MAX)?, from.within("best", 0.0..=f64::MAX)?);
        let (base_proved, base_likely) = from.two_flags("base proved")?;
        let (upwards, may_leap) = (from.flag("upwards")?, from.flag("may leap")?);
        let may_plunge = from.flag("may plunge")?;
        let (may_regain, regaining) = from.two_flags("may regain")?;
        let (cliff, rests, rejected) = (Bytes::read(from)?, from.u32()?, from.u32()?);
        let mut state = Self {
            limit,
            trial: tries.then_some(trial),
            limit_in_force,
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
            cliff,
            // The law itself never rests longer. Until a longer rest ended, no experiment would be made.
            rests: rests.min(LONGEST_WAIT),
            rejected: rejected & !FOLLOWS,
            reserve: None,
            no_reserve_for: 0,
        };
        if rejected & FOLLOWS != 0 {
            state.read_reserve(from)?;
        }
        Ok(state)
    }
}
