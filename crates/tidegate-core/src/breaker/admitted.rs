//! The share of calls that a breaker that sheds admits, with the figures that it follows from: for people who ask why
//! their call was refused.

use core::fmt;

use super::parameters::CircuitBreaker;
use super::rules::{BreakerThresholds, Figure, WHOLE};
use super::state::Condition;
use super::window::{Totals, Window};

/// The share of calls that a [shedding](Condition::Shedding) breaker admits, and the figures that it follows from.
///
/// Displayed as a person reads it: `admits 53% of the calls: 240 of 900 calls of the last 2 min ended well, K = 2`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Admitted {
    /// The share of calls that is admitted, in millionths.
    pub share: u32,
    /// The calls in the window.
    pub calls: u32,
    /// Those of them that did not fail; with [`Admitted::by_slow`], that were not slow.
    pub good: u32,
    /// Whether the slow calls decide the share, rather than those that failed.
    pub by_slow: bool,
    /// How many calls each good one justifies: `1/(1 - f)` for a threshold of `f`.
    pub k: f64,
    /// Whether the good calls justify less than this share, which is the least that the breaker admits.
    pub is_least: bool,
    /// The calls that count.
    pub window: Window,
}

impl CircuitBreaker {
    /// Returns what a breaker in this condition admits, and why; `None` unless it sheds. Never allocates.
    ///
    /// # Examples
    /// ```
    /// use tidegate_core::breaker::CircuitBreaker;
    /// use tidegate_core::guard::{Guard as _, Outcome};
    /// use tidegate_core::{Algorithm as _, Ask, Cost, Tick, Transition};
    ///
    /// let breaker = CircuitBreaker::sre().build()?;
    /// let now = Tick::from_secs(1);
    /// let mut state = breaker.fresh(now);
    /// let mut receipts = Vec::new();
    /// for _ in 0..100 {
    ///     let Transition::Allowed { next, receipt, .. } = breaker.enter(&state, Ask::allow(now, Cost::ONE)) else { panic!() };
    ///     state = next;
    ///     receipts.push(receipt);
    /// }
    /// for (call, receipt) in receipts.iter().enumerate() {
    ///     let outcome = if call < 25 { Outcome::Success } else { Outcome::Failure };
    ///     state = breaker.leave(&state, now, receipt, outcome);
    /// }
    /// let admitted = breaker.admitted(&breaker.condition(&state, now)).unwrap();
    /// assert_eq!(admitted.to_string(), "admits 50% of the calls: 25 of 100 calls of the last 2 min ended well, K = 2");
    /// # Ok::<(), tidegate_core::QuotaError>(())
    /// ```
    #[must_use]
    pub fn admitted(&self, condition: &Condition) -> Option<Admitted> {
        let Condition::Shedding { share, by } = *condition else { return None };
        let (Figure::FailureRatio(totals) | Figure::SlowRatio(totals)) = by else { return None };
        let rules = &self.parameters.rules;
        let most = self.parameters.shed_at_most?;
        let of = |failures: bool| {
            let (bad, threshold) = match failures {
                true => (totals.failures, rules.failure_ratio?),
                false => (totals.slow, rules.slow_ratio?),
            };
            Some((BreakerThresholds::excess_of(totals, bad, threshold)?, bad, threshold))
        };
        let (failed, slow) = (of(true), of(false));
        // As the share itself: the larger one, and the failures of two equal ones.
        let by_slow = slow.map(|(excess, ..)| excess) > failed.map(|(excess, ..)| excess);
        let (excess, bad, threshold) = if by_slow { slow? } else { failed? };
        let Totals { calls, .. } = totals;
        Some(Admitted {
            share: WHOLE.saturating_sub(share),
            calls,
            good: calls.saturating_sub(bad),
            by_slow,
            k: f64::from(WHOLE) / f64::from(WHOLE.saturating_sub(threshold).max(1)),
            is_least: excess > most,
            window: self.parameters.window,
        })
    }
}

impl fmt::Display for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (calls, good) = (self.calls, self.good);
        write!(f, "admits {}% of the calls", self.share / (WHOLE / 100))?;
        if self.is_least {
            f.write_str(", the least that shed_at_most leaves")?;
        }
        match self.window {
            Window::Calls(_) => write!(f, ": {good} of the last {calls} calls ")?,
            Window::Time { span, .. } => {
                write!(f, ": {good} of {calls} calls of the last ")?;
                match (span.as_secs(), span.subsec_nanos()) {
                    (secs, 0) if secs >= 60 && secs.is_multiple_of(60) => write!(f, "{} min ", secs / 60)?,
                    (secs, 0) => write!(f, "{secs} s ")?,
                    _ => write!(f, "{span:?} ")?,
                }
            }
        }
        f.write_str(if self.by_slow { "were not slow" } else { "ended well" })?;
        // Two decimals: K is 1.05 for Envoy's threshold. Trailing zeros say nothing.
        let k = format!("{:.2}", self.k);
        write!(f, ", K = {}", k.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::breaker::BreakerBuilder;

    fn admitted(builder: BreakerBuilder, totals: Totals) -> Option<Admitted> {
        let breaker = builder.build().expect("in range");
        let most = breaker.parameters.shed_at_most.expect("it sheds");
        let share = breaker.parameters.rules.excess(totals, most);
        let by = breaker.parameters.rules.ratio_of(totals)?;
        breaker.admitted(&Condition::Shedding { share, by })
    }

    const fn totals(calls: u32, failures: u32, slow: u32) -> Totals {
        Totals { calls, failures, slow }
    }

    #[test]
    fn the_share_is_said_with_the_figures_that_it_follows_from() {
        let sre = CircuitBreaker::sre;
        let slow = || sre().failure_ratio(0.5).slow_calls(Duration::from_millis(100), 0.2);
        for (builder, of, says) in [
            // (900 - 2 * 240) / 901 are refused.
            (
                sre(),
                totals(900, 660, 0),
                "admits 53% of the calls: 240 of 900 calls of the last 2 min ended well, K = 2",
            ),
            // (100 - 80 / 0.95) / 101 are refused.
            (
                CircuitBreaker::envoy(),
                totals(100, 20, 0),
                "admits 84% of the calls: 80 of 100 calls of the last 30 s ended well, K = 1.05",
            ),
            (
                sre().window(Window::Calls(50)),
                totals(50, 40, 0),
                "admits 41% of the calls: 10 of the last 50 calls ended well, K = 2",
            ),
            (
                sre(),
                totals(1000, 1000, 0),
                "admits 1% of the calls, the least that shed_at_most leaves: 0 of 1000 calls of the last 2 min ended well, K = 2",
            ),
            // Of the failures alone (100 - 2 * 45) / 101 are refused, of the slow calls (100 - 40 / 0.8) / 101.
            (
                slow(),
                totals(100, 55, 60),
                "admits 50% of the calls: 40 of 100 calls of the last 2 min were not slow, K = 1.25",
            ),
            // The failures refuse more: (100 - 2 * 20) / 101 against (100 - 50 / 0.8) / 101.
            (
                slow(),
                totals(100, 80, 50),
                "admits 40% of the calls: 20 of 100 calls of the last 2 min ended well, K = 2",
            ),
        ] {
            assert_eq!(admitted(builder, of).map(|told| told.to_string()).as_deref(), Some(says));
        }
    }

    #[test]
    fn other_conditions_admit_no_share() {
        let breaker = CircuitBreaker::sre().build().expect("in range");
        assert_eq!(breaker.admitted(&Condition::Closed), None);
        let opens = CircuitBreaker::builder().build().expect("in range");
        let by = Figure::FailureRatio(totals(10, 9, 0));
        assert_eq!(opens.admitted(&Condition::Shedding { share: 1, by }), None, "it never sheds");
    }
}
