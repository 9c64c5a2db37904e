//! Judges from trial calls whether a service has recovered. One lucky call shows little: a service that fails every
//! second call answers the next one well half of the time. The default is Wald's sequential test, which decides as
//! soon as the evidence is enough: each success counts for a healthy service and each failure against it, by the
//! logarithm of its likelihood ratio between the two.

use super::outcomes::{Sample, Totals};
use super::rules::{BreakerThresholds, Figure, WHOLE};
use crate::bytes::{Bytes, DecodeError, Reader, Writer};

/// After this many undecided calls, a step is decided for the likelier side. Otherwise a service right between
/// healthy and ill would be tried for ever.
const MOST_CALLS: u32 = 1_000;

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

/// Returns the logarithm to the base 2 of `number` (0 counts as 1), with 24 binary places, rounded down. In integers,
/// alike on every machine.
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
mod tests {
    use super::*;

    const RULES: BreakerThresholds = BreakerThresholds {
        failure_ratio: Some(HALF),
        slow_ratio: None,
        consecutive: None,
        failures: None,
        min_calls: 20,
        above: false,
    };
    const GOOD: Sample = Sample { failed: false, slow: false };

    /// Judges calls one after the other until they decide; returns the verdict and the number of calls.
    fn decided(rules: &BreakerThresholds, mut is_bad: impl FnMut(u32) -> bool) -> (StepEvidence, u32) {
        let mut totals = Totals::default();
        loop {
            let sample = Sample { failed: is_bad(totals.calls), slow: false };
            totals.add(sample);
            match Judgement::Evidence(50_000).of(rules, totals, sample) {
                StepEvidence::Undecided => assert!(totals.calls < MOST_CALLS, "it ends"),
                verdict => return (verdict, totals.calls),
            }
        }
    }

    #[test]
    fn logarithms_are_those_of_floats() {
        for number in [1, 2, 3, 7, 1000, 499_999, 999_999, WHOLE, u32::MAX] {
            let exact = f64::from(number).log2();
            let ours = log2(number) as f64 / f64::from(1 << 24);
            assert!((exact - ours).abs() < 1e-6, "{number}: {ours} and not {exact}");
        }
    }

    #[test]
    fn one_lucky_call_is_not_enough() {
        // At a risk of 5 %: ln 19 = 2.944 is to be reached by ln(0.875/0.5) = 0.560 for each success, ln 4 = 1.386 for each failure.
        assert_eq!(decided(&RULES, |_| false), (StepEvidence::Well, 6));
        let (verdict, calls) = decided(&RULES, |_| true);
        assert!(matches!(verdict, StepEvidence::Ill(_)) && calls == 3);
        let tenth = BreakerThresholds { failure_ratio: Some(WHOLE / 10), ..RULES };
        assert_eq!(
            decided(&tenth, |_| false),
            (StepEvidence::Well, 37),
            "a small threshold needs more evidence"
        );
    }

    #[test]
    fn a_service_between_well_and_ill_is_decided_all_the_same() {
        // One of four: neither an eighth nor a half.
        let (verdict, calls) = decided(&RULES, |call| call % 7 == 1 || call % 7 == 4);
        assert!(calls <= MOST_CALLS, "{verdict:?}");
    }

    /// The share of services failing at this share that pass, over 20,000 of them.
    fn pass(share: u64) -> f64 {
        let mut random = 7u64;
        let mut draw = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % 1_000_000
        };
        let passed =
            (0..20_000).filter(|_| decided(&RULES, |_| draw() < share).0 == StepEvidence::Well).count();
        passed as f64 / 20_000.0
    }

    #[test]
    fn mistakes_are_as_rare_as_is_said() {
        let (ill, well) = (pass(500_000), pass(125_000));
        assert!(ill < 0.05 && well > 0.95, "{ill} of the ill and {well} of the well pass");
    }

    #[test]
    fn a_batch_is_judged_when_it_is_whole_and_successes_one_by_one() {
        let totals = |calls, failures| Totals { calls, failures, slow: 0 };
        let bad = Sample { failed: true, slow: false };
        let batch = |calls, failures| Judgement::Batch(4).of(&RULES, totals(calls, failures), GOOD);
        assert_eq!([batch(3, 3), batch(4, 1)], [StepEvidence::Undecided, StepEvidence::Well]);
        assert!(matches!(batch(4, 2), StepEvidence::Ill(_)));
        let of = |calls, last| Judgement::Successes(2).of(&RULES, totals(calls, 0), last);
        assert_eq!([of(1, GOOD), of(2, GOOD)], [StepEvidence::Undecided, StepEvidence::Well]);
        assert!(matches!(of(1, bad), StepEvidence::Ill(_)));
        let counts = BreakerThresholds { failure_ratio: None, consecutive: Some(3), ..RULES };
        assert!(matches!(Judgement::Batch(4).of(&counts, totals(1, 1), bad), StepEvidence::Ill(_)));
    }

    #[test]
    fn slow_calls_are_judged_by_themselves() {
        let rules = BreakerThresholds { slow_ratio: Some(HALF), ..RULES };
        let of = |calls, failures, slow| {
            Judgement::Evidence(50_000).of(&rules, Totals { calls, failures, slow }, GOOD)
        };
        assert_eq!(of(6, 0, 0), StepEvidence::Well);
        assert_eq!(of(6, 0, 2), StepEvidence::Undecided);
        assert!(matches!(of(6, 0, 6), StepEvidence::Ill(_)));
        let only_slow = BreakerThresholds { failure_ratio: None, ..rules };
        let failed = Totals { calls: 6, failures: 6, slow: 0 };
        assert_eq!(
            Judgement::Evidence(50_000).of(&only_slow, failed, GOOD),
            StepEvidence::Well,
            "failures do not matter"
        );
    }
}
