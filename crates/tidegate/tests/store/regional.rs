//! How much regions that divide each limit grant together: each has an engine and several nodes, and parts move between
//! them.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tidegate::breaker::CircuitBreaker;
use tidegate::clock::ManualClock;
use tidegate::cluster::Part;
use tidegate::limiter::Retry;
use tidegate::store::conformance::Random;
use tidegate::store::{
    Charge, Ending, Executed, Execution, Leased, MemoryStore, Occupancy, Op, PlainStore, Regional, Step,
    Store,
};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::Finish;
use tidegate_core::envelope::Envelope;

const START: u64 = 1_600_000_000_000;

fn at(millis: u64) -> Tick {
    Tick::from_nanos((START + millis) * 1_000_000)
}

fn take(store: &dyn Store, quota: &Arc<Quota>, now: Tick, cost: u64) -> Executed {
    let charges = [Charge::new(b"k", quota, Cost::new(cost).unwrap())];
    store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap()
}

/// A region: two nodes, and the parts that each knows of.
struct Region {
    parts: [Part; 2],
    /// What each node's part is set to, and what is agreed but not yet read.
    set: [u32; 2],
    agreed: u32,
    nodes: [Arc<dyn Store>; 2],
}

impl Region {
    fn new(own: u32, leased: Option<&ManualClock>) -> Self {
        let engine = Arc::new(PlainStore::default());
        let parts = [Part::permanent(own), Part::permanent(own)];
        let nodes = [0, 1].map(|node: usize| -> Arc<dyn Store> {
            let (engine, part) = (Arc::clone(&engine), parts[node].clone());
            match leased {
                None => Arc::new(Regional::around(engine, part)),
                Some(clock) => {
                    let leased = Leased::around(engine, clock.clone()).part(Part::even(2)).build();
                    Arc::new(Regional::around(leased, part))
                }
            }
        });
        Self { parts, set: [own; 2], agreed: own, nodes }
    }

    /// The share that other regions must not have.
    fn held(&self) -> u32 {
        self.agreed.max(self.set[0]).max(self.set[1])
    }

    /// One of the region's nodes reads the agreed part.
    fn reads(&mut self, node: usize, now: Tick) {
        self.set[node] = self.agreed;
        self.parts[node].set(self.agreed, now, now.after(Duration::from_secs(1 << 20)));
    }
}

/// However parts move, whichever node learns of it first, and whichever node is asked: no span has more than the burst
/// plus what the rate gave in it.
fn never_more(leased: bool) {
    let (mut admitted, mut ideal) = (0, 0);
    for (kind, quota) in [
        Quota::per_second(1000).burst(1000).gcra(),
        Quota::per_second(200).burst(2000).token_bucket(),
        Quota::per_minute(5000).burst(400).leaky_bucket(),
    ]
    .into_iter()
    .enumerate()
    {
        let quota = Arc::new(quota.unwrap());
        for seed in 0..crate::store::steps(3) {
            let mut random = Random::seeded(seed * 10 + kind as u64);
            let (own, clock) = (Part::WHOLE / 32 / 3, ManualClock::at(at(0)));
            let mut regions = [(); 3].map(|()| Region::new(own, leased.then_some(&clock)));
            let mut judge = Envelope::of(&quota).unwrap();
            let mut now = 0;
            for _ in 0..600 {
                now += random.below(60);
                clock.set(at(now));
                let region = random.below(3) as usize;
                match random.below(8) {
                    0 => {
                        let free = Part::WHOLE - regions.iter().map(Region::held).sum::<u32>();
                        let region = &mut regions[region];
                        region.agreed = match random.below(2) {
                            0 => own,
                            _ => region.agreed + free,
                        };
                    }
                    1..4 => regions[region].reads(random.below(2) as usize, at(now)),
                    _ => {}
                }
                assert!(regions.iter().map(Region::held).sum::<u32>() <= Part::WHOLE);
                let node = &regions[region].nodes[random.below(2) as usize];
                let most = if leased { 3 } else { quota.capacity() / 4 };
                let cost = 1 + random.below(most);
                for _ in 0..if leased { 40 } else { 8 } {
                    let allowed = take(node, &quota, at(now), cost).allowed;
                    judge.ask(at(now), cost, allowed);
                }
            }
            assert_eq!(judge.excess(), 0, "seed {seed}, {quota:?}");
            let used = judge.utilisation();
            (admitted, ideal) = (admitted + used.admitted, ideal + used.ideal);
        }
    }
    // The parts that always belong to the regions are one 32nd of the limit; anything beyond comes from parts that have
    // grown.
    println!("{admitted} of {ideal}");
    assert!(admitted * 10 > ideal, "{admitted} of {ideal}");
}

#[test]
fn all_regions_together_never_grant_more_than_the_limit() {
    never_more(false);
}

#[test]
fn nor_where_their_nodes_lease_from_the_engine() {
    never_more(true);
}

/// Counts the steps that it executes.
#[derive(Debug)]
struct Counting {
    store: MemoryStore,
    steps: Arc<AtomicUsize>,
}

impl Store for Counting {
    fn execute_into(&self, step: &Step<'_>, out: &mut Executed) -> Execution {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.store.execute_into(step, out)
    }

    fn occupancy(&self) -> Occupancy {
        self.store.occupancy()
    }
}

#[test]
fn what_cannot_be_divided_is_refused_without_asking_and_breakers_are_whole() {
    let steps = Arc::new(AtomicUsize::new(0));
    let counting = Counting { store: MemoryStore::with_capacity(64).unwrap(), steps: Arc::clone(&steps) };
    let store = Regional::around(counting, Part::even(4));
    let three = Arc::new(Quota::per_second(3).gcra().unwrap());
    assert!(!take(&store, &three, at(0), 1).allowed);
    assert_eq!(steps.load(Ordering::Relaxed), 0, "there is nothing to ask for");
    let breaker = Arc::new(Quota::Breaker(CircuitBreaker::builder().build().unwrap()));
    assert!(take(&store, &breaker, at(0), 1).allowed, "a quarter of a breaker would be none");
    assert_eq!(steps.load(Ordering::Relaxed), 1);
    let (large, small) =
        (Arc::new(Quota::per_second(40).gcra().unwrap()), Arc::new(Quota::per_second(3).gcra().unwrap()));
    let both = [Charge::new(b"large", &large, Cost::ONE), Charge::new(b"small", &small, Cost::ONE)];
    let executed = store.blocking_execute(&Step::new(at(0), Op::Take, &both)).unwrap();
    assert!(!executed.allowed && executed.lines.len() == 2);
    assert_eq!(executed.lines[1].decision.retry(), Retry::Unknown);
    let twelve = [Charge::new(b"large", &large, Cost::new(12).unwrap())];
    let executed = store.blocking_execute(&Step::new(at(0), Op::Take, &twelve)).unwrap();
    assert_eq!(executed.lines[0].decision.retry(), Retry::Unknown, "the whole limit may grant it");
}

/// Many steps in one exchange are answered as if executed one by one, and an ended charge gives units back.
#[test]
fn many_steps_are_answered_as_one_by_one() {
    let store = || Regional::around(PlainStore::default(), Part::even(2));
    let (one, each) = (store(), store());
    let (limit, none) =
        (Arc::new(Quota::per_minute(10).gcra().unwrap()), Arc::new(Quota::per_minute(1).gcra().unwrap()));
    let charges = [Charge::new(b"a", &limit, Cost::ONE), Charge::new(b"b", &none, Cost::ONE)];
    let steps: Vec<Step<'_>> =
        (0..9).map(|turn| Step::new(at(0), Op::Take, &charges[turn % 2..=turn % 2])).collect();
    let mut answers = Vec::new();
    assert!(each.execute_each(&steps, &mut answers).is_none());
    let alone: Vec<_> = steps.iter().map(|step| one.blocking_execute(step)).collect();
    assert_eq!(answers, alone);
    let receipt = answers[0].as_ref().unwrap().lines[0].receipt.unwrap();
    let undone = [Ending::new(receipt, Finish::UNDONE)];
    let undone = each.blocking_execute(&Step::new(at(0), Op::Finish(&undone), &charges[..1])).unwrap();
    assert_eq!(undone.lines[0].receipt.unwrap().cost, Cost::ONE, "it came back");
    assert_eq!(each.demand()(), 9, "those refused count too");
}
