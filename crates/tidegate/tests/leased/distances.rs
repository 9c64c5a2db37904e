//! Leases over a wire: how long a decision takes, and how much of the limit is used, from an engine next door to one on
//! another continent. Each run stands beside one in which the engine decides each request.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::gate::Check;
use tidegate::policy::{Descriptor, Limit, Policy, PolicySet};
use tidegate::store::{Charge, Executed, Execution, Op, Step, Store};
use tidegate::{Cost, Gate, Quota, Tick};
use tidegate_core::envelope::Envelope;

use crate::leased::world::World;

#[derive(Clone, Copy, Debug)]
struct Wire {
    round_trip_ms: u64,
    rate: u64,
    burst: u64,
    nodes: usize,
    /// The demand of all nodes, in tenths of the rate.
    tenths: u64,
}

/// The result of a run: what a caller sees, and what the engine is asked.
#[derive(Debug)]
struct Seen {
    p50: Duration,
    p99: Duration,
    utilisation: u64,
    excess: u64,
    /// Calls to the engine for a thousand requests.
    calls: u64,
}

struct Told {
    envelope: Envelope,
    /// How long each request took, in nanoseconds.
    took: Vec<u64>,
}

impl Wire {
    fn run(self, seconds: u64, leases: bool) -> Seen {
        let Self { round_trip_ms, rate, burst, nodes, tenths } = self;
        let quota = Arc::new(Quota::per_second(rate).burst(burst).gcra().unwrap());
        let one_way = Duration::from_micros(round_trip_ms * 500);
        let mut world = World::new(nodes, one_way, |_, builder| builder.nodes(nodes as u64));
        let told = Told { envelope: Envelope::of(&quota).unwrap(), took: Vec::new() };
        let told = Arc::new(Mutex::new(told));
        let (start, demand) = (world.now(), rate * tenths / 10);
        let (mut calls, mut tidied) = (0_u64, 0);
        for number in 0..demand * seconds {
            let at = start.after(Duration::from_nanos(number * 1_000_000_000 / demand));
            world.run_to(at);
            if number * 4 / demand > tidied {
                tidied = number * 4 / demand;
                world.tick();
            }
            calls += u64::from(!leases);
            let node = number as usize % nodes;
            match leases {
                true => {
                    let store = world.nodes[node].clone();
                    ask(&mut world, &store, &quota, at, &told);
                }
                false => {
                    let store = world.engines[node].clone();
                    ask(&mut world, &store, &quota, at, &told);
                }
            }
        }
        world.run_to(start.after(Duration::from_secs(seconds + 2)));
        let mut told = told.lock();
        told.took.sort_unstable();
        assert_eq!(told.took.len() as u64, demand * seconds, "each request is answered");
        let part = |tenths: usize| Duration::from_nanos(told.took[told.took.len() * tenths / 100]);
        Seen {
            p50: part(50),
            p99: part(99),
            utilisation: told.envelope.utilisation().per_mille(),
            excess: told.envelope.excess(),
            calls: (calls + world.messages()) * 1000 / told.took.len() as u64,
        }
    }
}

fn ask(world: &mut World, store: &impl Store, quota: &Arc<Quota>, at: Tick, told: &Arc<Mutex<Told>>) {
    let charges = [Charge::new(b"the key", quota, Cost::ONE)];
    let step = Step { receipts: false, ..Step::new(at, Op::Take, &charges) };
    let mut out = Executed::default();
    let (time, told) = (world.time.clone(), Arc::clone(told));
    let tell = move |allowed: bool| {
        let (now, mut told) = (tidegate::clock::Clock::now(&time), told.lock());
        told.envelope.ask(now, 1, allowed);
        told.took.push(u64::try_from(now.since(at).as_nanos()).unwrap());
    };
    match store.execute_into(&step, &mut out) {
        Execution::Done(done) => tell(done.is_ok() && out.allowed),
        Execution::Later(later) => {
            world.spawn(Box::pin(async move { tell(later.await.is_ok_and(|executed| executed.allowed)) }));
        }
    }
}

fn judge(wire: Wire, seconds: u64) -> Option<String> {
    let central = wire.run(seconds, false);
    let leased = wire.run(seconds, true);
    let Wire { round_trip_ms, rate, burst, nodes, tenths } = wire;
    // A burst of hardly more than the units of two round trips, or of few units for each node, is left to the engine.
    let leases = burst * 1000 >= 3 * rate * round_trip_ms && burst >= 20 * nodes as u64;
    let p50 = if leases { Duration::from_millis(1) } else { central.p50 };
    let mut missed = Vec::new();
    let mut bar = |name: &'static str, kept: bool| missed.extend((!kept).then_some(name));
    bar("p50", leased.p50 <= p50);
    bar("p99", leased.p99 <= central.p99);
    bar("used", leased.utilisation >= 970);
    bar("excess", leased.excess == 0);
    // A node that grants a hundred a second, of a burst of a second, asks for 2 % of them, besides the first few.
    let many = rate * tenths.min(10) >= 1_000 * nodes as u64 && burst >= rate;
    bar("calls", leased.calls <= if leases && many { 22 } else { 1_000 });
    println!(
        "{round_trip_ms} ms\t{rate}/s\t{burst}\t{nodes}\t{}.{}\t{:.1?}\t{:.1?}\t{:.1} %\t{}\t{:.1}\t{:.0?}\t{}",
        tenths / 10,
        tenths % 10,
        leased.p50,
        leased.p99,
        leased.utilisation as f64 / 10.0,
        leased.excess,
        leased.calls as f64 / 10.0,
        central.p50,
        missed.join(" "),
    );
    (!missed.is_empty()).then(|| format!("{wire:?}: {missed:?}"))
}

/// `LEASE_RATES=50,200,2000` runs the table of `lab/results/leases.tsv`.
#[test]
fn far_engines_delay_no_request_by_more_than_a_round_trip() {
    let rates = std::env::var("LEASE_RATES").unwrap_or_else(|_| "200".to_owned());
    let rates: Vec<u64> = rates.split(',').map(|rate| rate.parse().unwrap()).collect();
    let mut missed = Vec::new();
    println!("round trip\trate\tburst\tnodes\tdemand\tp50\tp99\tused\texcess\tcalls\tcentral\tmissed");
    for round_trip_ms in [10, 40, 80, 150] {
        for rate in &rates {
            let within = rate * round_trip_ms / 1000;
            let mut bursts = vec![(2 * within).max(20), (5 * within).max(20), *rate];
            bursts.sort_unstable();
            bursts.dedup();
            for burst in bursts {
                for (nodes, tenths) in [(1, 9), (1, 20), (4, 9), (4, 20)] {
                    let wire = Wire { round_trip_ms, rate: *rate, burst, nodes, tenths };
                    missed.extend(judge(wire, 30));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Through a gate, as a server asks: most requests are answered on the spot, though the engine is 80 ms away.
#[test]
fn through_a_gate_a_far_engine_is_leased_too() {
    let mut world = World::new(1, Duration::from_millis(40), |_, builder| builder);
    let quota = Arc::new(Quota::per_second(200).burst(160).gcra().unwrap());
    let policies = PolicySet::new(vec![Policy::new("all", Limit::new(Arc::clone(&quota), "all"))]).unwrap();
    let gate = Arc::new(Gate::new(policies, world.nodes[0].clone()).with_clock(world.time.clone()));
    let told = Told { envelope: Envelope::of(&quota).unwrap(), took: Vec::new() };
    let (told, start) = (Arc::new(Mutex::new(told)), world.now());
    for number in 0..1_800_u64 {
        let asked = start.after(Duration::from_nanos(number * 1_000_000_000 / 180));
        world.run_to(asked);
        let (gate, told, time) = (Arc::clone(&gate), Arc::clone(&told), world.time.clone());
        world.spawn(Box::pin(async move {
            let decided = gate.check(Check::of(&Descriptor::new())).await.unwrap();
            let (now, mut told) = (tidegate::clock::Clock::now(&time), told.lock());
            told.envelope.ask(now, 1, decided.allowed);
            told.took.push(u64::try_from(now.since(asked).as_nanos()).unwrap());
        }));
    }
    world.run_to(start.after(Duration::from_secs(12)));
    let mut told = told.lock();
    told.took.sort_unstable();
    assert_eq!((told.took.len(), told.took[900], told.envelope.excess()), (1_800, 0, 0));
    world.tick();
    let health = world.nodes[0].health();
    assert!(health.burned > 0, "{health:?}");
    assert_eq!(health.drawn, health.granted + health.returned + health.burned, "{health:?}");
}

/// What a caller who went away was charged is undone under a limit that only the engine decides, but comes back at the rate
/// where nodes hold what they know to be missing: it would be granted by them and by the engine.
#[test]
fn what_callers_who_went_away_were_charged_comes_back_at_the_rate() {
    for (burst, left) in [(15, 15), (100, 70)] {
        let mut world = World::new(1, Duration::from_millis(40), |_, builder| builder.nodes(10));
        let quota = Arc::new(Quota::per_hour(1).burst(burst).gcra().unwrap());
        let policies =
            PolicySet::new(vec![Policy::new("all", Limit::new(Arc::clone(&quota), "all"))]).unwrap();
        let background: Arc<Mutex<Vec<tidegate::store::Later<()>>>> = Arc::default();
        let queue = Arc::clone(&background);
        let gate = Gate::new(policies, world.nodes[0].clone())
            .with_clock(world.time.clone())
            .with_background(move |later| queue.lock().push(later));
        for _ in 0..burst.min(30) {
            let mut asked = Box::pin(async { drop(gate.check(Check::of(&Descriptor::new())).await) });
            let waker = std::task::Waker::noop();
            assert!(asked.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
            drop(asked);
            for later in std::mem::take(&mut *background.lock()) {
                world.spawn(later);
            }
            let next = world.now().after(Duration::from_millis(500));
            world.run_to(next);
        }
        let gate = Arc::new(gate);
        let looked = world.finish(Box::pin(async move {
            let decision = gate.check(Check::of(&Descriptor::new()).peek()).await.unwrap();
            decision.limits[0].decision.standing.remaining
        }));
        assert_eq!(looked, left, "of {burst}");
    }
}
