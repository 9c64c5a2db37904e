//! Finds asks that were allowed although their limits had no units at any time.
//!
//! Every allowed ask is charged as soon as there are units within its span. If there are none until the end of its
//! span, it may take the units of an ask already charged whose span ends later, since that one may have been decided
//! later. Only if there is no such ask was one ask too many allowed. For limits that grant equal costs, this finds the
//! smallest number of wrong asks, like earliest-deadline scheduling. A wrong ask is not charged.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use anyhow::Result;
use tidegate::gate::Check;
use tidegate::{Gate, ManualClock, Retry, Tick};

use super::super::question::Question;
use super::Span;
use super::policies::Judged;

#[derive(Debug)]
pub(super) struct LetThrough {
    gate: Gate,
    clock: ManualClock,
    question: Question,
    is_keyed: bool,
    /// Asks by the time of the next attempt, then by the end of their span.
    waiting: BinaryHeap<Reverse<(u64, Span)>>,
    /// Asks that were charged and whose span is not over, by group and end.
    charged: BTreeSet<(u32, u64, u64, Span)>,
    /// Numbers the charges, since two asks may have the same span.
    number: u64,
    taken: u64,
    wrong: u64,
}

impl LetThrough {
    pub(super) fn new(judged: &Judged, question: Question, keys: u32) -> Result<Self> {
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

    pub(super) fn add(&mut self, span: Span) {
        self.taken += 1;
        self.waiting.push(Reverse((span.from, span)));
    }

    /// Judges all asks before `until`. Earlier asks must not be added afterwards.
    pub(super) fn run(&mut self, until: u64) {
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
            self.gate.check(check).expect("a gate in memory decides every cost from 1 on")
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

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len() + self.charged.len()
    }

    pub(super) fn clear(&mut self) {
        (self.waiting, self.charged) = (BinaryHeap::new(), BTreeSet::new());
    }

    /// Returns how many asks were taken, and how many of them were wrong.
    pub(super) fn found(&self) -> (u64, u64) {
        (self.taken, self.wrong)
    }
}
