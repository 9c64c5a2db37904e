//! What the engine decides of a request, and what is held for the rest meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;
use tidegate_core::Retry;
use tidegate_core::Tick;
use tidegate_core::decision::Ruling;

use super::pocket::Piece;
use super::purse::GivenBack;
use super::shared::{Inner, TermsOfLines, ask, by_the_engine, widen};
use crate::store::{Answer, Charge, DecidedBy, OwnedStep, Settled, Settlement, Step, StoreError};

/// The lines that are decided here, `None` for those that are the engine's, and what was taken for them.
pub(super) struct Ours {
    pub(super) lines: SmallVec<[Option<Settlement>; 4]>,
    pub(super) held: Held,
}

/// Units in the hands of a request that is not yet admitted; put back if it is dropped.
pub(super) struct Held {
    pub(super) inner: Arc<Inner>,
    pub(super) pieces: SmallVec<[Taken; 4]>,
}

/// Units that were taken, the hash of their key, and the key.
pub(super) type Taken = (u64, Arc<[u8]>, Piece);

impl Inner {
    /// Has the engine decide what it alone can, while what was taken for the others is held.
    pub(super) async fn with_the_engine(self: &Arc<Self>, step: &OwnedStep, ours: Ours) -> Answer {
        let Ours { lines, held } = ours;
        if held.pieces.is_empty() && lines.iter().all(Option::is_none) {
            return self.engine_alone(step).await;
        }
        self.count_central();
        let (terms, theirs) = step.with(|step| {
            let terms = self.terms_of(step);
            let charges = by_the_engine(step, &terms);
            let theirs: SmallVec<[Charge<'_>; 4]> = charges
                .iter()
                .zip(&lines)
                .filter(|(_, line)| line.is_none())
                .map(|(charge, _)| *charge)
                .collect();
            (terms.clone(), OwnedStep::of(&Step { receipts: true, charges: &theirs, ..*step }))
        });
        let sent = self.clock.now();
        let settled = ask(&*self.engine, &theirs).await?;
        theirs.with(|step| self.note_refusals(step, &settled, sent));
        if settled.by == DecidedBy::Fallback {
            // A step is decided in one place or the other, so that its charges can be ended there: this one by what stands in.
            drop(held);
            if let Some(undo) =
                theirs.with(|step| OwnedStep::undoing(step, &settled)).filter(|_| settled.allowed)
            {
                let _ = ask(&*self.engine, &undo).await;
            }
            return self.engine_alone(step).await;
        }
        let allowed = settled.allowed;
        if allowed {
            held.admit();
        } else {
            drop(held);
        }
        let mut theirs = settled.lines.into_iter();
        let mut merged = Settled { lines: SmallVec::new(), ..settled };
        for line in lines {
            let line = match line {
                Some(line) => Settlement { receipt: line.receipt.filter(|_| allowed), ..line },
                None => theirs.next().ok_or_else(|| StoreError::Unavailable {
                    reason: "it answered fewer charges than it was asked".to_owned(),
                })?,
            };
            merged.lines.push(line);
        }
        widen(&mut merged, &terms);
        Ok(merged)
    }

    /// Has the engine decide a whole step, by its own limits.
    pub(super) async fn engine_alone(&self, step: &OwnedStep) -> Answer {
        self.count_central();
        let (terms, asked) = step.with(|step| self.for_the_engine(step));
        let sent = self.clock.now();
        let mut settled = ask(&*self.engine, &asked).await?;
        asked.with(|step| self.note_refusals(step, &settled, sent));
        widen(&mut settled, &terms);
        Ok(settled)
    }

    /// Takes note of the charges that the engine refused, and until when: until then it need not be asked again.
    fn note_refusals(&self, step: &Step<'_>, settled: &Settled, sent: Tick) {
        if settled.by == DecidedBy::Fallback {
            return;
        }
        for (charge, line) in step.charges.iter().zip(&settled.lines) {
            if let (Ruling::Denied { retry: Retry::After(after) }, true) =
                (line.decision.ruling, charge.max_wait.is_zero())
            {
                let hash = self.table.hash(charge.key);
                if let Some(entry) = self.table.lock(hash).get(hash, charge.key)
                    && entry.purse.terms.engine == *charge.quota
                {
                    entry.purse.refused_alone(charge.cost, charge.kept_back, after, sent);
                }
            }
        }
    }

    /// Returns a step as the engine is asked it.
    pub(super) fn for_the_engine(&self, step: &Step<'_>) -> (TermsOfLines, OwnedStep) {
        let terms = self.terms_of(step);
        let charges = by_the_engine(step, &terms);
        let asked = OwnedStep::of(&Step { charges: &charges, ..*step });
        drop(charges);
        (terms, asked)
    }

    fn count_central(&self) {
        self.counts.central.fetch_add(1, Ordering::Relaxed);
        self.counts.messages.fetch_add(1, Ordering::Relaxed);
    }
}

impl Held {
    /// The request is admitted: what it holds is spent.
    pub(super) fn admit(mut self) {
        for (hash, key, piece) in self.pieces.drain(..) {
            if let Some(entry) = self.inner.table.lock(hash).get(hash, &key) {
                entry.purse.release(&piece);
            }
        }
    }
}

/// The request is not admitted: what it holds is put back.
impl Drop for Held {
    fn drop(&mut self) {
        let mut returns = Vec::new();
        for (hash, key, piece) in self.pieces.drain(..) {
            let (mut shard, mut back) = (self.inner.table.lock(hash), GivenBack::new());
            if let Some(entry) = shard.get(hash, &key) {
                entry.purse.release(&piece);
                entry.purse.put_back(&piece, &mut back);
                returns.extend(Inner::returns(entry, back));
                shard.granted = shard.granted.saturating_sub(1);
            }
        }
        self.inner.give_back(returns);
    }
}
