//! Every sequence of up to six steps, compared with a list: who enters, who waits, who is woken, and that all is free
//! in the end.

use tidegate::Bulkhead;
use tidegate::bulkhead::Permit;

use super::{Waiter, places, ready};

/// The next step. `first` chooses the first or the last of the permits or waiters.
#[derive(Clone, Copy, Debug)]
enum Step {
    TryEnter,
    Enter(u64),
    Poll { first: bool },
    DropWaiter { first: bool },
    DropPermit { first: bool },
    Change(u64),
}

const STEPS: [Step; 12] = [
    Step::TryEnter,
    Step::Enter(1),
    Step::Enter(2),
    Step::Poll { first: true },
    Step::Poll { first: false },
    Step::DropWaiter { first: true },
    Step::DropWaiter { first: false },
    Step::DropPermit { first: true },
    Step::DropPermit { first: false },
    Step::Change(1),
    Step::Change(2),
    Step::Change(3),
];

/// The state of a waiter, by the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaiterState {
    Waits,
    Given,
    Refused,
}

/// A bulkhead, and its model as lists.
struct World {
    bulkhead: Bulkhead,
    permits: Vec<Permit>,
    waiters: Vec<Waiter>,
    max: u64,
    inside: Vec<u64>,
    line: Vec<(u64, WaiterState)>,
}

impl World {
    fn new() -> Self {
        let bulkhead = Bulkhead::new(2).unwrap();
        Self {
            bulkhead,
            permits: Vec::new(),
            waiters: Vec::new(),
            max: 2,
            inside: Vec::new(),
            line: Vec::new(),
        }
    }

    fn in_use(&self) -> u64 {
        let given =
            self.line.iter().filter(|(_, state)| *state == WaiterState::Given).map(|(places, _)| places);
        self.inside.iter().chain(given).sum()
    }

    fn waits(&self) -> usize {
        self.line.iter().filter(|(_, state)| *state == WaiterState::Waits).count()
    }

    fn advance(&mut self) {
        for at in 0..self.line.len() {
            if self.line[at].1 != WaiterState::Waits {
                continue;
            }
            match self.line[at].0 {
                fits if self.in_use() + fits <= self.max => self.line[at].1 = WaiterState::Given,
                _ => return,
            }
        }
    }

    /// Performs a step. Returns `false` if there is no permit or waiter for it.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::TryEnter => {
                let enters = self.waits() == 0 && self.in_use() < self.max;
                let permit = self.bulkhead.try_enter();
                assert_eq!(permit.is_ok(), enters);
                if let Ok(permit) = permit {
                    self.permits.push(permit);
                    self.inside.push(1);
                }
            }
            Step::Enter(wanted) => {
                let mut waiter = Waiter::new(self.bulkhead.enter_n(places(wanted)));
                let at_once = self.waits() == 0 && self.in_use() + wanted <= self.max;
                if at_once || wanted > self.max {
                    let answer = ready(waiter.poll());
                    assert_eq!(answer.is_ok(), at_once);
                    if let Ok(permit) = answer {
                        self.permits.push(permit);
                        self.inside.push(wanted);
                    }
                } else {
                    assert!(waiter.poll().is_pending());
                    self.waiters.push(waiter);
                    self.line.push((wanted, WaiterState::Waits));
                }
            }
            Step::Poll { first } => {
                let Some(at) = pick(first, self.waiters.len()) else { return false };
                let (wanted, state) = self.line[at];
                if state == WaiterState::Waits {
                    assert!(self.waiters[at].poll().is_pending());
                    return true;
                }
                let answer = ready(self.waiters.remove(at).poll());
                self.line.remove(at);
                assert_eq!(answer.is_ok(), state == WaiterState::Given);
                if let Ok(permit) = answer {
                    self.permits.push(permit);
                    self.inside.push(wanted);
                }
            }
            Step::DropWaiter { first } => {
                let Some(at) = pick(first, self.waiters.len()) else { return false };
                drop(self.waiters.remove(at));
                self.line.remove(at);
                self.advance();
            }
            Step::DropPermit { first } => {
                let Some(at) = pick(first, self.permits.len()) else { return false };
                drop(self.permits.remove(at));
                self.inside.remove(at);
                self.advance();
            }
            Step::Change(max) => {
                self.bulkhead.change(max).unwrap();
                self.max = max;
                for (wanted, state) in &mut self.line {
                    if *state == WaiterState::Waits && *wanted > max {
                        *state = WaiterState::Refused;
                    }
                }
                self.advance();
            }
        }
        let (standing, in_use) = (self.bulkhead.standing(), self.in_use());
        assert_eq!(standing.remaining, self.max.saturating_sub(in_use));
        assert_eq!(standing.debt, in_use.saturating_sub(self.max));
        assert_eq!(self.bulkhead.waiting(), self.waits());
        for (waiter, (_, state)) in self.waiters.iter().zip(&self.line) {
            assert_eq!(
                waiter.was_woken(),
                *state != WaiterState::Waits,
                "woken when its turn came, and not before"
            );
        }
        true
    }
}

/// The index of the first or the last of `len`; `None` for the last if it is also the first.
fn pick(first: bool, len: usize) -> Option<usize> {
    match len {
        0 => None,
        1 if !first => None,
        _ if first => Some(0),
        len => Some(len - 1),
    }
}

fn replay(steps: &[Step]) -> Option<World> {
    let mut world = World::new();
    steps.iter().all(|step| world.step(*step)).then_some(world)
}

fn walk(steps: &mut Vec<Step>, left: u32, ends: &mut u64) {
    for step in STEPS {
        steps.push(step);
        if let Some(world) = replay(steps) {
            if left > 1 {
                walk(steps, left - 1, ends);
            } else {
                *ends += 1;
                let bulkhead = world.bulkhead.clone();
                // Permits and waiters are dropped in the order of the fields, including waiters that were given places.
                drop(world);
                let standing = bulkhead.standing();
                assert_eq!((standing.remaining, bulkhead.waiting()), (standing.limit, 0), "{steps:?}");
            }
        }
        steps.pop();
    }
}

#[test]
fn no_order_of_going_loses_a_place_or_a_turn() {
    let mut ends = 0;
    walk(&mut Vec::new(), 6, &mut ends);
    assert!(ends > 100_000, "{ends} sequences");
    println!("{ends} sequences");
}
