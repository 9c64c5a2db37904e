//! Decides steps while the engine is gone, each charge as its [`OnStoreError`] says, with a store of this process.

use std::sync::OnceLock;
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::decision::Ruling;
use tidegate_core::{Algorithm, Cost, Decision, Finish, Outcome, Quota, Receipt, Retry, Standing, Tick};
use tidegate_limits::clock::HeldTime;
use tidegate_limits::store::{
    Charge, ChargeAnswer, DecidedBy, Ending, Executed, Execution, MemoryStore, OnStoreError, Op, Step, Store,
    StoreError,
};

/// The number of keys that the stand-in's store has room for: the keys that are charged in an outage.
const KEYS: usize = 65_536;

#[derive(Debug)]
pub(super) struct StandIn {
    /// The store, made when it is first needed, because its table takes memory.
    store: OnceLock<MemoryStore>,
    nodes: u64,
    /// Executes by ticks that never step back.
    latest: HeldTime,
}

type LocalCharges<'a> = SmallVec<[(usize, Share, Charge<'a>); 4]>;

impl StandIn {
    pub(super) fn new(nodes: u64) -> Self {
        Self { store: OnceLock::new(), nodes: nodes.max(1), latest: HeldTime::default() }
    }

    pub(super) fn store(&self) -> &MemoryStore {
        self.store.get_or_init(|| MemoryStore::with_capacity(KEYS).expect("two megabytes of memory"))
    }

    pub(super) fn decide(&self, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
        let now = self.latest.hold(step.now);
        let step = &Step { now, ..*step };
        let closed =
            step.charges.iter().any(|charge| charge.binding && charge.rules.on_error == OnStoreError::Deny);
        let local: LocalCharges<'_> = step
            .charges
            .iter()
            .enumerate()
            .filter(|(_, charge)| charge.rules.on_error == OnStoreError::Local)
            .map(|(place, charge)| {
                let share = Share::of(charge.cost, charge.quota, self.nodes);
                let kept_back = share.kept_back(charge);
                (place, share, Charge { cost: share.charged, kept_back, ..*charge })
            })
            .collect();
        let mut decided = Executed { allowed: true, at: now, ..Executed::default() };
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
            out.lines[*place] = ChargeAnswer {
                decision: Decision { ruling, standing: standing(line.decision.standing, self.nodes) },
                receipt: line.receipt.filter(|_| step.receipts).map(|receipt| share.for_caller(receipt)),
            };
        }
        Ok(())
    }

    /// Takes the charges, or only peeks if the step is refused anyway.
    fn take(
        &self,
        step: &Step<'_>,
        closed: bool,
        local: &LocalCharges<'_>,
        decided: &mut Executed,
    ) -> Result<(), StoreError> {
        let charges: SmallVec<[Charge<'_>; 4]> = local.iter().map(|(_, _, charge)| *charge).collect();
        let owes = local.iter().any(|(_, share, charge)| share.owed(charge.quota) > 0);
        let op = if closed { Op::Peek } else { step.op };
        let asked = Step { op, receipts: step.receipts || owes, charges: &charges, ..*step };
        self.execute(&asked, decided)?;
        if owes && decided.allowed && matches!(op, Op::Take) {
            self.book(step.now, local, decided)?;
        }
        Ok(())
    }

    /// Books the units that charges owe beyond their whole limits.
    fn book(&self, now: Tick, local: &LocalCharges<'_>, decided: &mut Executed) -> Result<(), StoreError> {
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
        let mut booked = Executed::default();
        self.execute(&Step::new(now, Op::Finish(&endings), &charges), &mut booked)?;
        for (line, after) in lines.into_iter().zip(booked.lines) {
            decided.lines[line].decision.standing = after.decision.standing;
        }
        Ok(())
    }

    pub(super) fn finish(
        &self,
        step: &Step<'_>,
        endings: &[Ending],
        out: &mut Executed,
    ) -> Result<(), StoreError> {
        let mut local: LocalCharges<'_> = SmallVec::new();
        let mut translated: SmallVec<[Ending; 4]> = SmallVec::new();
        for (place, (charge, ending)) in step.charges.iter().zip(endings).enumerate() {
            let (share, ending) = end(self.nodes, charge, ending);
            local.push((place, share, Charge { cost: share.charged, ..*charge }));
            translated.push(ending);
        }
        let charges: SmallVec<[Charge<'_>; 4]> = local.iter().map(|(_, _, charge)| *charge).collect();
        let now = self.latest.hold(step.now);
        self.execute(&Step { now, op: Op::Finish(&translated), charges: &charges, ..*step }, out)?;
        out.by = DecidedBy::Fallback;
        for (((_, share, _), line), ending) in local.iter().zip(&mut out.lines).zip(endings) {
            if let Ending::Finish { .. } = ending {
                line.decision.standing = standing(line.decision.standing, self.nodes);
                line.receipt = line.receipt.and_then(|back| share.came_back(back));
            }
        }
        Ok(())
    }

    pub(super) fn reset(&self, step: &Step<'_>) {
        if let Some(store) = self.store.get() {
            // This cannot fail: the engine refuses steps with a repeated key.
            let _ = execute_here(store, step, &mut Executed::default());
        }
    }

    fn execute(&self, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
        execute_here(self.store(), step, out)
    }
}

fn end(nodes: u64, charge: &Charge<'_>, ending: &Ending) -> (Share, Ending) {
    match *ending {
        Ending::Finish { receipt, finish, renew } => {
            let share = Share::of(receipt.cost, charge.quota, nodes);
            let (receipt, finish) = (share.as_charged(receipt), share.finish(finish));
            (share, Ending::Finish { receipt, finish, renew })
        }
        // A mark is one unit on any number of nodes. No place that was taken here is held longer.
        Ending::Once | Ending::Forget | Ending::Extend { .. } => {
            (Share::of(charge.cost, charge.quota, 1), *ending)
        }
    }
}

fn execute_here(store: &MemoryStore, step: &Step<'_>, out: &mut Executed) -> Result<(), StoreError> {
    match store.execute_into(step, out) {
        Execution::Done(done) => done,
        Execution::Later(_) => Err(StoreError::MustWait),
    }
}

pub(super) fn unasked(charge: &Charge<'_>, now: Tick) -> ChargeAnswer {
    let full = charge.quota.standing(&charge.quota.fresh(now), now);
    let decision = match charge.rules.on_error {
        OnStoreError::Allow => Decision { ruling: Ruling::Allowed { wait: Duration::ZERO }, standing: full },
        OnStoreError::Deny | OnStoreError::Local => Decision {
            ruling: Ruling::Denied { retry: Retry::Unknown },
            standing: Standing { remaining: 0, ..full },
        },
    };
    ChargeAnswer { decision, receipt: None }
}

// Computes the part of a limit that a node grants by itself: the limit divided by the number of nodes.
//
// Costs are multiplied: with three nodes each unit counts three times, so that one node grants a third of the burst and
// of the rate, whatever the algorithm. Answers are divided again.
//
// A cost that fits the limit but not the node's part is charged the whole limit, so that it passes when that is full;
// the rest is booked as a debt.
//
// Units kept back for higher priorities are not multiplied: they are the same fraction of each node's part. If that is
// less than one unit of the part, nobody could use it alone; then a cost beyond the rest passes when the limit is full.
//
// An adaptive limit moves by this node's traffic, in which each request counts as many places as there are nodes: the
// load of the whole service, if all nodes have the same.

/// One charge in this node's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    nodes: u64,
    asked: Cost,
    charged: Cost,
}

impl Share {
    /// Computes what is charged for a cost: it depends only on its arguments, so it is the same again when the charge
    /// ends.
    fn of(asked: Cost, quota: &Quota, nodes: u64) -> Self {
        let whole = times(asked, nodes);
        if nodes == 1 {
            return Self { nodes, asked, charged: asked };
        }
        let limit = match quota {
            // Its present size may be less than one unit for each node; a request that finds no other inside still
            // enters.
            Quota::Adaptive(_) => quota.capacity(),
            _ => quota.standing(&quota.fresh(Tick::EPOCH), Tick::EPOCH).limit,
        };
        // A cost beyond the limit is charged in full: most limits refuse it for ever.
        let charged =
            if asked.units() > limit { whole } else { whole.min(Cost::new(limit).unwrap_or(whole)) };
        Self { nodes, asked, charged }
    }

    /// Returns the units that are owed beyond the charge, if the charge took a whole limit and that was not enough.
    /// Places of a guard are not owed.
    fn owed(&self, quota: &Quota) -> u64 {
        if quota.is_guard() { 0 } else { times(self.asked, self.nodes).units() - self.charged.units() }
    }

    /// Returns the units that are kept back from the charge: the charge's own number. If that is less than one unit of
    /// this node's part, at most what a full limit has room for beside the units charged.
    fn kept_back(&self, charge: &Charge<'_>) -> u64 {
        if charge.kept_back < self.nodes && self.fits_the_limit(charge) {
            charge.kept_back.min(charge.quota.capacity().saturating_sub(self.charged.units()))
        } else {
            charge.kept_back
        }
    }

    /// Returns whether only this node's part, and not the whole limit, can never fit the charge beside the units kept
    /// back: then the engine may grant it.
    fn is_the_engines(&self, charge: &Charge<'_>) -> bool {
        let beside = |cost: Cost| cost.units().saturating_add(self.kept_back(charge));
        charge.kept_back > 0 && self.fits_the_limit(charge) && beside(self.charged) > charge.quota.capacity()
    }

    /// Returns whether the limit, full and undivided, grants the units asked for beside the units kept back.
    fn fits_the_limit(&self, charge: &Charge<'_>) -> bool {
        self.asked.units().saturating_add(charge.kept_back) <= charge.quota.capacity()
    }

    fn for_caller(&self, receipt: Receipt) -> Receipt {
        Receipt { cost: self.asked, ..receipt }
    }

    fn as_charged(&self, receipt: Receipt) -> Receipt {
        Receipt { cost: self.charged, ..receipt }
    }

    /// Converts the end of a charge: used units are scaled as the charge was, rounded up.
    fn finish(&self, finish: Finish) -> Finish {
        let (asked, charged) = (self.asked.units(), self.charged.units());
        let used = match finish.used.checked_sub(asked) {
            Some(more) => charged.saturating_add(more.saturating_mul(self.nodes)),
            None => ratio(finish.used, charged, asked, u128::div_ceil),
        };
        Finish { used, ..finish }
    }

    /// Converts units that came back into the caller's units, rounded down; `None` for less than one.
    fn came_back(&self, back: Receipt) -> Option<Receipt> {
        let down = |parts: u128, of: u128| parts / of;
        let units = ratio(back.cost.units(), self.asked.units(), self.charged.units(), down);
        Some(Receipt { cost: Cost::new(units)?, ..back })
    }
}

/// Converts a standing into this node's part: limit and remaining units rounded down, debt rounded up. A limit of less
/// than one unit for each node grants one when it is full.
fn standing(standing: Standing, nodes: u64) -> Standing {
    if nodes == 1 {
        return standing;
    }
    let full = standing.remaining >= standing.limit;
    Standing {
        limit: (standing.limit / nodes).max(1),
        remaining: (standing.remaining / nodes).max(u64::from(full)),
        debt: standing.debt.div_ceil(nodes),
        reset_after: standing.reset_after,
    }
}

fn times(cost: Cost, nodes: u64) -> Cost {
    Cost::new(cost.units().saturating_mul(nodes)).unwrap_or(Cost::MAX)
}

/// Returns `units · part / whole`.
fn ratio(units: u64, part: u64, whole: u64, divide: impl Fn(u128, u128) -> u128) -> u64 {
    let units = divide(u128::from(units) * u128::from(part), u128::from(whole.max(1)));
    u64::try_from(units).unwrap_or(u64::MAX)
}
