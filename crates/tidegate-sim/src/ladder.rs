//! Ladders of limits around the replayed ones, tried during the same reading of the log.
//!
//! The limit line in the report moves along a ladder. A rung is the policy's limit made smaller or larger, with
//! its burst in proportion, decided as `gcra` on its own. The numbers of each rung are those that a replay of
//! it would print. They are not derived from the peaks, which do not tell what a key had spent before.

mod rung;
mod steps;

use std::time::Duration;

use tidegate::policy::{Descriptor, Match, Mode, Policy, PolicySet, WrittenRate};
use tidegate::{Rate, Tick};
use tidegate_core::Algorithm as _;

use self::rung::Tried;
pub use self::rung::{NewlyHit, Rung};
use self::steps::steps;
use crate::log::Record;
use crate::policy_yaml::{plain_or_quoted, scope};
use crate::replay::{Replay, ReplayOptions, written_rate};
use crate::what_if::{Candidate, WhatIf, WhatIfOptions};

/// The most policies that get a ladder: each ladder remembers every key, and more charts would overload the
/// page.
const MOST_LADDERS: usize = 4;

/// The ladder of one policy.
#[derive(Debug)]
pub struct Ladder {
    /// The position of the policy in [`Outcome::policies`](crate::replay::Outcome::policies).
    row: usize,
    /// The rungs, lowest first. The rung at `replayed` is the replayed limit.
    candidates: Vec<Candidate>,
    replayed: usize,
    /// The limit as written, if it is not a `gcra`: the nearest `gcra` stands in for it.
    stands_in_for: Option<String>,
    /// The period in which the limit is written; peaks are measured within it.
    window: Duration,
    trial: WhatIf,
    policy: Policy,
    /// The lines of a policy that counts the requests that were tried, or why none does.
    scope: Result<String, String>,
}

/// A policy without a ladder, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLadder {
    /// The position of the policy in [`Outcome::policies`](crate::replay::Outcome::policies).
    pub row: usize,
    /// The reason, as a sentence without full stop.
    pub why: String,
}

/// The ladders of a policy set: at most four, with about 700 bytes for each key.
#[derive(Debug, Default)]
pub struct Ladders {
    ladders: Vec<Ladder>,
    without: Vec<NoLadder>,
}

impl Ladders {
    /// Makes ladders for the policies of a set that have keys; `options` are those of its replay.
    #[must_use]
    pub fn new(policies: &PolicySet, options: &ReplayOptions) -> Self {
        let mut all = Self::default();
        let mut row = 0;
        for policy in policies.policies().iter().filter(|policy| policy.mode != Mode::Off) {
            if !policy.by.is_empty() {
                match Ladder::of(row, policy, options) {
                    Ok(ladder) if all.ladders.len() < MOST_LADDERS => all.ladders.push(ladder),
                    Ok(_) => {
                        let why = format!(
                            "other limits are tried only for the first {MOST_LADDERS} policies with keys"
                        );
                        all.without.push(NoLadder { row, why });
                    }
                    Err(why) => all.without.push(NoLadder { row, why }),
                }
            }
            // A shadow limit has a row of its own.
            row += 1 + usize::from(policy.shadow_limit.is_some());
        }
        all
    }

    /// States that only these requests of a log are tried, so that the policies of the rungs say so too.
    #[must_use]
    pub fn of_requests(mut self, matching: &Match) -> Self {
        for ladder in &mut self.ladders {
            ladder.scope = scope(&ladder.policy, matching, None);
        }
        self
    }

    /// Tries a request of a log on every rung.
    pub fn feed(&mut self, record: &Record<'_>) {
        if self.ladders.is_empty() {
            return;
        }
        self.ask(record.time, &record.describe(), record.is_signed_in());
    }

    fn ask(&mut self, at: Tick, request: &Descriptor<'_>, signed_in: bool) {
        for ladder in &mut self.ladders {
            ladder.trial.ask(at, request, None, signed_in);
        }
    }

    /// Returns the ladder of a policy, by its position in [`Outcome::policies`](crate::replay::Outcome::policies);
    /// `None` if it has none.
    #[must_use]
    pub fn of_row(&self, row: usize) -> Option<&Ladder> {
        self.ladders.iter().find(|ladder| ladder.row == row)
    }

    /// Returns why a policy with keys has no ladder; `None` for other policies.
    #[must_use]
    pub fn why_not(&self, row: usize) -> Option<&str> {
        self.without.iter().find(|without| without.row == row).map(|without| without.why.as_str())
    }
}

impl Ladder {
    fn of(row: usize, policy: &Policy, options: &ReplayOptions) -> Result<Self, String> {
        let no_rate = || "its first limit is not a rate, and only rates are tried".to_owned();
        let limit = policy.limits.first().ok_or_else(no_rate)?;
        let written = written_rate(&limit.terms.label).ok_or_else(no_rate)?;
        let (WrittenRate::Per { count, .. }, Some(window)) = (written, written.period()) else {
            return Err(no_rate());
        };
        let quota = limit.terms.quota.as_ref().ok_or_else(no_rate)?;
        // The most that a full limit grants at once: the burst, or the count of a window.
        let burst = quota.standing(&quota.fresh(Tick::EPOCH), Tick::EPOCH).limit;
        let rate = Rate::new(count, window).map_err(|error| error.to_string())?;
        let (candidates, replayed) = steps(rate, burst);
        let what_if =
            WhatIfOptions { keys: options.peak_keys, window, named: 0, ipv6_prefix: options.ipv6_prefix };
        let trial = WhatIf::new(policy, &candidates, what_if).map_err(|error| error.to_string())?;
        let label = &limit.terms.label;
        let is_gcra = label.split_whitespace().next() == Some("gcra");
        let stands_in_for = (!is_gcra).then(|| label.clone());
        let scope = scope(policy, &Match::any(), None);
        Ok(Self { row, candidates, replayed, stands_in_for, window, trial, policy: policy.clone(), scope })
    }

    /// Returns the rungs worth showing, lowest limit first, and the position of the replayed limit among them.
    /// `replay` must have read the same requests. Walks all keys once for each rung.
    #[must_use]
    pub fn rungs(&self, replay: &Replay) -> (Vec<Rung>, usize) {
        let Self { row, candidates, replayed, window, trial, .. } = self;
        let Some(peaks) = replay.policy_peaks(0, *row) else { return (Vec::new(), 0) };
        rung::shown(Tried { trial, candidates, replayed: *replayed, window: *window }, peaks)
    }

    /// Returns a policy with the limit of a rung, to paste below `policies:`. It counts the requests that were tried,
    /// and is in shadow mode, so that it denies nothing yet.
    ///
    /// # Errors
    /// The reason, as a sentence without full stop, if no such policy can be written.
    pub fn yaml(&self, rung: &Rung) -> Result<String, &str> {
        let scope = self.scope.as_deref().map_err(String::as_str)?;
        Ok(format!(
            "  - name: {}\n    mode: shadow\n{scope}    limit: {{ algorithm: gcra, rate: {}, burst: {} }}\n",
            plain_or_quoted(&self.policy.name),
            rung.rate,
            rung.burst,
        ))
    }

    /// Returns the replayed limit as written, if it is not a `gcra`. Its rung is then the nearest `gcra`, which
    /// has the same rate and grants as much at once, but denies other requests. `None`: the rung is the limit
    /// itself.
    #[must_use]
    pub fn stands_in_for(&self) -> Option<&str> {
        self.stands_in_for.as_deref()
    }

    /// Says whether there was room for all keys. If not, the counts of keys hit may be too low.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.trial.evicted() == 0 && !self.trial.has_forgotten()
    }
}

#[cfg(test)]
mod tests;
