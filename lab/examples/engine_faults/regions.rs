//! Three regions far from each other, each with nodes, a Redis of their own, and a member of the etcd through which all
//! agree on the parts of the limit.

use std::net::SocketAddr;
use std::time::Duration;

use tidegate_lab::fleet::{Demand, NodeSelection};
use tidegate_testkit::{EtcdServer, Fault, FaultyProxy, PeerWires, RedisServer};

use super::act::{Act, Bounds, Limit, Member, Members, Row};
use super::engine::Away;
use super::table::{ASKS_AGAIN, Times};

/// The number of regions.
pub(crate) const REGIONS: usize = 3;

/// The nodes of each region.
const NODES: usize = 2;

/// How long a message takes from one region to another.
const FAR: Duration = Duration::from_millis(40);

/// A request that waits for another region takes twice [`FAR`] at least.
const NO_CALL_ACROSS: Duration = FAR;

const LIMIT: Limit = Limit { rate: 200, burst: 200 };

/// The demand, in multiples of the rate.
const TIMES: f64 = 1.5;

/// Use is measured from here on where demand is not even: by then parts have followed it.
const BEGUN: Duration = Duration::from_secs(10);

/// How long the demand takes to move.
const MOVES_WITHIN: Duration = Duration::from_secs(10);

/// The region of faults that are of one region.
const ONE: usize = 2;

/// The engines of all regions, and the wires between these.
pub(crate) struct Regions {
    redis: Vec<RedisServer>,
    pub(crate) etcd: Vec<EtcdServer>,
    /// The members that are killed or suspended.
    pub(crate) away: Vec<Away>,
    between_members: PeerWires,
    /// For each region, the wires of its nodes to the members of the etcd.
    to_members: Vec<Vec<FaultyProxy>>,
}

impl Regions {
    /// Starts all engines; prints a message and returns `None` if one is not installed.
    pub(crate) fn start() -> Option<Self> {
        let (etcd, between_members) = EtcdServer::start_three_apart(FAR, &["--unsafe-no-fsync"])?;
        let redis = (0..REGIONS).map(|_| RedisServer::start(&[])).collect::<Option<_>>()?;
        let before = |member: &EtcdServer| FaultyProxy::before(member.addr()).expect("a port is free");
        let to_members = (0..REGIONS).map(|_| etcd.iter().map(before).collect()).collect();
        let regions = Self { redis, etcd: etcd.into(), away: Vec::new(), between_members, to_members };
        regions.set(None, Fault::None);
        Some(regions)
    }

    /// Returns the address of the Redis of a region.
    pub(crate) fn redis(&self, region: usize) -> SocketAddr {
        self.redis[region].addr()
    }

    /// Kills the Redis of a region, or starts it again, without its data.
    pub(crate) fn run_redis(&mut self, region: usize, runs: bool) {
        match runs {
            true => self.redis[region].start_again(),
            false => self.redis[region].kill(),
        }
    }

    /// Returns where the nodes of a region reach the members of the etcd, its own first.
    pub(crate) fn members(&self, region: usize) -> Vec<SocketAddr> {
        let members = (0..REGIONS).map(|at| (region + at) % REGIONS);
        members.map(|member| self.to_members[region][member].addr()).collect()
    }

    /// Applies a fault to all wires between a region and the others. Without a region, to the wires of all nodes to all
    /// members of the etcd.
    pub(crate) fn set(&self, region: Option<usize>, fault: Fault) {
        for (from, wires) in self.to_members.iter().enumerate() {
            for (to, wire) in wires.iter().enumerate() {
                let is_hit = region.is_none_or(|region| from != to && (from == region || to == region));
                match fault {
                    Fault::None if from == to => wire.set(Fault::None),
                    Fault::None => wire.set(Fault::Delay(FAR)),
                    fault if is_hit => wire.set(fault),
                    _ => {}
                }
            }
        }
        match (region, fault) {
            (Some(region), fault) => self.between_members.set(region, fault),
            (None, Fault::None) => (0..REGIONS).for_each(|region| self.between_members.set(region, fault)),
            (None, _) => {}
        }
    }
}

/// Returns the region of a node; those of a region are neighbours, as in [`Demand::Weighted`].
pub(crate) const fn region_of(node: usize) -> usize {
    node / NODES
}

/// Returns the rows of regions. `lasts` is the time of a fault that nodes bridge: less than the 8 s for which regions
/// keep their parts. Faults that make parts move last `moves` longer.
pub(crate) fn rows(times: Times, moves: Duration) -> Vec<Row> {
    const EVEN: &[f64] = &[1.0; REGIONS];
    let Times { before, lasts, after } = times;
    let (broken, healed, moved) = (before, before + lasts, before + lasts + moves);
    // Parts have followed the demand by then.
    let begun = before.max(BEGUN.min(lasts + moves));
    let demand =
        |first, then| Demand::Weighted { times: TIMES, first, then, from: begun, within: MOVES_WITHIN };
    let even = demand(EVEN, EVEN);
    let mut rows = Vec::new();
    let mut row =
        |name, share, demand, acts: Vec<(Duration, Act)>, on_store_error, excess, used_per_mille| {
            let alone = acts.iter().any(|(_, act)| matches!(act, Act::RunRedis(..)));
            let p99 = if alone { Duration::MAX } else { NO_CALL_ACROSS };
            let used_from = if demand == even { Duration::ZERO } else { begun };
            let bounds = Bounds { excess, used_per_mille, used_from, alone, p99 };
            let after = if acts.is_empty() { moved + after } else { after };
            let (members, lag, limit) = (Members::Three, Duration::ZERO, LIMIT);
            // A slow answer of a busy machine must not count as a Redis that is gone.
            let (nodes, running, deadline) = (REGIONS * NODES, REGIONS * NODES, Duration::from_secs(5));
            rows.push(Row {
                name,
                share,
                limit,
                nodes,
                running,
                demand,
                lag,
                members,
                on_store_error,
                deadline,
                acts,
                after,
                bounds,
            });
        };
    let across = |region, fault, until| {
        vec![(broken, Act::Across(region, fault)), (until, Act::Across(region, Fault::None))]
    };
    let long = Fault::Delay(Duration::from_millis(300));
    row("even load", "leased", even, vec![], "deny", 0, 950);
    row("even load", "central", even, vec![], "deny", 0, 950);
    let skewed = demand(&[18.0, 1.0, 1.0], &[18.0, 1.0, 1.0]);
    row("one region has nine tenths of the load", "leased", skewed, vec![], "deny", 0, 900);
    let moving = demand(&[1.0, 0.0, 0.0], &[0.0, 1.0, 0.0]);
    let moved_by = vec![(begun + MOVES_WITHIN, Act::Across(None, Fault::None))];
    row("all load moves to another region within 10 s", "leased", moving, moved_by, "deny", 0, 600);
    let etcd = |fault| across(None, fault, healed);
    row("the etcd is 300 ms away each way", "leased", even, etcd(long), "deny", 0, 950);
    row("the etcd is silent", "leased", even, etcd(Fault::Stall), "deny", 0, 950);
    row("the etcd is cut off", "leased", even, etcd(Fault::Cut), "deny", 0, 950);
    row("the etcd is cut off", "central", even, etcd(Fault::Cut), "deny", 0, 950);
    let one = |fault| across(Some(ONE), fault, moved);
    row("one region hears nothing of the others", "leased", even, one(Fault::Stall), "deny", 0, 800);
    row("one region is cut off from the others", "leased", even, one(Fault::Cut), "deny", 0, 800);
    let gone = || vec![(broken, Act::RunRedis(ONE, false)), (healed, Act::RunRedis(ONE, true))];
    row("a region's Redis is killed and back empty", "leased", even, gone(), "deny", 0, 800);
    // Its nodes grant the region's part once more from full, and one request each. When Redis is back, it has filled up;
    // the last node uses it later than the first.
    let (part, late) = (LIMIT.burst / 3, LIMIT.rate / 3 * ASKS_AGAIN / 1000 / NODES as u64);
    row(
        "the same, decided by its nodes",
        "leased",
        even,
        gone(),
        "local",
        2 * part + NODES as u64 + late,
        950,
    );
    let leader = vec![(broken, Act::KillMember(Member::Leader)), (healed, Act::StartMembers)];
    row("the etcd's leader is killed", "leased", even, leader, "deny", 0, 950);
    let node = NodeSelection::Node(0);
    let restarts = vec![
        (broken, Act::StopNodes(node)),
        (broken + Duration::from_millis(300), Act::StartNodes(node)),
        (healed, Act::Across(None, Fault::None)),
    ];
    row("a node of a region restarts", "leased", even, restarts, "deny", 0, 900);
    rows
}
