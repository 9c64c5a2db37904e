//! Every history of up to three admissions, and every way and order in which four admissions end, compared with a plain
//! model: the number of free places and the number of free units.
//!
//! A history is a sequence of admissions and ends, with the way each one ends. Admission `n` costs `2ⁿ` units, so the
//! units left show which charges were kept. Threads that do the same at once are tested in
//! `gate/admission/loom_model.rs`.

#![allow(clippy::unwrap_used, reason = "tests may, their helpers too")]

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::ManualClock;
use tidegate::gate::{Admission, Check};
use tidegate::policy::{CostRule, Descriptor, Limit, Policy, PolicySet};
use tidegate::{Cost, Gate, Outcome, Quota};

/// How an admission is ended.
#[derive(Clone, Copy, Debug)]
enum End {
    Finish,
    Cancel,
    Drop,
    /// Dropped after `undo_if_dropped`.
    DropUndone,
    /// Its future is dropped while the admission is delayed.
    HangUp,
}

const ENDS: [End; 5] = [End::Finish, End::Cancel, End::Drop, End::DropUndone, End::HangUp];

impl End {
    fn end(self, admission: Admission<Arc<Gate>>) {
        match self {
            Self::Finish => admission.finish(Outcome::Success).now().unwrap(),
            Self::Cancel => admission.cancel().now().unwrap(),
            Self::Drop => drop(admission),
            Self::DropUndone => drop(admission.undo_if_dropped(true)),
            Self::HangUp => drop(admission.delayed()),
        }
    }

    /// Says whether the limit keeps the charge.
    const fn keeps(self) -> bool {
        matches!(self, Self::Finish | Self::Drop)
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Admit,
    /// Ends the admission at this index among those inside, in order of entry.
    End(usize, End),
}

/// How many admissions are asked for, and whether all are asked for before the first one ends.
#[derive(Clone, Copy, Debug)]
struct Asks {
    count: u32,
    together: bool,
}

/// The places and units left, and the costs of the admissions inside.
#[derive(Clone, Debug)]
struct Model {
    places: u64,
    units: u64,
    asked: u32,
    inside: Vec<u64>,
}

impl Model {
    /// Admits the next one if a place and enough units are free.
    fn admit(&mut self) -> bool {
        let cost = 1 << self.asked;
        self.asked += 1;
        let admits = self.places > 0 && self.units >= cost;
        if admits {
            (self.places, self.units) = (self.places - 1, self.units - cost);
            self.inside.push(cost);
        }
        admits
    }

    fn end(&mut self, at: usize, end: End) {
        let cost = self.inside.remove(at);
        self.places += 1;
        self.units += if end.keeps() { 0 } else { cost };
    }

    /// Continues the history in every way until all admissions have been asked for and those inside have ended. With
    /// `together`, none ends before all have been asked for.
    fn histories(&self, asks: Asks, history: &mut Vec<Event>, run: &mut impl FnMut(&[Event])) {
        if self.asked == asks.count && self.inside.is_empty() {
            return run(history);
        }
        let mut go = |event| {
            let mut next = self.clone();
            match event {
                Event::Admit => _ = next.admit(),
                Event::End(at, end) => next.end(at, end),
            }
            history.push(event);
            next.histories(asks, history, run);
            history.pop();
        };
        if self.asked < asks.count {
            go(Event::Admit);
            if asks.together {
                return;
            }
        }
        for at in 0..self.inside.len() {
            ENDS.into_iter().for_each(|end| go(Event::End(at, end)));
        }
    }
}

/// Runs every history of admissions, with a pause after each event. Returns how many histories there were.
fn run_all(asks: Asks, places: u64, limit: Quota, units: u64, pause: Duration) -> usize {
    // A place is held for a day at most, so a place that a history loses is missing for it and for the histories after
    // it.
    let inside = Quota::concurrency(places, Duration::from_secs(86_400)).unwrap();
    let mut bulkhead = Policy::new("places", Limit::new(inside, "places"));
    bulkhead.cost = Some(CostRule::Fixed(Cost::ONE));
    let policies = vec![bulkhead, Policy::new("units", Limit::new(limit, "units"))];
    let clock = ManualClock::default();
    let gate = Gate::in_memory(PolicySet::new(policies).unwrap(), 100).unwrap().with_clock(clock.clone());
    let gate = Arc::new(gate);
    let left = || {
        let limits = gate.check(Check::of(&Descriptor::new()).peek()).now().unwrap().limits;
        limits.iter().map(|limit| limit.decision.standing.remaining).collect::<Vec<_>>()
    };
    let start = Model { places, units, asked: 0, inside: Vec::new() };
    let mut count = 0;
    start.histories(asks, &mut Vec::new(), &mut |history| {
        let (mut model, mut held) = (start.clone(), Vec::new());
        assert_eq!(left(), [places, units], "full before {history:?}");
        for event in history {
            match *event {
                Event::Admit => {
                    let cost = 1_u64 << model.asked;
                    let admission =
                        Admission::ask(Arc::clone(&gate), Check::of(&Descriptor::new()).cost(cost))
                            .now()
                            .unwrap()
                            .admitted();
                    assert_eq!(admission.is_some(), model.admit(), "{history:?}");
                    held.extend(admission);
                }
                Event::End(at, end) => {
                    end.end(held.remove(at));
                    model.end(at, end);
                    assert_eq!(left(), [model.places, model.units], "after {event:?} of {history:?}");
                }
            }
            clock.advance(pause);
        }
        // Units return by themselves; places do not.
        clock.advance(Duration::from_secs(3600));
        count += 1;
    });
    count
}

#[test]
fn admissions_end_in_every_order_and_way() {
    let run = |count: u32, together: bool| {
        let limit = Quota::per_hour(15).gcra().unwrap();
        run_all(Asks { count, together }, 4, limit, 15, Duration::ZERO)
    };
    assert_eq!(run(4, true), 24 * 625, "the orders of four, and five ways to end each");
    // Admissions and ends mixed: 1, 3 and 15 orders, with five ways to end each admission.
    assert_eq!([1, 2, 3].map(|count| run(count, false)), [5, 3 * 25, 15 * 125]);
}

#[test]
fn whoever_is_refused_changes_nothing_for_those_inside() {
    let (asks, nanosecond) = (Asks { count: 3, together: false }, Duration::from_nanos(1));
    for pause in [Duration::ZERO, nanosecond] {
        for (places, units) in [(1, 7), (2, 7), (3, 4), (2, 5)] {
            for limit in [
                Quota::per_hour(units).gcra(),
                Quota::per_hour(units).token_bucket(),
                Quota::per_hour(units).fixed_window(),
                Quota::per_hour(units).sliding_log(),
            ] {
                assert!(run_all(asks, places, limit.unwrap(), units, pause) > 100);
            }
        }
    }
}
