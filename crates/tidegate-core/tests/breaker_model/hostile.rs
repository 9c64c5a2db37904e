//! States that no breaker wrote, and hostile text in reasons.

use std::time::Duration;

use tidegate_core::breaker::{CircuitBreaker, Condition, Force, Forced, Window};
use tidegate_core::{
    Algorithm, Ask, Cost, Finish, Guard, Outcome, Quota, Receipt, Replace, Retry, State, Tick, Transition,
};

/// The same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 16
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

fn quotas() -> Vec<Quota> {
    let breaker = CircuitBreaker::builder;
    [
        breaker().min_calls(2),
        breaker().min_calls(2).shed_at_most(0.9),
        breaker().window(Window::Calls(70)).consecutive(3).min_calls(2),
        CircuitBreaker::hystrix(),
        CircuitBreaker::resilience4j().window(Window::Calls(3)).min_calls(2),
    ]
    .map(|builder| Quota::from(builder.build().unwrap()))
    .into()
}

/// Returns states of a breaker in use: closed, open, half-open and forced.
fn states(quota: &Quota) -> Vec<State> {
    let Quota::Breaker(breaker) = quota else { panic!("all are breakers") };
    let (mut state, mut states) = (quota.fresh(Tick::from_secs(1_000)), Vec::new());
    for second in 0..40 {
        let now = Tick::from_secs(1_000 + second * 3);
        for outcome in [Outcome::Failure, Outcome::Success, Outcome::Ignored] {
            if let Transition::Allowed { next, receipt, .. } =
                quota.decide(&state, Ask::allow(now, Cost::ONE))
            {
                states.push(next.clone());
                state = quota.finish(&next, now, &receipt, Finish { used: 1, outcome });
                states.push(state.clone());
            }
        }
    }
    let mut forced = breaker.fresh(Tick::from_secs(1_000));
    let by_hand = Forced::new(Force::MetricsOnly, None, "on trial");
    breaker.force_in_place(&mut forced, Tick::from_secs(1_000), Some(by_hand), &mut |_| ());
    states.push(State::Breaker(forced));
    states
}

#[test]
fn bytes_from_nowhere_are_refused_or_harmless() {
    let (mut numbers, mut read) = (Numbers(7), 0);
    let quotas = quotas();
    let all: Vec<Vec<u8>> = quotas.iter().flat_map(states).map(|state| state.encode()).collect();
    for _ in 0..60_000 {
        let mut bytes = all[numbers.below(all.len())].clone();
        for _ in 0..=numbers.below(4) {
            let at = 2 + numbers.below(bytes.len() - 2);
            match numbers.below(4) {
                0 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 255),
                1 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = 0),
                2 => bytes.truncate(at.max(3)),
                _ => bytes[at] = numbers.next() as u8,
            }
        }
        let Ok(state) = State::decode(&bytes) else { continue };
        read += 1;
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        // A state of any breaker, since the limit of a key may have changed.
        let quota = &quotas[numbers.below(quotas.len())];
        let any = [Tick::EPOCH, Tick::MAX, Tick::from_secs(1_100), Tick::from_nanos(numbers.next() << 16)];
        let (now, at) = (any[numbers.below(4)], any[numbers.below(4)]);
        let mark =
            [0; 4].map(|_: u64| if numbers.below(2) == 0 { numbers.next() } else { numbers.next() % 2 });
        let receipt = Receipt { at, act: at, cost: Cost::ONE, mark };
        let left = quota.finish(&state, now, &receipt, Finish { used: 1, outcome: Outcome::Failure });
        assert!(quota.standing(&left, now).remaining <= 1);
        let _ = (quota.full_at(&left), quota.set_back(&left, Tick::EPOCH));
        let carried = quota.carry(quota, &left, now, Replace::AsIs);
        if let Transition::Allowed { next, receipt, .. } = quota.decide(&carried, Ask::allow(now, Cost::MAX))
        {
            let _ = quota.finish(&next, Tick::MAX, &receipt, Finish::UNDONE);
        }
    }
    assert!(read > 10_000, "{read} were states");
}

#[test]
fn a_long_reason_is_cut_between_letters() {
    let reason = "ü".repeat(200);
    let forced = Forced::new(Force::Open, None, &reason);
    assert_eq!(forced.reason(), "ü".repeat(127));
    let breaker = CircuitBreaker::builder().build().unwrap();
    let mut state = breaker.fresh(Tick::EPOCH);
    breaker.force_in_place(&mut state, Tick::EPOCH, Some(forced.clone()), &mut |_| ());
    let bytes = State::Breaker(state.clone()).encode();
    assert!(bytes.len() <= Quota::from(breaker.clone()).largest_state());
    assert_eq!(State::decode(&bytes), Ok(State::Breaker(state.clone())));
    assert_eq!(breaker.forced(&state, Tick::MAX), Some(forced));
}

#[test]
fn a_forced_state_of_no_time_ends_the_one_before() {
    let breaker = CircuitBreaker::builder().build().unwrap();
    let (mut state, mut told) = (breaker.fresh(Tick::EPOCH), Vec::new());
    let now = Tick::from_secs(9);
    let mut force = |until| {
        let forced = Forced::new(Force::Disabled, until, "");
        breaker.force_in_place(&mut state, now, Some(forced), &mut |change| told.push(change.to));
    };
    force(None);
    force(Some(now));
    force(Some(now));
    assert_eq!(told, [Condition::Forced { to: Force::Disabled, until: None }, Condition::Closed]);
}

#[test]
fn what_was_forced_open_is_tried_at_the_tick_that_was_said() {
    for builder in [CircuitBreaker::builder(), CircuitBreaker::hystrix()] {
        let breaker = builder.build().unwrap();
        let mut state = breaker.fresh(Tick::EPOCH);
        let forced = Forced::new(Force::Open, Some(Tick::from_secs(9)), "");
        breaker.force_in_place(&mut state, Tick::EPOCH, Some(forced), &mut |_| ());
        let enter = |secs| breaker.enter(&state, Ask::allow(Tick::from_secs(secs), Cost::ONE));
        assert_eq!(enter(2), Transition::Denied { retry: Retry::After(Duration::from_secs(7)) });
        assert!(matches!(enter(9), Transition::Allowed { .. }));
    }
}

#[test]
fn overload_says_nothing_where_it_is_told_so() {
    let breaker = CircuitBreaker::builder().consecutive(1).overload_fails(false).probes(1).build().unwrap();
    let mut state = breaker.fresh(Tick::EPOCH);
    let mut call = |secs, outcome| {
        let now = Tick::from_secs(secs);
        let receipt = breaker.enter_in_place(&mut state, Ask::allow(now, Cost::ONE), &mut |_| ()).unwrap();
        breaker.leave_in_place(&mut state, now, &receipt, None, outcome, &mut |_| ());
        breaker.condition(&state, now).as_str()
    };
    assert_eq!(call(1, Outcome::Overloaded), "closed");
    assert_eq!(call(1, Outcome::Failure), "open");
    for _ in 0..3 {
        assert_eq!(call(10, Outcome::Overloaded), "half-open", "and its place is free again");
    }
    assert_eq!(breaker.time_to_live(), Some(Duration::from_secs(60)));
}
