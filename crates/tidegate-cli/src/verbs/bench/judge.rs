//! Says which answers were wrong, by the policy file that the server should go by.
//!
//! When the server decided an ask is not known: at some moment between its sending and its answer. So an answer is wrong only if no choice of
//! moments makes it right. What was let through is tried at every moment of its span ([`LetThrough`]), a refusal at the worst one
//! ([`Refused`]); both ask the library's own gate, on a clock that goes through the asks in their order. In doubt the server is right.

mod let_through;
mod policies;
mod refused;
mod span;

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use self::let_through::LetThrough;
pub(super) use self::policies::Judged;
use self::refused::Refused;
use self::span::Span;
use super::answer::Fate;
use super::question::Question;

/// Asks that wait for their judgement, at most: they wait for all that were sent before them, which is a timeout's worth. 40 bytes each.
pub(super) const MAX_WAITING: usize = 4_000_000;

/// An ask that is over; times are ticks of this process's clock, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) key: u32,
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) fate: Fate,
}

/// What was judged so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Allowed asks, and how many of them the limits had no units for at any moment.
    pub(super) let_through: u64,
    pub(super) wrongly_let_through: u64,
    /// Refused asks, and how many of them the limits had units for at every moment.
    pub(super) refused: u64,
    pub(super) wrongly_refused: u64,
    /// Whether there were too many asks at once to judge them; what is said above is of those before.
    pub(super) gave_up: bool,
}

/// Judges asks as they come.
#[derive(Debug)]
pub(super) struct Judge {
    let_through: LetThrough,
    refused: Refused,
    slack: u64,
    gave_up: bool,
}

impl Judge {
    /// Makes a judge for so many keys.
    ///
    /// # Errors
    /// When there is no memory for the keys.
    pub(super) fn new(judged: &Judged, question: &Question, keys: u32, slack: Duration) -> Result<Self> {
        Ok(Self {
            let_through: LetThrough::new(judged, question.clone(), keys)?,
            refused: Refused::new(judged, question.clone(), keys)?,
            slack: u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX),
            gave_up: false,
        })
    }

    /// Takes asks in any order. All that were sent before `known_until` have been taken with these; what was sent later may still come.
    pub(super) fn take(&mut self, asks: &[Ask], known_until: u64) {
        if self.gave_up {
            return;
        }
        for ask in asks {
            let span = Span {
                from: ask.sent.saturating_sub(self.slack),
                to: ask.answered.saturating_add(self.slack),
                key: ask.key,
            };
            match ask.fate {
                Fate::Allowed => {
                    self.let_through.add(span);
                    self.refused.add_charge(span);
                }
                Fate::Denied => self.refused.add(span),
                // Perhaps charged, in its span; or at any time after it.
                Fate::Failed => self.refused.add_charge(span),
                Fate::Lost => self.refused.add_charge(Span { to: u64::MAX, ..span }),
                Fate::Unsent => {}
            }
        }
        if self.let_through.waiting() + self.refused.waiting() > MAX_WAITING {
            self.give_up();
            return;
        }
        let until = known_until.saturating_sub(self.slack);
        self.let_through.run(until);
        self.refused.run(until);
    }

    /// Stops judging.
    pub(super) fn give_up(&mut self) {
        self.gave_up = true;
        self.let_through.clear();
        self.refused.clear();
    }

    /// Returns what was found so far.
    pub(super) fn found(&self) -> Found {
        let ((let_through, wrongly_let_through), (refused, wrongly_refused)) =
            (self.let_through.found(), self.refused.found());
        Found { let_through, wrongly_let_through, refused, wrongly_refused, gave_up: self.gave_up }
    }
}

impl Found {
    pub(super) fn json(self) -> Value {
        json!({
            "let_through": self.let_through,
            "wrongly_let_through": self.wrongly_let_through,
            "refused": self.refused,
            "wrongly_refused": self.wrongly_refused,
            "gave_up": self.gave_up,
        })
    }
}

#[cfg(test)]
mod tests;
