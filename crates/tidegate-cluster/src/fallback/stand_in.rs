//! Decides steps while the engine is gone, each charge as its [`OnStoreError`] says, with a store of this process.

use std::sync::OnceLock;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Decision, Finish, Outcome, Retry, Standing, Tick};

use super::share::{Nodes, Numbers, Share, standing};
use tidegate_limits::store::{
    Charge, DecidedBy, Ending, MemoryStore, OnStoreError, Op, Settled, Settlement, Settling, Step, Store,
    StoreError,
};

/// The number of keys that the stand-in's store has room for: the keys that are charged in an outage.
const KEYS: usize = 65_536;

/// Decides the steps that the engine does not.
#[derive(Debug)]
pub(super) struct StandIn {
    /// The store, made when it is first needed, because its table takes memory.
    store: OnceLock<MemoryStore>,
    pub(super) nodes: Nodes,
}

/// The charges of one step that the stand-in's store decides, with their indices in the step.
type LocalCharges<'a> = SmallVec<[(usize, Share, Charge<'a>); 4]>;

impl StandIn {
    pub(super) fn new(nodes: u64) -> Self {
        Self { store: OnceLock::new(), nodes: Nodes::new(nodes) }
    }

    pub(super) fn store(&self) -> &MemoryStore {
        self.store.get_or_init(|| MemoryStore::with_capacity(KEYS).expect("two megabytes of memory"))
    }

    /// Settles a take or a peek: charges with `allow` pass, charges with `deny` refuse the step, and the others are
    /// decided by the store here.
    pub(super) fn decide(&self, step: &Step<'_>, out: &mut Settled) -> Result<(), StoreError> {
        let nodes = self.nodes.held.read();
        let now = self.nodes.hold(step.now);
        let step = &Step { now, ..*step };
        let closed =
            step.charges.iter().any(|charge| charge.binding && charge.rules.on_error == OnStoreError::Deny);
        let local: LocalCharges<'_> = step
            .charges
            .iter()
            .enumerate()
            .filter(|(_, charge)| charge.rules.on_error == OnStoreError::Local)
            .map(|(place, charge)| {
                let share = Share::of(charge.cost, charge.quota, nodes.now());
                let kept_back = share.kept_back(charge);
                (place, share, Charge { cost: share.charged, kept_back, ..*charge })
            })
            .collect();
        let mut decided = Settled { allowed: true, at: now, ..Settled::default() };
        if !local.is_empty() {
            self.take(step, closed, &local, &mut decided)?;
        }
        out.allowed = !closed && decided.allowed;
        out.wait = if out.allowed { decided.wait } else { Duration::ZERO };
        (out.at, out.by) = (decided.at, DecidedBy::Fallback);
        out.moved = std::mem::take(&mut decided.moved);
        out.lines.clear();
        out.lines.extend(step.charges.iter().map(|charge| unasked(charge, now)));
        for ((place, share, _), line) in local.iter().zip(decided.lines) {
            let ruling = match line.decision.ruling {
                // Refused for as long as the engine is gone, which is an unknown time.
                Ruling::Denied { retry: Retry::Never } if share.is_the_engines(&step.charges[*place]) => {
                    Ruling::Denied { retry: Retry::Unknown }
                }
                ruling => ruling,
            };
            out.lines[*place] = Settlement {
                decision: Decision { ruling, standing: standing(line.decision.standing, nodes.now()) },
                receipt: line.receipt.filter(|_| step.receipts).map(|receipt| share.for_caller(receipt)),
            };
        }
        Ok(())
    }

    /// Takes the charges that are decided here, or only peeks if the step is refused anyway.
    fn take(
        &self,
        step: &Step<'_>,
        closed: bool,
        local: &LocalCharges<'_>,
        decided: &mut Settled,
    ) -> Result<(), StoreError> {
        let charges: SmallVec<[Charge<'_>; 4]> = local.iter().map(|(_, _, charge)| *charge).collect();
        let owes = local.iter().any(|(_, share, charge)| share.owed(charge.quota) > 0);
        let op = if closed { Op::Peek } else { step.op };
        let asked = Step { op, receipts: step.receipts || owes, charges: &charges, ..*step };
        self.settle(&asked, decided)?;
        if owes && decided.allowed && matches!(op, Op::Take) {
            self.book(step.now, local, decided)?;
        }
        Ok(())
    }

    /// Books the units that charges owe beyond their whole limits.
    fn book(&self, now: Tick, local: &LocalCharges<'_>, decided: &mut Settled) -> Result<(), StoreError> {
        let (mut charges, mut endings, mut lines) = (
            SmallVec::<[Charge<'_>; 4]>::new(),
            SmallVec::<[Ending; 4]>::new(),
            SmallVec::<[usize; 4]>::new(),
        );
        for (line, (_, share, charge)) in local.iter().enumerate() {
            let owed = share.owed(charge.quota);
            // Only charges that were taken have receipts: a shadow that was refused has none.
            if let (Some(receipt), true) = (decided.lines[line].receipt, owed > 0) {
                let finish =
                    Finish { used: receipt.cost.units().saturating_add(owed), outcome: Outcome::Ignored };
                charges.push(*charge);
                endings.push(Ending::new(receipt, finish));
                lines.push(line);
            }
        }
        let mut booked = Settled::default();
        self.settle(&Step::new(now, Op::Finish(&endings), &charges), &mut booked)?;
        for (line, after) in lines.into_iter().zip(booked.lines) {
            decided.lines[line].decision.standing = after.decision.standing;
        }
        Ok(())
    }

    /// Settles a step that ends charges made here, possibly with marks.
    pub(super) fn finish(
        &self,
        step: &Step<'_>,
        endings: &[Ending],
        out: &mut Settled,
    ) -> Result<(), StoreError> {
        let nodes = self.nodes.held.read();
        let mut local: LocalCharges<'_> = SmallVec::new();
        let mut translated: SmallVec<[Ending; 4]> = SmallVec::new();
        for (place, (charge, ending)) in step.charges.iter().zip(endings).enumerate() {
            let (share, ending) = end(&nodes, charge, ending);
            local.push((place, share, Charge { cost: share.charged, ..*charge }));
            translated.push(ending);
        }
        let charges: SmallVec<[Charge<'_>; 4]> = local.iter().map(|(_, _, charge)| *charge).collect();
        let now = self.nodes.hold(step.now);
        self.settle(&Step { now, op: Op::Finish(&translated), charges: &charges, ..*step }, out)?;
        out.by = DecidedBy::Fallback;
        for (((_, share, _), line), ending) in local.iter().zip(&mut out.lines).zip(endings) {
            if let Ending::Finish { .. } = ending {
                line.decision.standing = standing(line.decision.standing, nodes.now());
                line.receipt = line.receipt.and_then(|back| share.came_back(back));
            }
        }
        Ok(())
    }

    /// Forgets the keys of a step, if the store exists.
    pub(super) fn reset(&self, step: &Step<'_>) {
        if let Some(store) = self.store.get() {
            // This cannot fail: the keys of a step are distinct, because otherwise the engine would have refused it.
            let _ = settled(store, step, &mut Settled::default());
        }
    }

    fn settle(&self, step: &Step<'_>, out: &mut Settled) -> Result<(), StoreError> {
        settled(self.store(), step, out)
    }
}

/// Converts the ending of a charge into this node's scale.
fn end(nodes: &Numbers, charge: &Charge<'_>, ending: &Ending) -> (Share, Ending) {
    match *ending {
        Ending::Finish { receipt, finish, renew } => {
            let share = Share::of(receipt.cost, charge.quota, nodes.at(receipt.at));
            let (receipt, finish) = (share.as_charged(receipt), share.finish(finish));
            (share, Ending::Finish { receipt, finish, renew })
        }
        // A mark is one unit on any number of nodes. No place that was taken here is held longer.
        Ending::Once | Ending::Forget | Ending::Extend { .. } => {
            (Share::of(charge.cost, charge.quota, 1), *ending)
        }
    }
}

fn settled(store: &MemoryStore, step: &Step<'_>, out: &mut Settled) -> Result<(), StoreError> {
    match store.settle_into(step, out) {
        Settling::Done(done) => done,
        Settling::Later(_) => Err(StoreError::MustWait),
    }
}

/// Returns the answer to a charge that no store was asked about.
pub(super) fn unasked(charge: &Charge<'_>, now: Tick) -> Settlement {
    let full = charge.quota.standing(&charge.quota.fresh(now), now);
    let decision = match charge.rules.on_error {
        OnStoreError::Allow => Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: full },
        OnStoreError::Deny | OnStoreError::Local => Decision {
            ruling: Ruling::Denied { retry: Retry::Unknown },
            standing: Standing { remaining: 0, ..full },
        },
    };
    Settlement { decision, receipt: None }
}
