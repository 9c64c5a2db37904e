//! The rows of the table, with the bounds that they must keep.
//!
//! Names are those of the simulated table where the same thing happens. docs/stores/README.md has the bound of each
//! fault.

use std::time::Duration;

use tidegate::store::fallback::DEADLINE;
use tidegate_lab::fleet::{Demand, NodeSelection};
use tidegate_testkit::Fault;

use super::act::{Act, Bounds, Limit, Member, Members, Row};
use super::engine::Kind;

/// The number of nodes, unless a row is about their number.
const NODES: usize = 4;

/// A row with a deadline that fits the longer wires.
const FAR_AWAY: &str = "wires 30 ms longer each way, `store.deadline: 1s`";

/// A deployment: each node is stopped, and started again after 0.3 s.
const ROLLING: &str = "nodes restart one by one, every 2 s";

/// The time between two restarts of a deployment.
const ROLLS: Duration = Duration::from_secs(2);

/// A member that does not lead is killed.
const KILLED: &str = "a follower of three is killed";

/// The same; a request that the engine does not decide is refused with 503.
const DENIED: &str = "a follower of three is killed, `on_store_error: deny`";

/// The longest time, in milliseconds, until members whose leader is gone have elected another (etcd: 1 to 2 s).
const ELECTION: u64 = 2_000;

/// The longest time, in milliseconds, until the last node uses an engine again that is back: one second between
/// probes, plus the time of a probe.
pub(crate) const ASKS_AGAIN: u64 = 1_250;

/// When a fault begins, how long it lasts, and how long the run goes on after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) before: Duration,
    pub(crate) lasts: Duration,
    pub(crate) after: Duration,
}

/// Returns the limit of the rows. Engines that decide by compare-and-set get half the rate: only one node at a time
/// can write a key.
fn limit(kind: Kind) -> Limit {
    match kind {
        Kind::Redis => Limit { rate: 200, burst: 160 },
        Kind::Etcd | Kind::ZooKeeper | Kind::Regions => Limit { rate: 100, burst: 160 },
    }
}

/// Returns the rows for an engine.
#[allow(clippy::too_many_lines, reason = "a table")]
pub(crate) fn rows(kind: Kind, times: Times) -> Vec<Row> {
    let limit = limit(kind);
    let Limit { rate, burst } = limit;
    let Times { before, lasts, after } = times;
    let nodes = NODES as u64;
    // The units that the rate returns in this time.
    let in_ms = |ms: u64| rate * ms / 1000;
    let while_it_lasts = in_ms(u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX));
    // Units granted by the nodes that have not used the engine again, while one node already has.
    let late_ones = in_ms(ASKS_AGAIN) * (nodes - 1) / nodes;
    // While the engine is gone, nodes grant the limit once more from full, and one request each. When it is back, its
    // own limit has filled up.
    let gone = 2 * burst + nodes + late_ones;
    // The engine is away only for a moment: nodes may consider it gone, and its own limit has not filled up.
    let blinked = burst + nodes + late_ones;
    // Some nodes grant half of the limit while the others use the engine's whole limit.
    let half_gone = (burst + while_it_lasts + in_ms(ASKS_AGAIN)) / 2 + nodes;
    // One node considers the engine gone until it probes it again.
    let one_gone = (burst + in_ms(ASKS_AGAIN)) / nodes + 1;
    let even = Demand::Even(2.0);
    let half = NodeSelection::From(NODES / 2);
    let (broken, healed) = (before, before + lasts);

    // Whether nodes are expected to decide without the engine.
    let (by_engine, by_nodes) = (|excess: u64| (excess, false), |excess: u64| (excess, true));

    let mut rows = Vec::new();
    let mut row =
        |name, share, demand, acts: Vec<(Duration, Act)>, (excess, alone): (u64, bool), used: u64| {
            let after = if acts.is_empty() { before + lasts + after } else { after };
            let bounds =
                Bounds { excess, used_per_mille: used, used_from: Duration::ZERO, alone, p99: Duration::MAX };
            let (nodes, running, lag, deadline) = (NODES, NODES, Duration::ZERO, DEADLINE);
            let (members, on_store_error) = (Members::One, "local");
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
    let wires = |which, fault| {
        vec![(broken, Act::Wires(which, fault)), (healed, Act::Wires(NodeSelection::All, Fault::None))]
    };

    row("steady", "central", even, vec![], by_engine(0), 950);
    row("even", "leased", even, vec![], by_engine(0), 900);
    row("skewed", "leased", Demand::Skewed { times: 2.0, exponent: 1.5 }, vec![], by_engine(0), 900);
    row(
        "hopping",
        "leased",
        Demand::Hopping { times: 0.9, every: Duration::from_secs(2) },
        vec![],
        by_engine(0),
        900,
    );
    row(
        "on and off",
        "leased",
        Demand::OnOff { times: 3.0, every: Duration::from_secs(1) },
        vec![],
        by_engine(0),
        900,
    );
    row(
        "quiet, then four times",
        "leased",
        Demand::QuietThen { quiet: 0.2, then: 4.0, after: before },
        vec![],
        by_engine(0),
        900,
    );
    row("even", "split", even, vec![], by_engine(0), 900);

    let one = NodeSelection::Node(0);
    let dies = vec![(broken, Act::KillNodes(one)), (healed, Act::StartNodes(one))];
    row("a node dies with what it held", "leased", even, dies, by_engine(0), 850);
    let restarts = (0..NODES).flat_map(|node| {
        let (at, node) = (broken + lasts / 4 * u32::try_from(node).unwrap_or(0), NodeSelection::Node(node));
        [(at, Act::StopNodes(node)), (at + Duration::from_millis(300), Act::StartNodes(node))]
    });
    row("nodes restart one by one", "leased", even, restarts.collect(), by_engine(0), 850);
    let held = vec![(broken, Act::HoldNodes(one, true)), (healed, Act::HoldNodes(one, false))];
    row("a node stands still", "leased", even, held, by_nodes(one_gone), 850);

    row("engine gone", "leased", even, wires(NodeSelection::All, Fault::Cut), by_nodes(gone), 850);
    row("engine gone", "central", even, wires(NodeSelection::All, Fault::Cut), by_nodes(gone), 850);
    let killed = vec![(broken, Act::Kill), (healed, Act::Start)];
    let name = if kind == Kind::Redis { "engine back empty" } else { "engine killed and back" };
    row(name, "leased", even, killed.clone(), by_nodes(gone), 850);
    row(name, "central", even, killed, by_nodes(gone), 850);
    let hangs: Vec<(Duration, Act)> = (0..u32::try_from(lasts.as_secs()).unwrap_or(0).max(1))
        .flat_map(|second| {
            let at = broken + Duration::from_secs(1) * second;
            [(at, Act::Hold(true)), (at + Duration::from_millis(200), Act::Hold(false))]
        })
        .collect();
    row("engine hangs 0.2 s each second", "leased", even, hangs.clone(), by_nodes(blinked), 800);
    row("engine hangs 0.2 s each second", "central", even, hangs, by_nodes(blinked), 800);
    row(
        "engine hangs",
        "leased",
        even,
        vec![(broken, Act::Hold(true)), (healed, Act::Hold(false))],
        by_nodes(gone),
        850,
    );
    row("half the nodes are cut off", "leased", even, wires(half, Fault::Stall), by_nodes(half_gone), 800);
    row("half the nodes are refused", "leased", even, wires(half, Fault::Cut), by_nodes(half_gone), 800);
    let mut lost = wires(half, Fault::LoseAnswers);
    // A connection with gaps in its data is useless afterwards, so reset it.
    lost.insert(1, (healed, Act::Wires(half, Fault::Reset)));
    row("answers to half the nodes are lost", "leased", even, lost, by_nodes(half_gone), 800);
    let delay = Duration::from_millis(30);
    // Data still under way when the delay ends arrive together with later data.
    let delayed = wires(NodeSelection::All, Fault::Delay(delay));
    let (name, late) = ("wires 30 ms longer each way", by_engine(in_ms(60)));
    if kind == Kind::Redis {
        row(name, "leased", even, delayed, late, 800);
    } else {
        // One key is written once in 60 ms, and four nodes take turns, so a write takes longer than the default
        // deadline.
        row(name, "leased", even, delayed.clone(), by_nodes(blinked + while_it_lasts), 800);
        row(FAR_AWAY, "leased", even, delayed, late, 800);
    }
    let resets = (0..u32::try_from(lasts.as_millis() / 500).unwrap_or(0)).flat_map(|time| {
        let at = broken + Duration::from_millis(500) * time;
        [
            (at, Act::Wires(NodeSelection::All, Fault::Reset)),
            (at + Duration::from_millis(10), Act::Wires(NodeSelection::All, Fault::None)),
        ]
    });
    row(
        "connections reset twice a second",
        "leased",
        even,
        resets.collect(),
        by_nodes(blinked + while_it_lasts),
        800,
    );
    // Nodes still hold leases under the old limit: 5 % of its burst.
    row("the limit is halved", "leased", even, vec![(broken, Act::Halve)], by_engine(burst / 20), 850);
    if kind != Kind::ZooKeeper {
        // Redis detects the flush, and limits count as half full.
        let back = if kind == Kind::Redis { burst / 2 } else { burst };
        row("engine flushed", "leased", even, vec![(broken, Act::Flush)], by_engine(back), 850);
    }
    match kind {
        Kind::Redis => {
            let evicts: [&[&str]; 2] = [
                &["CONFIG", "SET", "maxmemory-policy", "allkeys-random"],
                &["CONFIG", "SET", "maxmemory", "1"],
            ];
            let mut evicts: Vec<_> = evicts.map(|words| (broken, Act::Command(words))).into();
            evicts.push((broken + lasts / 4, Act::Command(&["CONFIG", "SET", "maxmemory", "0"])));
            row("engine evicts everything", "leased", even, evicts, by_nodes(gone), 850);
            let flushes =
                (0..10).map(|time| (broken + lasts / 10 * time, Act::Command(&["SCRIPT", "FLUSH"])));
            row("scripts flushed ten times", "central", even, flushes.collect(), by_engine(0), 950);
            // Nodes may consider the engine gone for a moment, and lost limits count as half full.
            let over = vec![(broken, Act::Kill), (broken, Act::Promote(NodeSelection::All))];
            row(
                "failover to a replica 0.3 s behind",
                "leased",
                even,
                over,
                by_nodes(blinked + burst / 2),
                850,
            );
            // Each master grants the limit.
            let split = vec![(broken, Act::Promote(half)), (healed, Act::Promote(NodeSelection::All))];
            row("two masters", "leased", even, split, by_nodes(blinked + burst / 2 + while_it_lasts), 850);
        }
        Kind::Regions => {}
        Kind::Etcd | Kind::ZooKeeper => {
            row(
                "engine killed and back",
                "split",
                even,
                vec![(broken, Act::Kill), (healed, Act::Start)],
                by_engine(0),
                900,
            );
            row("half the nodes are cut off", "split", even, wires(half, Fault::Stall), by_engine(0), 900);
            let restarts = (0..NODES).flat_map(|node| {
                let (at, node) =
                    (broken + ROLLS * u32::try_from(node).unwrap_or(0), NodeSelection::Node(node));
                [(at, Act::StopNodes(node)), (at + Duration::from_millis(300), Act::StartNodes(node))]
            });
            row(ROLLING, "leased", even, restarts.clone().collect(), by_engine(0), 900);
            row(ROLLING, "central", even, restarts.clone().collect(), by_engine(0), 900);
            row(ROLLING, "split", even, restarts.collect(), by_engine(0), 900);
            let dies = vec![(broken, Act::KillNodes(one)), (healed, Act::StartNodes(one))];
            row("a node dies with what it held", "split", even, dies, by_engine(0), 850);
            row("a dead address in the list", "leased", even, vec![], by_engine(0), 900);
            row("a dead address in the list", "central", even, vec![], by_engine(0), 950);
            let without = |act| vec![(broken, act), (healed, Act::StartMembers)];
            let (follower, leader) = (Member::Follower, Member::Leader);
            // The steps under way.
            row(KILLED, "leased", even, without(Act::KillMember(follower)), by_engine(0), 900);
            row(KILLED, "central", even, without(Act::KillMember(follower)), by_engine(0), 900);
            row(KILLED, "split", even, without(Act::KillMember(follower)), by_engine(0), 900);
            row(DENIED, "leased", even, without(Act::KillMember(follower)), by_engine(0), 900);
            row(
                "a follower of three stands still",
                "leased",
                even,
                without(Act::HoldMember(follower)),
                by_engine(0),
                850,
            );
            // The engine is away until the others have elected another.
            let elected = (blinked + in_ms(ELECTION)).min(gone);
            row(
                "the leader of three is killed",
                "leased",
                even,
                without(Act::KillMember(leader)),
                by_nodes(elected),
                850,
            );
            row(
                "the leader of three is killed",
                "central",
                even,
                without(Act::KillMember(leader)),
                by_nodes(elected),
                850,
            );
            row(
                "the leader of three stands still",
                "leased",
                even,
                without(Act::HoldMember(leader)),
                by_nodes(elected),
                850,
            );
            if kind == Kind::Etcd {
                let replaced = vec![(broken, Act::ReplaceMember(leader))];
                let name = "a member joins three, their leader is removed";
                row(name, "leased", even, replaced.clone(), by_nodes(elected), 850);
                row(name, "central", even, replaced, by_nodes(elected), 850);
            }
            let restarts = (0..3).flat_map(|member| {
                let at = broken + lasts * u32::try_from(member).unwrap_or(0);
                [(at, Act::KillMember(Member::Number(member))), (at + lasts / 4, Act::StartMembers)]
            });
            // The leader is one of them, and its follower may be the next.
            row(
                "three members restart one by one",
                "leased",
                even,
                restarts.collect(),
                by_nodes(2 * elected),
                850,
            );
        }
    }
    // More nodes start and end.
    let more = NodeSelection::From(3);
    let storm = vec![(broken, Act::StartNodes(more)), (healed, Act::KillNodes(more))];
    row("nodes 3, 6, 3", "leased", Demand::Even(3.0), storm, by_engine(0), 850);
    for row in &mut rows {
        if row.name.contains("dead address") {
            row.members = Members::OneAndDeadAddress;
        } else if row.name.contains("three") {
            row.members = Members::Three;
        }
        if row.name == DENIED {
            row.on_store_error = "deny";
        }
        if row.name == "a node dies with what it held" && row.share == "split" {
            // Others get its part when it is no longer a member: in twice that time the whole is used again.
            row.after = Duration::from_secs(20);
        }
        if row.name == "nodes 3, 6, 3" {
            (row.nodes, row.running) = (6, 3);
        }
        if row.name == FAR_AWAY {
            row.deadline = Duration::from_secs(1);
        }
        if row.name.contains("replica") || row.name == "two masters" {
            row.lag = Duration::from_millis(300);
        }
    }
    rows
}
