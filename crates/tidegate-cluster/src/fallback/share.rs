//! Computes the part of a limit that a node grants by itself: the limit divided by the number of nodes.
//!
//! The limit stays as it is, and costs are multiplied: with three nodes each unit counts three times, so that one node
//! grants a third of the burst and a third of the rate, whatever the algorithm. Answers are divided again.
//!
//! A cost that fits the limit but not the node's part is charged the whole limit, so that it passes when that is full;
//! the rest is booked as a debt. The node then waits until its part has paid for it.
//!
//! Units kept back for requests of higher priority are not multiplied: they are a fraction of the whole limit, and so
//! the same fraction of each node's part. A request that has to leave them passes only if its multiplied cost fits
//! beside them. If less than one unit of the node's part is kept back, no request of higher priority could use that
//! alone; then a cost beyond the rest passes when the limit is full, as it does where nothing is kept back.
//!
//! An adaptive limit moves on each node by that node's own traffic, in which each request counts as many places as
//! there are nodes. So the law sees the load of the whole service, if all nodes have the same load, and one node admits
//! its part of the limit's present size.
//!
//! The number of nodes may change while charges are open. Each charge is ended by the number of nodes that it was made
//! under, which the tick of its receipt tells.

use parking_lot::RwLock;
use tidegate_core::{Algorithm, Cost, Finish, Quota, Receipt, Standing, Tick};

use tidegate_limits::clock::HeldTime;
use tidegate_limits::store::Charge;

/// The most changes of the number of nodes that are remembered. The oldest entry keeps the smallest of all earlier
/// numbers, with which less comes back.
const MOST_REMEMBERED: usize = 64;

/// The number of nodes, now and earlier.
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

    /// Returns the tick to settle by, which never steps back.
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
        // Later than every charge so far, and not later than any charge to come.
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

/// One charge in this node's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    nodes: u64,
    /// The units asked for.
    asked: Cost,
    /// The units charged.
    pub(super) charged: Cost,
}

impl Share {
    /// Computes what is charged for a cost. Depends only on its arguments, so that it can be computed again when the
    /// charge ends.
    pub(super) fn of(asked: Cost, quota: &Quota, nodes: u64) -> Self {
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
    pub(super) fn owed(&self, quota: &Quota) -> u64 {
        if quota.is_guard() { 0 } else { times(self.asked, self.nodes).units() - self.charged.units() }
    }

    /// Returns the units that are kept back from the charge: the charge's own number. If that is less than one unit of
    /// this node's part, at most what a full limit has room for beside the units charged.
    pub(super) fn kept_back(&self, charge: &Charge<'_>) -> u64 {
        if charge.kept_back < self.nodes && self.fits_the_limit(charge) {
            charge.kept_back.min(charge.quota.capacity().saturating_sub(self.charged.units()))
        } else {
            charge.kept_back
        }
    }

    /// Returns whether only this node's part, and not the whole limit, can never fit the charge beside the units kept
    /// back: then the engine may grant it.
    pub(super) fn is_the_engines(&self, charge: &Charge<'_>) -> bool {
        let beside = |cost: Cost| cost.units().saturating_add(self.kept_back(charge));
        charge.kept_back > 0 && self.fits_the_limit(charge) && beside(self.charged) > charge.quota.capacity()
    }

    /// Returns whether the limit, full and undivided, grants the units asked for beside the units kept back.
    fn fits_the_limit(&self, charge: &Charge<'_>) -> bool {
        self.asked.units().saturating_add(charge.kept_back) <= charge.quota.capacity()
    }

    /// Returns the receipt for the caller, with the units that were asked for.
    pub(super) fn for_caller(&self, receipt: Receipt) -> Receipt {
        Receipt { cost: self.asked, ..receipt }
    }

    /// Returns the receipt in this node's scale, with the units that were charged.
    pub(super) fn as_charged(&self, receipt: Receipt) -> Receipt {
        Receipt { cost: self.charged, ..receipt }
    }

    /// Converts the end of a charge into this node's scale: used units are scaled as the charge was, rounded up.
    pub(super) fn finish(&self, finish: Finish) -> Finish {
        let (asked, charged) = (self.asked.units(), self.charged.units());
        let used = match finish.used.checked_sub(asked) {
            Some(more) => charged.saturating_add(more.saturating_mul(self.nodes)),
            None => ratio(finish.used, charged, asked, u128::div_ceil),
        };
        Finish { used, ..finish }
    }

    /// Converts units that came back into the caller's units, rounded down; `None` for less than one.
    pub(super) fn came_back(&self, back: Receipt) -> Option<Receipt> {
        let down = |parts: u128, of: u128| parts / of;
        let units = ratio(back.cost.units(), self.asked.units(), self.charged.units(), down);
        Some(Receipt { cost: Cost::new(units)?, ..back })
    }
}

/// Converts a standing into this node's part: limit and remaining units rounded down, debt rounded up. A limit of less
/// than one unit for each node grants one when it is full.
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
