//! Ladders of limits around those that are replayed, tried on the same reading of the log.
//!
//! What the line of the report moves along: a rung is the policy's limit made smaller or larger, its burst in proportion, decided as
//! `gcra` by itself. The numbers of each rung are those that a replay of it prints, and not worked out from the peaks, which cannot tell
//! who had spent what before.

mod rung;
mod steps;

use std::time::Duration;

use tidegate::policy::{Descriptor, Mode, Policy, PolicySet, WrittenRate};
use tidegate::{Rate, Tick};
use tidegate_core::Algorithm as _;

use self::rung::Tried;
pub use self::rung::{NewlyHit, Rung};
use self::steps::steps;
use crate::log::Record;
use crate::replay::{Replay, ReplayOptions, written_rate};
use crate::what_if::{Candidate, WhatIf, WhatIfOptions};

/// Policies that get a ladder: each remembers every key, and a page with more charts to drag is no page.
const MOST_LADDERS: usize = 4;

/// The ladder of one policy.
#[derive(Debug)]
pub struct Ladder {
    /// The place of the policy in [`Outcome::policies`](crate::replay::Outcome::policies).
    row: usize,
    /// Rungs by their place among the candidates; the limit that is replayed is among them.
    candidates: Vec<Candidate>,
    replayed: usize,
    /// The limit as it is written, where it is no `gcra`: then the nearest `gcra` stands in for it.
    stands_in_for: Option<String>,
    /// The period that the limit was written with, in which peaks are measured.
    window: Duration,
    trial: WhatIf,
}

/// A policy without a ladder, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoLadder {
    /// The place of the policy in [`Outcome::policies`](crate::replay::Outcome::policies).
    pub row: usize,
    /// Why, as a sentence without full stop.
    pub why: String,
}

/// The ladders of a policy set. At most four; some 700 bytes for each key.
#[derive(Debug, Default)]
pub struct Ladders {
    ladders: Vec<Ladder>,
    without: Vec<NoLadder>,
}

impl Ladders {
    /// Makes ladders for the policies with keys of a set; `options` are those of its replay.
    #[must_use]
    pub fn new(policies: &PolicySet, options: &ReplayOptions) -> Self {
        let mut all = Self::default();
        let mut row = 0;
        for policy in policies.policies().iter().filter(|policy| policy.mode != Mode::Off) {
            if !policy.by.is_empty() {
                match Ladder::of(row, policy, options) {
                    Ok(ladder) if all.ladders.len() < MOST_LADDERS => all.ladders.push(ladder),
                    Ok(_) => {
                        let why =
                            format!("only the first {MOST_LADDERS} policies are tried with other limits");
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

    /// Returns the ladder of a policy, by its place in [`Outcome::policies`](crate::replay::Outcome::policies).
    #[must_use]
    pub fn of_row(&self, row: usize) -> Option<&Ladder> {
        self.ladders.iter().find(|ladder| ladder.row == row)
    }

    /// Returns why a policy has no ladder, if it could have been expected to have one.
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
        // What a full limit grants: the burst, or the count of a window.
        let burst = quota.standing(&quota.fresh(Tick::EPOCH), Tick::EPOCH).limit;
        let rate = Rate::new(count, window).map_err(|error| error.to_string())?;
        let (candidates, replayed) = steps(rate, burst);
        let what_if =
            WhatIfOptions { keys: options.peak_keys, window, named: 0, ipv6_prefix: options.ipv6_prefix };
        let trial = WhatIf::new(policy, &candidates, what_if).map_err(|error| error.to_string())?;
        let label = &limit.terms.label;
        let is_gcra = label.split_whitespace().next() == Some("gcra");
        let stands_in_for = (!is_gcra).then(|| label.clone());
        Ok(Self { row, candidates, replayed, stands_in_for, window, trial })
    }

    /// Returns what the rungs worth showing did, lowest limit first, and which of them is the limit that was replayed; `replay` has
    /// read the same requests. Walks all keys once for each rung.
    #[must_use]
    pub fn rungs(&self, replay: &Replay) -> (Vec<Rung>, usize) {
        let Self { row, candidates, replayed, window, trial, .. } = self;
        let Some(peaks) = replay.policy_peaks(0, *row) else { return (Vec::new(), 0) };
        rung::shown(Tried { trial, candidates, replayed: *replayed, window: *window }, peaks)
    }

    /// Returns the limit that was replayed, as it is written, where that is no `gcra`: the rung in its place is the nearest `gcra`, which has
    /// its rate and grants as much at once, and denies others. `None` where the rung is the limit itself.
    #[must_use]
    pub fn stands_in_for(&self) -> Option<&str> {
        self.stands_in_for.as_deref()
    }

    /// Says whether there was room for all keys: else what is said of who is hit may miss some.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.trial.evicted() == 0 && !self.trial.has_forgotten()
    }
}

#[cfg(test)]
mod tests;
