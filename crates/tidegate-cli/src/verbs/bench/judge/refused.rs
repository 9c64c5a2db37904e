//! Finds asks that were denied although their limits had units at every time.
//!
//! The accounts here are as empty as they can be: every allowed ask is charged at the end of its span, even if no units
//! are left, and an ask whose span overlaps with that of a denial counts as charged before it. The units left at the
//! start of a denial's span are then the least that the limits had during it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use anyhow::Result;
use tidegate::clock::ManualClock;
use tidegate::gate::Check;
use tidegate::{Cost, Gate, Tick};

use super::super::question::Question;
use super::{Judged, Span};

#[derive(Debug)]
pub(super) struct Refused {
    gate: Gate,
    clock: ManualClock,
    question: Question,
    is_keyed: bool,
    has_own_cost: bool,
    max_wait: Duration,
    /// Charges by the end of their spans.
    charges: BinaryHeap<Reverse<(u64, u32)>>,
    /// Denials by their spans.
    asks: BinaryHeap<Reverse<Span>>,
    groups: HashMap<u32, Charges>,
    taken: u64,
    wrong: u64,
}

/// The spans of the charges of one group, for counting those that overlap with another span.
#[derive(Debug, Default)]
struct Charges {
    /// Sorted after [`Charges::sort`].
    begun: Vec<u64>,
    ended: Vec<u64>,
    /// Charges that may happen at any time after their start.
    endless: u64,
    is_sorted: bool,
}

impl Refused {
    pub(super) fn new(judged: &Judged, question: Question, keys: u32) -> Result<Self> {
        let (gate, clock) = judged.gate(&judged.patient, keys)?;
        Ok(Self {
            gate,
            clock,
            question,
            is_keyed: judged.is_keyed,
            has_own_cost: judged.has_own_cost,
            max_wait: judged.max_wait,
            charges: BinaryHeap::new(),
            asks: BinaryHeap::new(),
            groups: HashMap::new(),
            taken: 0,
            wrong: 0,
        })
    }

    fn group(&self, key: u32) -> u32 {
        if self.is_keyed { key } else { 0 }
    }

    pub(super) fn add(&mut self, span: Span) {
        self.asks.push(Reverse(span));
    }

    /// The ask was, or may have been, charged.
    pub(super) fn add_charge(&mut self, span: Span) {
        let charges = self.groups.entry(self.group(span.key)).or_default();
        if span.to == u64::MAX {
            charges.endless += 1;
            return;
        }
        charges.begun.push(span.from);
        charges.ended.push(span.to);
        charges.is_sorted = false;
        self.charges.push(Reverse((span.to, span.key)));
    }

    /// Judges all asks before `until`. Earlier asks must not be added afterwards.
    pub(super) fn run(&mut self, until: u64) {
        // All asks that overlap with a denial must be known. Later asks wait for it.
        let unknown = self.asks.iter().filter(|Reverse(span)| span.to >= until);
        let until = unknown.map(|Reverse(span)| span.from).min().unwrap_or(until).min(until);
        loop {
            let charge = self.charges.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let ask = self.asks.peek().map_or(u64::MAX, |Reverse(span)| span.from);
            if charge.min(ask) >= until {
                break;
            }
            // It was before the denial.
            if charge <= ask {
                if let Some(Reverse((at, key))) = self.charges.pop() {
                    self.charge(at, key);
                }
            } else if let Some(Reverse(span)) = self.asks.pop() {
                self.judge(span);
            }
        }
        self.groups.retain(|_, charges| charges.forget(until));
    }

    fn charge(&self, at: u64, key: u32) {
        self.clock.set(Tick::from_nanos(at));
        let request = self.question.descriptor(key);
        let check = Check::of(&request).maybe_cost(self.question.cost());
        // Refused only with a debt of a month, and then no denial is wrong.
        let _ = self.gate.check(check).now().expect("a gate in memory decides every cost from 1 on");
    }

    fn judge(&mut self, span: Span) {
        self.taken += 1;
        let group = self.group(span.key);
        let others = self.groups.get_mut(&group).map_or(0, |charges| charges.overlapping(span));
        if self.has_own_cost && others > 0 {
            return;
        }
        self.clock.set(Tick::from_nanos(span.from));
        let request = self.question.descriptor(span.key);
        let one = self.question.cost().unwrap_or(Cost::ONE).units();
        let cost = if others == 0 { self.question.cost() } else { Cost::new(one.saturating_mul(others + 1)) };
        let check = Check::of(&request).maybe_cost(cost);
        let decision =
            self.gate.check(check.peek()).now().expect("a gate in memory decides every cost from 1 on");
        if decision.allowed && decision.wait <= self.max_wait {
            self.wrong += 1;
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.charges.len() + self.asks.len()
    }

    pub(super) fn clear(&mut self) {
        (self.charges, self.asks, self.groups) = (BinaryHeap::new(), BinaryHeap::new(), HashMap::new());
    }

    /// How many denials were judged, and how many were wrong.
    pub(super) fn found(&self) -> (u64, u64) {
        (self.taken, self.wrong)
    }
}

impl Charges {
    fn sort(&mut self) {
        if !self.is_sorted {
            self.begun.sort_unstable();
            self.ended.sort_unstable();
            self.is_sorted = true;
        }
    }

    /// Returns how many charges may have happened within a span: those that began before its end, except those that
    /// ended before its start.
    fn overlapping(&mut self, span: Span) -> u64 {
        self.sort();
        let begun = self.begun.partition_point(|from| *from <= span.to);
        let ended = self.ended.partition_point(|to| *to <= span.from);
        begun.saturating_sub(ended) as u64 + self.endless
    }

    /// Forgets charges that ended before `until`; later spans must start after it. Returns whether any are left.
    fn forget(&mut self, until: u64) -> bool {
        self.sort();
        let ended = self.ended.partition_point(|to| *to < until);
        self.ended.drain(..ended);
        // Each of these charges began before it ended, so as many of the earliest starts are before the end of every
        // later span.
        self.begun.drain(..ended);
        !self.ended.is_empty() || self.endless > 0
    }
}
