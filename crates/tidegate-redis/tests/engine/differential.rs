//! Compares the script with plain cells over which the test runs core's own function: random histories over all limits
//! that the script decides, at the edges of a double's range. Every line of every answer must be equal.
//!
//! `TIDEGATE_SEEDS` sets the number of histories; a few hundred in all unless it is set.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate::store::conformance::Random;
use tidegate::store::{Cell, Charge, DecidedBy, Executed, Op, Step, StepClock, execute};
use tidegate_core::rate::CalendarUnit;
use tidegate_core::{Cost, Quota, Rate, Tick};
use tidegate_redis::RedisStore;

use crate::servers::{Server, blocking_each, connect, namespace, options, runtime};

const DAY: u64 = 86_400_000_000_000;

/// Limits that the script decides in nanoseconds.
fn fine() -> Vec<Quota> {
    let gcra = |count, period, burst| Quota::per(count, Duration::from_nanos(period)).burst(burst).gcra();
    let all = [
        gcra(100, 1_000_000_000, 100),
        gcra(7, 1_000_000_000, 5),
        gcra(999_999_937, 1_000_000_000, 1_000),
        gcra(3, DAY, 3),
        // A full limit takes just less than 2^53 of: time, scaled time, time that passes per tick.
        gcra(1, (1 << 53) - 1, 1),
        gcra(999_999_937, 1_000_000_000, 9_007_199),
        gcra((1 << 53) - 1, 1, 1 << 52),
        Quota::per_second(5).fixed_window(),
        Quota::per((1 << 53) - 1, Duration::from_secs(40)).fixed_window(),
        Quota::per(2, Duration::from_nanos(1)).fixed_window(),
        Quota::per_hour(9).calendar_window(CalendarUnit::Hour, "UTC"),
        Quota::per_day(5).calendar_window(CalendarUnit::Day, "America/New_York"),
    ];
    all.into_iter().map(Result::unwrap).collect()
}

/// Limits that it decides in microseconds, because a full one takes 2^53 nanoseconds or more.
fn coarse() -> Vec<Quota> {
    let gcra = |count, period, burst| Quota::per(count, Duration::from_nanos(period)).burst(burst).gcra();
    let all = [
        gcra(7, 30 * DAY, 7),
        gcra(1, 365 * DAY, 1),
        gcra(1_000_003, DAY, 90),
        gcra(1, 1 << 53, 1),
        gcra(1, (1 << 62) / 1000 * 1000, 1),
    ];
    all.into_iter().map(Result::unwrap).collect()
}

/// GCRA limits that refill while a history runs by the server's clock, which counts microseconds.
fn quick() -> Vec<Quota> {
    let gcra = |count, period, burst| Quota::per(count, Duration::from_nanos(period)).burst(burst).gcra();
    let all = [
        gcra(1000, 1_000_000_000, 5),
        gcra(100_000, 1_000_000_000, 40),
        gcra(999_999_937, 1_000_000_000, 1_000),
        gcra(7, 1_000_000, 3),
        gcra(20, DAY, 20),
        gcra(1_000_003, DAY, 90),
    ];
    all.into_iter().map(Result::unwrap).collect()
}

struct History<'q> {
    random: Random,
    now: Tick,
    grain: u64,
    quotas: &'q [Arc<Quota>],
}

impl History<'_> {
    fn moved(&mut self) -> Tick {
        let nanos = match self.random.below(16) {
            0..6 => 0,
            6..11 => self.random.below(300_000_000),
            11 => self.random.below(40 * DAY),
            12 => self.random.below(1_000),
            13 => 1_000_000_000 * self.random.below(3),
            // Back by less than ten seconds, by exactly ten, and by far more.
            14 => self.random.below(9_000_000_000).wrapping_neg(),
            _ => [10_000_000_000, 10_000_000_001, 200_000_000_000u64][self.random.below(3) as usize]
                .wrapping_neg(),
        };
        let moved = self.now.as_nanos().wrapping_add(nanos);
        self.now = Tick::from_nanos(moved / self.grain * self.grain);
        self.now
    }
}

/// The mix of steps in a history.
#[derive(Clone, Copy)]
struct Mix {
    /// How many of six steps are draws.
    draws: u64,
    /// The longest waits, in milliseconds; each charge has one of them.
    waits: &'static [u64],
    /// Whether nearly all batches are steps with one charge each, by the server's clock.
    usual: bool,
}

/// Runs one history on two nodes with different clocks, and on plain cells.
fn compare(nodes: &[RedisStore; 2], quotas: &[Arc<Quota>], grain: u64, seed: u64, mix: Mix) {
    let mut cells: HashMap<&[u8], Option<Cell>> = HashMap::new();
    let mut random = Random::seeded(seed);
    let keys: Vec<Vec<u8>> = (0..12u8).map(|key| vec![key, seed as u8]).collect();
    let start = Tick::from_nanos((1_600_000_000_000_000_000 + random.below(DAY)) / grain * grain);
    let mut history = History { random, now: start, grain, quotas };
    // For a node that is behind by less than ten seconds, cells stand still; a node further behind sets them back.
    let apart = Duration::from_secs([0, 0, 0, 3, 9, 10, 10, 11][history.random.below(8) as usize]);
    for batch in 0..40 {
        let behind = history.random.below(2) as usize;
        let apart = if behind == 1 { apart } else { Duration::ZERO };
        let many = 1 + [0, 0, 1, 4, 30][history.random.below(5) as usize];
        let mut ticks = Vec::new();
        let mut ops = Vec::new();
        let mut charges: Vec<Vec<Charge<'_>>> = Vec::new();
        let usual = mix.usual && history.random.below(8) > 0;
        for _ in 0..many {
            ticks.push(history.moved().before(apart));
            ops.push(match history.random.below(6) {
                _ if usual => Op::Take,
                0 => Op::Peek,
                at if at <= mix.draws => Op::Draw,
                _ => Op::Take,
            });
            let first = history.random.below(keys.len() as u64) as usize;
            let lines = if usual { 1 } else { [1, 1, 1, 2, 3][history.random.below(5) as usize] };
            let line = |offset: usize| {
                let key = (first + offset) % keys.len();
                let other = usize::from(history.random.below(400) == 0);
                let quota = &history.quotas[(key + seed as usize + other) % history.quotas.len()];
                let capacity = quota.capacity();
                let units = match history.random.below(8) {
                    0 => capacity,
                    1 => capacity.saturating_add(1),
                    2 => capacity / 2 + 1,
                    3 => capacity - history.random.below(capacity.min(3)),
                    _ => 1 + history.random.below(3),
                };
                Charge {
                    kept_back: match history.random.below(16) {
                        0..9 => 0,
                        9..12 => 1,
                        12..15 => capacity / 3,
                        _ => [capacity - 1, capacity, u64::MAX][history.random.below(3) as usize],
                    },
                    max_wait: Duration::from_millis(
                        mix.waits[history.random.below(mix.waits.len() as u64) as usize],
                    ),
                    binding: history.random.below(6) != 0,
                    ..Charge::new(&keys[key], quota, Cost::new(units.max(1)).unwrap())
                }
            };
            charges.push((0..lines).map(line).collect());
        }
        let clock = if mix.usual { StepClock::Engine } else { StepClock::Caller };
        let step = |at: usize| Step { clock, ..Step::new(ticks[at], ops[at], &charges[at]) };
        let steps: Vec<Step<'_>> = (0..many).map(step).collect();
        for ((at, step), ours) in steps.iter().enumerate().zip(blocking_each(&nodes[behind], &steps)) {
            let ours = ours.unwrap();
            let mut held: Vec<Option<Cell>> =
                step.charges.iter().map(|charge| cells.get(charge.key).cloned().flatten()).collect();
            let (theirs, _) = execute(&Step { now: ours.at, ..*step }, &mut held);
            let ours = Executed { by: DecidedBy::Local, ..ours };
            for (charge, cell) in step.charges.iter().zip(held) {
                let key = keys.iter().find(|key| **key == charge.key).unwrap();
                cells.insert(key, cell);
            }
            assert_eq!(ours, theirs, "seed {seed}, batch {batch}, step {at}: {step:?}");
        }
    }
}

/// Returns the number of histories: `TIDEGATE_SEEDS` if it is set, else `usual`.
fn seeds(usual: u64) -> u64 {
    std::env::var("TIDEGATE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(usual)
}

/// Runs histories over all limits that the script decides. The script must decide more than half as many steps as the
/// library.
fn compare_all(usual: u64, mix: Mix) {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let by_callers = vec![(fine(), 1), (coarse(), 1000), ([fine(), coarse()].concat(), 1000)];
    for (quotas, grain) in if mix.usual { vec![(quick(), 1000)] } else { by_callers } {
        let quotas: Vec<Arc<Quota>> = quotas.into_iter().map(Arc::new).collect();
        let (mut scripted, mut by_library) = (0, 0);
        for seed in 0..seeds(usual) {
            let shared = namespace();
            let nodes = [0, 1].map(|_| connect(&runtime, options(&server).namespace(&shared).shards(2)));
            compare(&nodes, &quotas, grain, seed, mix);
            for counts in nodes.map(|node| node.counts()) {
                (scripted, by_library) = (scripted + counts.scripted, by_library + counts.by_library);
            }
            if seed % 100 == 99 {
                server.ask(&["FLUSHALL"]);
            }
        }
        println!("ticks of {grain} ns: the script decided {scripted} steps, the library {by_library}");
        assert!(
            2 * scripted > by_library,
            "the script has decided many: {scripted}, the library {by_library}"
        );
    }
}

#[test]
fn the_script_decides_as_core_does() {
    compare_all(20, Mix { draws: 1, waits: &[0, 0, 0, 0, 0, 0, 40, 9_000], usual: false });
}

/// Units taken ahead of time: as many as fit, for each charge separately, and never those that are kept back.
#[test]
fn the_script_draws_as_core_does() {
    compare_all(25, Mix { draws: 4, waits: &[0, 0, 0, 0, 0, 0, 1, 40, 9_000, 3_700_000], usual: false });
}

/// Single charges by the server's clock, alone and in batches, which the script decides apart from all others.
#[test]
fn the_script_decides_the_usual_steps_as_core_does() {
    compare_all(60, Mix { draws: 1, waits: &[0, 0, 0, 1], usual: true });
}

/// With one unit more, a full limit exceeds a double's exact range: the library decides.
#[test]
fn what_a_double_does_not_hold_is_left_to_the_library() {
    let Some(server) = Server::start(&[]) else { return };
    let runtime = runtime();
    let store = connect(&runtime, options(&server));
    let rate = |count, nanos, burst| {
        Arc::new(Quota::per(count, Duration::from_nanos(nanos)).burst(burst).gcra().unwrap())
    };
    let edges = [
        (rate(999_999_937, 1_000_000_000, 9_007_199_254), rate(999_999_937, 1_000_000_000, 9_007_199_255)),
        (rate((1 << 53) - 1, 1, 1), rate((1 << 53) + 1, 1, 1)),
        (
            Arc::new(Quota::per((1 << 53) - 1, Duration::from_secs(1)).fixed_window().unwrap()),
            Arc::new(Quota::per(1 << 53, Duration::from_secs(1)).fixed_window().unwrap()),
        ),
    ];
    for (at, (within, beyond)) in edges.iter().enumerate() {
        let before = store.counts();
        crate::servers::take(&store, &[at as u8, 0], within, 1).unwrap();
        assert_eq!(store.counts().by_library, before.by_library, "{within:?}");
        crate::servers::take(&store, &[at as u8, 1], beyond, 1).unwrap();
        assert_eq!(store.counts().by_library, before.by_library + 1, "{beyond:?}");
        let most = Quota::capacity(within).min(Rate::MAX_COUNT);
        let taken = crate::servers::take(&store, &[at as u8, 2], within, most).unwrap();
        assert!(taken.allowed, "a full burst of {within:?}");
    }
}
