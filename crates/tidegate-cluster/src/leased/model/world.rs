//! Two nodes, an engine, and the messages between them.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::decision::Ruling;
use tidegate_core::envelope::Envelope;
use tidegate_core::{Algorithm, Ask, Cost, Finish, Receipt, Tick, Transition};

use super::super::batch::Portion;
use super::super::draw_request::{Draw, Drawn, Refused, Times};
use super::super::leasable::Terms;
use super::super::lease::{GivenBack, Lease, Lookup};
use crate::Part;
use tidegate_limits::store::{Cell, Charge, Ending, Forgotten, Op, Step, settle};

const START: Tick = Tick::from_secs(1_200_000_000);

/// How far a search goes.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    /// The length and number of time steps, the number of faults, and the number of draws.
    pub(super) step: Duration,
    pub(super) steps: u64,
    pub(super) faults: u32,
    pub(super) draws: u64,
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
pub(super) struct Node {
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
pub(super) enum Judge {
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
pub(super) struct World {
    now: Tick,
    steps: u64,
    faults: u32,
    /// The next draw's number, so that each draw has its own.
    draws: u64,
    cell: Option<Cell>,
    pub(super) nodes: [Node; 2],
    judge: Judge,
    /// The most by which the limit was exceeded, and the units admitted.
    pub(super) excess: u64,
    pub(super) admitted: u64,
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
    pub(super) fn is_whole(&self) -> bool {
        self.lease.units_held() + u64::from(self.holds.is_some()) == self.owns
    }
}

impl World {
    pub(super) fn new(terms: Terms, judge: Judge) -> Self {
        let node = Node::new(&Arc::new(terms), Part::WHOLE / 2);
        let nodes = [node.clone(), node];
        Self { now: START, steps: 0, faults: 0, draws: 0, cell: None, nodes, judge, excess: 0, admitted: 0 }
    }

    pub(super) fn key(&self) -> u64 {
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

    fn admits(&mut self) {
        self.excess = self.excess.max(self.judge.admits(self.now));
        self.admitted += 1;
    }

    /// Returns all worlds that can follow next.
    pub(super) fn next(&self, bounds: &Bounds) -> Vec<Self> {
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
            for ahead in [0, 9] {
                with(&mut |world| world.request(at, ahead, false) && world.draws <= bounds.draws);
            }
            // One node is enough to model requests that hold the units they took.
            with(&mut |world| at == 0 && world.request(at, 0, true));
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
    fn request(&mut self, at: usize, ahead: u64, holds: bool) -> bool {
        let (now, node) = (self.now, &mut self.nodes[at]);
        if node.holds.is_some() {
            return false;
        }
        let mut back = GivenBack::new();
        let taken = match node.lease.take_at_once(Cost::ONE, 0, now, node.part) {
            Some(portion) => Some(portion),
            None => match node.lease.look_up(Cost::ONE, 0, now, node.part, &mut back) {
                Lookup::Ready => node.lease.take(Cost::ONE),
                Lookup::Draw if !holds => {
                    self.draws += 1;
                    if let Some(draw) = node.lease.draw_ahead(ahead, 1, 0, now, self.draws) {
                        node.calls.push(Call::Draw { sent: now, draw });
                    }
                    None
                }
                _ => None,
            },
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
            node.lease.put_back(&portion, &mut back);
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
                let _ = settle(&Step::new(now, Op::Finish(&ending), &charge), &mut cells);
            }
            Call::Draw { sent, draw } => {
                let charge = Charge { max_wait: terms.ahead, ..Charge::new(b"k", &terms.engine, draw.want) };
                let settled = settle(&Step::new(now, Op::Draw, &[charge]), &mut cells).0;
                let line = settled.lines[0];
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
                let (mut back, times) = (GivenBack::new(), Times { sent, received: now });
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
