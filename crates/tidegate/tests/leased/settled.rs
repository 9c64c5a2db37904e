//! Charges that turn out cheaper and end on any node, and an engine behind a fallback.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::cluster::Part;
use tidegate::limiter::{Finish, Receipt};
use tidegate::store::conformance::Random;
use tidegate::store::{
    Charge, ChargeRules, DecidedBy, Ending, Executed, Execution, Fallback, Leased, Op, Step, StepAnswer,
    Store as _,
};
use tidegate::{Cost, Outcome, Quota, Tick};
use tidegate_core::envelope::Envelope;

use crate::leased::behaviour::left;
use crate::leased::world::{Link, World};

const NODES: u64 = 4;

/// An admitted charge: when it was admitted, its receipt, and the units that it will have used.
type Open = (Tick, Receipt, u64);

fn execute(
    world: &mut World,
    node: usize,
    op: Op<'_>,
    quota: &Arc<Quota>,
    cost: Cost,
    told: impl FnOnce(StepAnswer) + Send + 'static,
) {
    let charges = [Charge::new(b"k", quota, cost)];
    let mut out = Executed::default();
    match world.nodes[node].execute_into(&Step::new(world.now(), op, &charges), &mut out) {
        Execution::Done(done) => told(done.map(|()| out)),
        Execution::Later(later) => world.spawn(Box::pin(async move { told(later.await) })),
    }
}

/// Calls reserve up to eight units and use some of them; how many is known up to a third of a second later, on another
/// node. Counted by the units really used, at the time of admission, the limit is never exceeded, and others use what
/// came back.
#[test]
fn what_is_really_used_stays_within_the_limit_though_charges_are_ended_elsewhere() {
    for seed in 1..=4 {
        let quota = Arc::new(Quota::per_second(4_000).burst(4_000).gcra().unwrap());
        let mut world = World::new(NODES as usize, Duration::from_millis(1), |_, builder| {
            builder.part(Part::even(NODES))
        });
        let (mut random, start) = (Random::seeded(seed), world.now());
        let admitted: Arc<Mutex<Vec<Open>>> = Arc::default();
        let mut due: BTreeMap<u64, Vec<Open>> = BTreeMap::new();
        let mut used: Vec<(Tick, u64)> = Vec::new();
        for ms in 0..4_000_u64 {
            world.run_to(start.after(Duration::from_millis(ms)));
            for _ in 0..random.below(5) {
                let (node, cost) = (random.below(NODES) as usize, Cost::new(1 + random.below(8)).unwrap());
                let share = random.below(1 + cost.units());
                let (admitted, time) = (Arc::clone(&admitted), world.time.clone());
                execute(&mut world, node, Op::Take, &quota, cost, move |answer| {
                    let executed = answer.unwrap();
                    if let (true, Some(receipt)) = (executed.allowed, executed.lines[0].receipt) {
                        admitted.lock().push((tidegate::clock::Clock::now(&time), receipt, share));
                    }
                });
            }
            for open in admitted.lock().drain(..) {
                due.entry(ms + random.below(300)).or_default().push(open);
            }
            for (at, receipt, share) in due.remove(&ms).unwrap_or_default() {
                used.push((at, share));
                let endings = [Ending::new(receipt, Finish { used: share, outcome: Outcome::Success })];
                let node = random.below(NODES) as usize;
                execute(&mut world, node, Op::Finish(&endings), &quota, receipt.cost, |answer| {
                    drop(answer.unwrap());
                });
            }
            if ms % 200 == 0 {
                world.tick();
            }
        }
        used.extend(due.into_values().flatten().map(|(at, _, share)| (at, share)));
        used.sort_unstable();
        let mut judge = Envelope::of(&quota).unwrap();
        used.iter().for_each(|(at, units)| judge.ask(*at, *units, true));
        assert_eq!(judge.excess(), 0, "seed {seed}");
        let all: u64 = used.iter().map(|(_, units)| units).sum();
        assert!(
            all > 9_000,
            "{all} units used, of about nine thousand and a half that were to be; seed {seed}"
        );
    }
}

/// Only one node takes tickets, and undoes them; the other one holds what it takes to be missing at the engine. Where the
/// policy does not say that its charges are settled, its part of what comes back is held too.
#[test]
fn tickets_of_one_node_give_the_other_no_more_than_the_limit() {
    let (burst, ticket) = (400, 300);
    let mut most = BTreeMap::new();
    for (seed, settled) in (1..=20).flat_map(|seed| [(seed, true), (seed, false)]) {
        let quota = Arc::new(Quota::per_second(400).burst(burst).gcra().unwrap());
        let engine = Arc::new(quota.with_less_burst(burst * 19 / 20).unwrap());
        let mut world = World::new(2, Duration::from_millis(20), |_, builder| builder.nodes(2));
        let (mut random, start) = (Random::seeded(seed), world.now());
        let tickets: Arc<Mutex<Vec<Receipt>>> = Arc::default();
        let mut due: BTreeMap<u64, Receipt> = BTreeMap::new();
        for ms in 0..1_200_u64 {
            world.run_to(start.after(Duration::from_millis(ms)));
            // Some requests while the ticket is open, and others when it has been undone.
            if matches!(ms, 100..300 | 800..1_200) && ms % 5 == 0 {
                let rules = ChargeRules { settled, ..ChargeRules::new(0) };
                let charges = [Charge { rules, ..Charge::new(b"k", &quota, Cost::ONE) }];
                let step = Step { receipts: false, ..Step::new(world.now(), Op::Take, &charges) };
                if let Execution::Later(later) = world.nodes[1].execute_into(&step, &mut Executed::default())
                {
                    world.spawn(Box::pin(async move { drop(later.await) }));
                }
            }
            if ms == 0 {
                let tickets = Arc::clone(&tickets);
                execute(&mut world, 0, Op::Take, &quota, Cost::new(ticket).unwrap(), move |answer| {
                    tickets.lock().extend(answer.unwrap().lines[0].receipt);
                });
            }
            due.extend(tickets.lock().drain(..).map(|receipt| (ms + 310 + random.below(50), receipt)));
            if let Some(receipt) = due.remove(&ms) {
                let endings = [Ending::new(receipt, Finish::UNDONE)];
                execute(&mut world, 0, Op::Finish(&endings), &quota, receipt.cost, |answer| {
                    drop(answer.unwrap());
                });
            }
            if ms % 250 == 0 {
                world.tick();
            }
            let at_once = left(&world, b"k", &engine) + world.outstanding();
            let most = most.entry(settled).or_insert(0);
            *most = at_once.max(*most);
        }
    }
    assert!(most[&true] <= burst, "{most:?}");
    assert!(most[&false] > burst && most[&false] <= burst + ticket / 2, "{most:?}");
}

#[test]
fn when_the_engine_is_gone_the_fallback_decides_and_ends_what_it_granted() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = World::new(1, Duration::from_millis(1), |_, builder| builder);
    let fallback = Fallback::around(world.engines[0].clone(), world.time.clone()).nodes(10).build();
    world.nodes = vec![Leased::around(fallback, world.time.clone()).background(drop).build()];
    let link = Arc::clone(&world.engines[0].link);
    *link.lock() = Link::Down;
    let take = |world: &mut World| {
        let charges = [Charge::new(b"k", &quota, Cost::ONE)];
        world.nodes[0].blocking_execute(&Step::new(world.now(), Op::Take, &charges)).unwrap()
    };
    let (mut granted, mut receipt) = (0, None);
    for _ in 0..200 {
        let executed = take(&mut world);
        assert_eq!(executed.by, DecidedBy::Fallback);
        granted += u64::from(executed.allowed);
        receipt = receipt.or(executed.lines[0].receipt);
    }
    assert_eq!(granted, 95, "a tenth of what the engine would grant in all");
    let endings = [Ending::new(receipt.unwrap(), Finish::UNDONE)];
    let charges = [Charge { by_fallback: true, ..Charge::new(b"k", &quota, Cost::ONE) }];
    let step = Step::new(world.now(), Op::Finish(&endings), &charges);
    assert!(world.nodes[0].blocking_execute(&step).unwrap().lines[0].receipt.is_some());
    assert!(take(&mut world).allowed, "the unit is there again");
}
