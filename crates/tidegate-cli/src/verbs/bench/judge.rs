//! Finds wrong answers by the policy file that the server should follow.
//!
//! The server decided an ask at an unknown time between sending and answer. So an answer is wrong only if no choice of
//! times makes it right. An allowed ask is tried at every time in its span ([`LetThrough`]), a denied one at the worst
//! time ([`Refused`]). Both use the library's own gate, on a clock that follows the asks in order.

mod policies;
mod refused;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidegate::clock::ManualClock;
use tidegate::gate::Check;
use tidegate::limiter::Retry;
use tidegate::{Gate, Tick};

use self::refused::Refused;
use super::client::Fate;
use super::question::Question;

pub(super) use self::policies::Judged;

/// Each takes 40 bytes, and waits until all asks sent before it have ended, at most for the timeout.
pub(super) const MAX_WAITING: usize = 4_000_000;

/// Times are ticks of this process's clock, in nanoseconds.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WrongAnswers {
    /// Allowed asks, and how many of them the limits had no units for at any time.
    pub(super) let_through: u64,
    pub(super) wrongly_let_through: u64,
    /// Denied asks, and how many of them the limits had units for at every time.
    pub(super) refused: u64,
    pub(super) wrongly_refused: u64,
    /// Too many asks were waiting; the other numbers count the asks before that.
    pub(super) gave_up: bool,
}

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

    /// Takes asks in any order. All asks sent before `known_until` have been taken with this call; later ones may still
    /// follow.
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
                // It may have been charged within its span, a lost one at any time after sending.
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

    pub(super) fn give_up(&mut self) {
        self.gave_up = true;
        self.let_through.clear();
        self.refused.clear();
    }

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

// Finds asks that were allowed although their limits had no units at any time.
//
// Every allowed ask is charged as soon as there are units within its span. If there are none until its end, it may take
// the units of an ask already charged whose span ends later, since that one may have been decided later. Only if there
// is no such ask was one ask too many allowed. For limits that grant equal costs, this finds the smallest number of
// wrong asks, like earliest-deadline scheduling. A wrong ask is not charged.

#[derive(Debug)]
struct LetThrough {
    gate: Gate,
    clock: ManualClock,
    question: Question,
    is_keyed: bool,
    /// Asks by the time of the next attempt, then by the end of their span.
    waiting: BinaryHeap<Reverse<(u64, Span)>>,
    /// Charged, with a span that is not over, by group and end.
    charged: BTreeSet<(u32, u64, u64, Span)>,
    /// Two asks may have the same span.
    number: u64,
    taken: u64,
    wrong: u64,
}

impl LetThrough {
    fn new(judged: &Judged, question: Question, keys: u32) -> Result<Self> {
        let (gate, clock) = judged.gate(&judged.strict, keys)?;
        let (waiting, charged) = (BinaryHeap::new(), BTreeSet::new());
        Ok(Self {
            gate,
            clock,
            question,
            is_keyed: judged.is_keyed,
            waiting,
            charged,
            number: 0,
            taken: 0,
            wrong: 0,
        })
    }

    fn add(&mut self, span: Span) {
        self.taken += 1;
        self.waiting.push(Reverse((span.from, span)));
    }

    /// Judges all asks before `until`. Earlier asks must not be added afterwards.
    fn run(&mut self, until: u64) {
        while let Some(&Reverse((at, span))) = self.waiting.peek()
            && at < until
        {
            self.waiting.pop();
            self.attempt(at, span);
        }
        self.charged.retain(|(_, end, _, _)| *end > until);
    }

    fn attempt(&mut self, at: u64, span: Span) {
        self.clock.set(Tick::from_nanos(at));
        let decision = {
            let request = self.question.descriptor(span.key);
            let check = Check::of(&request).maybe_cost(self.question.cost());
            self.gate.check(check).now().expect("a gate in memory decides every cost from 1 on")
        };
        let group = if self.is_keyed { span.key } else { 0 };
        if decision.allowed {
            self.charge(group, span);
            return;
        }
        let wait = match decision.retry() {
            Retry::After(wait) => u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX).max(1),
            Retry::Unknown | Retry::Never => u64::MAX,
        };
        let next = at.saturating_add(wait);
        if next <= span.to && next < u64::MAX {
            self.waiting.push(Reverse((next, span)));
            return;
        }
        let later =
            self.charged.range((group, span.to + 1, 0, Span::MIN)..=(group, u64::MAX, u64::MAX, Span::MAX));
        match later.last().copied() {
            Some(other) => {
                self.charged.remove(&other);
                self.charge(group, span);
                self.waiting.push(Reverse((at, other.3)));
            }
            None => self.wrong += 1,
        }
    }

    fn charge(&mut self, group: u32, span: Span) {
        self.number += 1;
        self.charged.insert((group, span.to, self.number, span));
    }

    fn waiting(&self) -> usize {
        self.waiting.len() + self.charged.len()
    }

    fn clear(&mut self) {
        (self.waiting, self.charged) = (BinaryHeap::new(), BTreeSet::new());
    }

    /// How many asks were taken, and how many were wrong.
    fn found(&self) -> (u64, u64) {
        (self.taken, self.wrong)
    }
}

#[cfg(test)]
mod tests;
