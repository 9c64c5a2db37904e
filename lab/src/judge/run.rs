//! One run: callers come to a protected service on a virtual clock, and each of them is counted once.
//!
//! The same service, load and seed offer the same requests at the same times, whatever protects the service; what
//! callers do when they try again depends on the answers.

use std::collections::VecDeque;
use std::mem;

use tidegate::Outcome;
use tidegate_sim::traffic::Chance;

use super::engine::{Engine, Key, Left, Moment};
use super::guard::{Answer, Asks, Guard, Pass, Protection, Waiter};
use super::service::{Job, Service, exponential, nanos};
use super::tally::{End, Tally};
use crate::event_queue::Agenda;

/// The most requests inside. Beyond, a machine takes no connection.
const ROOM: usize = 1 << 16;

/// Runs a service at a load, in multiples of its capacity, and counts.
pub(super) fn run(service: &Service, load: f64, protection: Protection, seed: u64) -> Tally {
    let steps = service.steps(seed);
    let part = service.part();
    let end = nanos(service.warm + service.span);
    let mut run = Run {
        service,
        guard: Guard::new(protection, service),
        engine: Engine::new(service, &steps),
        agenda: Agenda::new(),
        now: 0,
        calls: Vec::new(),
        free: Vec::new(),
        due: vec![VecDeque::new(); service.classes.len()],
        arrivals: Arrivals::new(service, load, seed),
        again: Chance(seed.rotate_left(32)),
        open: 0,
        counted: nanos(service.warm)..end,
        offered: vec![0.0; usize::try_from(end / part).unwrap_or(0) + 1],
        tally: Tally::new(&service.classes),
    };
    run.go();
    let Run { mut tally, offered, engine, .. } = run;
    tally.most_held = engine.most_held();
    tally.allowed = service.allowed(&steps, &offered).min(tally.healthy);
    tally
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Machine(Moment),
    /// The wait for a place may be over.
    Ask(Key),
    HangUp(Key),
    Again(Caller),
}

impl From<Moment> for Event {
    fn from(moment: Moment) -> Self {
        Self::Machine(moment)
    }
}

/// Who calls. He stays the same when he tries again.
#[derive(Clone, Copy, Debug)]
struct Caller {
    class: usize,
    tried: u8,
    counted: bool,
    came: u64,
}

/// One try of a caller.
struct Try {
    turn: u32,
    caller: Caller,
    job: Job,
    /// Whether the caller still waits for it.
    awaited: bool,
    stage: Stage,
}

enum Stage {
    /// This slot of the table is free.
    Over,
    InLine(Box<Waiter>),
    Inside(Pass),
    /// Its place is free again, but the service works on.
    Abandoned,
}

/// The end of the time that a caller gives a try.
#[derive(Clone)]
struct Due {
    at: u64,
    key: Key,
}

struct Run<'s> {
    service: &'s Service,
    guard: Guard,
    engine: Engine<'s>,
    agenda: Agenda<Event>,
    now: u64,
    calls: Vec<Try>,
    free: Vec<u32>,
    /// By classes. Each is in the order of time, since all callers of a class give the same time.
    due: Vec<VecDeque<Due>>,
    arrivals: Arrivals<'s>,
    again: Chance,
    /// How many callers are counted and have no answer yet.
    open: u64,
    counted: std::ops::Range<u64>,
    /// What was offered that can be answered, in requests of cost 1, by parts of the time.
    offered: Vec<f64>,
    tally: Tally,
}

impl Run<'_> {
    fn go(&mut self) {
        let mut rung = Vec::new();
        // Callers keep coming until the last one that counts has his answer.
        while self.now < self.counted.end || self.open > 0 {
            let (due, class) = self.first_due();
            let machine = self.engine.next_change().unwrap_or(u64::MAX);
            let next = machine.min(due).min(self.arrivals.next);
            if let Some(event) = self.agenda.next_until(next) {
                self.turn_to(self.agenda.now());
                self.happen(event);
            } else {
                self.turn_to(next);
                if due == next {
                    if let Some(Due { key, .. }) = self.due[class].pop_front() {
                        self.time_is_up(key);
                    }
                } else if self.arrivals.next == next {
                    self.arrive();
                }
            }
            self.guard.take_rung(&mut rung);
            while !rung.is_empty() {
                rung.drain(..).for_each(|key| self.ask_again(key));
                self.guard.take_rung(&mut rung);
            }
        }
    }

    /// Returns the end of the time that some caller gives, and his class.
    fn first_due(&self) -> (u64, usize) {
        let first = |due: &VecDeque<Due>| due.front().map_or(u64::MAX, |due| due.at);
        let firsts = self.due.iter().enumerate().map(|(class, due)| (first(due), class));
        firsts.min().unwrap_or((u64::MAX, 0))
    }

    /// Moves the time forward, and answers what the machine has done by then.
    fn turn_to(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.guard.set(self.now);
        self.engine.advance(self.now);
        while let Some(left) = self.engine.take_done() {
            self.left(left);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Machine(moment) => {
                if let Some(left) = self.engine.happen(moment, &mut self.agenda) {
                    self.left(left);
                }
            }
            Event::Ask(key) => self.ask_again(key),
            Event::HangUp(key) => self.hang_up(key),
            Event::Again(caller) => {
                let class = &self.service.classes[caller.class];
                let job = self.service.draw(class, self.now as f64 / 1e9, &mut self.again);
                self.begin(caller, job);
            }
        }
    }

    fn arrive(&mut self) {
        let (class, job) = self.arrivals.take();
        let cost = self.service.classes[class].cost;
        let part = usize::try_from(self.now / self.service.part()).unwrap_or(usize::MAX);
        if let Some(offered) = self.offered.get_mut(part)
            && !job.hopeless
            && self.now < self.counted.end
        {
            *offered += cost;
        }
        let counted = self.counted.contains(&self.now);
        if counted {
            self.open += 1;
            self.tally.offer(class, cost, job.hopeless);
        }
        self.begin(Caller { class, tried: 0, counted, came: self.now }, job);
    }

    fn begin(&mut self, caller: Caller, job: Job) {
        let key = self.key();
        let class = &self.service.classes[caller.class];
        let deadline = self.now + nanos(self.service.within(class));
        self.due[caller.class].push_back(Due { at: deadline, key });
        if let Some(patience) = job.patience {
            self.agenda.put(self.now + patience, Event::HangUp(key));
        }
        let call = &mut self.calls[key.slot as usize];
        (call.caller, call.job, call.awaited) = (caller, job, true);
        if self.engine.inside() >= ROOM {
            return self.refused(key);
        }
        let asks = Asks {
            level: class.level,
            tenant: self.service.tenants.then_some(class.name),
            deadline: self.service.callers.told.then_some(deadline),
        };
        let answer = self.guard.ask(key, asks);
        self.take_answer(key, answer);
    }

    fn ask_again(&mut self, key: Key) {
        let Some(call) = self.call(key) else { return };
        // A bell may ring for one who has left, and for one who is in.
        let waiter = match mem::replace(&mut call.stage, Stage::Over) {
            Stage::InLine(waiter) => waiter,
            stage => {
                call.stage = stage;
                return;
            }
        };
        let answer = self.guard.ask_again(key, waiter);
        self.take_answer(key, answer);
    }

    fn take_answer(&mut self, key: Key, answer: Answer) {
        let call = &mut self.calls[key.slot as usize];
        match answer {
            Answer::Refused => self.refused(key),
            Answer::In(pass) => {
                call.stage = Stage::Inside(pass);
                self.engine.enter(key, call.job, &mut self.agenda);
            }
            Answer::Waits(waiter, until) => {
                call.stage = Stage::InLine(waiter);
                if let Some(until) = until {
                    self.agenda.put(until, Event::Ask(key));
                }
            }
        }
    }

    fn refused(&mut self, key: Key) {
        self.settle(key, End::Refused);
        self.release(key);
    }

    /// Ends the try of a request that has left the machine.
    fn left(&mut self, left: Left) {
        let (key, outcome) = match left {
            Left::Done(key) => {
                let fails = self.calls[key.slot as usize].job.fails;
                (key, if fails { Outcome::Failure } else { Outcome::Success })
            }
            Left::TurnedAway(key) => (key, Outcome::Overloaded),
        };
        let call = &mut self.calls[key.slot as usize];
        if let Stage::Inside(pass) = mem::replace(&mut call.stage, Stage::Over) {
            pass.leave(outcome);
        }
        let end = match outcome {
            Outcome::Success => End::Answered,
            Outcome::Overloaded => End::Refused,
            _ => End::Hung,
        };
        self.settle(key, end);
        self.release(key);
    }

    /// The caller has waited for as long as he would. The service notices if it was told the deadline.
    fn time_is_up(&mut self, key: Key) {
        let told = self.service.callers.told;
        let Some(call) = self.call(key) else { return };
        let end = if call.job.hopeless { End::Hung } else { End::Late };
        self.settle(key, end);
        if told {
            self.abandon(key, Outcome::Failure);
        }
    }

    fn hang_up(&mut self, key: Key) {
        let Some(call) = self.call(key) else { return };
        if call.awaited {
            let end = if call.job.hopeless { End::Hung } else { End::Late };
            // He does not come again.
            call.caller.tried = u8::MAX;
            self.settle(key, end);
            self.abandon(key, Outcome::Ignored);
        }
    }

    /// Gives a request up that nobody waits for any more.
    fn abandon(&mut self, key: Key, outcome: Outcome) {
        let frees = self.service.callers.frees;
        let Some(call) = self.call(key) else { return };
        match mem::replace(&mut call.stage, Stage::Abandoned) {
            Stage::Inside(pass) => pass.leave(outcome),
            // To drop it is to leave the line.
            Stage::InLine(_) => return self.release(key),
            Stage::Abandoned | Stage::Over => return,
        }
        if frees {
            self.engine.give_up(key);
            self.release(key);
        }
    }

    /// Ends a try for its caller, who tries again or is counted.
    fn settle(&mut self, key: Key, end: End) {
        let call = &mut self.calls[key.slot as usize];
        if !mem::replace(&mut call.awaited, false) {
            return;
        }
        let caller = call.caller;
        if end != End::Answered && caller.tried < self.service.callers.retries {
            let pause = nanos(self.service.callers.pause * exponential(&mut self.again));
            self.agenda.put(self.now + pause, Event::Again(Caller { tried: caller.tried + 1, ..caller }));
        } else if caller.counted {
            self.open -= 1;
            let cost = self.service.classes[caller.class].cost;
            self.tally.end(caller.class, cost, end, self.now - caller.came);
        }
    }

    fn key(&mut self) -> Key {
        if let Some(slot) = self.free.pop() {
            return Key { slot, turn: self.calls[slot as usize].turn };
        }
        let slot = self.calls.len() as u32;
        let caller = Caller { class: 0, tried: 0, counted: false, came: 0 };
        let job = Job { work: 0.0, wait: 0, hangs: None, fails: false, patience: None, hopeless: false };
        self.calls.push(Try { turn: 0, caller, job, awaited: false, stage: Stage::Over });
        Key { slot, turn: 0 }
    }

    fn release(&mut self, key: Key) {
        let call = &mut self.calls[key.slot as usize];
        call.stage = Stage::Over;
        call.turn = call.turn.wrapping_add(1);
        self.free.push(key.slot);
    }

    /// Returns the try of a key; `None` if it is over.
    fn call(&mut self, key: Key) -> Option<&mut Try> {
        self.calls.get_mut(key.slot as usize).filter(|call| call.turn == key.turn)
    }
}

/// The requests of a run, in the order of time.
struct Arrivals<'s> {
    service: &'s Service,
    rates: Vec<f64>,
    all: f64,
    /// How many more come with the last one.
    together: u32,
    chance: Chance,
    next: u64,
}

impl<'s> Arrivals<'s> {
    fn new(service: &'s Service, load: f64, seed: u64) -> Self {
        let rates = service.rates(load);
        let all = rates.iter().sum();
        let mut arrivals = Self { service, rates, all, together: 0, chance: Chance(seed), next: 0 };
        arrivals.go_on();
        arrivals
    }

    /// Takes the next request: its class and what it needs.
    fn take(&mut self) -> (usize, Job) {
        let mut drawn = self.chance.share() * self.all;
        let chosen = self.rates.iter().position(|rate| {
            drawn -= rate;
            drawn < 0.0
        });
        let class = chosen.unwrap_or(0);
        let at = self.next as f64 / 1e9;
        let job = self.service.draw(&self.service.classes[class], at, &mut self.chance);
        self.go_on();
        (class, job)
    }

    fn go_on(&mut self) {
        let clump = self.service.clump;
        if self.together > 0 {
            self.together -= 1;
            return;
        }
        self.together = clump - 1;
        let rate = self.all * self.service.part_of_load(self.next as f64 / 1e9) / f64::from(clump);
        self.next += nanos(exponential(&mut self.chance) / rate).max(1);
    }
}
