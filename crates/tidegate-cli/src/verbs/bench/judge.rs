//! Finds wrong answers by the policy file that the server should follow.
//!
//! The time at which the server decided an ask is unknown: it lies between sending and answer. So an answer is wrong
//! only if no choice of times makes it right. An allowed ask is tried at every time in its span ([`LetThrough`]), a
//! denied one at the worst time ([`Refused`]). Both use the library's own gate, on a clock that follows the asks in
//! order. In doubt the server is right.

mod let_through;
mod policies;
mod refused;

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use self::let_through::LetThrough;
pub(super) use self::policies::Judged;
use self::refused::Refused;
use super::answer::Fate;
use super::question::Question;

/// The most asks that wait for judgement, 40 bytes each. An ask waits until all asks sent before it have ended, at
/// most for the timeout.
pub(super) const MAX_WAITING: usize = 4_000_000;

/// An ask that has ended. Times are ticks of this process's clock, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) key: u32,
    pub(super) sent: u64,
    pub(super) answered: u64,
    pub(super) fate: Fate,
}

/// The span in which the server decided an ask, by the judge's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    from: u64,
    to: u64,
    key: u32,
}

impl Span {
    const MIN: Self = Self { from: 0, to: 0, key: 0 };
    const MAX: Self = Self { from: u64::MAX, to: u64::MAX, key: u32::MAX };
}

/// The results so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrongAnswers {
    /// Allowed asks, and how many of them the limits had no units for at any time.
    pub(super) let_through: u64,
    pub(super) wrongly_let_through: u64,
    /// Denied asks, and how many of them the limits had units for at every time.
    pub(super) refused: u64,
    pub(super) wrongly_refused: u64,
    /// Whether judging stopped because too many asks were waiting; the other numbers count the asks before that.
    pub(super) gave_up: bool,
}

/// Judges asks as they end.
#[derive(Debug)]
pub(super) struct Judge {
    let_through: LetThrough,
    refused: Refused,
    slack: u64,
    gave_up: bool,
}

impl Judge {
    /// Makes a judge for this many keys.
    ///
    /// # Errors
    /// If there is no memory for the keys.
    pub(super) fn new(judged: &Judged, question: &Question, keys: u32, slack: Duration) -> Result<Self> {
        Ok(Self {
            let_through: LetThrough::new(judged, question.clone(), keys)?,
            refused: Refused::new(judged, question.clone(), keys)?,
            slack: u64::try_from(slack.as_nanos()).unwrap_or(u64::MAX),
            gave_up: false,
        })
    }

    /// Takes asks in any order. All asks sent before `known_until` have been taken with this call; later ones may
    /// still follow.
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
                // An ask that failed may have been charged within its span, a lost one at any time after sending.
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
    pub(super) fn found(&self) -> WrongAnswers {
        let ((let_through, wrongly_let_through), (refused, wrongly_refused)) =
            (self.let_through.found(), self.refused.found());
        WrongAnswers { let_through, wrongly_let_through, refused, wrongly_refused, gave_up: self.gave_up }
    }
}

impl WrongAnswers {
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
