//! The thresholds of a run, for CI.

use serde_json::{Value, json};
use tidegate_sim::json_units::millis;
use tidegate_sim::thousands::grouped;

use super::super::judge::WrongAnswers;
use super::super::result::Report;
use super::super::tally::took;
use crate::args::Most;
use crate::styled::{Look, Styled};

/// A threshold and the measured value.
#[derive(Debug)]
pub(super) struct Threshold {
    /// The threshold as typed.
    said: String,
    measured: String,
    value: Value,
    pub(super) broken: bool,
}

/// Returns the thresholds that were given.
pub(super) fn thresholds(report: &Report<'_>) -> Vec<Threshold> {
    let (flags, done) = (&report.bench.judging, report.done);
    let mut all = Vec::new();
    if let (Some(most), Some(judge)) = (flags.max_wrong, &done.judge) {
        all.push(wrong(most, judge.found()));
    }
    if let Some(most) = flags.max_p99 {
        let p99 = done.tally.latencies.at(0.99);
        all.push(Threshold {
            said: format!("--max-p99 {}", took(most)),
            measured: took(p99),
            value: millis(p99).into(),
            broken: p99 > most,
        });
    }
    if let Some(most) = flags.max_failed {
        let failed = done.tally.counts.failed + done.tally.unanswered() + done.unsent;
        all.push(Threshold::counted("--max-failed", most, failed, done.tally.counts.asked + done.unsent));
    }
    all
}

/// Returns the threshold for wrong answers. As a number, both kinds count together. As a share, each kind counts on
/// its own, since a server under load may deny far more than it allows, or far less.
fn wrong(most: Most, found: WrongAnswers) -> Threshold {
    let WrongAnswers { let_through, wrongly_let_through, refused, wrongly_refused, gave_up } = found;
    let all =
        Threshold::counted("--max-wrong", most, wrongly_let_through + wrongly_refused, let_through + refused);
    let of_each = [(wrongly_let_through, let_through), (wrongly_refused, refused)]
        .map(|(count, of)| Threshold::counted("--max-wrong", most, count, of).broken);
    Threshold {
        // A judge that gave up counts as a broken threshold.
        broken: gave_up || all.broken || of_each.contains(&true),
        ..all
    }
}

impl Threshold {
    fn counted(flag: &str, most: Most, count: u64, of: u64) -> Self {
        let (said, broken) = match most {
            Most::Count(most) => (format!("{flag} {most}"), count > most),
            Most::Share(most) => (format!("{flag} {}%", most * 100.0), count as f64 > most * of as f64),
        };
        Self { said, measured: format!("{} of {}", grouped(count), grouped(of)), value: count.into(), broken }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "threshold": self.said, "measured": self.value, "broken": self.broken })
    }

    pub(super) fn line(&self) -> Styled {
        let mut line = Styled::default();
        let (look, word) = if self.broken { (Look::Bad, "FAILED") } else { (Look::Good, "passed") };
        line.push_as(look, word);
        line.push(format!("  {}: measured {}\n", self.said, self.measured));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_all_and_a_number_is_a_number() {
        let broken = |most, count, of| Threshold::counted("--max-failed", most, count, of).broken;
        assert!(!broken(Most::Count(5), 5, 6) && broken(Most::Count(5), 6, 6_000));
        assert!(!broken(Most::Share(0.01), 10, 1_000) && broken(Most::Share(0.01), 11, 1_000));
        let found = WrongAnswers {
            let_through: 300,
            wrongly_let_through: 150,
            refused: 99_700,
            ..WrongAnswers::default()
        };
        assert!(wrong(Most::Share(0.4), found).broken && !wrong(Most::Share(0.5), found).broken);
        assert!(wrong(Most::Count(149), found).broken && !wrong(Most::Count(150), found).broken);
        assert!(wrong(Most::Count(150), WrongAnswers { gave_up: true, ..found }).broken);
        assert!(!broken(Most::Share(0.0), 0, 0) && broken(Most::Share(0.0), 1, 1_000_000));
    }
}
