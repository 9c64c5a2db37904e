//! The event loop of an overload run.
//!
//! Services form a chain. The first works on a request and then calls the second, and so on. A request stays inside
//! each service until the answer arrives. Callers, and each service towards the next, retry by the rule of the load.

use std::iter::successors;
use std::time::Duration;

use tidegate::Outcome;
use tidegate::concurrency::Signal;
use tidegate_core::time::nanos;
use tidegate_sim::traffic::Chance;

use super::backend::{Backend, Excess};
use super::front::{Admission, Front};
use super::load::{Load, Retries};
use super::meter::{Measured, Meter, STEP};
use super::station::{Station, Worked};
use crate::event_queue::Agenda;

/// How often the speed of a service with changing speed is updated, in nanoseconds.
const SPEED_EVERY: u64 = 10_000_000;
/// How often the processor signal is read, in nanoseconds; the published law that uses the signal reads it as often.
const SENSE_EVERY: u64 = 500_000_000;

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) backend: Backend,
    pub(crate) front: Front,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Arrives(u32),
    Done {
        service: u8,
        prediction: u64,
    },
    Replies {
        call: u32,
        outcome: Outcome,
    },
    /// The caller stops waiting.
    TimeUp(u32),
    /// The service gives up on this call.
    TimedOut(u32),
    LineOver(u32),
    Again {
        parent: Parent,
        service: u8,
        attempt: u8,
    },
    Speeds,
    Senses,
    Steps,
}

#[derive(Debug)]
struct Node {
    station: Station,
    front: Front,
    /// Retries that callers of this service may still make.
    allowance: f64,
    used: f64,
}

#[derive(Debug)]
struct World<'a> {
    agenda: Agenda<Event>,
    nodes: Vec<Node>,
    requests: Vec<super::load::Arriving>,
    calls: Vec<Call>,
    retries: Retries,
    deadline: u64,
    meter: Meter,
    done: Vec<(u32, Worked)>,
    load: &'a Load,
}

/// The caller of a service: a request of the load, or a call at the previous service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parent {
    Request(u32),
    Call(u32),
}

/// One attempt of one request at one service.
#[derive(Clone, Copy, Debug)]
struct Call {
    parent: Parent,
    request: u32,
    service: u8,
    attempt: u8,
    /// Whether the caller has an answer or has stopped waiting.
    settled: bool,
    /// Whether the service has answered.
    left: bool,
    began: u64,
    /// When the service worked on it; `None` until the work is done.
    worked: Option<Worked>,
    /// The call at the next service whose good answer it got.
    below: Option<u32>,
}

impl Call {
    fn begins(parent: Parent, request: u32, service: u8, attempt: u8, began: u64) -> Self {
        let (settled, left, worked, below) = (false, false, None, None);
        Self { parent, request, service, attempt, settled, left, began, worked, below }
    }
}

/// Marks work that no caller waits for.
const NO_CALLER: u32 = 1 << 31;

/// The most unused retries that a budget accumulates.
const SAVED_RETRIES: f64 = 100.0;

pub(crate) fn run(services: Vec<Service>, load: &Load, seed: u64) -> Measured {
    let deadline = services.first().map_or(Duration::MAX, |service| service.backend.deadline);
    let requests = load.arrivals(seed);
    let nodes: Vec<Node> = services.into_iter().map(Node::new).collect();
    let moves = nodes.iter().any(|node| node.station.backend().speed.moves());
    let mut world = World {
        agenda: Agenda::new(),
        nodes,
        meter: Meter::new(load.until),
        calls: Vec::with_capacity(requests.len()),
        requests,
        retries: load.retries,
        deadline: deadline.as_nanos() as u64,
        done: Vec::new(),
        load,
    };
    if !world.requests.is_empty() {
        world.agenda.put(world.requests[0].at, Event::Arrives(0));
    }
    if moves {
        world.agenda.put(0, Event::Speeds);
    }
    world.agenda.put(SENSE_EVERY, Event::Senses);
    world.agenda.put(nanos(STEP), Event::Steps);
    // So that the last requests can still be answered in time.
    let end = load.until.as_nanos() as u64 + world.deadline;
    while let Some(event) = world.agenda.next_until(end) {
        world.handle(event);
    }
    world.meter.finish()
}

impl Node {
    fn new(service: Service) -> Self {
        Self {
            station: Station::new(service.backend),
            front: service.front,
            allowance: SAVED_RETRIES,
            used: 0.0,
        }
    }
}

impl World<'_> {
    fn handle(&mut self, event: Event) {
        let now = self.agenda.now();
        match event {
            Event::Arrives(number) => {
                let request = self.requests[number as usize];
                self.meter.offered(request.at, request.priority);
                if let Some(next) = self.requests.get(number as usize + 1) {
                    self.agenda.put(next.at, Event::Arrives(number + 1));
                }
                self.call(Parent::Request(number), 0, 1);
            }
            Event::Done { service, prediction } => self.done(service, prediction),
            Event::Replies { call, outcome } => self.leave(call, outcome),
            Event::TimeUp(call) => {
                if !self.calls[call as usize].settled {
                    self.settle(call, Outcome::Failure, false);
                }
            }
            Event::TimedOut(call) => self.leave(call, Outcome::Failure),
            Event::LineOver(call) => {
                let service = self.calls[call as usize].service;
                match self.nodes[service as usize].front.time_is_up(now, call) {
                    Some(true) => self.enter(call),
                    Some(false) => self.refuse(call),
                    None => {}
                }
                self.answered(service);
            }
            Event::Again { parent, service, attempt } => self.call(parent, service, attempt),
            Event::Speeds => {
                for service in 0..self.nodes.len() {
                    self.nodes[service].station.change_speed(now);
                    self.predict(service as u8);
                }
                self.agenda.put(now + SPEED_EVERY, Event::Speeds);
            }
            Event::Steps => {
                self.meter.limit(self.nodes[0].front.limit_now());
                for node in &mut self.nodes {
                    node.station.begin_step(now);
                }
                self.agenda.put(now + nanos(STEP), Event::Steps);
            }
            Event::Senses => {
                for node in &mut self.nodes {
                    let used = node.station.used(now);
                    let most = f64::from(node.station.backend().sharing.servers()) * SENSE_EVERY as f64;
                    let share = ((used - node.used) / most * 1000.0).round().clamp(0.0, 1000.0);
                    node.used = used;
                    node.front.sense(now, Signal::Cpu(share as u16));
                }
                for service in 0..self.nodes.len() {
                    self.answered(service as u8);
                }
                self.agenda.put(now + SENSE_EVERY, Event::Senses);
            }
        }
    }

    /// The random numbers of one attempt of one request at one service; they do not depend on what happened before.
    fn chance(&self, call: &Call) -> Chance {
        let request = self.requests[call.request as usize].seed;
        let mut chance = Chance(request ^ (u64::from(call.service) << 32 | u64::from(call.attempt)));
        chance.bits();
        chance
    }

    fn call(&mut self, parent: Parent, service: u8, attempt: u8) {
        let now = self.agenda.now();
        let request = match parent {
            Parent::Request(request) => request,
            Parent::Call(call) => self.calls[call as usize].request,
        };
        let number = self.calls.len() as u32;
        let call = Call::begins(parent, request, service, attempt, now);
        let draw = (self.chance(&call).bits() >> 32) as u32;
        self.calls.push(call);
        let node = &mut self.nodes[service as usize];
        if attempt == 1
            && let Some(ratio) = self.retries.budget
        {
            node.allowance = (node.allowance + ratio).min(SAVED_RETRIES);
        }
        let deadline = now + self.deadline;
        self.agenda.put(deadline, Event::TimeUp(number));
        let priority = self.requests[request as usize].priority;
        match node.front.arrive(now, deadline, number, priority, draw) {
            Admission::Enters => self.enter(number),
            Admission::WaitsUntil(time) => self.agenda.put(time, Event::LineOver(number)),
            Admission::Refused => self.refuse(number),
        }
        self.answered(service);
    }

    /// Handles the waiting calls that the bulkhead has answered: each enters or is refused.
    fn answered(&mut self, service: u8) {
        while let Some((call, enters)) = self.nodes[service as usize].front.answered() {
            if enters { self.enter(call) } else { self.refuse(call) }
        }
    }

    fn enter(&mut self, number: u32) {
        let now = self.agenda.now();
        let call = self.calls[number as usize];
        let mut chance = self.chance(&call);
        chance.bits();
        let node = &mut self.nodes[call.service as usize];
        let work = node.station.backend().work.draw(&mut chance, node.station.served());
        let inside = node.station.inside();
        match node.station.backend().excess {
            Excess::Defers { above, after } if inside >= above => {
                self.agenda
                    .put(now + nanos(after), Event::Replies { call: number, outcome: Outcome::Overloaded });
                return;
            }
            Excess::Drops { above, after, work: costs } if inside >= above => {
                self.agenda
                    .put(now + nanos(after), Event::Replies { call: number, outcome: Outcome::Failure });
                node.station.enter(now, number | NO_CALLER, nanos(costs) as f64);
                self.predict(call.service);
                return;
            }
            Excess::TimesOut(after) => self.agenda.put(now + nanos(after), Event::TimedOut(number)),
            _ => {}
        }
        node.station.enter(now, number, work);
        self.predict(call.service);
    }

    fn predict(&mut self, service: u8) {
        if let Some((at, prediction)) = self.nodes[service as usize].station.predict() {
            self.agenda.put(at, Event::Done { service, prediction });
        }
    }

    /// Replies wait, or calls go on to the next service.
    fn done(&mut self, service: u8, prediction: u64) {
        let now = self.agenda.now();
        if !self.nodes[service as usize].station.holds(prediction) {
            return;
        }
        let mut done = std::mem::take(&mut self.done);
        self.nodes[service as usize].station.finish(now, &mut done);
        for (number, worked) in done.drain(..).filter(|(number, _)| number & NO_CALLER == 0) {
            let call = &mut self.calls[number as usize];
            if call.left {
                continue;
            }
            call.worked = Some(worked);
            let call = *call;
            if usize::from(service) + 1 < self.nodes.len() {
                self.call(Parent::Call(number), service + 1, 1);
                continue;
            }
            let mut chance = self.chance(&call);
            chance.0 = chance.0.wrapping_add(1);
            let wait = self.nodes[service as usize].station.backend().wait.draw(now, &mut chance);
            if wait == 0 {
                self.leave(number, Outcome::Success);
            } else {
                self.agenda.put(now + wait, Event::Replies { call: number, outcome: Outcome::Success });
            }
        }
        self.done = done;
        self.predict(service);
    }

    /// The call leaves the service, and the caller gets the answer.
    fn leave(&mut self, number: u32, outcome: Outcome) {
        let now = self.agenda.now();
        let call = &mut self.calls[number as usize];
        if call.left {
            return;
        }
        call.left = true;
        let (service, settled) = (call.service, call.settled);
        self.nodes[service as usize].front.leave(now, number, outcome);
        if settled {
            self.meter.late();
        } else {
            self.settle(number, outcome, false);
        }
        self.answered(service);
    }

    fn refuse(&mut self, number: u32) {
        self.calls[number as usize].left = true;
        if !self.calls[number as usize].settled {
            self.settle(number, Outcome::Overloaded, true);
        }
    }

    /// Ends a call for its caller.
    fn settle(&mut self, number: u32, outcome: Outcome, refused: bool) {
        let now = self.agenda.now();
        let call = &mut self.calls[number as usize];
        call.settled = true;
        let call = *call;
        if !refused {
            self.nodes[call.service as usize].front.settled(now, now - call.began, outcome);
        }
        let good = outcome == Outcome::Success;
        if !good && u32::from(call.attempt) < self.retries.attempts && self.may_retry(&call) {
            let backoff = nanos(self.retries.backoff);
            let wait = backoff + (self.chance(&call).share() * backoff as f64) as u64;
            let again =
                Event::Again { parent: call.parent, service: call.service, attempt: call.attempt + 1 };
            self.agenda.put(now + wait, again);
            return;
        }
        match call.parent {
            Parent::Request(request) => {
                let arriving = self.requests[request as usize];
                if good {
                    // The latency that the caller saw of the successful attempt.
                    self.meter.good(now, arriving.at, arriving.priority, now - call.began);
                    self.count_work(number);
                } else {
                    self.meter.lost(refused);
                }
            }
            Parent::Call(parent) => {
                self.calls[parent as usize].below = good.then_some(number);
                self.leave(parent, outcome);
            }
        }
    }

    /// Counts the work on a request that was answered well, at all services. Work on attempts that failed does not
    /// count.
    fn count_work(&mut self, number: u32) {
        let calls =
            || successors(Some(&self.calls[number as usize]), |call| Some(&self.calls[call.below? as usize]));
        let work = |call: &Call| call.worked.map_or(0.0, Worked::work);
        let total: f64 = calls().map(work).sum();
        for call in calls() {
            let Some(worked) = call.worked else { continue };
            for (step, share) in self.nodes[call.service as usize].station.shares(worked) {
                self.meter.worked(step, share * worked.work() / total);
            }
        }
    }

    fn may_retry(&mut self, call: &Call) -> bool {
        if let Parent::Call(parent) = call.parent
            && self.calls[parent as usize].settled
        {
            return false;
        }
        if self.load.retries.budget.is_none() {
            return true;
        }
        let allowance = &mut self.nodes[call.service as usize].allowance;
        let may = *allowance >= 1.0;
        if may {
            *allowance -= 1.0;
        }
        may
    }
}
