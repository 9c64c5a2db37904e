//! Draws: units that a node takes ahead of time, decided by the script in one round trip.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::store::{Charge, Ending, Executed, Execution, Op, Step, StepClock, Store as _};
use tidegate_core::rate::CalendarUnit;
use tidegate_core::{Cost, Finish, Quota, Tick};
use tidegate_redis::RedisStore;

use crate::servers::{Server, ask, connect, left, namespace, options, runtime, take};

/// Returns the number of script calls so far, and the microseconds that they took.
fn calls(server: &Server) -> (u64, u64) {
    let stat = server.info("cmdstat_evalsha");
    let field = |name: &str| {
        let field = stat.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        field.map_or(0, |number| number.parse().unwrap())
    };
    (field("calls"), field("usec"))
}

fn units(executed: &Executed) -> Vec<u64> {
    executed.lines.iter().filter_map(|line| line.receipt).map(|made| made.cost.units()).collect()
}

fn cost(units: u64) -> Cost {
    Cost::new(units).unwrap()
}

#[test]
fn a_draw_is_one_round_trip() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let limits = [
        ("gcra", Quota::per_day(100_000).gcra()),
        ("gcra of a year", Quota::per(7, Duration::from_secs(365 * 86_400)).burst(7).gcra()),
        ("rolling window", Quota::per_day(100_000).fixed_window()),
        ("calendar window", Quota::per_day(100_000).calendar_window(CalendarUnit::Day, "UTC")),
    ];
    for (name, quota) in limits {
        let quota = Arc::new(quota.unwrap());
        // The first call loads the script.
        take(&store, b"another", &quota, 1).unwrap();
        let before = calls(&server);
        for draw in 0..200u32 {
            let charge = Charge::new(name.as_bytes(), &quota, cost(40));
            let drawn = ask(&store, Op::Draw, &[charge]).unwrap();
            assert!(drawn.allowed || quota.capacity() == 7 && draw > 0, "{name}: {drawn:?}");
        }
        let (many, micros) = calls(&server);
        println!("{name}: {} calls of 200 draws, {} us of the server", many - before.0, micros - before.1);
        assert_eq!(many - before.0, 200, "{name}");
    }
}

#[test]
fn each_charge_of_a_draw_takes_what_fits_and_leaves_what_is_kept_back() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let day = |count: u64| Arc::new(Quota::per_day(count).burst(count).gcra().unwrap());
    let (wide, narrow) = (day(100), Arc::new(Quota::per_day(9).fixed_window().unwrap()));
    let wide_charge = Charge { kept_back: 70, ..Charge::new(b"wide", &wide, cost(40)) };
    let narrow_charge = Charge { kept_back: 2, ..Charge::new(b"narrow", &narrow, cost(40)) };
    let both = [wide_charge, narrow_charge];
    let before = store.counts().by_library;
    assert_eq!(units(&ask(&store, Op::Draw, &both).unwrap()), [30, 7]);
    let again = ask(&store, Op::Draw, &both).unwrap();
    assert!(!again.allowed && units(&again).is_empty(), "all or none");
    assert_eq!((left(&store, b"wide", &wide), left(&store, b"narrow", &narrow)), (70, 2));
    // The same numbers as a take are refused as a whole; a draw takes what is left.
    let rest = [Charge::new(b"narrow", &narrow, cost(3))];
    assert!(!ask(&store, Op::Take, &rest).unwrap().allowed);
    assert_eq!(units(&ask(&store, Op::Draw, &rest).unwrap()), [2]);
    assert_eq!(store.counts().by_library, before, "the script decided them all");
}

/// Regression: the steps that were sent with one that the library decides, of the same key, were left to it too, two
/// exchanges and a conflict each. Units given back of a busy key far away held up its requests for over a minute.
#[test]
fn a_step_that_the_library_decides_leaves_the_others_of_its_key_to_the_script() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let quota = Arc::new(Quota::per_day(100_000).gcra().unwrap());
    let charge = Charge::new(b"busy", &quota, cost(9));
    assert!(take(&store, b"busy", &quota, 9).unwrap().allowed);
    let before = store.counts();
    let step = |charges: &[Charge<'_>]| {
        let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, Op::Take, charges) };
        let Execution::Later(later) = store.execute_into(&step, &mut Executed::default()) else {
            panic!("asks")
        };
        later
    };
    // The first is sent at once, and the others together after its answer. The script has no logs.
    let log = Arc::new(Quota::per_day(9).sliding_log().unwrap());
    let mut steps = vec![step(&[charge]), step(&[charge, Charge::new(b"log", &log, cost(1))])];
    steps.extend((0..100).map(|_| step(&[charge])));
    let answers = runtime.block_on(join_all(steps));
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|executed| executed.allowed)));
    assert_eq!(left(&store, b"busy", &quota), 100_000 - 9 * 103);
    assert_eq!(store.counts().by_library - before.by_library, 1);
}

/// Regression: while a key has a record of units given back, the library decides its steps. Those of one node competed
/// for each write: 25 conflicts each, two exchanges for each attempt, and an error after 64.
#[test]
fn steps_that_the_library_decides_for_a_busy_key_do_not_compete() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let shared = namespace();
    let nodes = [0, 1].map(|_| connect(&runtime, options(&server).namespace(&shared)));
    let quota = Arc::new(Quota::per_day(100_000).gcra().unwrap());
    let charge = Charge::new(b"busy", &quota, cost(9));
    let charges = [charge];
    let step = |store: &RedisStore, op| {
        let step = Step { clock: StepClock::Engine, ..Step::new(Tick::EPOCH, op, &charges) };
        let Execution::Later(later) = store.execute_into(&step, &mut Executed::default()) else {
            panic!("asks")
        };
        later
    };
    let made: Vec<_> =
        (0..100).map(|_| take(&nodes[0], b"busy", &quota, 9).unwrap().lines[0].receipt.unwrap()).collect();
    // The first is undone, and then others while more are charged.
    let endings: Vec<_> = made.iter().map(|made| [Ending::new(*made, Finish::UNDONE)]).collect();
    runtime.block_on(step(&nodes[0], Op::Finish(&endings[0]))).unwrap();
    let before = nodes[0].counts();
    let alone = endings[1..50].iter().map(|ending| step(&nodes[0], Op::Finish(ending)));
    let takes = (0..100).map(|_| step(&nodes[0], Op::Take));
    for answer in runtime.block_on(join_all(alone.chain(takes))) {
        assert!(answer.unwrap().allowed);
    }
    assert_eq!(left(&nodes[0], b"busy", &quota), 100_000 - 9 * 150);
    let after = nodes[0].counts();
    let (steps, conflicts) = (after.by_library - before.by_library, after.conflicts - before.conflicts);
    println!(
        "{steps} steps by the library, {conflicts} conflicts, {} exchanges",
        after.exchanges - before.exchanges
    );
    assert!(conflicts <= 3, "{conflicts} conflicts of {steps} steps");
    // Two nodes compete, each with one write for all its steps.
    let of =
        |node: usize| endings[50 + 25 * node..][..25].iter().map(move |ending| (node, Op::Finish(ending)));
    let steps = of(0).chain(of(1)).chain((0..200).map(|at| (at % 2, Op::Take)));
    for answer in runtime.block_on(join_all(steps.map(|(node, op)| step(&nodes[node], op)))) {
        assert!(answer.unwrap().allowed);
    }
    assert_eq!(left(&nodes[1], b"busy", &quota), 100_000 - 9 * 300);
    let conflicts: u64 = nodes.iter().map(|node| node.counts().conflicts).sum::<u64>() - after.conflicts;
    println!("two nodes: {conflicts} conflicts");
    assert!(conflicts <= 40, "{conflicts} conflicts");
}
