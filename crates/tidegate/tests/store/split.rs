//! How much nodes that divide each limit grant together while the parts move between them, checked by one envelope over
//! all.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::cluster::Part;
use tidegate::limiter::Retry;
use tidegate::store::conformance::Random;
use tidegate::store::{Charge, Ending, Executed, MemoryStore, Op, Split, Step, Store};
use tidegate::{Cost, Quota, Tick};
use tidegate_core::envelope::Envelope;
use tidegate_core::{Finish, Rate};

const START: u64 = 1_600_000_000_000;

fn at(millis: u64) -> Tick {
    Tick::from_nanos((START + millis) * 1_000_000)
}

fn node(part: &Part) -> Split {
    Split::new(MemoryStore::with_capacity(64).unwrap(), part.clone())
}

fn take(store: &Split, quota: &Arc<Quota>, now: Tick, cost: u64) -> Executed {
    let charges = [Charge::new(b"k", quota, Cost::new(cost).unwrap())];
    store.blocking_execute(&Step::new(now, Op::Take, &charges)).unwrap()
}

/// Moves parts as a cluster does: a part becomes smaller at once, and another part larger at that instant or later.
struct Moving {
    parts: Vec<Part>,
    held: Vec<u32>,
    /// The share that no node has at the moment.
    free: u32,
}

impl Moving {
    fn new(nodes: u32) -> Self {
        let own = Part::WHOLE / 32 / nodes;
        let held = vec![own; nodes as usize];
        Self {
            parts: held.iter().map(|own| Part::permanent(*own)).collect(),
            free: Part::WHOLE - own * nodes,
            held,
        }
    }

    fn moves(&mut self, random: &mut Random, now: Tick) {
        let nodes = self.parts.len() as u64;
        let own = Part::WHOLE / 32 / u32::try_from(nodes).unwrap();
        let node = random.below(nodes) as usize;
        let (from, until) = (self.held[node], now.after(Duration::from_secs(1 << 20)));
        let to = match random.below(3) {
            0 => own,
            1 => own.max(u32::try_from(random.below(u64::from(from) + 1)).unwrap()),
            // All that is free, even if it became free at this instant.
            _ => from + self.free,
        };
        (self.held[node], self.free) = (to, (self.free + from).checked_sub(to).unwrap());
        self.parts[node].set(to, now, until);
        assert!(self.held.iter().sum::<u32>() + self.free <= Part::WHOLE);
    }
}

fn flows() -> Vec<Quota> {
    [
        Quota::per_second(1000).burst(1000).gcra(),
        Quota::per_second(1000).burst(100).gcra(),
        Quota::per_second(200).burst(2000).token_bucket(),
        Quota::per_minute(5000).burst(400).leaky_bucket(),
        Quota::per_second(50).burst(7).gcra(),
    ]
    .into_iter()
    .map(Result::unwrap)
    .collect()
}

/// However parts move and whichever node is asked, no span of time has more than the burst plus what the rate gave in
/// it.
#[test]
fn all_nodes_together_never_grant_more_than_the_limit() {
    let mut granted = 0;
    for (kind, quota) in flows().into_iter().enumerate() {
        let quota = Arc::new(quota);
        for seed in 0..12 {
            let mut random = Random::seeded(seed * 10 + kind as u64);
            let nodes = 2 + random.below(4) as u32;
            let mut moving = Moving::new(nodes);
            let stores: Vec<Split> = moving.parts.iter().map(node).collect();
            let mut judge = Envelope::of(&quota).unwrap();
            let mut now = 0;
            for _ in 0..600 {
                now += random.below(60);
                if random.below(8) == 0 {
                    moving.moves(&mut random, at(now));
                }
                // The chosen node is asked for more than it has.
                let store = &stores[random.below(u64::from(nodes)) as usize];
                let cost = 1 + random.below(quota.capacity() / 4 + 1);
                for _ in 0..8 {
                    let allowed = take(store, &quota, at(now), cost).allowed;
                    judge.ask(at(now), cost, allowed);
                    granted += u64::from(allowed);
                }
            }
            assert_eq!(judge.excess(), 0, "seed {seed}, {nodes} nodes, {quota:?}");
        }
    }
    assert!(granted > 3_000, "{granted}");
}

/// The same for windows: no time as long as the window has more than the limit, for the algorithms that promise this.
#[test]
fn all_nodes_together_keep_to_windows() {
    for (kind, quota) in
        [Quota::per_second(300).sliding_log().unwrap(), Quota::per_second(300).sliding_window(10).unwrap()]
            .into_iter()
            .enumerate()
    {
        let quota = Arc::new(quota);
        for seed in 0..8 {
            let mut random = Random::seeded(seed * 10 + kind as u64);
            let mut moving = Moving::new(3);
            let stores: Vec<Split> = moving.parts.iter().map(node).collect();
            let (mut now, mut granted) = (0, Vec::new());
            for _ in 0..400 {
                now += random.below(100);
                if random.below(6) == 0 {
                    moving.moves(&mut random, at(now));
                }
                let store = &stores[random.below(3) as usize];
                for _ in 0..10 {
                    let cost = 1 + random.below(30);
                    if take(store, &quota, at(now), cost).allowed {
                        granted.push((now, cost));
                    }
                }
            }
            for (first, (from, _)) in granted.iter().enumerate() {
                let within = granted[first..].iter().take_while(|(then, _)| then - from < 1000);
                let units: u64 = within.map(|(_, cost)| cost).sum();
                assert!(units <= 300, "seed {seed}: {units} in a second from {from}, {quota:?}");
            }
        }
    }
}

/// Nearly all of the demand comes to one node, which has had a large part for long: nearly all of the limit is used.
#[test]
fn steady_demand_uses_nearly_all_of_the_limit() {
    let quota = Arc::new(Quota::per_second(1000).burst(1000).gcra().unwrap());
    let own = Part::WHOLE / 32 / 4;
    let pool = Part::WHOLE - own * 4;
    let shares = [pool / 32 * 28, pool / 32, pool / 32, pool / 32];
    let parts: Vec<Part> = shares.iter().map(|_| Part::permanent(own)).collect();
    for (part, share) in parts.iter().zip(shares) {
        part.set(own + share, at(0), at(1_000_000));
    }
    let stores: Vec<Split> = parts.iter().map(node).collect();
    let mut judge = Envelope::of(&quota).unwrap();
    for now in 2_000..32_000 {
        for (store, every) in stores.iter().zip([1, 20, 20, 20]) {
            if now % every == 0 {
                judge.ask(at(now), 2, take(store, &quota, at(now), 2).allowed);
            }
        }
    }
    let used = judge.utilisation().per_mille();
    assert_eq!(judge.excess(), 0);
    assert!(used >= 900, "{used} thousandths");
}

/// A new part counts only once the limit could have filled up since, and a part that is gone counts no more at once.
#[test]
fn what_comes_counts_late_and_what_goes_counts_at_once() {
    let quota = Arc::new(Quota::per_second(10).burst(100).gcra().unwrap());
    let part = Part::permanent(0);
    let store = node(&part);
    let granted = |now| (0..200).filter(|_| take(&store, &quota, at(now), 1).allowed).count();
    part.set(Part::WHOLE / 2, at(0), at(1_000_000));
    let refused = take(&store, &quota, at(9_999), 1);
    assert_eq!(refused.lines[0].decision.retry(), Retry::Unknown, "nobody knows when it has some of it");
    assert_eq!(granted(10_000), 50, "ten seconds fill it");
    part.set(Part::WHOLE / 8, at(10_000), at(1_000_000));
    assert_eq!(granted(10_900), 0, "what was spent counts against less");
    assert_eq!(granted(30_000), 12, "an eighth of a hundred, rounded down");
    part.set(Part::WHOLE, at(30_000), at(31_000));
    assert_eq!(granted(60_000), 0, "it has ended, and none of it is always this node's");
}

#[test]
fn what_cannot_be_divided_is_refused_and_takes_nothing_else_along() {
    let store = node(&Part::even(4));
    let (large, small) =
        (Arc::new(Quota::per_second(40).gcra().unwrap()), Arc::new(Quota::per_second(3).gcra().unwrap()));
    let both = [Charge::new(b"large", &large, Cost::ONE), Charge::new(b"small", &small, Cost::ONE)];
    let executed = store.blocking_execute(&Step::new(at(0), Op::Take, &both)).unwrap();
    assert!(!executed.allowed && executed.lines.len() == 2);
    let shadow = [both[0], Charge { binding: false, ..both[1] }];
    let executed = store.blocking_execute(&Step::new(at(0), Op::Take, &shadow)).unwrap();
    assert!(executed.allowed, "a shadow refuses nothing");
    assert_eq!(executed.lines[0].decision.standing.remaining, 9, "the refused step has charged nothing");
    let receipt = executed.lines[0].receipt.unwrap();
    let undone = [Ending::new(receipt, Finish::UNDONE)];
    assert!(store.blocking_execute(&Step::new(at(0), Op::Finish(&undone), &both[..1])).unwrap().allowed);
    let peek = store.blocking_execute(&Step::new(at(0), Op::Peek, &both[..1])).unwrap();
    assert_eq!(peek.lines[0].decision.standing.remaining, 10, "what was undone came back");
    assert_eq!(peek.lines[0].decision.standing.limit, 10, "a quarter of forty");
    let whole = Rate::new(40, Duration::from_secs(1)).unwrap();
    assert_eq!(large.flow().unwrap().0, whole);
    assert_eq!(store.demand()(), 4);
}
