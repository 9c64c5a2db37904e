//! One measurement of the goodput: which samples belong to it, and when it has enough.

use core::time::Duration;

use super::super::Sample;
use super::reading::Reading;
use super::reserve::Shares;
use crate::bytes::{Bytes, DecodeError, Reader, Writer};
use crate::guard::Outcome;
use crate::time::{Tick, nanos, onward};

/// A measurement takes at least this many samples divided by the square of the step that it has to show: 150 for a
/// fifth. The standard deviation of random arrivals is then 8 %.
const SHOWS: f64 = 6.0;
/// The least number of samples that a measurement takes.
const FEWEST: f64 = 20.0;
/// The largest number of samples that a measurement takes.
const MOST: f64 = 160.0;
/// A measurement covers at least this many mean latencies, so that work that ends in waves is measured over two
/// waves.
const SPAN: f64 = 2.4;
/// From this step on (twice the places) a change shows sooner, so [`WIDE_SPAN`] mean latencies suffice; while the
/// places of a service that became slower are given back, each mean latency costs goodput.
const WIDE_STEP: f64 = 1.0;
/// As [`SPAN`], from [`WIDE_STEP`] on.
const WIDE_SPAN: f64 = 1.6;
/// A gross change, such as a collapse or mostly failures, needs only this many mean latencies.
const GROSS_SPAN: f64 = 1.2;
/// After this many mean latencies a measurement ends with the samples it has.
const PATIENCE: f64 = 16.0;
/// How many rounds of samples an undecided trial takes in all.
const ROUNDS: f64 = 2.0;
/// A service at which nothing ends for this many mean latencies, in which this many pieces of work would have ended, stands
/// still. Work that ends at random leaves such a gap once in 10¹³.
const PAUSE: (f64, f64) = (4.0, 30.0);
/// A pause restarts a measurement at most this many times in a row: a service may also always work in bursts.
const MOST_PAUSES: u32 = 2;
/// Work ends too late if at least this many pieces were late, and [`TOO_LATE_SHARE`] times as many as ended well.
const TOO_LATE: u32 = 40;
/// How many pieces of work are late for each that ends well, if work ends too late.
/// See [`TOO_LATE`]: four fifths of both together.
const TOO_LATE_SHARE: u64 = 4;
/// The factor by which the limit falls where most work comes too late. Latencies have to fall far below what callers wait
/// for before goodput shows which limit is right, and there is no goodput to lose.
pub(super) const FEWER: f64 = 4.0;
/// The number of bits in which the count of pauses is written, beside the count of late work.
const PAUSE_BITS: u32 = 8;
/// Longer mean latencies count as this, so that work of hours does not hold up what is learnt from other work.
const LONGEST: f64 = 10e9;

#[derive(Clone, Copy, Debug)]
pub(super) struct Required {
    /// The share by which the limit is being moved, or will be next.
    pub(super) step: f64,
    /// The goodput per nanosecond expected at least; zero if unknown. Half of it ends the measurement early:
    /// something has changed.
    pub(super) expected: f64,
    /// The mean latency without a queue, in nanoseconds; zero if unknown.
    pub(super) base: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Epoch {
    /// When the limit was moved.
    moved: Tick,
    /// One mean latency after `moved`: most work that ends from then on entered under the new limit.
    from: Tick,
    first: Option<Tick>,
    last: Tick,
    /// The factor by which more samples are wanted.
    rounds: f64,
    /// How often in a row the measurement restarted because the service had stood still.
    pauses: u32,
    /// The mean latency of the previous measurement, in nanoseconds.
    typical: f64,
    good: u64,
    failed: u64,
    /// How many of these were late.
    late: u32,
    full: u64,
    wider: u64,
    peak: u64,
    latencies: f64,
    pub(super) shares: Shares,
}

impl Epoch {
    pub(super) const fn starting(now: Tick, typical: f64) -> Self {
        let (first, last, latencies) = (None, now, 0.0);
        Self {
            moved: now,
            from: now,
            first,
            last,
            rounds: 1.0,
            pauses: 0,
            typical,
            good: 0,
            failed: 0,
            late: 0,
            full: 0,
            wider: 0,
            peak: 0,
            latencies,
            shares: Shares::NONE,
        }
    }

    /// Counts a sample, or returns the reading if the samples before it are enough, and how much work ended per
    /// nanosecond, well or not. The sample that closes a measurement is not counted. Of work that ends in clumps, such
    /// as replies that wait for a timer, the last clump may count in part, so the rate comes out too high by up to
    /// that clump.
    pub(super) fn take(
        &mut self,
        sample: &Sample,
        limit: u64,
        required: &Required,
    ) -> Option<(Reading, f64)> {
        let at = onward(self.last, sample.at);
        if at < self.last {
            // The clock was set back, so the measured samples have no span.
            *self = Self::starting(at, self.typical);
        }
        let gap = nanos(at.since(self.last)) as f64;
        self.last = at;
        if self.stood_still(gap, limit) {
            let pauses = self.pauses + 1;
            self.moved_at(at, self.typical());
            self.pauses = pauses;
            return None;
        }
        if self.first.is_none() && (at < self.from || at.before(sample.held.min(LONGEST_SPAN)) < self.moved) {
            return None;
        }
        let span = nanos(at.since(*self.first.get_or_insert(at))) as f64;
        if span > 0.0 && self.enough(span, required) {
            return Some((self.reading(span), (self.good + self.failed) as f64 / span));
        }
        self.count(sample, limit, required.base);
        None
    }

    /// Postpones the start to one mean latency after this sample, because the limit is still moving.
    pub(super) fn wait(&mut self, sample: &Sample) {
        self.moved_at(onward(self.last, sample.at), self.typical());
    }

    /// Continues the measurement from `sample`, and asks for as many samples again.
    pub(super) fn go_on(&mut self, sample: &Sample, limit: u64, base: f64) {
        self.rounds += 1.0;
        self.count(sample, limit, base);
    }

    pub(super) fn exhausted(&self) -> bool {
        self.rounds >= ROUNDS
    }

    /// Begins the next measurement: with `sample`, or, if the limit has `moved`, after one mean latency. After work that
    /// came too late the latency is expected to fall with the limit.
    pub(super) fn next(&mut self, sample: &Sample, limit: u64, base: f64, moved: bool) {
        let typical = if self.too_late() { self.typical() / FEWER } else { self.typical() };
        if moved {
            self.moved_at(self.last, typical);
        } else {
            *self = Self::starting(self.last, typical);
            self.first = Some(self.last);
            self.count(sample, limit, base);
        }
    }

    pub(super) fn anew(&self) -> Self {
        Self::starting(self.last, self.typical())
    }

    fn moved_at(&mut self, at: Tick, typical: f64) {
        *self = Self { from: at.after(Duration::from_nanos(typical as u64)), ..Self::starting(at, typical) };
    }

    fn enough(&self, span: f64, required: &Required) -> bool {
        let wanted = (SHOWS / (required.step * required.step)).clamp(FEWEST, MOST) * self.rounds;
        let (good, failed) = (self.good as f64, self.failed as f64);
        let (typical, expected) = (self.typical(), required.expected * span);
        let tired = good + failed >= FEWEST && span >= PATIENCE * self.rounds * typical;
        let collapsed = expected >= 2.0 * FEWEST && good * 2.0 <= expected;
        let failing = failed >= 2.0 * FEWEST && failed >= good;
        let gross = span >= GROSS_SPAN * typical && (collapsed || failing);
        let least = if required.step >= WIDE_STEP { WIDE_SPAN } else { SPAN };
        tired || gross || self.too_late() || span >= least * typical && good >= wanted
    }

    const fn too_late(&self) -> bool {
        self.late >= TOO_LATE && self.late as u64 >= TOO_LATE_SHARE * self.good
    }

    /// Says whether nothing ended for so long that the service cannot have been working: then nothing so far is
    /// evidence, since no limit would have made it faster.
    fn stood_still(&self, gap: f64, limit: u64) -> bool {
        let typical = self.typical();
        let longest = PAUSE.0.max(PAUSE.1 / limit as f64) * typical;
        typical > 0.0 && gap >= longest && self.pauses < MOST_PAUSES
    }

    fn typical(&self) -> f64 {
        if self.timed() > 0 { self.mean_latency().min(LONGEST) } else { self.typical }
    }

    /// Returns how many samples have told how long work takes. Late work counts too: without it a queue of which nobody
    /// sees the end would look short.
    const fn timed(&self) -> u64 {
        self.good + self.late as u64
    }

    fn mean_latency(&self) -> f64 {
        self.latencies / self.timed().max(1) as f64
    }

    fn count(&mut self, sample: &Sample, limit: u64, base: f64) {
        let late = sample.is_late();
        let hopeless = late && sample.time_left.is_some_and(|time_left| (nanos(time_left) as f64) < base);
        if hopeless && self.good > 0 {
            // No limit would have helped, and any caller could so have the limit lowered. It counts only while
            // nothing ends well: the base may then be wrong.
            return;
        }
        let good = !late && matches!(sample.outcome, Outcome::Success | Outcome::CallersFault);
        self.good += u64::from(good);
        self.failed += u64::from(!good);
        self.late = self.late.saturating_add(u32::from(late));
        if good || late {
            // At least 1, so that the sum can be a divisor. Rates and places go together with the whole time in the
            // place alone.
            self.latencies += (nanos(sample.held) as f64).max(1.0);
        }
        // Within a tenth; small limits have to be reached exactly.
        self.full += u64::from(sample.in_flight.saturating_mul(10) >= limit.saturating_mul(9));
        self.wider += u64::from(sample.in_flight > limit);
        self.peak = self.peak.max(sample.in_flight);
        if !hopeless {
            self.shares.count(sample);
        }
    }

    fn reading(&self, span: f64) -> Reading {
        let (good, ended) = (self.good as f64, self.good + self.failed);
        Reading {
            rate: good / span,
            latency: self.mean_latency(),
            full: self.full * 2 >= ended,
            wider: self.wider * 2 > ended,
            failed: self.failed as f64 / ended.max(1) as f64,
            failing: false,
            peak: self.peak as f64,
            good,
            queued: false,
            too_late: self.too_late(),
            share: self.shares.nearly_all(ended),
        }
    }
}

const LONGEST_SPAN: Duration = Duration::from_secs(10);

impl Bytes for Epoch {
    fn write(&self, out: &mut Writer) {
        out.tick(self.moved);
        out.tick(self.from);
        out.flag(self.first.is_some());
        out.tick(self.first.unwrap_or(Tick::EPOCH));
        out.tick(self.last);
        out.f64(self.rounds);
        out.f64(self.typical);
        // They share one number, so that forms written before late work was counted still read the same.
        let late_and_pauses = u64::from(self.late) << PAUSE_BITS | u64::from(self.pauses.min(MOST_PAUSES));
        for count in [self.good, self.failed, self.full, self.wider, self.peak, late_and_pauses] {
            out.u64(count);
        }
        out.f64(self.latencies);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (moved, begins, began, first) = (from.tick()?, from.tick()?, from.flag("began")?, from.tick()?);
        let last = from.tick()?;
        let (rounds, typical) =
            (from.within("rounds", 0.0..=f64::MAX)?, from.within("typical", 0.0..=f64::MAX)?);
        let mut count = |field| from.count(field);
        let (good, failed, full) = (count("good")?, count("failed")?, count("full")?);
        let (wider, peak, late_and_pauses) = (count("wider")?, count("peak")?, count("pauses")?);
        Ok(Self {
            moved,
            from: begins,
            first: began.then_some(first),
            last,
            rounds,
            typical,
            good,
            failed,
            late: u32::try_from(late_and_pauses >> PAUSE_BITS).unwrap_or(u32::MAX),
            full,
            wider,
            peak,
            pauses: (late_and_pauses & ((1 << PAUSE_BITS) - 1)) as u32,
            latencies: from.within("latencies", 0.0..=f64::MAX)?,
            shares: Shares::NONE,
        })
    }
}
