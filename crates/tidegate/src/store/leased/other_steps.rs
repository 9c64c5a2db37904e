//! Steps that do not take: they are the engine's, but for what is known here without asking.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_core::Decision;
use tidegate_core::decision::Ruling;

use super::request::standing;
use super::shared::{Inner, ask, widen};
use crate::store::plain::refuse_repeated;
use crate::store::{DecidedBy, Ending, Op, Settled, Settlement, Settling, Step};

impl Inner {
    /// Settles charges that end. Receipts of leases are receipts of the engine, each of its own units, so they are ended there whatever
    /// node made them; where all was used that was charged, there is nothing to do.
    pub(super) fn settle_finish(
        self: &Arc<Self>,
        step: &Step<'_>,
        endings: &[Ending],
        out: &mut Settled,
    ) -> Settling {
        for (charge, ending) in step.charges.iter().zip(endings) {
            if matches!(ending, Ending::Forget) {
                self.forget(charge.key);
            }
        }
        if self.finish_at_once(step, endings, out) {
            return Settling::Done(Ok(()));
        }
        self.hand_on(step)
    }

    /// Ends charges that used what was charged: it changes no limit, and the engine need not know. `false` where that is not so.
    fn finish_at_once(&self, step: &Step<'_>, endings: &[Ending], out: &mut Settled) -> bool {
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

    /// Settles a step that forgets its keys: what is held of them goes too.
    pub(super) fn settle_reset(self: &Arc<Self>, step: &Step<'_>) -> Settling {
        for charge in step.charges {
            self.forget(charge.key);
        }
        self.hand_on(step)
    }

    fn forget(&self, key: &[u8]) {
        let hash = self.table.hash(key);
        if let Some(entry) = self.table.lock(hash).get(hash, key) {
            self.counts.burned.fetch_add(entry.purse.forget(), Ordering::Relaxed);
        }
    }

    /// Hands a step on to the engine.
    pub(super) fn hand_on(self: &Arc<Self>, step: &Step<'_>) -> Settling {
        let (inner, (terms, asked)) = (Arc::clone(self), self.for_the_engine(step));
        let takes = matches!(step.op, Op::Take | Op::Draw);
        Settling::Later(Box::pin(async move {
            if takes {
                inner.counts.central.fetch_add(1, Ordering::Relaxed);
            }
            inner.counts.messages.fetch_add(1, Ordering::Relaxed);
            let mut settled = ask(&*inner.engine, &asked).await?;
            widen(&mut settled, &terms);
            Ok(settled)
        }))
    }
}
