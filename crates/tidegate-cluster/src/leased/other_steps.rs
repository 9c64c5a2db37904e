//! Handles steps that do not take units: they go to the engine, except where this node can answer without asking.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::Decision;
use tidegate_core::decision::Ruling;

use super::request::standing;
use super::shared::LeasedState;
use tidegate_limits::store::plain::refuse_repeated;
use tidegate_limits::store::{DecidedBy, Ending, Op, Settled, Settlement, Step};

impl LeasedState {
    /// Ends charges that used exactly what was charged: that changes no limit, so the engine is not asked. Returns
    /// `false` if any charge is of another kind: receipts of leases are receipts of the engine, each of its own units,
    /// so the engine ends them, whichever node made them.
    pub(super) fn finish_at_once(&self, step: &Step<'_>, endings: &[Ending], out: &mut Settled) -> bool {
        if refuse_repeated(step).is_err() {
            return false;
        }
        out.lines.clear();
        for (charge, ending) in step.charges.iter().zip(endings) {
            let Ending::Finish { receipt, finish, renew: None } = ending else { return false };
            let exact = finish.used == receipt.cost.units();
            if !exact || charge.by_fallback || charge.quota.is_guard() {
                return false;
            }
            let hash = self.table.hash(charge.key);
            let mut shard = self.table.lock(hash);
            let Some(entry) = shard.get(hash, charge.key).filter(|entry| entry.is_of(charge.quota)) else {
                return false;
            };
            let ruling = Ruling::Allowed { wait: Duration::ZERO };
            let decision = Decision { ruling, standing: standing(entry, step.now) };
            out.lines.push(Settlement { decision, receipt: None });
        }
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        out.breaker = None;
        true
    }

    /// Answers a peek, if batches have the units; returns `false` if the engine has to be asked.
    pub(super) fn peek_at_once(&self, step: &Step<'_>, out: &mut Settled) -> bool {
        if refuse_repeated(step).is_err() {
            return false;
        }
        out.lines.clear();
        for charge in step.charges {
            let hash = self.table.hash(charge.key);
            let mut shard = self.table.lock(hash);
            let Some(entry) = shard.get(hash, charge.key).filter(|entry| entry.is_of(charge.quota)) else {
                return false;
            };
            let (now, part) = (self.now_of(step, entry.lease.terms.window), self.part.at(step.now));
            if !entry.lease.would_grant(charge.cost, charge.kept_back, now, part) {
                return false;
            }
            let decision =
                Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: standing(entry, now) };
            out.lines.push(Settlement { decision, receipt: None });
        }
        debug_assert!(matches!(step.op, Op::Peek));
        (out.allowed, out.wait, out.at, out.by) = (true, Duration::ZERO, step.now, DecidedBy::Lease);
        true
    }

    /// Drops the units held of a key that the engine has forgotten. Must not be called before the engine has forgotten
    /// it: until then, the units are spent as usual.
    pub(super) fn forget(&self, key: &[u8]) {
        let (hash, now) = (self.table.hash(key), self.clock.now());
        if let Some(entry) = self.table.lock(hash).get(hash, key) {
            self.counts.burned.fetch_add(entry.lease.forget(now), Ordering::Relaxed);
        }
    }
}
