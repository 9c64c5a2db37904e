//! Judges from trial calls whether a service has recovered: by the first few calls, by a batch, or by a sequential
//! test.
//!
//! One lucky call shows little: a service that fails every second call answers the next one well half of the time. So
//! the default is Wald's sequential test, which weighs each outcome as it comes and decides as soon as the evidence
//! is enough. Each success counts for a healthy service and each failure against it, by the logarithm of its
//! likelihood ratio between the two.

use super::rules::{BreakerThresholds, Figure, WHOLE};
use super::window::{Sample, Totals};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// After this many undecided calls, a step is decided for the likelier side. Otherwise a service right between
/// healthy and ill would be tried for ever.
const MOST_CALLS: u32 = 1_000;

/// A share of one half, used if no ratio of failures is set.
const HALF: u32 = WHOLE / 2;

/// The largest share to test for. At a share of 1, a single success would prove that the service is healthy.
const LARGEST: u32 = WHOLE / 20 * 19;

/// How the calls that are admitted after the open time are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// This many good calls close the breaker, 1 or more; the first bad one opens it again.
    Successes(u32),
    /// This many calls are admitted, 1 or more, and judged together by the ratios that trip the breaker. If no ratio
    /// is set, the first bad call opens it again.
    Batch(u32),
    /// A sequential test with this risk, in millionths: 1 to 400,000. It decides between a service that fails at the
    /// share that trips the breaker (half, if only counts do) and a healthy one that fails a quarter as often. The
    /// risk is the largest probability of taking the ill service for the healthy one, and equally of the opposite
    /// mistake. Slow calls are tested separately in the same way.
    Evidence(u32),
}

/// What the calls of one step show so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepEvidence {
    Well,
    Ill(Figure),
    Undecided,
}

impl Judgement {
    /// Judges after one more call, which `totals` already includes.
    pub(super) fn of(self, rules: &BreakerThresholds, totals: Totals, last: Sample) -> StepEvidence {
        match self {
            Self::Successes(enough) => match rules.is_bad(last) {
                true => StepEvidence::Ill(Figure::Probes(totals)),
                false if totals.calls >= enough => StepEvidence::Well,
                false => StepEvidence::Undecided,
            },
            Self::Batch(_)
                if rules.failure_ratio.is_none() && rules.slow_ratio.is_none() && rules.is_bad(last) =>
            {
                StepEvidence::Ill(Figure::Probes(totals))
            }
            Self::Batch(all) if totals.calls < all => StepEvidence::Undecided,
            Self::Batch(_) => match rules.ratio_of(totals) {
                Some(_) => StepEvidence::Ill(Figure::Probes(totals)),
                None => StepEvidence::Well,
            },
            Self::Evidence(risk) => weigh(rules, totals, risk),
        }
    }

    /// Returns the most calls that may be admitted before all admitted calls have ended; `None` if there is no bound.
    pub(super) const fn most(self) -> Option<u32> {
        match self {
            Self::Successes(most) | Self::Batch(most) => Some(most),
            Self::Evidence(_) => None,
        }
    }
}

/// Decides by the failures and the slow calls, if thresholds for them are set: well if both are, ill if one is.
fn weigh(rules: &BreakerThresholds, totals: Totals, risk: u32) -> StepEvidence {
    let failures = rules.counts_failures().then(|| (totals.failures, rules.failure_ratio.unwrap_or(HALF)));
    let slow = rules.slow_ratio.map(|share| (totals.slow, share));
    let bound = log2(WHOLE - risk) - log2(risk);
    let is_late = totals.calls >= MOST_CALLS;
    let mut all_well = true;
    for (bad, ill) in [failures, slow].into_iter().flatten() {
        let odds = odds(bad, totals.calls - bad.min(totals.calls), ill.min(LARGEST));
        if odds >= bound || is_late && odds > 0 {
            return StepEvidence::Ill(Figure::Probes(totals));
        }
        all_well &= odds <= -bound || is_late;
    }
    if all_well { StepEvidence::Well } else { StepEvidence::Undecided }
}

/// Returns the log-likelihood ratio, to the base 2, of these bad and good calls: of a service that fails at the share
/// `ill`, in millionths, against one that fails a quarter as often.
fn odds(bad: u32, good: u32, ill: u32) -> i64 {
    let well = (ill / 4).max(1);
    let (bad_weight, good_weight) = (log2(ill) - log2(well), log2(WHOLE - well) - log2(WHOLE - ill));
    i64::from(bad) * bad_weight - i64::from(good) * good_weight
}

/// Returns the logarithm to the base 2 of `number` (0 counts as 1), with 24 binary places, rounded down. It is
/// computed in integers, so it is the same on every machine.
fn log2(number: u32) -> i64 {
    let whole = number.max(1).ilog2();
    let mut log = i64::from(whole);
    // `rest` is between 1 and 2, with 31 binary places. Squaring it doubles its logarithm; if the square reaches 2,
    // the next binary place is 1.
    let mut rest = u64::from(number.max(1)) << (31 - whole);
    for _ in 0..24 {
        rest = (rest * rest) >> 31;
        let bit = rest >> 32;
        rest >>= bit;
        log = (log << 1) | bit as i64;
    }
    log
}

impl Bytes for Judgement {
    fn write(&self, out: &mut Writer) {
        let (kind, number) = match *self {
            Self::Successes(enough) => (0, enough),
            Self::Batch(all) => (1, all),
            Self::Evidence(risk) => (2, risk),
        };
        out.u8(kind);
        out.u32(number);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match (from.u8()?, from.u32()?) {
            (0, enough) => Ok(Self::Successes(enough)),
            (1, all) => Ok(Self::Batch(all)),
            (2, risk) => Ok(Self::Evidence(risk)),
            _ => Err(DecodeError::Value { field: "judgement" }),
        }
    }
}

#[cfg(test)]
mod tests;
