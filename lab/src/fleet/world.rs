//! The event loop of a simulated fleet.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::store::StepAnswer;
use tidegate_core::Quota;
use tidegate_core::Tick;
use tidegate_core::envelope::Envelope;
use tidegate_sim::traffic::Chance;

use super::engine::Engine;
use super::global_coordinator::GlobalCoordinator;
use super::link::{Message, Passes, Remote, Slot, WireCondition, nanos, refused};
use super::node::{Background, Decided, Node, Parts, Stack};
use super::outcome::{Interval, Outcome};
use super::scenario::{Act, Scenario};
use crate::event_queue::Agenda;

/// The time at which a run begins: late enough that a clock can be set back by an hour.
const BEGINS: u64 = 100_000 * 1_000_000_000;

/// How often a node without demand checks for new demand, in nanoseconds.
const LOOKS: u64 = 10_000_000;

/// The time until a refused connection is noticed, in nanoseconds.
const REFUSED_AFTER: u64 = 200_000;

enum Event {
    Plans(usize),
    Request(usize),
    Arrives(usize, Message),
    Answers(usize, Arc<Slot>, Vec<StepAnswer>),
    Wakes(usize),
    Acts(usize),
}

struct World<'a> {
    scenario: &'a Scenario,
    stack: &'a Stack,
    chance: Chance,
    agenda: Agenda<Event>,
    engines: Vec<Engine>,
    global: GlobalCoordinator,
    /// Messages that wait for an engine that hangs, with their nodes.
    at_door: Vec<(usize, Message)>,
    nodes: Vec<Node>,
    wires: Vec<WireCondition>,
    limit: Arc<Quota>,
    judges: HashMap<u32, Envelope>,
    outcome: Outcome,
    /// How long each decision took, in nanoseconds.
    took: Vec<u64>,
}

/// Runs a scenario with a seed; `stack` builds the stores of each node.
///
/// # Panics
/// If the limit cannot be described by a rate and a burst: the judge knows no other.
pub(crate) fn run(scenario: &Scenario, seed: u64, stack: &Stack) -> Outcome {
    let mut world = World::new(scenario, seed, stack);
    let end = BEGINS + nanos(scenario.length);
    while let Some(event) = world.agenda.next_until(end) {
        world.handle(event);
    }
    world.end()
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, seed: u64, stack: &'a Stack) -> Self {
        let mut agenda = Agenda::new();
        for (at, (time, _)) in scenario.acts.iter().enumerate() {
            agenda.put(BEGINS + nanos(*time), Event::Acts(at));
        }
        let mut world = Self {
            scenario,
            stack,
            chance: Chance(seed),
            agenda,
            engines: (0..scenario.regions).map(|_| Engine::default()).collect(),
            global: GlobalCoordinator::new(scenario.regions),
            at_door: Vec::new(),
            nodes: Vec::new(),
            wires: vec![scenario.wire_condition; scenario.nodes],
            limit: Arc::clone(&scenario.limit),
            judges: HashMap::new(),
            outcome: Outcome::default(),
            took: Vec::new(),
        };
        for at in 0..scenario.nodes {
            let node = world.fresh_node(at, BEGINS);
            world.nodes.push(node);
            world.nodes[at].running = at < scenario.running;
            // Spread the first requests, so that they do not all arrive in the same nanosecond.
            let first = u64::from(world.chance.below(1_000_000));
            world.agenda.put(BEGINS + first, Event::Plans(at));
        }
        world
    }

    fn fresh_node(&self, at: usize, now: u64) -> Node {
        let parts = Parts {
            remote: Remote::default(),
            global: self.global.of(self.scenario.region_of(at)),
            clock: ManualClock::at(Tick::from_nanos(now)),
            nodes: (self.scenario.nodes / self.scenario.regions) as u64,
            node: at as u64,
            background: Background::default(),
        };
        Node::start(parts, self.stack)
    }

    fn handle(&mut self, event: Event) {
        let now = self.agenda.now();
        match event {
            Event::Acts(at) => self.act(now, at),
            Event::Plans(at) => self.plan(now, at),
            Event::Request(at) => self.request(now, at),
            Event::Wakes(at) => {
                if !self.held(at, now, || Event::Wakes(at)) {
                    self.poll_node(now, at);
                }
            }
            Event::Arrives(from, message) => self.arrives(now, from, message),
            Event::Answers(at, slot, answers) => {
                if self.nodes[at].paused > now {
                    let until = self.nodes[at].paused;
                    self.agenda.put(until, Event::Answers(at, slot, answers));
                } else {
                    slot.fill(answers);
                    self.poll_node(now, at);
                }
            }
        }
    }

    /// Delays an event of a paused node until the pause ends. Returns whether it did.
    fn held(&mut self, at: usize, now: u64, event: impl FnOnce() -> Event) -> bool {
        let until = self.nodes[at].paused;
        if until > now {
            self.agenda.put(until, event());
        }
        until > now
    }

    /// Schedules the next request to a node.
    ///
    /// The rest of an exponential gap has the same distribution as a new one, so a long gap is not waited out: after
    /// `LOOKS` a new one is drawn, since the rate may have changed.
    fn plan(&mut self, now: u64, at: usize) {
        let time = Duration::from_nanos(now - BEGINS);
        let (rate, _) = self.limit.flow().expect("a limit that is a rate and a burst");
        let times = self.scenario.demand.at(at, self.scenario.nodes, time);
        let of_one = times * rate.count() as f64 / rate.period().as_nanos() as f64;
        let per_nano = of_one * f64::from(self.scenario.keys);
        let gap = self.chance.exponential() as f64 / 4_294_967_296.0 / per_nano;
        if gap < LOOKS as f64 {
            self.agenda.put(now + (gap as u64).max(1), Event::Request(at));
        } else {
            self.agenda.put(now + LOOKS, Event::Plans(at));
        }
    }

    fn request(&mut self, now: u64, at: usize) {
        self.plan(now, at);
        let key = self.chance.below(self.scenario.keys);
        let node = &mut self.nodes[at];
        if !node.running || node.paused > now {
            return;
        }
        node.turn_to(now);
        if let Some(decided) = node.ask(now, key, &self.limit, self.scenario.on_error) {
            self.judge(now, &decided);
        }
        self.poll_node(now, at);
    }

    /// Polls a node, sends its messages, and schedules its next wake-up.
    fn poll_node(&mut self, now: u64, at: usize) {
        let mut decided = Vec::new();
        let node = &mut self.nodes[at];
        if !node.running {
            return;
        }
        node.turn_to(now);
        node.poll(|one| decided.push(one));
        for message in node.parts.remote.sent() {
            self.send(now, at, message);
        }
        for one in decided {
            self.judge(now, &one);
        }
        let wake = self.nodes[at].next_wake();
        if wake != self.nodes[at].wakes
            && let Some(wake) = wake
        {
            self.nodes[at].wakes = Some(wake);
            self.agenda.put(wake, Event::Wakes(at));
        }
    }

    fn engine(&mut self, node: usize) -> &mut Engine {
        &mut self.engines[self.scenario.region_of(node)]
    }

    fn send(&mut self, now: u64, from: usize, message: Message) {
        self.outcome.messages += 1;
        let wire = self.wires[from];
        match wire.passes {
            Passes::Nothing => return,
            Passes::All | Passes::Requests if self.engine(from).is_down() => {
                return self.refuse(now, from, &message);
            }
            Passes::All | Passes::Requests => {}
        }
        if wire.doubles(&mut self.chance)
            && let Some(takes) = wire.carries(&mut self.chance)
        {
            let double = Message { steps: message.steps.clone(), slot: Arc::clone(&message.slot) };
            self.agenda.put(now + takes, Event::Arrives(from, double));
        }
        if let Some(takes) = wire.carries(&mut self.chance) {
            self.agenda.put(now + takes, Event::Arrives(from, message));
        }
    }

    fn refuse(&mut self, now: u64, to: usize, message: &Message) {
        let answers = message.steps.iter().map(|_| Err(refused())).collect();
        self.agenda.put(now + REFUSED_AFTER, Event::Answers(to, Arc::clone(&message.slot), answers));
    }

    fn arrives(&mut self, now: u64, from: usize, message: Message) {
        if self.engine(from).is_down() {
            // A connected node is told that the engine is gone.
            return self.refuse(now, from, &message);
        }
        if self.engine(from).is_stalled() {
            return self.at_door.push((from, message));
        }
        let answers = self.engine(from).serve(now, &message.steps);
        let wire = self.wires[from];
        if wire.passes == Passes::All
            && let Some(takes) = wire.carries(&mut self.chance)
        {
            self.agenda.put(now + takes, Event::Answers(from, message.slot, answers));
        }
    }

    fn act(&mut self, now: u64, at: usize) {
        let scenario = self.scenario;
        match &scenario.acts[at].1 {
            Act::Wires(which, wire_condition) => {
                for wire in self.wires.iter_mut().enumerate().filter(|(at, _)| which.has(*at)) {
                    *wire.1 = *wire_condition;
                }
            }
            Act::OfRegion(region, act) => self.act_of_engines(now, act, *region..region + 1),
            Act::Across(region, wire) => self.global.of(*region).rewire(*wire),
            Act::NodeClock(which, by) => {
                for at in (0..self.nodes.len()).filter(|at| which.has(*at)) {
                    self.nodes[at].ahead += by;
                    self.poll_node(now, at);
                }
            }
            Act::Pause(which, span) => {
                for at in (0..self.nodes.len()).filter(|at| which.has(*at)) {
                    self.nodes[at].paused = now + nanos(*span);
                }
            }
            Act::Crash(which) => {
                for at in (0..self.nodes.len()).filter(|at| which.has(*at)) {
                    self.nodes[at] = self.fresh_node(at, now);
                    self.nodes[at].running = false;
                }
            }
            Act::Restart(which) => {
                for at in (0..self.nodes.len()).filter(|at| which.has(*at)) {
                    self.nodes[at] = self.fresh_node(at, now);
                }
            }
            Act::Limit(limit) => {
                self.limit = Arc::clone(limit);
                let (rate, burst) = limit.flow().expect("a limit that is a rate and a burst");
                for judge in self.judges.values_mut() {
                    judge.change(Tick::from_nanos(now), rate, burst).expect("a burst in range");
                }
            }
            act => self.act_of_engines(now, act, 0..scenario.regions),
        }
    }

    fn act_of_engines(&mut self, now: u64, act: &Act, regions: Range<usize>) {
        for engine in &mut self.engines[regions] {
            match act {
                Act::Stop { forget } => engine.stop(*forget),
                Act::Start => engine.start(),
                Act::Stall(stalled) => engine.stall(*stalled),
                Act::Forget => engine.forget(),
                Act::Lag(lag) => engine.lag(*lag),
                Act::FailOver => engine.fail_over(now),
                Act::EngineClock(by) => engine.step_clock(*by),
                _ => {}
            }
        }
        if matches!(act, Act::Stop { .. } | Act::Stall(_)) {
            // Deliver all waiting messages again; those for engines that still hang go back into the queue.
            for (from, message) in std::mem::take(&mut self.at_door) {
                self.arrives(now, from, message);
            }
        }
    }

    fn judge(&mut self, now: u64, decided: &Decided) {
        let limit = &self.limit;
        let judge = self
            .judges
            .entry(decided.key)
            .or_insert_with(|| Envelope::of(limit).expect("a limit that is a rate and a burst"));
        let before = judge.utilisation();
        judge.ask(Tick::from_nanos(now), 1, decided.allowed);
        let after = judge.utilisation();
        let at = (now - BEGINS) / nanos(Outcome::STRETCH);
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        if self.outcome.intervals.len() <= at {
            self.outcome.intervals.resize(at + 1, Interval::default());
        }
        let interval = &mut self.outcome.intervals[at];
        interval.asked += 1;
        interval.admitted += after.admitted - before.admitted;
        interval.ideal += after.ideal - before.ideal;
        self.took.push(now - decided.asked);
    }

    fn excess(&self) -> u64 {
        self.judges.values().map(Envelope::excess).max().unwrap_or(0)
    }

    fn end(mut self) -> Outcome {
        let mut outcome = std::mem::take(&mut self.outcome);
        let sum = |of: fn(&Interval) -> u64| outcome.intervals.iter().map(of).sum::<u64>();
        let (asked, admitted, ideal) = (sum(|one| one.asked), sum(|one| one.admitted), sum(|one| one.ideal));
        (outcome.asked, outcome.admitted) = (asked, admitted);
        outcome.used_per_mille = (admitted * 1000).checked_div(ideal).unwrap_or(1000);
        outcome.excess = self.excess();
        (outcome.calls_across, outcome.across_on_path) = self.global.calls();
        outcome.hung = self.nodes.iter().map(|node| node.waits() as u64).sum();
        self.took.sort_unstable();
        let took = |percent: usize| {
            let last = self.took.len().saturating_sub(1);
            Duration::from_nanos(self.took.get(last * percent / 100).copied().unwrap_or(0))
        };
        (outcome.p50, outcome.p99, outcome.longest) = (took(50), took(99), took(100));
        outcome.find_recovery(self.scenario.healed);
        outcome
    }
}
