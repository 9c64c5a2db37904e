//! What leases admit and how many calls they cost, under loads that other ways of sharing a limit handle badly.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::cluster::Part;
use tidegate::store::conformance::Random;
use tidegate::store::{Charge, Executed, Execution, Op, Step, Store as _};
use tidegate::{Cost, Quota};
use tidegate_core::envelope::Envelope;

use crate::leased::behaviour::left;
use crate::leased::world::World;

const NODES: usize = 10;
const RATE: u64 = 10_000;
const BURST: u64 = 10_000;
const SECONDS: u64 = 12;

/// How many requests a node gets in a second, at a time in milliseconds.
type Load = fn(node: usize, ms: u64) -> u64;

/// The result of a load.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) excess: u64,
    pub(crate) utilisation: u64,
    pub(crate) asked: u64,
    pub(crate) messages: u64,
    /// The most that the engine and all nodes could grant at one moment.
    pub(crate) most_at_once: u64,
}

/// The envelope that checks the limit, and how many requests were answered. It is told of each answer.
pub(crate) type Judge = Arc<Mutex<(Envelope, u64)>>;

pub(crate) fn ask(world: &mut World, node: usize, quota: &Arc<Quota>, judge: &Judge) {
    let charges = [Charge::new(b"the key", quota, Cost::ONE)];
    let now = world.now();
    let mut out = Executed::default();
    let execution = world.nodes[node]
        .execute_into(&Step { receipts: false, ..Step::new(now, Op::Take, &charges) }, &mut out);
    let (time, judge) = (world.time.clone(), Arc::clone(judge));
    let told = move |allowed: bool| {
        let mut judge = judge.lock();
        judge.0.ask(tidegate::clock::Clock::now(&time), 1, allowed);
        judge.1 += 1;
    };
    match execution {
        Execution::Done(done) => told(done.is_ok() && out.allowed),
        Execution::Later(later) => world.spawn(Box::pin(async move {
            let answer = later.await;
            told(answer.is_ok_and(|executed| executed.allowed));
        })),
    }
}

/// Runs a load. With `weigh`, each node gets a part by its demand of the last tenth of a second.
fn run(load: Load, strict: bool, weigh: bool) -> Outcome {
    let quota = Arc::new(Quota::per_second(RATE).burst(BURST).gcra().unwrap());
    let parts: Vec<Part> =
        (0..NODES).map(|_| Part::even(if weigh { 4 * NODES as u64 } else { NODES as u64 })).collect();
    let mut world = World::new(NODES, Duration::from_millis(1), |node, builder| {
        let builder = builder.part(parts[node].clone());
        if strict { builder } else { builder.bounded() }
    });
    let judge: Judge = Arc::new(Mutex::new((Envelope::of(&quota).unwrap(), 0)));
    let (start, mut random) = (world.now(), Random::seeded(7));
    let engine = Arc::new(quota.with_less_burst(if strict { BURST - BURST / 20 } else { BURST }).unwrap());
    let mut most_at_once = 0;
    // Requests that are due, in thousandths of a request.
    let mut due = [0_u64; NODES];
    let mut lately = [0_u64; NODES];
    for step in 0..SECONDS * 10_000 {
        let tick = start.after(Duration::from_micros(step * 100));
        world.run_to(tick);
        let ms = step / 10;
        // Starts at a random node, so that no node is always first.
        let first = random.below(NODES as u64) as usize;
        for node in (0..NODES).map(|node| (node + first) % NODES) {
            due[node] += load(node, ms) / 10;
            while due[node] >= 1000 {
                due[node] -= 1000;
                lately[node] += 1;
                ask(&mut world, node, &quota, &judge);
            }
        }
        if step % 1000 == 0 {
            if weigh {
                weigh_anew(&parts, &mut lately);
            }
            world.tick();
            most_at_once = most_at_once.max(left(&world, b"the key", &engine) + world.outstanding());
        }
    }
    world.run_to(start.after(Duration::from_secs(SECONDS + 1)));
    let judge = judge.lock();
    Outcome {
        excess: judge.0.excess(),
        utilisation: judge.0.utilisation().per_mille(),
        asked: judge.1,
        messages: world.messages(),
        most_at_once,
    }
}

/// Gives each node a quarter of an even part, and divides the rest by demand. All parts change at the same time, since
/// nodes read their part with each request.
fn weigh_anew(parts: &[Part], lately: &mut [u64; NODES]) {
    let all: u64 = lately.iter().sum::<u64>().max(1);
    let floor = u64::from(Part::WHOLE) / (4 * NODES as u64);
    let rest = u64::from(Part::WHOLE) - floor * NODES as u64;
    for (part, asked) in parts.iter().zip(lately) {
        part.set(
            u32::try_from(floor + rest * *asked / all).unwrap(),
            tidegate::Tick::EPOCH,
            tidegate::Tick::MAX,
        );
        *asked = 0;
    }
}

/// 1.2 times the rate; the demand of node `n` is proportional to 1 / (n + 1)².
fn skewed(node: usize, _: u64) -> u64 {
    let weight = |node: usize| 1_000_000 / ((node as u64 + 1) * (node as u64 + 1));
    let all: u64 = (0..NODES).map(weight).sum();
    RATE * 12 / 10 * weight(node) / all
}

/// Twice the rate, divided evenly among the nodes.
fn even(_: usize, _: u64) -> u64 {
    2 * RATE / NODES as u64
}

/// Nine tenths of the rate, all on one node, and on another node every two seconds.
fn hopping(node: usize, ms: u64) -> u64 {
    if (ms / 2000) as usize % NODES == node { RATE * 9 / 10 } else { 0 }
}

/// Three times the rate, in the first half of each second.
fn on_off(_: usize, ms: u64) -> u64 {
    if ms % 1000 < 500 { 3 * RATE / NODES as u64 } else { 0 }
}

/// A tenth of the rate for four seconds, and then four times the rate.
fn quiet_then_all(_: usize, ms: u64) -> u64 {
    if ms < 4000 { RATE / 100 } else { 4 * RATE / NODES as u64 }
}

const LOADS: [(&str, Load); 5] = [
    ("even", even),
    ("skewed", skewed),
    ("hopping", hopping),
    ("on and off", on_off),
    ("quiet, then all", quiet_then_all),
];

#[test]
fn strict_leases_never_exceed_the_limit_and_use_nearly_all_of_it() {
    for (name, load) in LOADS {
        let outcome = run(load, true, false);
        println!("strict, {name}: {outcome:?}");
        assert!(outcome.excess == 0 && outcome.most_at_once <= BURST, "{name}: {outcome:?}");
        assert!(outcome.utilisation >= 970, "{name}: {outcome:?}");
        assert!(outcome.messages * 40 <= outcome.asked, "{name}: a call for forty requests: {outcome:?}");
    }
}

#[test]
fn bounded_leases_exceed_it_by_what_is_outstanding_at_most() {
    for (name, load) in LOADS {
        let outcome = run(load, false, false);
        println!("bounded, {name}: {outcome:?}");
        assert!(outcome.excess.max(outcome.most_at_once - BURST) <= BURST / 20, "{name}: {outcome:?}");
        assert!(outcome.utilisation >= 970, "{name}: {outcome:?}");
    }
}

#[test]
fn parts_by_demand_spare_a_busy_node_calls() {
    for (name, load) in [("skewed", skewed as Load), ("hopping", hopping)] {
        let (even, weighed) = (run(load, true, false), run(load, true, true));
        println!("by demand, {name}: {weighed:?}");
        assert!(weighed.excess == 0 && weighed.most_at_once <= BURST, "{name}: {weighed:?}");
        assert!(weighed.utilisation >= 970, "{name}: {weighed:?}");
        assert!(weighed.messages * 20 < even.messages * 19, "{name}: {even:?} {weighed:?}");
    }
}

/// A hundred thousand keys, each asked for once in ten seconds: no more calls than if the engine decided each request.
#[test]
fn keys_that_are_asked_for_seldom_cost_a_call_for_each_request() {
    let quota = Arc::new(Quota::per_second(RATE).burst(BURST).gcra().unwrap());
    let mut world = World::new(NODES, Duration::from_millis(1), |_, builder| builder.nodes(NODES as u64));
    let (start, mut random) = (world.now(), Random::seeded(7));
    for number in 0..60_000 {
        let tick = start.after(Duration::from_micros(number * 100));
        world.run_to(tick);
        let key = random.below(100_000).to_be_bytes();
        world.ask_and_go(
            random.below(NODES as u64) as usize,
            Op::Take,
            &[Charge::new(&key, &quota, Cost::ONE)],
        );
    }
    world.run_to(start.after(Duration::from_secs(9)));
    assert_eq!(world.messages(), 60_000);
}
