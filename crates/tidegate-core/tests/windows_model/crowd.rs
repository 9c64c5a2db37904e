//! Crowds: many callers wait for one key, and most of them go away again. That nothing is left when all have gone is
//! tested for all algorithms, in `settling/crowd.rs`.
//!
//! The models keep every promise, however many there are. So a limit that forgets a promise differs from its model as soon
//! as those behind it are undone.

use std::time::Duration;

use tidegate_core::rate::{CalendarUnit, FixedWindow, SlidingCounter, SlidingLog, SlidingWindow};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, Retry, State, Tick, Transition};

use crate::random::Random;
use crate::windows_model::counter::CounterModel;
use crate::windows_model::fixed::FixedModel;
use crate::windows_model::model::Model;
use crate::windows_model::sliding::SlidingModel;

/// Twenty seconds into a minute.
const START: Tick = Tick::from_secs(1_700_000_000);

/// The most promises that a key keeps.
const AHEAD: usize = 4096;

/// Ten a minute, or one, by each algorithm.
fn limits(count: u64) -> [Quota; 5] {
    let rate = Rate::new(count, Duration::from_secs(60)).unwrap();
    [
        SlidingLog::new(rate).unwrap().into(),
        SlidingWindow::new(rate, 60).unwrap().into(),
        SlidingCounter::new(rate).into(),
        FixedWindow::rolling(rate).into(),
        FixedWindow::calendar(count, CalendarUnit::Minute, "UTC").unwrap().into(),
    ]
}

fn ask(at: Tick, units: u64) -> Ask {
    Ask::within(at, Cost::new(units).unwrap(), Duration::MAX)
}

fn charge(quota: &Quota, state: &mut State, ask: Ask) -> Receipt {
    let Transition::Allowed { next, receipt, .. } = quota.decide(state, ask) else { panic!("any wait") };
    *state = next;
    receipt
}

/// Two a minute, five reservations of two within ten minutes, all of them undone. Regression: refused for 179 s.
#[test]
fn five_reservations_that_are_undone_leave_no_trace() {
    let quota: Quota = SlidingLog::new(Rate::new(2, Duration::from_secs(60)).unwrap()).unwrap().into();
    let mut state = quota.fresh(START);
    let all: Vec<Receipt> =
        (0..5).map(|_| charge(&quota, &mut state, ask(START.after(Duration::from_secs(600)), 2))).collect();
    let later = START.after(Duration::from_secs(601));
    for receipt in all {
        state = quota.settle(&state, later, &receipt, 0);
    }
    assert!(matches!(quota.decide(&state, Ask::allow(later, Cost::ONE)), Transition::Allowed { .. }));
}

/// Callers come in random bunches, each with a longest wait; some give up, some use a part, some more than they were
/// charged. Every answer and every standing is that of the model, which forgets nothing.
#[test]
fn crowds_equal_their_models() {
    for seed in 0..8 {
        for (kind, quota) in limits(1 + seed % 4 * 3).into_iter().enumerate() {
            let mut random = Random::new(seed * 8 + kind as u64);
            let mut model: Box<dyn Model> = match &quota {
                Quota::SlidingCounter(_) => Box::new(CounterModel::new(&quota, START)),
                Quota::FixedWindow(law) => Box::new(FixedModel::new(law.clone(), START)),
                _ => Box::new(SlidingModel::new(&quota, START)),
            };
            let (mut state, mut now, mut open, mut charged) = (quota.fresh(START), START, Vec::new(), 0);
            let rounds = if kind == 2 { 6 } else { 16 };
            for _ in 0..rounds {
                now = now.after(random.span(90_000_000_000));
                for _ in 0..random.one_to(200) {
                    let units = if random.one_in(4) { 1 + random.below(2) } else { 1 };
                    let waits = [Duration::MAX, random.span(1 << 43)][random.below(2) as usize];
                    let ask = Ask::within(now, Cost::new(units).unwrap(), waits);
                    let answer = model.decide(ask);
                    let found = quota.decide(&state, ask);
                    assert_eq!(crate::windows_model::model::of(&found), answer, "{quota:?} {ask:?}");
                    if let Transition::Allowed { next, receipt, .. } = found {
                        state = next;
                        open.push((charged, receipt));
                        charged += 1;
                    }
                    now = now.after(random.span(1_000_000_000));
                }
                let leave = random.below(open.len() as u64 + 1);
                for _ in 0..leave {
                    let (nth, receipt) = open.swap_remove(random.below(open.len() as u64) as usize);
                    let units = receipt.cost.units();
                    let used =
                        [0, 0, 0, 0, units - 1, units, units + random.below(2)][random.below(7) as usize];
                    state = quota.settle(&state, now, &receipt, used);
                    model.settle(now, nth, used);
                    assert_eq!(
                        quota.standing(&state, now),
                        model.standing(now),
                        "{used} of {receipt:?}: {quota:?}"
                    );
                }
            }
        }
    }
}

/// A key keeps 4,096 promises. One more is refused, with the wait until there is room for it; who was promised is served,
/// and when all have gone, nothing is left.
#[test]
fn beyond_the_bound_the_answer_is_no_and_says_when() {
    for quota in limits(1) {
        let mut state = quota.fresh(START);
        let mut all = Vec::new();
        let refused = loop {
            match quota.decide(&state, ask(START, 1)) {
                Transition::Allowed { next, receipt, .. } => (state, _) = (next, all.push(receipt)),
                Transition::Denied { retry } => break retry,
            }
        };
        assert!((AHEAD..AHEAD + 70).contains(&all.len()), "{}: {quota:?}", all.len());
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()), "{quota:?}");
        assert!(state.encode().len() < 42 * (AHEAD + 70), "{quota:?}");
        let Retry::After(wait) = refused else { panic!("{refused:?}: {quota:?}") };
        let early = Duration::from_nanos(1);
        let at = START.after(wait);
        assert_eq!(
            quota.decide(&state, ask(at.before(early), 1)),
            Transition::Denied { retry: Retry::After(early) },
            "{quota:?}"
        );
        let mut later = state.clone();
        charge(&quota, &mut later, ask(at, 1));
        // A bounded wait is refused for as long as the later of the two needs.
        let bounded = Ask::within(START, Cost::ONE, Duration::from_secs(60));
        let Transition::Denied { retry: Retry::After(longer) } = quota.decide(&state, bounded) else {
            panic!("{quota:?}")
        };
        assert!(longer > wait, "{quota:?}");
        let again = Ask::within(START.after(longer), Cost::ONE, Duration::from_secs(60));
        assert!(matches!(quota.decide(&state, again), Transition::Allowed { .. }), "{quota:?}");
        for receipt in all {
            state = quota.settle(&state, START, &receipt, 0);
        }
        assert_eq!(quota.standing(&state, START), quota.standing(&quota.fresh(START), START), "{quota:?}");
    }
}
