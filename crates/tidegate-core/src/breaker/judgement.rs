//! Whether the calls that try a service say that it is well: by the first few, by a batch, or by a test of the odds.
//!
//! One lucky call says little: a service that fails every second call answers the next one well half of the time. So the default weighs
//! evidence as it comes, by Wald's sequential test, and decides as soon as it is enough, and not before. Each success speaks for a healthy
//! service, each failure against it, each by the logarithm of how much likelier it is from the one than from the other.

use super::rules::{Figure, Rules, WHOLE};
use super::window::{Sample, Totals};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// After how many calls that do not decide a step is decided by what is likelier: a service right between well and ill would be tried for
/// ever.
const MOST_CALLS: u32 = 1_000;

/// A share of one half, where no ratio of failures is set.
const HALF: u32 = WHOLE / 2;

/// The largest share to test for. A service that always fails could be told from others by a single success.
const LARGEST: u32 = WHOLE / 20 * 19;

/// How the calls that are let through after a breaker has been open are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Judgement {
    /// So many good calls close it, 1 or more; the first bad one opens it again.
    Successes(u32),
    /// So many calls are let through, 1 or more, and judged together by the ratios that trip the breaker; where none is set, by
    /// the first bad one.
    Batch(u32),
    /// As soon as the evidence is enough: a service that fails as often as trips the breaker (half of the time, where only counts do) is
    /// taken for a healthy one, which fails a quarter as often, with at most this chance, in millionths: 1 to 400,000. The other
    /// mistake is as rare. Slow calls are judged by themselves in the same way.
    Evidence(u32),
}

/// What the calls of one step say so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Well,
    Ill(Figure),
    Undecided,
}

impl Judgement {
    /// Judges after one more call, which `totals` counts already.
    pub(super) fn of(self, rules: &Rules, totals: Totals, last: Sample) -> Verdict {
        match self {
            Self::Successes(enough) => match rules.is_bad(last) {
                true => Verdict::Ill(Figure::Probes(totals)),
                false if totals.calls >= enough => Verdict::Well,
                false => Verdict::Undecided,
            },
            Self::Batch(_)
                if rules.failure_ratio.is_none() && rules.slow_ratio.is_none() && rules.is_bad(last) =>
            {
                Verdict::Ill(Figure::Probes(totals))
            }
            Self::Batch(all) if totals.calls < all => Verdict::Undecided,
            Self::Batch(_) => match rules.ratio_of(totals) {
                Some(_) => Verdict::Ill(Figure::Probes(totals)),
                None => Verdict::Well,
            },
            Self::Evidence(risk) => weigh(rules, totals, risk),
        }
    }

    /// Returns how many calls may be let through before all that were let through have ended; `None` where it is not bounded so.
    pub(super) const fn most(self) -> Option<u32> {
        match self {
            Self::Successes(most) | Self::Batch(most) => Some(most),
            Self::Evidence(_) => None,
        }
    }
}

/// Decides by the failures and, where they matter, by the slow calls: well where both are, ill where one is.
fn weigh(rules: &Rules, totals: Totals, risk: u32) -> Verdict {
    let failures = rules.counts_failures().then(|| (totals.failures, rules.failure_ratio.unwrap_or(HALF)));
    let slow = rules.slow_ratio.map(|share| (totals.slow, share));
    let bound = log2(WHOLE - risk) - log2(risk);
    let is_late = totals.calls >= MOST_CALLS;
    let mut all_well = true;
    for (bad, ill) in [failures, slow].into_iter().flatten() {
        let odds = odds(bad, totals.calls - bad.min(totals.calls), ill.min(LARGEST));
        if odds >= bound || is_late && odds > 0 {
            return Verdict::Ill(Figure::Probes(totals));
        }
        all_well &= odds <= -bound || is_late;
    }
    if all_well { Verdict::Well } else { Verdict::Undecided }
}

/// Returns the logarithm of how much likelier so many bad and good calls are from a service that fails by the share `ill`, in millionths,
/// than from one that fails a quarter as often.
fn odds(bad: u32, good: u32, ill: u32) -> i64 {
    let well = (ill / 4).max(1);
    let (bad_weight, good_weight) = (log2(ill) - log2(well), log2(WHOLE - well) - log2(WHOLE - ill));
    i64::from(bad) * bad_weight - i64::from(good) * good_weight
}

/// Returns the logarithm to the base 2 of 1 or more, with 24 binary places, rounded down. In integers, so that it is the same on every
/// machine.
fn log2(number: u32) -> i64 {
    let whole = number.max(1).ilog2();
    let mut log = i64::from(whole);
    // Between 1 and 2, with 31 binary places: squared, its logarithm doubles, and what reaches 2 is the next binary place.
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
