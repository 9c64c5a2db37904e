//! How much of a limit nodes use that divide it by their demand, on a virtual clock.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::clock::{Clock as _, ManualClock};
use tidegate::cluster::shares::{Division, Driver, Status};
use tidegate::cluster::{LocalCluster, Part};
use tidegate::store::{Charge, Later, MemoryStore, Op, Split, Step, Store};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::envelope::Envelope;

/// How long members are kept, as the server configures its engines.
const KEEPS: Duration = Duration::from_secs(10);

/// How far the clock moves in one step.
const STEP: Duration = Duration::from_millis(1);

/// A node: its store, and the task that agrees on the division with the other nodes.
struct Node {
    store: Split,
    part: Part,
    status: Box<dyn Fn() -> Status>,
    run: Later<()>,
    /// When the next request comes to the node.
    due: Tick,
}

/// Nodes on one clock.
struct Cluster {
    clock: ManualClock,
    cluster: LocalCluster,
    most: u64,
    nodes: Vec<Node>,
}

impl Cluster {
    fn new(most: u64) -> Self {
        let clock = ManualClock::at(Tick::from_secs(1_000));
        let cluster = LocalCluster::new(clock.clone(), KEEPS);
        Self { clock, cluster, most, nodes: Vec::new() }
    }

    fn start(&mut self) {
        let asked: Arc<std::sync::OnceLock<Box<dyn Fn() -> u64 + Send + Sync>>> = Arc::default();
        let demand = Arc::clone(&asked);
        let mut driver = Driver::new(
            self.cluster.node(),
            self.clock.clone(),
            format!("node {}", self.nodes.len()),
            Division::among(self.most),
            move || demand.get().map_or(0, |asked| asked()),
        );
        let part = driver.part();
        let store = Split::new(MemoryStore::with_capacity(64).unwrap(), part.clone());
        let _ = asked.set(Box::new(store.demand()));
        let status = Box::new(driver.status());
        let run: Later<()> = Box::pin(async move { driver.run(std::future::pending()).await });
        self.nodes.push(Node { store, part, status, run, due: self.clock.now() });
    }

    /// Lets time pass. Each node gets `per_second` requests a second, and `judge` records the decisions.
    fn pass(&mut self, span: Duration, per_second: &[f64], quota: &Arc<Quota>, judge: &mut Envelope) {
        let end = self.clock.now().after(span);
        let mut cx = Context::from_waker(Waker::noop());
        for (at, node) in self.nodes.iter_mut().enumerate() {
            node.due = self.clock.now().after(Duration::from_micros(700) * u32::try_from(at).unwrap());
        }
        while self.clock.now() < end {
            let now = self.clock.now();
            for (node, per_second) in self.nodes.iter_mut().zip(per_second) {
                // Polled twice: the first poll may wake what the second continues.
                for _ in 0..2 {
                    assert!(node.run.as_mut().poll(&mut cx).is_pending());
                }
                while *per_second > 0.0 && node.due <= now {
                    let charges = [Charge::new(b"k", quota, Cost::ONE)];
                    let executed = node.store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap();
                    judge.ask(now, 1, executed.allowed);
                    node.due = node.due.after(Duration::from_secs_f64(1.0 / per_second));
                }
            }
            self.clock.advance(STEP);
        }
    }

    fn parts(&self) -> Vec<u64> {
        let thousandths =
            |node: &Node| u64::from(node.part.at(self.clock.now())) * 1000 / u64::from(Part::WHOLE);
        self.nodes.iter().map(thousandths).collect()
    }
}

fn limit() -> Arc<Quota> {
    Arc::new(Quota::per_second(100).burst(160).gcra().unwrap())
}

/// Makes four nodes that start `apart` from each other, divide the limit, and then have no requests for `idle`.
fn four(apart: Duration, idle: Duration) -> Cluster {
    let (mut nodes, quota) = (Cluster::new(4), limit());
    let mut nobody = Envelope::of(&quota).unwrap();
    for _ in 0..4 {
        nodes.start();
        nodes.pass(apart, &[0.0; 4], &quota, &mut nobody);
    }
    while !nodes.nodes.iter().any(|node| (node.status)().members == 4) {
        nodes.pass(Duration::from_millis(10), &[0.0; 4], &quota, &mut nobody);
    }
    nodes.pass(idle, &[0.0; 4], &quota, &mut nobody);
    nodes
}

/// Load begins on four nodes alike. Regression: the leader looks and renews every second, the others renew every two
/// and a half seconds. So the leader heard of its own load first, gave itself 95 % of the limit, and gave it back in
/// steps over the next five seconds. In the first ten seconds 87 to 89 % of the limit were used; 61 to 75 % with slow
/// nodes and a slow engine.
#[test]
fn load_that_begins_everywhere_leaves_parts_where_they_are() {
    let quota = limit();
    for idle in [3_000, 3_250, 3_500, 20_000, 21_100] {
        let mut nodes = four(Duration::from_millis(300), Duration::from_millis(idle));
        let mut judge = Envelope::of(&quota).unwrap();
        for tenth in 0..100 {
            nodes.pass(Duration::from_millis(100), &[50.0; 4], &quota, &mut judge);
            let parts = nodes.parts();
            assert!(
                parts.iter().all(|part| *part >= 225),
                "after {tenth} tenths of a second: {parts:?}, idle {idle}"
            );
        }
        let used = judge.utilisation().per_mille();
        assert!(
            used >= 980 && judge.excess() == 0,
            "{used} thousandths, {} too many, idle {idle}",
            judge.excess()
        );
    }
}

/// The same for nodes that have just started: a part given up by one node counts for the others once the limit would
/// have filled up.
#[test]
fn nodes_that_have_just_started_use_most_of_the_limit() {
    let quota = limit();
    for apart in [50, 100, 200, 300, 400] {
        let mut nodes = four(Duration::from_millis(apart), Duration::ZERO);
        let mut judge = Envelope::of(&quota).unwrap();
        nodes.pass(Duration::from_secs(10), &[50.0; 4], &quota, &mut judge);
        let used = judge.utilisation().per_mille();
        assert!(
            used >= 800 && judge.excess() == 0,
            "{used} thousandths, {} too many, {apart}",
            judge.excess()
        );
    }
}

/// Regression: demand was reported in whole units a second, rounded down. Of nodes with 0.9, 0.9, 0.9 and 1.2 requests
/// a second, the last one got nearly all. A node may also have the most by chance: 20 units in five seconds do not show
/// where the demand is.
#[test]
fn a_little_demand_moves_nothing() {
    let quota = limit();
    let mut nodes = four(Duration::from_millis(300), Duration::from_secs(3));
    let mut judge = Envelope::of(&quota).unwrap();
    for second in 0..60 {
        nodes.pass(Duration::from_secs(1), &[0.9, 0.9, 0.9, 1.2], &quota, &mut judge);
        let parts = nodes.parts();
        assert!(parts.iter().all(|part| *part >= 225), "after {second} s: {parts:?}");
    }
}

/// The limit follows clear demand: one node gets all requests, and then another one.
#[test]
fn demand_that_goes_elsewhere_takes_the_limit_along() {
    let quota = limit();
    let mut nodes = four(Duration::from_millis(300), Duration::from_secs(3));
    for hot in [3, 0, 2] {
        let mut asked = [0.0; 4];
        asked[hot] = 200.0;
        let mut judge = Envelope::of(&quota).unwrap();
        nodes.pass(Duration::from_secs(15), &asked, &quota, &mut judge);
        let parts = nodes.parts();
        assert!(parts[hot] >= 850, "{parts:?}");
        assert_eq!(judge.excess(), 0);
    }
}
