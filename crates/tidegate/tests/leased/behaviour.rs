//! What callers see of leases, and where units are when a charge ends, a key is reset, or the engine is gone.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Clock as _;
use tidegate::cluster::Part;
use tidegate::limiter::{Finish, Receipt, Retry};
use tidegate::store::{Charge, DecidedBy, Ending, Executed, Execution, Op, Step, StepAnswer, Store};
use tidegate::{Cost, Outcome, Quota};

use tidegate_core::envelope::WindowEnvelope;
use tidegate_core::rate::CalendarUnit;

use crate::leased::world::{Link, World};

const RTT: Duration = Duration::from_millis(2);

/// Executes a step on a node, and runs the world until it answers.
pub(crate) fn execute(world: &mut World, node: usize, op: Op<'_>, charges: &[Charge<'_>]) -> StepAnswer {
    let step = Step::new(world.now(), op, charges);
    let mut out = Executed::default();
    match world.nodes[node].execute_into(&step, &mut out) {
        Execution::Done(done) => done.map(|()| out),
        Execution::Later(later) => world.finish(later),
    }
}

pub(crate) fn take(world: &mut World, node: usize, key: &[u8], quota: &Arc<Quota>, units: u64) -> Executed {
    execute(world, node, Op::Take, &[Charge::new(key, quota, Cost::new(units).unwrap())]).unwrap()
}

/// Lets all calls in flight end.
pub(crate) fn quiet(world: &mut World) {
    let now = world.now().after(3 * RTT);
    world.run_to(now);
}

/// Returns the units that requests have spent from batches.
fn spent(world: &World) -> u64 {
    let health = world.nodes[0].health();
    health.drawn - health.outstanding - health.reserved - health.returned
}

/// Takes units one by one until the batch holds more than 12. Returns how many were taken.
pub(crate) fn warm(world: &mut World, node: usize, key: &[u8], quota: &Arc<Quota>) -> u64 {
    for taken in 1..200 {
        let now = world.now().after(Duration::from_micros(500));
        world.run_to(now);
        let executed = take(world, node, key, quota, 1);
        assert!(executed.allowed);
        if executed.by == DecidedBy::Lease && world.nodes[node].health().outstanding > 12 {
            quiet(world);
            return taken;
        }
    }
    panic!("a key that is asked for all the time is decided out of batches")
}

/// Returns how many units of a key the engine has left, by the quota that the engine counts with.
pub(crate) fn left(world: &World, key: &[u8], quota: &Arc<Quota>) -> u64 {
    let charges = [Charge::new(key, quota, Cost::ONE)];
    let peek = Step::new(world.time.now(), Op::Peek, &charges);
    world.engines[0].store.blocking_execute(&peek).unwrap().lines[0].decision.standing.remaining
}

/// A thousand an hour: hardly any unit comes back during a test.
fn hourly() -> (Arc<Quota>, Arc<Quota>) {
    let quota = Quota::per_hour(1_000).burst(1_000).gcra().unwrap();
    let engine = quota.with_less_burst(950).unwrap();
    (Arc::new(quota), Arc::new(engine))
}

pub(crate) fn world(nodes: usize) -> World {
    World::new(nodes, RTT / 2, |_, builder| builder.part(Part::even(nodes as u64)))
}

#[test]
fn what_is_not_spent_in_time_comes_back_to_the_engine() {
    let (quota, engine) = hourly();
    let mut world = world(1);
    let spent = warm(&mut world, 0, b"k", &quota);
    assert!(left(&world, b"k", &engine) < 950 - spent, "more is drawn than was spent");
    for _ in 0..5 {
        let now = world.now().after(Duration::from_millis(300));
        world.run_to(now);
        world.tick();
    }
    let now = world.now().after(RTT);
    world.run_to(now);
    assert_eq!(left(&world, b"k", &engine), 950 - spent);
    let health = world.nodes[0].health();
    assert_eq!((health.outstanding, health.burned), (0, 0));
    assert_eq!(health.drawn - health.returned + health.central, spent);
}

#[test]
fn a_node_that_closes_gives_all_back_and_one_that_crashes_burns_it() {
    let (quota, engine) = hourly();
    let mut world = world(2);
    let first = warm(&mut world, 0, b"k", &quota);
    let closing = world.nodes[0].clone();
    world.spawn(Box::pin(async move { closing.close().await }));
    let now = world.now().after(RTT);
    world.run_to(now);
    assert_eq!(left(&world, b"k", &engine), 950 - first);
    let second = warm(&mut world, 1, b"k", &quota);
    let lost = world.nodes[1].health().outstanding;
    world.nodes.truncate(1);
    let now = world.now().after(Duration::from_secs(5));
    world.run_to(now);
    let refilled = 1;
    let left = left(&world, b"k", &engine);
    assert!((950 - first - second - lost..=950 - first - second - lost + refilled).contains(&left));
}

/// A charge of five that used two, and one that used twenty-five, both settled on another node.
#[test]
fn a_charge_is_ended_on_any_node_and_its_units_move() {
    let (quota, engine) = hourly();
    let mut world = world(2);
    warm(&mut world, 0, b"k", &quota);
    let charged = take(&mut world, 0, b"k", &quota, 5);
    assert_eq!(charged.by, DecidedBy::Lease);
    let receipt: Receipt = charged.lines[0].receipt.unwrap();
    assert_eq!(receipt.cost.units(), 5);
    // Another request spends from the same batch meanwhile.
    take(&mut world, 0, b"k", &quota, 1);
    quiet(&mut world);
    let finish = |world: &mut World, node, receipt: Receipt, used| {
        let endings = [Ending::new(receipt, Finish { used, outcome: Outcome::Success })];
        execute(world, node, Op::Finish(&endings), &[Charge::new(b"k", &quota, receipt.cost)]).unwrap()
    };
    let before = left(&world, b"k", &engine);
    let back = finish(&mut world, 1, receipt, 2);
    assert_eq!(back.by, DecidedBy::Engine);
    assert_eq!(back.lines[0].receipt.map(|back| back.cost.units()), Some(3));
    assert_eq!(left(&world, b"k", &engine), before + 3, "what was not used is everybody's again");

    let dear = take(&mut world, 0, b"k", &quota, 5).lines[0].receipt.unwrap();
    quiet(&mut world);
    let before = left(&world, b"k", &engine);
    finish(&mut world, 1, dear, 25);
    assert_eq!(
        left(&world, b"k", &engine),
        before - 20,
        "what was used beyond the charge is owed to the engine"
    );

    let exact = take(&mut world, 0, b"k", &quota, 2).lines[0].receipt.unwrap();
    quiet(&mut world);
    let messages = world.messages();
    let ended = finish(&mut world, 0, exact, 2);
    assert_eq!((ended.by, world.messages()), (DecidedBy::Lease, messages), "an exact charge asks nobody");
}

/// Two limits, one decided from a batch and one only by the engine: when the second refuses, the first loses nothing.
#[test]
fn of_several_limits_all_or_none_are_charged() {
    let (quota, _) = hourly();
    let small = Arc::new(Quota::per_hour(1).burst(2).gcra().unwrap());
    let mut world = world(1);
    warm(&mut world, 0, b"wide", &quota);
    let both = [Charge::new(b"wide", &quota, Cost::ONE), Charge::new(b"small", &small, Cost::ONE)];
    let before = spent(&world);
    // The second refusal is known without asking.
    let by = [DecidedBy::Engine, DecidedBy::Engine, DecidedBy::Engine, DecidedBy::Lease];
    for (allowed, by) in [true, true, false, false].into_iter().zip(by) {
        let executed = execute(&mut world, 0, Op::Take, &both).unwrap();
        assert_eq!((executed.allowed, executed.lines.len()), (allowed, 2));
        assert_eq!(executed.lines.iter().all(|line| line.receipt.is_some()), allowed);
        assert_eq!(executed.by, by);
    }
    quiet(&mut world);
    assert_eq!(spent(&world), before + 2);
    // With two batches the node decides by itself.
    warm(&mut world, 0, b"other", &quota);
    let both = [Charge::new(b"wide", &quota, Cost::ONE), Charge::new(b"other", &quota, Cost::ONE)];
    let executed = execute(&mut world, 0, Op::Take, &both).unwrap();
    assert_eq!((executed.allowed, executed.by), (true, DecidedBy::Lease));
}

#[test]
fn a_refusal_is_repeated_without_a_call_until_the_engine_has_more() {
    let quota = Arc::new(Quota::per_second(1).burst(40).gcra().unwrap());
    let mut world = world(1);
    let mut admitted = 0;
    let refused = loop {
        let executed = take(&mut world, 0, b"k", &quota, 1);
        if !executed.allowed {
            break executed;
        }
        admitted += 1;
    };
    assert_eq!(admitted, 38, "the strict limit has a burst that is smaller by what nodes may hold");
    let messages = world.messages();
    let Retry::After(wait) = refused.lines[0].decision.retry() else { panic!("it tells when") };
    assert!(wait > Duration::from_millis(900) && wait <= Duration::from_secs(1), "{wait:?}");
    for _ in 0..50 {
        assert!(!take(&mut world, 0, b"k", &quota, 1).allowed);
    }
    assert_eq!(world.messages(), messages);
    let almost = world.now().after(wait.saturating_sub(Duration::from_millis(10)));
    world.run_to(almost);
    assert!(!take(&mut world, 0, b"k", &quota, 1).allowed, "not before it said");
    let now = world.now().after(Duration::from_millis(12));
    world.run_to(now);
    assert!(take(&mut world, 0, b"k", &quota, 1).allowed, "but then");
}

#[test]
fn a_reset_forgets_what_is_held_too() {
    let (quota, engine) = hourly();
    let mut world = world(1);
    warm(&mut world, 0, b"k", &quota);
    execute(&mut world, 0, Op::Reset, &[Charge::new(b"k", &quota, Cost::ONE)]).unwrap();
    assert_eq!(world.nodes[0].health().outstanding, 0);
    assert_eq!(left(&world, b"k", &engine), 950);
}

#[test]
fn while_the_engine_is_gone_batches_are_spent_and_then_nobody_is_asked_in_vain() {
    let (quota, _) = hourly();
    let mut world = world(1);
    warm(&mut world, 0, b"k", &quota);
    *world.engines[0].link.lock() = Link::Down;
    let held = world.nodes[0].health().outstanding;
    for _ in 0..held {
        assert!(take(&mut world, 0, b"k", &quota, 1).allowed, "what is held is spent");
    }
    let charges = [Charge::new(b"k", &quota, Cost::ONE)];
    assert!(execute(&mut world, 0, Op::Take, &charges).is_err(), "a fallback would decide now");
    *world.engines[0].link.lock() = Link::Up;
    let now = world.now().after(Duration::from_millis(101));
    world.run_to(now);
    assert!(take(&mut world, 0, b"k", &quota, 1).allowed);
}

#[test]
fn lost_answers_burn_units_and_never_make_any() {
    let (quota, engine) = hourly();
    let mut world = world(1);
    let mut spent = warm(&mut world, 0, b"k", &quota);
    *world.engines[0].link.lock() = Link::LosesAnswers;
    for _ in 0..300 {
        let now = world.now().after(Duration::from_millis(1));
        world.run_to(now);
        if execute(&mut world, 0, Op::Take, &[Charge::new(b"k", &quota, Cost::ONE)])
            .is_ok_and(|one| one.allowed)
        {
            spent += 1;
        }
    }
    assert!(left(&world, b"k", &engine) + spent < 950);
}

/// A smaller part takes effect with the next request: units above it are returned before another unit is spent.
#[test]
fn a_node_whose_part_shrinks_holds_no_more_than_that() {
    let (quota, _) = hourly();
    let part = Part::even(100);
    part.set(Part::WHOLE, tidegate::Tick::EPOCH, tidegate::Tick::MAX);
    let mine = part.clone();
    let mut world = World::new(1, RTT / 2, move |_, builder| builder.part(mine.clone()));
    warm(&mut world, 0, b"k", &quota);
    assert!(world.nodes[0].health().outstanding > 10);
    part.set(Part::WHOLE / 10, tidegate::Tick::EPOCH, tidegate::Tick::MAX);
    take(&mut world, 0, b"k", &quota, 1);
    assert!(world.nodes[0].health().outstanding <= 5);
}

/// Four nodes ask for one and a half times the limit of a window, over two and a half calendar windows.
#[test]
fn windows_are_leased_within_the_window_and_never_have_more_than_their_limit() {
    let quota = Arc::new(Quota::per_minute(4_000).calendar_window(CalendarUnit::Minute, "UTC").unwrap());
    let (mut world, mut judge) = (world(4), WindowEnvelope::new(4_000));
    let start = world.now();
    for step in 0..15_000_u64 {
        world.run_to(start.after(Duration::from_millis(10 * step)));
        let allowed = take(&mut world, (step % 4) as usize, b"w", &quota, 1).allowed;
        judge.batch(world.now().as_nanos() / 60_000_000_000, 1, u64::from(allowed));
    }
    assert_eq!(judge.excess(), 0);
    assert!(judge.utilisation().per_mille() >= 990, "{judge:?}");
    assert!(world.messages() * 6 < 15_000, "{}", world.messages());
}

#[test]
fn a_request_that_goes_away_leaves_the_draw_to_the_others() {
    let (quota, _) = hourly();
    let mut world = world(1);
    warm(&mut world, 0, b"k", &quota);
    // Spends what is held, until a request needs a draw.
    let charges = [Charge::new(b"k", &quota, Cost::ONE)];
    let later = |world: &World| loop {
        let step = Step::new(world.now(), Op::Take, &charges);
        if let Execution::Later(later) = world.nodes[0].execute_into(&step, &mut Executed::default()) {
            break later;
        }
    };
    // The draws ahead of need are never run: this world has not run since.
    let draws = world.nodes[0].health().draws;
    drop(later(&world));
    let mut polled = later(&world);
    let waker = std::task::Waker::noop();
    assert!(polled.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    drop(polled);
    assert!(take(&mut world, 0, b"k", &quota, 1).allowed);
    assert!(world.nodes[0].health().draws <= draws + 1, "the draw that was under way goes on");
}

#[test]
fn with_more_keys_than_room_the_engine_decides_the_others() {
    let (quota, _) = hourly();
    let mut world = World::new(1, RTT / 2, |_, builder| builder.keys(64));
    for key in 0..500_u32 {
        assert!(take(&mut world, 0, &key.to_le_bytes(), &quota, 1).allowed);
    }
    let health = world.nodes[0].health();
    assert!(health.keys <= 64 && health.central >= 400, "{health:?}");
}
