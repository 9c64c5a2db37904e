//! Many steps in one call, and many batches that end at once: how many calls the engine gets, and how many at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::store::{Charge, Executed, Execution, Op, Step, StepAnswer, Store as _};
use tidegate::{Cost, Quota};

use crate::leased::behaviour::{quiet, take, warm, world};
use crate::leased::world::{Link, World};

/// Executes one step for each key in one call. Returns the answers, how long it took, and how many calls the engine got.
fn execute_each(world: &mut World, quota: &Arc<Quota>, keys: &[[u8; 4]]) -> (Vec<StepAnswer>, Duration, u64) {
    let (began, messages) = (world.now(), world.messages());
    let charges: Vec<_> = keys.iter().map(|key| [Charge::new(key, quota, Cost::ONE)]).collect();
    let steps: Vec<_> = charges.iter().map(|charges| Step::new(began, Op::Take, charges)).collect();
    let mut out = Vec::new();
    let node = world.nodes[0].clone();
    if let Some(later) = node.execute_each(&steps, &mut out) {
        out = world.finish(later);
    }
    (out, world.now().since(began), world.messages() - messages)
}

fn keys(count: u32) -> Vec<[u8; 4]> {
    (0..count).map(u32::to_le_bytes).collect()
}

fn allowed(answers: &[StepAnswer]) -> usize {
    answers.iter().filter(|answer| answer.as_ref().is_ok_and(|executed| executed.allowed)).count()
}

/// Regression: a batch of forty steps took forty round trips, one after the other.
#[test]
fn steps_of_one_call_are_asked_in_one_exchange() {
    let sliding = Arc::new(Quota::per_hour(5).sliding_log().unwrap());
    let mut world = world(1);
    let (answers, took, calls) = execute_each(&mut world, &sliding, &keys(40));
    assert_eq!((allowed(&answers), answers.len(), calls), (40, 40, 1));
    assert_eq!(took, Duration::from_millis(2), "one round trip");
    let same: Vec<_> = vec![[7; 4]; 8];
    let (answers, _, calls) = execute_each(&mut world, &sliding, &same);
    assert_eq!((allowed(&answers), calls), (5, 1), "one after the other");
}

#[test]
fn cold_keys_of_one_call_are_decided_in_one_exchange() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = world(1);
    let (answers, took, calls) = execute_each(&mut world, &quota, &keys(40));
    assert_eq!((allowed(&answers), calls, took), (40, 1, Duration::from_millis(2)));
    // One cold key, forty times: a draw for the steps that it brings units for, and an exchange for the others.
    let (answers, took, calls) = execute_each(&mut world, &quota, &[[0xFF; 4]; 40]);
    assert_eq!(allowed(&answers), 40);
    assert!(calls <= 3 && took <= Duration::from_millis(2), "{calls} calls, {took:?}");
}

/// Regression: after a lost draw, all requests of its key waited for the engine's deadline, a quarter of a second.
#[test]
fn a_draw_that_does_not_come_is_not_waited_for_any_longer() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = world(1);
    // The draw ahead of need is lost; it is waited for as long as a draw is to last, and then nobody waits.
    warm(&mut world, 0, b"k", &quota);
    *world.engines[0].link.lock() = Link::LosesAll;
    let charges = [Charge::new(b"k", &quota, Cost::ONE)];
    while world.nodes[0].health().outstanding > 0 {
        world.ask_and_go(0, Op::Take, &charges);
    }
    *world.engines[0].link.lock() = Link::Up;
    let began = world.now();
    for request in 0..60 {
        let asked = world.now();
        assert!(take(&mut world, 0, b"k", &quota, 1).allowed);
        let took = world.now().since(asked).as_millis();
        assert!(took <= 3 || (request < 20 && took <= 54), "{request}: {took}");
    }
    assert!(world.now().since(began) <= Duration::from_millis(250));
    // An engine that is far away has two round trips.
    let far = Duration::from_millis(40);
    let mut world = World::new(1, far / 2, |_, builder| builder);
    for _ in 0..300 {
        world.ask_and_go(0, Op::Take, &charges);
        let now = world.now().after(Duration::from_millis(1));
        world.run_to(now);
    }
    *world.engines[0].link.lock() = Link::LosesAll;
    while world.nodes[0].health().outstanding > 0 {
        world.ask_and_go(0, Op::Take, &charges);
    }
    *world.engines[0].link.lock() = Link::Up;
    let began = world.now();
    let took = take(&mut world, 0, b"k", &quota, 1).allowed.then(|| world.now().since(began)).unwrap();
    assert!(took <= 3 * far + Duration::from_millis(3), "{took:?}");
}

/// A node that closes does not return the units of all its keys in as many calls at once.
#[test]
fn returns_are_sent_some_at_a_time() {
    let quota = Arc::new(Quota::per_hour(1_000).burst(1_000).gcra().unwrap());
    let mut world = world(1);
    for key in keys(300) {
        for _ in 0..30 {
            world.ask_and_go(0, Op::Take, &[Charge::new(&key, &quota, Cost::ONE)]);
        }
    }
    quiet(&mut world);
    let health = world.nodes[0].health();
    let given = health.outstanding;
    assert!(given >= 300, "{health:?}");
    world.engines[0].most_at_once.store(0, Ordering::Relaxed);
    let closing = world.nodes[0].clone();
    world.finish(Box::pin(async move { closing.close().await }));
    let health = world.nodes[0].health();
    assert_eq!((health.outstanding, health.returned, health.burned), (0, given, 0));
    let most = world.engines[0].most_at_once.load(Ordering::Relaxed);
    assert!((32..=64).contains(&most), "{most} at once");
}

/// Requests that another limit refuses put back what they took of a leased one. That asks nobody, however many of them wait
/// for the engine at the same time.
#[test]
fn a_refusal_by_another_limit_costs_one_call() {
    let wide = Arc::new(Quota::per_second(1_000).burst(1_000).gcra().unwrap());
    let narrow = Arc::new(Quota::per_hour(5).sliding_log().unwrap());
    let mut world = World::new(1, Duration::from_millis(20), |_, builder| builder);
    let both = [Charge::new(b"wide", &wide, Cost::ONE), Charge::new(b"narrow", &narrow, Cost::ONE)];
    let start = world.now();
    for number in 0..1_000_u64 {
        world.run_to(start.after(Duration::from_millis(5 * number)));
        let step = Step { receipts: false, ..Step::new(world.now(), Op::Take, &both) };
        if let Execution::Later(later) = world.nodes[0].execute_into(&step, &mut Executed::default()) {
            world.spawn(Box::pin(async move { drop(later.await) }));
        }
        if number % 50 == 0 {
            world.tick();
        }
    }
    world.run_to(start.after(Duration::from_secs(6)));
    let health = world.nodes[0].health();
    assert!(health.messages <= 1_020, "besides some draws: {health:?}");
}
