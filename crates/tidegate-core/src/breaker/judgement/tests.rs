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
    assert_eq!(decided(&tenth, |_| false), (StepEvidence::Well, 37), "a small threshold needs more evidence");
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
    let passed = (0..20_000).filter(|_| decided(&RULES, |_| draw() < share).0 == StepEvidence::Well).count();
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
