//! A model check of the lease protocol, over every order in which its events can happen.
//!
//! The model has two nodes with their real leases and one engine with the real arithmetic. Calls and replies between
//! them arrive at any later time, are lost, or arrive twice. Nodes crash, the engine fails over and forgets, and parts
//! of the budget move from one node to the other. The search covers all orders of these events, up to a number of
//! faults and a span of time, and checks the bound after each admission. Nodes and calls have no timing of their own,
//! so any schedule is among these orders.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::decision::Ruling;
use tidegate_core::envelope::Envelope;
use tidegate_core::rate::CalendarUnit;
use tidegate_core::{Algorithm, Ask, Cost, Finish, Quota, Receipt, Tick, Transition};
use tidegate_limits::store::conformance::Random;
use tidegate_limits::store::{Cell, Charge, Ending, Forgotten, Op, Step, execute};
use tidegate_limits::sync::short_or_long;

use super::allowance::DrawSize;
use super::leasable::Terms;
use super::lease::{GivenBack, Lease, Lookup};
use super::request::{Draw, DrawTimes, Drawn, Portion, Refused};
use crate::Part;

/// The findings of a search.
#[derive(Debug, Default)]
struct SearchResult {
    states: usize,
    most_excess: u64,
    most_admitted: u64,
}

/// Searches all worlds that can follow from one.
fn search(first: World, bounds: &SearchBounds, most: u64) -> SearchResult {
    let (mut seen, mut found) = (HashSet::new(), SearchResult::default());
    let mut left = vec![first];
    while let Some(world) = left.pop() {
        for next in world.next(bounds) {
            assert!(next.excess <= most, "{} more than the limit, where {most} are promised", next.excess);
            assert!(
                next.nodes.iter().all(Node::is_whole),
                "a unit is held that was spent or given back before"
            );
            found.most_excess = found.most_excess.max(next.excess);
            found.most_admitted = found.most_admitted.max(next.admitted);
            if seen.insert(next.key()) {
                left.push(next);
            }
        }
    }
    found.states = seen.len();
    found
}

/// A limit of three at once and ten a second, of which each node may hold two: the smallest with two nodes that can
/// hold units.
fn flow(burst: u64, judged: u64) -> World {
    let quota = |burst| Arc::new(Quota::per_second(10).burst(burst).gcra().unwrap());
    let terms = Terms {
        engine: quota(burst),
        limit: judged,
        rate: Some(tidegate_core::Rate::new(10, Duration::from_secs(1)).unwrap()),
        outstanding: 4,
        ahead: Duration::from_millis(100),
        target: Duration::ZERO,
        lasts: Duration::from_millis(150),
    };
    World::new(terms, Judge::Flow(Envelope::of(&quota(judged)).unwrap()))
}

/// A limit without outstanding units: nodes hold only what they know to be missing at the engine. Judged by `judged`.
fn whole(judged: u64) -> World {
    let mut world = flow(7, judged);
    let terms = Terms { outstanding: 0, ..Terms::clone(&world.nodes[0].lease.terms) };
    let node = Node::new(&Arc::new(terms), Part::WHOLE / 2);
    world.nodes = [node.clone(), node];
    world
}

fn window() -> World {
    let quota = Arc::new(Quota::per_minute(12).calendar_window(CalendarUnit::Minute, "UTC").unwrap());
    let terms = Terms {
        engine: quota,
        limit: 12,
        rate: None,
        outstanding: 4,
        ahead: Duration::ZERO,
        target: Duration::ZERO,
        lasts: Duration::from_secs(600),
    };
    World::new(terms, Judge::Window { limit: 12, length: 60_000_000_000, window: 0, admitted: 0 })
}

/// Draws, faults and steps of time: few enough for a run of seconds. For a long run, `LEASE_MODEL` sets the three
/// numbers, such as `4,1,2`.
fn bounds(step: Duration, usual: [u64; 3]) -> SearchBounds {
    let told = std::env::var("LEASE_MODEL").ok();
    let told = told.map(|told| told.split(',').map(|number| number.parse().unwrap()).collect::<Vec<u64>>());
    let [draws, faults, steps] = told.map_or(usual, |told| [told[0], told[1], told[2]]);
    SearchBounds { step, steps, faults: u32::try_from(faults).unwrap(), draws }
}

#[test]
fn strict_leases_never_admit_more_than_the_limit_in_any_order() {
    let short = [[2, 1, 1], [3, 0, 1]].as_slice();
    for usual in short_or_long(short, &[[3, 1, 1]]) {
        let found = search(flow(1, 5), &bounds(Duration::from_millis(100), *usual), 0);
        println!("{found:?}");
    }
}

#[test]
fn bounded_leases_admit_what_is_outstanding_beyond_the_limit_and_no_more() {
    let found = search(flow(2, 2), &bounds(Duration::from_millis(100), [3, 0, 1]), 4);
    println!("{found:?}");
    assert!(
        found.most_excess > 0,
        "the search finds orders that exceed a limit which leaves no room for batches"
    );
}

#[test]
fn what_is_known_to_be_missing_is_never_held_beyond_the_limit_in_any_order() {
    for usual in [[2, 1, 1], [3, 0, 2]] {
        let found = search(whole(7), &bounds(Duration::from_millis(100), usual), 0);
        println!("{found:?}");
        assert!(found.most_admitted >= 4, "nodes hold units");
    }
    let found = search(whole(2), &bounds(Duration::from_millis(100), [2, 0, 1]), 7);
    assert!(found.most_excess > 0, "the search finds orders that exceed a smaller limit");
}

/// Long random orders of a larger limit: units are given back by both nodes at once and arrive at any time, while a node
/// holds what it takes to be missing. Judged by what the engine and the nodes could grant at one moment.
#[test]
fn units_on_their_way_back_are_never_held_elsewhere_too() {
    let (burst, outstanding) = (57, 6);
    for seed in 1..=200 {
        let mut world = flow(burst, burst + outstanding);
        let terms = Terms {
            outstanding,
            rate: Some(tidegate_core::Rate::new(10, Duration::from_secs(1)).unwrap()),
            ..Terms::clone(&world.nodes[0].lease.terms)
        };
        let node = Node::new(&Arc::new(terms), Part::WHOLE / 2);
        world.nodes = [node.clone(), node];
        let mut random = Random::seeded(seed);
        for _ in 0..10_000 {
            world.at_random(&mut random);
            let at_once = world.grants_at_once();
            assert!(at_once <= burst + outstanding, "seed {seed}: {at_once} units at once");
            assert!(world.excess == 0 && world.nodes.iter().all(Node::is_whole), "seed {seed}");
        }
        assert!(world.admitted > 100, "seed {seed}: {}", world.admitted);
    }
}

/// A node whose units on their way back are not answered gives back no more than its part of the outstanding units.
#[test]
fn what_is_on_its_way_back_is_within_the_part_of_the_outstanding_units() {
    let mut world = flow(57, 63);
    let given = |world: &World| -> u64 {
        let back = world.nodes[0].calls.iter().filter_map(|call| match call {
            Call::Return(receipt) => Some(receipt.cost.units()),
            Call::Draw { .. } => None,
        });
        back.sum()
    };
    for _ in 0..20 {
        world.request(0, DrawSize { units: 1, aside: 0 }, false);
        if let Some(draw) = world.nodes[0].calls.iter().position(|call| matches!(call, Call::Draw { .. })) {
            world.arrive(0, draw);
            world.take_in(0, 0, false);
        }
        world.now = world.now.after(Duration::from_millis(200));
        world.tidy(0);
        assert!(given(&world) <= 2, "half of four");
    }
    assert_eq!((given(&world), world.nodes[0].is_whole()), (2, true));
    while let Some(back) = world.nodes[0].calls.iter().position(|call| matches!(call, Call::Return(_))) {
        world.arrive(0, back);
    }
    world.request(0, DrawSize { units: 1, aside: 0 }, false);
    world.arrive(0, 0);
    world.take_in(0, 0, false);
    world.now = world.now.after(Duration::from_millis(200));
    world.tidy(0);
    assert!(given(&world) > 0, "once they are answered, there is room again");
}

#[test]
fn windows_never_have_more_than_their_limit_in_any_order() {
    let short = [[2, 1, 1], [2, 0, 2]].as_slice();
    for usual in short_or_long(short, &[[2, 1, 2]]) {
        let found = search(window(), &bounds(Duration::from_secs(30), *usual), 0);
        println!("{found:?}");
    }
}

// Two nodes, an engine, and the messages between them.

const START: Tick = Tick::from_secs(1_200_000_000);

/// How far a search goes.
#[derive(Clone, Copy)]
struct SearchBounds {
    /// The length and number of time steps, the number of faults, and the number of draws.
    step: Duration,
    steps: u64,
    faults: u32,
    draws: u64,
}

/// A call on its way to the engine.
#[derive(Clone, Debug)]
enum Call {
    Draw { sent: Tick, draw: Draw },
    Return(Receipt),
}

/// A reply on its way to a node.
#[derive(Clone, Debug)]
struct Reply {
    sent: Tick,
    draw: Draw,
    drawn: Result<Drawn, Refused>,
}

#[derive(Clone)]
struct Node {
    lease: Lease,
    part: u32,
    calls: Vec<Call>,
    replies: Vec<Reply>,
    /// A request that has taken a unit and is not yet admitted.
    holds: Option<Portion>,
    /// Units that came in replies, less those spent, given back and lost: the number that the lease has to hold.
    owns: u64,
}

/// Judges each admission, and remembers only what later judgements depend on.
#[derive(Clone, Debug, Hash)]
enum Judge {
    Flow(Envelope),
    /// The length of a window in ns, its number, and the units admitted in it.
    Window {
        limit: u64,
        length: u64,
        window: u64,
        admitted: u64,
    },
}

#[derive(Clone)]
struct World {
    now: Tick,
    steps: u64,
    faults: u32,
    /// The next draw's number, so that each draw has its own.
    draws: u64,
    cell: Option<Cell>,
    nodes: [Node; 2],
    judge: Judge,
    /// The most by which the limit was exceeded, and the units admitted.
    excess: u64,
    admitted: u64,
}

impl Judge {
    /// Admits a unit; returns by how much the limit is exceeded now.
    fn admits(&mut self, now: Tick) -> u64 {
        match self {
            Self::Flow(judge) => {
                judge.batch(now, 0, 1);
                let excess = judge.excess();
                judge.restart();
                excess
            }
            Self::Window { limit, length, window, admitted } => {
                let this = now.as_nanos() / *length;
                *admitted = if this == *window { *admitted + 1 } else { 1 };
                *window = this;
                admitted.saturating_sub(*limit)
            }
        }
    }
}

impl Node {
    fn new(terms: &Arc<Terms>, part: u32) -> Self {
        let lease = Lease::new(Arc::clone(terms));
        Self { lease, part, calls: Vec::new(), replies: Vec::new(), holds: None, owns: 0 }
    }

    fn gives_back(&mut self, back: GivenBack) {
        for receipt in back {
            self.owns -= receipt.cost.units();
            self.calls.push(Call::Return(receipt));
        }
    }

    /// Returns whether the node holds no unit that was not drawn, or that was spent or given back before.
    fn is_whole(&self) -> bool {
        self.lease.units_held() + self.lease.dropped + u64::from(self.holds.is_some()) == self.owns
    }
}

impl World {
    fn new(terms: Terms, judge: Judge) -> Self {
        let node = Node::new(&Arc::new(terms), Part::WHOLE / 2);
        let nodes = [node.clone(), node];
        Self { now: START, steps: 0, faults: 0, draws: 0, cell: None, nodes, judge, excess: 0, admitted: 0 }
    }

    fn key(&self) -> u64 {
        let node = |node: &Node| {
            let mut hasher = DefaultHasher::new();
            node.lease.model_state().hash(&mut hasher);
            // The number of a draw matters only for whether it is still awaited.
            let awaited = |draw: &Draw| node.lease.is_under_way(draw);
            let calls = node.calls.iter().map(|call| match call {
                Call::Draw { sent, draw } => hash_of(&(sent, draw.want, awaited(draw))),
                Call::Return(receipt) => hash_of(receipt),
            });
            let replies =
                node.replies.iter().map(|Reply { sent, draw, drawn }| hash_of(&(sent, awaited(draw), drawn)));
            let mut both: [Vec<u64>; 2] = [calls.collect(), replies.collect()];
            both.iter_mut().for_each(|all| all.sort_unstable());
            (both, node.part, node.holds).hash(&mut hasher);
            hasher.finish()
        };
        // The nodes are interchangeable, so their order is removed.
        let mut nodes = [node(&self.nodes[0]), node(&self.nodes[1])];
        nodes.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (nodes, self.now, self.faults, self.draws, &self.judge).hash(&mut hasher);
        self.cell.as_ref().map(Cell::encode).hash(&mut hasher);
        hasher.finish()
    }

    /// Does one of the things that can happen next.
    fn at_random(&mut self, random: &mut Random) {
        let at = random.below(2) as usize;
        match random.below(10) {
            0 | 1 => {
                let size = DrawSize { units: random.below(30), aside: random.below(2) * random.below(20) };
                self.request(at, size, false);
            }
            2..=4 => drop(self.request(at, DrawSize::default(), false)),
            5 | 6 => {
                let calls = &self.nodes[at].calls;
                // What is given back is often late.
                let draw = calls.iter().position(|call| matches!(call, Call::Draw { .. }));
                let back = calls.iter().position(|call| matches!(call, Call::Return(_)));
                if let Some(call) = draw.or(back.filter(|_| random.below(20) == 0)) {
                    self.arrive(at, call);
                }
            }
            7 | 8 if !self.nodes[at].replies.is_empty() => drop(self.take_in(at, 0, false)),
            9 => {
                self.now = self.now.after(Duration::from_millis(random.below(40)));
                self.tidy(at);
            }
            _ => {}
        }
    }

    /// Returns what the engine and the nodes could grant now.
    fn grants_at_once(&self) -> u64 {
        let terms = &self.nodes[0].lease.terms;
        let charges = [Charge::new(b"k", &terms.engine, Cost::ONE)];
        let peek = execute(&Step::new(self.now, Op::Peek, &charges), &mut [self.cell.clone()]).0;
        let held = self.nodes.iter().map(|node| node.lease.outstanding(self.now));
        peek.lines[0].decision.standing.remaining + held.sum::<u64>()
    }

    fn admits(&mut self) {
        self.excess = self.excess.max(self.judge.admits(self.now));
        self.admitted += 1;
    }

    /// Returns all worlds that can follow next.
    fn next(&self, bounds: &SearchBounds) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &mut dyn FnMut(&mut Self) -> bool| {
            let mut world = self.clone();
            if change(&mut world) {
                all.push(world);
            }
        };
        with(&mut |world| {
            world.now = world.now.after(bounds.step);
            world.steps += 1;
            world.steps <= bounds.steps
        });
        let faulty = self.faults < bounds.faults;
        for at in 0..2 {
            for (units, aside) in [(0, 0), (9, 0), (1, 2)] {
                let size = DrawSize { units, aside };
                with(&mut |world| world.request(at, size, false) && world.draws <= bounds.draws);
            }
            // One node is enough to model requests that hold the units they took.
            with(&mut |world| at == 0 && world.request(at, DrawSize::default(), true));
            with(&mut |world| world.conclude(at, true));
            with(&mut |world| world.conclude(at, false));
            with(&mut |world| world.tidy(at));
            for call in 0..self.nodes[at].calls.len() {
                with(&mut |world| world.arrive(at, call));
                if faulty {
                    with(&mut |world| world.lose_call(at, call));
                }
            }
            for reply in 0..self.nodes[at].replies.len() {
                with(&mut |world| world.take_in(at, reply, false));
                if faulty {
                    with(&mut |world| world.take_in(at, reply, true));
                    with(&mut |world| world.give_up(at, reply));
                }
            }
            if faulty {
                with(&mut |world| world.crash(at));
                with(&mut |world| world.reweigh(at));
            }
        }
        if faulty {
            with(&mut Self::fail_over);
        }
        all
    }

    /// A request arrives. It is admitted at once, holds its unit, or begins a draw.
    fn request(&mut self, at: usize, size: DrawSize, holds: bool) -> bool {
        let (now, node) = (self.now, &mut self.nodes[at]);
        if node.holds.is_some() {
            return false;
        }
        let mut back = GivenBack::new();
        let taken = match node.lease.take_at_once(Cost::ONE, 0, now, node.part) {
            Some(portion) => Some(portion),
            None => {
                let at_once = node.lease.clone().refuse_at_once(Cost::ONE, 0, now);
                let found = node.lease.look_up(Cost::ONE, 0, now, node.part, &mut back);
                assert!(
                    at_once.is_none_or(|wait| found == Lookup::Refused(wait) && back.is_empty()),
                    "the fast path refuses as the slow one does: {at_once:?}, {found:?}"
                );
                match found {
                    Lookup::Ready => node.lease.take(Cost::ONE),
                    Lookup::Draw if !holds => {
                        self.draws += 1;
                        let ahead = node.lease.terms.ahead;
                        let draw =
                            Draw { number: self.draws, want: Cost::ONE, spent: 0, kept_back: 0, ahead };
                        if let Some(draw) = node.lease.draw_ahead(size, 1, 0, draw, now) {
                            node.calls.push(Call::Draw { sent: now, draw });
                        }
                        None
                    }
                    _ => None,
                }
            }
        };
        let moved = !back.is_empty() || taken.is_some() || node.lease.is_drawing();
        node.gives_back(back);
        if let Some(portion) = taken {
            if holds {
                node.lease.hold(&portion);
                node.holds = Some(portion);
            } else {
                node.owns -= 1;
                self.admits();
            }
        }
        moved
    }

    /// The request that holds a unit is admitted, or puts it back.
    fn conclude(&mut self, at: usize, admitted: bool) -> bool {
        let node = &mut self.nodes[at];
        let Some(portion) = node.holds.take() else { return false };
        node.lease.release(&portion);
        if admitted {
            node.owns -= 1;
            self.admits();
        } else {
            let mut back = GivenBack::new();
            node.lease.put_back(&portion, self.now, &mut back);
            node.gives_back(back);
        }
        true
    }

    fn tidy(&mut self, at: usize) -> bool {
        let (node, mut back) = (&mut self.nodes[at], GivenBack::new());
        node.lease.tidy(self.now, node.part, &mut back);
        let ended = !back.is_empty();
        node.gives_back(back);
        ended
    }

    /// A call reaches the engine.
    fn arrive(&mut self, at: usize, call: usize) -> bool {
        let call = self.nodes[at].calls.remove(call);
        let terms = Arc::clone(&self.nodes[at].lease.terms);
        let (now, mut cells) = (self.now, [self.cell.take()]);
        match call {
            Call::Return(receipt) => {
                let (ending, charge) = (
                    [Ending::new(receipt, Finish::UNDONE)],
                    [Charge::new(b"k", &terms.engine, receipt.cost)],
                );
                let _ = execute(&Step::new(now, Op::Finish(&ending), &charge), &mut cells);
                self.nodes[at].lease.returned(receipt.cost.units());
            }
            Call::Draw { sent, draw } => {
                let charge = Charge { max_wait: terms.ahead, ..Charge::new(b"k", &terms.engine, draw.want) };
                let executed = execute(&Step::new(now, Op::Draw, &[charge]), &mut cells).0;
                let line = executed.lines[0];
                let standing = line.decision.standing;
                let drawn = match (line.decision.ruling, line.receipt) {
                    (Ruling::Allowed { wait }, Some(receipt)) => Ok(Drawn {
                        receipt,
                        wait,
                        remaining: standing.remaining,
                        reset_after: standing.reset_after,
                    }),
                    _ => Err(Refused { retry: line.decision.retry(), remaining: standing.remaining }),
                };
                self.nodes[at].replies.push(Reply { sent, draw, drawn });
            }
        }
        [self.cell] = cells;
        true
    }

    fn lose_call(&mut self, at: usize, call: usize) -> bool {
        self.faults += 1;
        if let Call::Draw { draw, .. } = self.nodes[at].calls.remove(call) {
            self.nodes[at].lease.failed(&draw, self.now);
        }
        true
    }

    /// A reply reaches the node that waits for it; with `twice`, it arrives a second time.
    fn take_in(&mut self, at: usize, reply: usize, twice: bool) -> bool {
        let now = self.now;
        self.faults += u32::from(twice);
        let node = &mut self.nodes[at];
        let Reply { sent, draw, drawn } = node.replies.remove(reply);
        match drawn {
            Ok(drawn) => {
                let (mut back, times) = (GivenBack::new(), DrawTimes { sent, received: now });
                node.owns += drawn.receipt.cost.units();
                node.lease.fill(&draw, &drawn, times, node.part, &mut back);
                if twice {
                    // The transport repeats a reply: it belongs to no call any more, and never reaches the lease as the
                    // reply to another draw.
                    let unknown = Refused { retry: tidegate_core::Retry::Unknown, remaining: 0 };
                    node.lease.refused(&draw, &unknown, sent);
                    node.lease.failed(&draw, now);
                }
                node.gives_back(back);
            }
            Err(refused) => node.lease.refused(&draw, &refused, sent),
        }
        true
    }

    /// A node stops waiting; the reply comes late, and then has no receiver.
    fn give_up(&mut self, at: usize, reply: usize) -> bool {
        self.faults += 1;
        let node = &mut self.nodes[at];
        let draw = node.replies[reply].draw;
        node.lease.failed(&draw, self.now);
        true
    }

    /// A node loses all units that it holds and all replies that it waits for.
    fn crash(&mut self, at: usize) -> bool {
        self.faults += 1;
        let node = &mut self.nodes[at];
        *node = Node::new(&Arc::clone(&node.lease.terms), node.part);
        true
    }

    /// Half of this node's part moves to the other node.
    fn reweigh(&mut self, at: usize) -> bool {
        self.faults += 1;
        let half = self.nodes[at].part / 2;
        self.nodes[at].part -= half;
        self.nodes[1 - at].part += half;
        true
    }

    /// The engine forgets everything, knows that it has, and begins empty. Receipts from before are void.
    fn fail_over(&mut self) -> bool {
        self.faults += 1;
        let (quota, now) = (Arc::clone(&self.nodes[0].lease.terms.engine), self.now);
        let all = Ask::allow(now, Cost::new(quota.capacity()).unwrap());
        let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(now), all) else { return false };
        let until = quota.full_at(&next).unwrap_or(Tick::MAX);
        let forgotten = Some(Box::new(Forgotten { at: now, until }));
        self.cell = Some(Cell { forgotten, ..Cell::new(quota, next) });
        true
    }
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
