//! What a node grants of a limit by itself: one part, the limit being divided by the number of nodes.
//!
//! The limit stays as it is and costs are multiplied: with three nodes each unit counts three times, so that one node grants a third
//! of the burst and a third of the rate, whatever the algorithm. The answers are divided again.
//!
//! A cost that fits the limit and not the node's part of it is charged all of the limit, so that it passes where that is full, and what
//! is missing is booked as a debt: the node then waits until its part has paid for it.
//!
//! What a limit keeps back for requests of higher priority is not multiplied: it is a part of the whole limit, and so the same part of each
//! node's. A request that has to leave it passes only where its multiplied cost fits beside it. Where a node's part keeps less than one unit,
//! no request of higher priority could use that by itself; there a cost beyond the rest passes where the limit is full, as it does where
//! nothing is kept.
//!
//! A limit that a law moves is moved on each node by its own traffic, of which every piece of work counts as many places as there are nodes. So
//! the law sees the load that the service has while all nodes send as much, and what one node lets in is its part of where the limit stands.
//!
//! The number of nodes may change while charges are open. Each is ended by the number it was made under, which its receipt's tick tells.

use parking_lot::RwLock;
use tidegate_core::{Algorithm, Cost, Finish, Quota, Receipt, Standing, Tick};

use crate::clock::HeldTime;
use crate::store::Charge;

/// How many numbers of nodes are remembered. The oldest place keeps the smallest of all earlier numbers, under which less comes back.
const MOST_REMEMBERED: usize = 64;

/// How many nodes there are, now and before.
#[derive(Debug)]
pub(super) struct Nodes {
    /// Each number of nodes and the tick from which it held, ascending. Locked for reading while charges are settled, so that each charge
    /// lies on one side of a change.
    pub(super) held: RwLock<Numbers>,
    /// The latest tick that was seen.
    latest: HeldTime,
}

#[derive(Debug)]
pub(super) struct Numbers(Vec<(Tick, u64)>);

impl Nodes {
    pub(super) fn new(nodes: u64) -> Self {
        Self { held: RwLock::new(Numbers(vec![(Tick::EPOCH, nodes.max(1))])), latest: HeldTime::default() }
    }

    /// Returns the tick to settle by: no earlier than any before.
    pub(super) fn hold(&self, now: Tick) -> Tick {
        self.latest.hold(now)
    }

    /// Changes the number of nodes; 0 counts as 1.
    pub(super) fn set(&self, nodes: u64, now: Tick) {
        let nodes = nodes.max(1);
        let mut held = self.held.write();
        if held.now() == nodes {
            return;
        }
        // Later than every charge so far, and earlier than every one to come.
        let from = Tick::from_nanos(self.latest.hold(now).as_nanos().saturating_add(1));
        self.latest.hold(from);
        held.0.push((from, nodes));
        if held.0.len() > MOST_REMEMBERED {
            let (_, oldest) = held.0.remove(0);
            held.0[0] = (Tick::EPOCH, held.0[0].1.min(oldest));
        }
    }
}

impl Numbers {
    /// Returns the number of nodes now.
    pub(super) fn now(&self) -> u64 {
        self.0.last().map_or(1, |(_, nodes)| *nodes)
    }

    /// Returns the number of nodes that a charge was made under.
    pub(super) fn at(&self, tick: Tick) -> u64 {
        let later = self.0.partition_point(|(from, _)| *from <= tick);
        self.0[later.saturating_sub(1)].1
    }
}

/// One charge as this node counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    nodes: u64,
    /// The units asked for.
    asked: Cost,
    /// The units charged.
    pub(super) charged: Cost,
}

impl Share {
    /// Works out what is charged for a cost. Depends on nothing else, so that it can be worked out again when the charge ends.
    pub(super) fn of(asked: Cost, quota: &Quota, nodes: u64) -> Self {
        let whole = times(asked, nodes);
        if nodes == 1 {
            return Self { nodes, asked, charged: asked };
        }
        let limit = match quota {
            // Where it stands now may be less than one unit for each node: whoever finds nobody inside enters nevertheless.
            Quota::Adaptive(_) => quota.capacity(),
            _ => quota.standing(&quota.fresh(Tick::EPOCH), Tick::EPOCH).limit,
        };
        // A cost beyond the limit is refused for good by most, as it is.
        let charged =
            if asked.units() > limit { whole } else { whole.min(Cost::new(limit).unwrap_or(whole)) };
        Self { nodes, asked, charged }
    }

    /// Returns what is owed beyond the charge, where that was all of a limit and not enough. Places of a guard are not owed.
    pub(super) fn owed(&self, quota: &Quota) -> u64 {
        if quota.is_guard() { 0 } else { times(self.asked, self.nodes).units() - self.charged.units() }
    }

    /// Returns what is kept back from the charge: what the limit keeps back. Where that is less than a unit of this node's part, no more than
    /// a full limit has room for beside the units charged.
    pub(super) fn kept_back(&self, charge: &Charge<'_>) -> u64 {
        if charge.kept_back < self.nodes && self.fits_the_limit(charge) {
            charge.kept_back.min(charge.quota.capacity().saturating_sub(self.charged.units()))
        } else {
            charge.kept_back
        }
    }

    /// Says whether it is this node's part alone that has no room for the charge beside what is kept back, ever: the engine may grant it.
    pub(super) fn is_the_engines(&self, charge: &Charge<'_>) -> bool {
        let beside = |cost: Cost| cost.units().saturating_add(self.kept_back(charge));
        charge.kept_back > 0 && self.fits_the_limit(charge) && beside(self.charged) > charge.quota.capacity()
    }

    /// Says whether the limit, full and undivided, grants what is asked beside what is kept back.
    fn fits_the_limit(&self, charge: &Charge<'_>) -> bool {
        self.asked.units().saturating_add(charge.kept_back) <= charge.quota.capacity()
    }

    /// Returns the receipt of the charge as the caller sees it.
    pub(super) fn shown(&self, receipt: Receipt) -> Receipt {
        Receipt { cost: self.asked, ..receipt }
    }

    /// Returns the receipt as it was made.
    pub(super) fn made(&self, receipt: Receipt) -> Receipt {
        Receipt { cost: self.charged, ..receipt }
    }

    /// Returns the end of the charge: what was used counts as the charge did, rounded up.
    pub(super) fn finish(&self, finish: Finish) -> Finish {
        let (asked, charged) = (self.asked.units(), self.charged.units());
        let used = match finish.used.checked_sub(asked) {
            Some(more) => charged.saturating_add(more.saturating_mul(self.nodes)),
            None => ratio(finish.used, charged, asked, u128::div_ceil),
        };
        Finish { used, ..finish }
    }

    /// Returns what came back, in units of what was asked, rounded down; `None` for less than one.
    pub(super) fn came_back(&self, back: Receipt) -> Option<Receipt> {
        let down = |parts: u128, of: u128| parts / of;
        let units = ratio(back.cost.units(), self.asked.units(), self.charged.units(), down);
        Some(Receipt { cost: Cost::new(units)?, ..back })
    }
}

/// Returns how a limit stands for this node: what it grants and what is left rounded down, what is owed rounded up. A limit of less than
/// a unit for each node grants one when it is full.
pub(super) fn standing(standing: Standing, nodes: u64) -> Standing {
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
