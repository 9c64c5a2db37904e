//! Every sequence of a few operations in a small world, not a sample of them.
//!
//! An operation is a charge (three costs, with and without waiting), a settlement of any open receipt (nothing, half,
//! all, or two more), or a step of the clock to one of four ticks. The search is depth first over cloned histories.
//! Sequences that are not walked are known to equal walked ones:
//! * A refused charge changes nothing, so the sequence equals the one without it.
//! * Two steps of the clock equal one step, and a step at the end equals none.
//! * A clock that stepped back stands still at the last change: the answers there are compared, and the sequence equals
//!   the one without the step back.
//! * A charge that needs no wait is the same whether or not it accepts one: the transitions are compared.
//! * A settlement of exactly what was charged: the states are compared, and the sequence equals the one without it.
//!
//! Lengths are searched in order, so the first history found to break a law is a shortest one.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use tidegate_core::Tick;

use crate::settling::history::{Done, Op, Run};
use crate::settling::laws;
use crate::settling::subjects::{START, Subject};

const TICKS: u64 = 4;
const COSTS: [u64; 3] = [1, 2, 4];
/// Longer than any wait in a small world.
const PATIENCE: u64 = 1 << 50;

/// A search of one subject.
pub(crate) struct Search<'a> {
    subject: &'a Subject,
    /// What was checked before: laws about a state and its open receipts need one check only.
    judged: HashSet<u64>,
    /// Sequences walked; each stands for all that equal it.
    pub(crate) walked: u64,
    /// Sequences found to equal a walked one.
    pub(crate) equal: u64,
}

impl<'a> Search<'a> {
    pub(crate) fn new(subject: &'a Subject) -> Self {
        Self { subject, judged: HashSet::new(), walked: 0, equal: 0 }
    }

    /// Walks all sequences of up to `operations`. Returns the first broken law and its history.
    pub(crate) fn all(&mut self, operations: u32) -> Result<(), String> {
        for length in 1..=operations {
            (self.walked, self.equal) = (0, 0);
            self.from(&Run::new(&self.subject.quota, START), START, length)?;
        }
        Ok(())
    }

    fn from(&mut self, run: &Run<'_>, clock: Tick, operations: u32) -> Result<(), String> {
        if operations == 0 {
            return Ok(());
        }
        for tick in 0..TICKS {
            let now = Tick::from_nanos(START.as_nanos() + tick * self.subject.step);
            // A step of the clock counts as an operation.
            let Some(left) = operations.checked_sub(if now == clock { 1 } else { 2 }) else { continue };
            if now < run.last {
                if !self.subject.kind.is_profile() {
                    laws::stands_still(self.subject, run, now).map_err(|law| self.report(run, None, &law))?;
                    self.equal += 1;
                }
                continue;
            }
            for units in COSTS {
                self.charge(run, now, units, left)?;
            }
            let open: Vec<(usize, u64)> = run.open().map(|(nth, charge)| (nth, charge.units())).collect();
            for (nth, units) in open {
                let mut amounts = vec![0, units / 2, units, units + 2];
                amounts.dedup();
                for used in amounts {
                    self.settle(run, now, nth, used, left)?;
                }
            }
        }
        Ok(())
    }

    fn charge(&mut self, run: &Run<'_>, now: Tick, units: u64, left: u32) -> Result<(), String> {
        let mut at_once = None;
        for max_wait in [0, PATIENCE] {
            let op = Op::Charge { now, units, max_wait };
            let mut next = run.clone();
            let done = next.apply(op).map_err(|law| self.report(run, Some(op), &law))?;
            let Done::Allowed(receipt) = done else {
                self.equal += 1;
                continue;
            };
            if let Some(state) = at_once.replace(next.state.clone()) {
                if state != next.state {
                    return Err(self.report(run, Some(op), "waiting changes a charge that needs none"));
                }
                self.equal += 1;
                continue;
            }
            self.walked += 1;
            if self.is_new(&next, &[&run.state.encode()]) {
                laws::undone(self.subject, &run.state, &next.state, &receipt)
                    .map_err(|law| self.report(&next, None, &law))?;
            }
            self.judge(&next)?;
            self.from(&next, now, left)?;
        }
        Ok(())
    }

    fn settle(&mut self, run: &Run<'_>, now: Tick, nth: usize, used: u64, left: u32) -> Result<(), String> {
        let op = Op::Settle { now, nth, used };
        let mut next = run.clone();
        next.apply(op).map_err(|law| self.report(run, Some(op), &law))?;
        let receipt = next.charges[nth].receipt;
        laws::settlement(self.subject, &run.state, &next, &receipt, used)
            .map_err(|law| self.report(&next, None, &law))?;
        if used == receipt.cost.units() && next.state == run.state {
            self.equal += 1;
            return Ok(());
        }
        self.walked += 1;
        self.judge(&next)?;
        self.from(&next, now, left)
    }

    fn judge(&mut self, run: &Run<'_>) -> Result<(), String> {
        let subject = self.subject;
        let mut broken = laws::against_counterfactual(subject, run).and_then(|()| laws::acts(subject, run));
        if broken.is_ok() && self.is_new(run, &[]) {
            broken = laws::retry(subject, &run.state, run.last).and_then(|()| laws::forgetting(subject, run));
        }
        broken.map_err(|law| self.report(run, None, &law))
    }

    /// Says whether this state with its open receipts is new.
    fn is_new(&mut self, run: &Run<'_>, more: &[&[u8]]) -> bool {
        let mut hasher = DefaultHasher::new();
        (run.state.encode(), run.last, more).hash(&mut hasher);
        for (_, charge) in run.open() {
            let receipt = charge.receipt;
            (receipt.at, receipt.act, receipt.cost.units(), receipt.mark).hash(&mut hasher);
        }
        self.judged.insert(hasher.finish())
    }

    fn report(&self, run: &Run<'_>, next: Option<Op>, law: &str) -> String {
        format!("{}: {law}\n  replay: {}", self.subject.name, run.line(next))
    }
}
