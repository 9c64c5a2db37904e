//! How a node handles refusals of the engine: it does not ask again while that is useless, and it finds units that come
//! back.

use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::Part;
use tidegate::limiter::{Finish, Receipt, Retry};
use tidegate::store::{Charge, ChargeRules, DecidedBy, Durable, Ending, Executed, Op};
use tidegate::{Cost, Quota};

use crate::leased::behaviour::{execute, left, quiet, take, warm, world};
use crate::leased::world::{Link, World};

/// Limits that give hardly anything back during a test: a GCRA limit and a fixed window.
fn slow() -> [Arc<Quota>; 2] {
    [Quota::per_day(40).burst(40).gcra(), Quota::per_day(40).fixed_window()]
        .map(|quota| Arc::new(quota.unwrap()))
}

/// Takes units until none is left. Returns the receipts and the refusal.
fn exhaust(world: &mut World, node: usize, quota: &Arc<Quota>) -> (Vec<Receipt>, Executed) {
    let mut receipts = Vec::new();
    for _ in 0..200 {
        let executed = take(world, node, b"k", quota, 1);
        if !executed.allowed {
            let Retry::After(wait) = executed.lines[0].decision.retry() else { panic!("it tells when") };
            assert!(wait > Duration::from_secs(60), "{wait:?}");
            let messages = world.messages();
            assert!((0..50).all(|_| !take(world, node, b"k", quota, 1).allowed));
            assert_eq!(world.messages(), messages, "it is repeated without a call");
            return (receipts, executed);
        }
        receipts.extend(executed.lines[0].receipt);
    }
    panic!("a limit of forty is used up")
}

fn undo(world: &mut World, node: usize, quota: &Arc<Quota>, receipt: Receipt) {
    let endings = [Ending::new(receipt, Finish::UNDONE)];
    execute(world, node, Op::Finish(&endings), &[Charge::new(b"k", quota, receipt.cost)]).unwrap();
}

fn reset(world: &mut World, node: usize, quota: &Arc<Quota>) {
    execute(world, node, Op::Reset, &[Charge::new(b"k", quota, Cost::ONE)]).unwrap();
}

fn pass(world: &mut World, span: Duration) {
    let now = world.now().after(span);
    world.run_to(now);
}

/// Regression: after a day's units were used up, a node refused for the rest of the day, even after units were returned
/// through it.
#[test]
fn what_comes_back_through_a_node_is_granted_by_it_at_once() {
    for quota in slow() {
        let mut world = world(1);
        let (receipts, _) = exhaust(&mut world, 0, &quota);
        undo(&mut world, 0, &quota, receipts[3]);
        assert!(take(&mut world, 0, b"k", &quota, 1).allowed, "{quota:?}");
        assert!(!take(&mut world, 0, b"k", &quota, 1).allowed, "it was one unit");
    }
}

#[test]
fn what_comes_back_or_is_reset_elsewhere_is_found_within_the_time_that_units_may_be_held() {
    for quota in slow() {
        for resets in [true, false] {
            let mut world = world(2);
            let (receipts, _) = exhaust(&mut world, 0, &quota);
            match resets {
                true => reset(&mut world, 1, &quota),
                false => undo(&mut world, 1, &quota, receipts[3]),
            }
            // It is asked all the time, as by an impatient client.
            for _ in 0..11 {
                pass(&mut world, Duration::from_millis(100));
                let _ = take(&mut world, 0, b"k", &quota, 1);
            }
            let granted = world.nodes[0].health();
            assert!(granted.messages < 80, "{granted:?}");
            let more = (0..3).filter(|_| take(&mut world, 0, b"k", &quota, 1).allowed).count();
            assert_eq!(more, if resets { 3 } else { 0 }, "{quota:?}");
            let spent = 40 - receipts.len();
            let left = left(&world, b"k", &quota);
            assert!(resets || left <= spent as u64, "the unit that came back was granted: {left}, {quota:?}");
        }
    }
}

#[test]
fn a_key_that_is_used_up_costs_one_call_in_the_time_that_units_may_be_held() {
    for quota in slow() {
        let mut world = world(1);
        exhaust(&mut world, 0, &quota);
        let before = world.messages();
        for _ in 0..1000 {
            pass(&mut world, Duration::from_millis(10));
            assert!(!take(&mut world, 0, b"k", &quota, 1).allowed);
        }
        let calls = world.messages() - before;
        assert!((8..=11).contains(&calls), "{calls} calls in ten seconds, {quota:?}");
    }
}

#[test]
fn what_a_peek_finds_a_take_gets() {
    for quota in slow() {
        let mut world = world(2);
        exhaust(&mut world, 0, &quota);
        reset(&mut world, 1, &quota);
        let peek = execute(&mut world, 0, Op::Peek, &[Charge::new(b"k", &quota, Cost::ONE)]).unwrap();
        assert!(peek.allowed && take(&mut world, 0, b"k", &quota, 1).allowed, "{quota:?}");
    }
}

/// Regression: a take was sent before a reset and refused before it, but its answer came after the reset. The node took
/// it for a refusal of the full key.
#[test]
fn a_reset_is_not_undone_by_a_late_refusal() {
    for quota in slow() {
        for cost in [1, 30] {
            for takes_first in [true, false] {
                let mut world = world(1);
                exhaust(&mut world, 0, &quota);
                pass(&mut world, Duration::from_secs(2));
                let charges = [Charge::new(b"k", &quota, Cost::new(cost).unwrap())];
                if takes_first {
                    world.ask_and_go(0, Op::Take, &charges);
                }
                world.ask_and_go(0, Op::Reset, &charges);
                if !takes_first {
                    world.ask_and_go(0, Op::Take, &charges);
                }
                quiet(&mut world);
                assert!(take(&mut world, 0, b"k", &quota, 1).allowed, "{cost} of {quota:?}");
                assert!(!takes_first || take(&mut world, 0, b"k", &quota, 25).allowed, "{cost} of {quota:?}");
            }
        }
    }
}

#[test]
fn a_key_that_could_not_be_forgotten_keeps_what_was_drawn_of_it() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = world(1);
    warm(&mut world, 0, b"k", &quota);
    let held = world.nodes[0].health().outstanding;
    *world.engines[0].link.lock() = Link::Down;
    let charges = [Charge::new(b"k", &quota, Cost::ONE)];
    assert!(execute(&mut world, 0, Op::Finish(&[Ending::Forget]), &charges).is_err());
    assert!(execute(&mut world, 0, Op::Reset, &charges).is_err());
    assert_eq!(world.nodes[0].health().outstanding, held);
    *world.engines[0].link.lock() = Link::Up;
    execute(&mut world, 0, Op::Finish(&[Ending::Forget]), &charges).unwrap();
    assert_eq!(world.nodes[0].health().outstanding, 0);
}

/// Regression: after one large cost was refused, each request of its key was decided by the engine until that cost
/// would fit.
#[test]
fn a_large_cost_that_is_refused_leaves_small_ones_to_the_batches() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = world(1);
    assert!(take(&mut world, 0, b"k", &quota, 850).allowed);
    assert!(!take(&mut world, 0, b"k", &quota, 300).allowed);
    let messages = world.messages();
    assert!(!take(&mut world, 0, b"k", &quota, 300).allowed);
    assert_eq!(world.messages(), messages, "and it is not asked for again");
    let central = world.nodes[0].health().central;
    for _ in 0..80 {
        pass(&mut world, Duration::from_micros(500));
        assert!(take(&mut world, 0, b"k", &quota, 1).allowed);
    }
    assert!(world.nodes[0].health().central <= central + 8, "until its demand is known");
}

/// Low priority has to leave 500 units, and about 350 are left: high priority takes them from batches.
#[test]
fn high_priority_has_batches_where_low_priority_is_refused() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = world(1);
    assert!(take(&mut world, 0, b"k", &quota, 650).allowed);
    let low = [Charge { kept_back: 500, ..Charge::new(b"k", &quota, Cost::ONE) }];
    assert!(!execute(&mut world, 0, Op::Take, &low).unwrap().allowed);
    let before = world.nodes[0].health();
    for turn in 0..200 {
        pass(&mut world, Duration::from_micros(500));
        assert!(take(&mut world, 0, b"k", &quota, 1).allowed);
        if turn % 10 == 0 {
            assert!(!execute(&mut world, 0, Op::Take, &low).unwrap().allowed);
        }
    }
    let health = world.nodes[0].health();
    assert!(health.central <= before.central + 8, "{health:?}");
    assert!(health.messages - before.messages < 40, "{health:?}");
}

#[test]
fn a_peek_finds_no_more_than_a_take_would() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let part = Part::even(100);
    part.set(Part::WHOLE, tidegate::Tick::EPOCH, tidegate::Tick::MAX);
    let mine = part.clone();
    let mut world = World::new(1, Duration::from_millis(1), move |_, builder| builder.part(mine.clone()));
    warm(&mut world, 0, b"k", &quota);
    let ten = [Charge::new(b"k", &quota, Cost::new(10).unwrap())];
    assert_eq!(execute(&mut world, 0, Op::Peek, &ten).unwrap().by, DecidedBy::Lease);
    part.set(Part::WHOLE / 10, tidegate::Tick::EPOCH, tidegate::Tick::MAX);
    assert_eq!(
        execute(&mut world, 0, Op::Peek, &ten).unwrap().by,
        DecidedBy::Engine,
        "a tenth of fifty is five"
    );
}

#[test]
fn a_draw_is_on_disk_before_it_is_answered_where_its_requests_have_to_be() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = world(1);
    for durable in [Durable::Interval, Durable::Strict] {
        pass(&mut world, Duration::from_secs(2));
        let rules = ChargeRules { durable, ..ChargeRules::new(0) };
        let charges = [Charge { rules, ..Charge::new(b"k", &quota, Cost::ONE) }];
        for _ in 0..20 {
            pass(&mut world, Duration::from_millis(1));
            execute(&mut world, 0, Op::Take, &charges).unwrap();
        }
        assert_eq!(*world.engines[0].drawn_as.lock(), Some(durable));
    }
}
