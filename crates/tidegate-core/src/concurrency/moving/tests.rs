use core::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::algorithm::Storable;
use crate::bytes::DecodeError;
use crate::concurrency::tests::of_a_hill_climb;
use crate::concurrency::{Aimd, Bbr, Bounds, Gradient, HillClimb, MinLatency, Vegas};
use crate::window::Buckets;
use crate::{Cost, Quota, State};

const MINUTE: Duration = Duration::from_secs(60);

fn at(millis: u64) -> Tick {
    Tick::from_secs(1_000_000).after(Duration::from_millis(millis))
}

fn laws() -> [Adaptive; 10] {
    let bounds = Bounds::new(1, 40).unwrap();
    let mut bbr = Bbr::default().bounds(bounds);
    bbr.window = Buckets::known(1000, 10);
    [
        Adaptive::HillClimb(HillClimb::default().bounds(bounds)),
        Adaptive::Aimd(Aimd::default().bounds(bounds)),
        Adaptive::Vegas(Vegas::default().bounds(bounds).seed(7)),
        Adaptive::Gradient(Gradient::default().bounds(bounds)),
        Adaptive::MinLatency(MinLatency::default().bounds(bounds).measure(MINUTE, 5).unwrap()),
        Adaptive::Bbr(bbr),
        Adaptive::Bbr(Bbr::go_zero().bounds(bounds)),
        Adaptive::Gradient(Gradient::netflix().bounds(bounds)),
        Adaptive::MinLatency(MinLatency::envoy().bounds(bounds)),
        Adaptive::HillClimb(HillClimb::default().bounds(bounds)),
    ]
}

/// The state before the first ask. A hill climb may have learnt before.
fn begun(guard: &AdaptiveConcurrency, learnt: bool) -> AdaptiveConcurrencyState {
    let fresh = guard.fresh(at(0));
    if !(learnt && matches!(guard.law(), Adaptive::HillClimb(_))) {
        return fresh;
    }
    let state = Arc::new(AdaptiveState::HillClimb(of_a_hill_climb()));
    AdaptiveConcurrencyState::of(fresh.inner.places, Some(Learnt { at: at(0), state }))
}

fn guard(law: Adaptive) -> AdaptiveConcurrency {
    AdaptiveConcurrency::new(law).ttl(Duration::from_secs(30)).unwrap()
}

fn aimd(start: u64) -> AdaptiveConcurrency {
    guard(Adaptive::Aimd(Aimd::default().bounds(Bounds::new(1, 100).unwrap().start_at(start).unwrap())))
}

fn enter(
    guard: &AdaptiveConcurrency,
    state: &AdaptiveConcurrencyState,
    millis: u64,
    cost: u64,
) -> Result<(AdaptiveConcurrencyState, Receipt), Retry> {
    match guard.enter(state, Ask::allow(at(millis), Cost::new(cost).unwrap())) {
        Transition::Allowed { next, receipt, .. } => Ok((next, receipt)),
        Transition::Denied { retry } => Err(retry),
    }
}

fn limit(guard: &AdaptiveConcurrency, state: &AdaptiveConcurrencyState, millis: u64) -> u64 {
    guard.standing(state, at(millis)).limit
}

fn round_trip(state: &AdaptiveConcurrencyState) -> Result<State, DecodeError> {
    State::decode(&State::Adaptive(state.clone()).encode())
}

/// Three asks leave with a success each, ten milliseconds later; then with an unknown outcome.
#[test]
fn a_sample_is_what_the_receipt_saw_and_the_time_since() {
    let guard = aimd(4);
    let mut state = guard.fresh(at(0));
    let mut receipts = Vec::new();
    for _ in 0..3 {
        let (next, receipt) = enter(&guard, &state, 0, 1).unwrap();
        (state, receipts) = (next, [receipts, vec![receipt]].concat());
    }
    assert_eq!(receipts.iter().map(|receipt| receipt.marks().1).collect::<Vec<_>>(), [1, 2, 3]);
    // One of four inside is less than half of the limit, so it does not count; two and three do.
    let limits: Vec<u64> = receipts
        .iter()
        .map(|receipt| {
            state = guard.leave(&state, at(10), receipt, Outcome::Success);
            limit(&guard, &state, 10)
        })
        .collect();
    assert_eq!(limits, [4, 5, 6]);
    assert_eq!(guard.standing(&state, at(10)).remaining, 6);

    let (entered, receipt) = enter(&guard, &state, 20, 1).unwrap();
    assert_eq!(
        guard.leave(&entered, at(25), &receipt, Outcome::Ignored).inner.law,
        state.inner.law,
        "nothing is learnt"
    );
    let slow = guard.leave(&entered, at(20 + 5001), &receipt, Outcome::Success);
    assert_eq!(limit(&guard, &slow, 6000), 5, "later than the time-out of the law");
}

#[test]
fn a_place_that_has_lapsed_is_no_evidence() {
    let guard = aimd(4);
    let (state, receipt) = enter(&guard, &guard.fresh(at(0)), 0, 1).unwrap();
    let late = guard.leave(&state, at(31_000), &receipt, Outcome::Overloaded);
    assert_eq!((&late, limit(&guard, &late, 31_000)), (&state, 4));
    let again = guard.leave(&state, at(5), &receipt, Outcome::Overloaded);
    assert_eq!(guard.leave(&again, at(6), &receipt, Outcome::Overloaded), again, "left twice, learnt once");
}

/// A limit of one, and a policy whose requests take three places: if they were refused for ever, the law would never
/// see a success.
#[test]
fn whoever_finds_nobody_inside_enters() {
    let guard = aimd(1);
    let state = guard.fresh(at(0));
    let (entered, receipt) = enter(&guard, &state, 0, 3).unwrap();
    assert_eq!(enter(&guard, &entered, 0, 1), Err(Retry::Unknown));
    assert_eq!(enter(&guard, &state, 0, 101), Err(Retry::Never), "the limit is never that large");
    let standing = guard.standing(&entered, at(0));
    assert_eq!((standing.limit, standing.remaining, standing.debt), (1, 0, 2));
    let left = guard.leave(&entered, at(1), &receipt, Outcome::Success);
    assert_eq!(limit(&guard, &left, 1), 2);
}

#[test]
fn what_was_learnt_is_forgotten_when_nobody_came_for_long() {
    let guard = aimd(10).forget_after(MINUTE).unwrap();
    let (state, receipt) = enter(&guard, &guard.fresh(at(0)), 0, 1).unwrap();
    assert_eq!(guard.full_at(&state), Some(at(30_000)), "the place lapses, and nothing was learnt");
    let state = guard.leave(&state, at(0), &receipt, Outcome::Overloaded);
    assert_eq!(guard.full_at(&state), Some(at(60_000)));
    assert_eq!([0, 59_999, 60_000].map(|millis| limit(&guard, &state, millis)), [9, 9, 10]);
    let (inside, receipt) = enter(&guard, &state, 59_000, 1).unwrap();
    assert_eq!(guard.full_at(&inside), Some(at(89_000)));
    assert_eq!([59_999, 60_000].map(|millis| limit(&guard, &inside, millis)), [9, 10], "by the last sample");
    let undone = guard.leave(&inside, at(59_500), &receipt, Outcome::Ignored);
    assert_eq!(guard.full_at(&undone), guard.full_at(&state), "as if it had not been entered");
    let never = aimd(10).forget_after(Duration::MAX).unwrap();
    assert_eq!((never.full_at(&state), limit(&never, &state, 1 << 40)), (None, 9));
    let text = aimd(1).forget_after(Duration::ZERO).unwrap_err().to_string();
    assert_eq!(text, "forget_after 0ns is not a time to forget after; use 1 s to 146 years");
}

#[test]
fn changed_knobs_keep_what_was_learnt_and_another_law_begins_anew() {
    let (mut limits, guard) = (Vec::new(), aimd(50));
    let (state, receipt) = enter(&guard, &guard.fresh(at(0)), 0, 1).unwrap();
    let (state, _) = enter(&guard, &state, 0, 1).unwrap();
    let state = guard.leave(&state, at(0), &receipt, Outcome::Overloaded);
    let narrow = Adaptive::Aimd(Aimd::default().bounds(Bounds::new(1, 30).unwrap()));
    for (law, how) in [
        (*aimd(20).law(), Replace::AsIs),
        (narrow, Replace::Proportional),
        (Adaptive::Vegas(Vegas::default()), Replace::AsIs),
        (*guard.law(), Replace::Reset),
    ] {
        let changed = self::guard(law);
        let state = changed.carry(&guard, &state, at(1), how);
        let standing = changed.standing(&state, at(1));
        limits.push((standing.limit, standing.limit - standing.remaining));
        assert_eq!(round_trip(&state), Ok(State::Adaptive(state)));
    }
    assert_eq!(limits, [(45, 1), (30, 1), (20, 1), (50, 0)]);
}

/// The hill climb had reached 40 places, and its bounds now say at most 8.
#[test]
fn a_hill_climb_goes_on_from_the_nearest_bound() {
    let wide = guard(laws()[0]);
    let mut state = wide.fresh(at(0));
    let mut now = 0;
    for _ in 0..2_000 {
        let mut inside = Vec::new();
        while let Ok((next, receipt)) = enter(&wide, &state, now, 1) {
            (state, inside) = (next, [inside, vec![receipt]].concat());
        }
        now += 10;
        for receipt in inside {
            state = wide.leave(&state, at(now), &receipt, Outcome::Success);
        }
    }
    assert!(limit(&wide, &state, now) > 30, "{state:?}");
    let narrow = guard(Adaptive::HillClimb(HillClimb::default().bounds(Bounds::new(1, 8).unwrap())));
    let carried = narrow.carry(&wide, &state, at(now), Replace::AsIs);
    assert_eq!(limit(&narrow, &carried, now), 8);
    assert_eq!(wide.carry(&wide, &state, at(now), Replace::AsIs), state);
}

/// 500 requests a second of 20 ms each: with an idle processor, then with a busy one, then idle again.
#[test]
fn a_reading_of_the_processor_comes_with_the_limit() {
    for law in [Bbr::default(), Bbr::default().smoothing(0.0).unwrap()] {
        follows_the_processor(law);
    }
}

/// Regression: a state that first saw a busy processor, or under aegis' arithmetic an idle one of 0, kept its first
/// reading, since each change was smoothed.
#[test]
fn a_key_first_used_while_the_processor_is_busy_is_free_once_it_is_idle() {
    for law in [Bbr::default(), Bbr::aegis(), Bbr::go_zero()] {
        let law = law.bounds(Bounds::new(1, 1000).unwrap());
        let (busy, idle) = (guard(Adaptive::Bbr(law)).cpu(1000), guard(Adaptive::Bbr(law)).cpu(0));
        let (state, receipt) = enter(&busy, &busy.fresh(at(0)), 0, 1).unwrap();
        let state = busy.leave(&state, at(20), &receipt, Outcome::Success);
        let state = idle.carry(&busy, &state, at(1000), Replace::AsIs);
        let (state, receipt) = enter(&idle, &state, 3000, 1).unwrap();
        let state = idle.leave(&state, at(3020), &receipt, Outcome::Success);
        assert_eq!(limit(&idle, &state, 3020), 1000, "{law:?}");
    }
}

fn follows_the_processor(law: Bbr) {
    let law = law.bounds(Bounds::new(1, 1000).unwrap());
    let idle = guard(Adaptive::Bbr(law));
    let busy = idle.clone().cpu(900);
    let fresh = idle.fresh(at(0));
    assert_eq!((limit(&idle, &fresh, 0), limit(&busy, &fresh, 0)), (1000, 20));
    let mut state = fresh;
    let mut inside = std::collections::VecDeque::new();
    for millis in (0..1000).step_by(2) {
        let (next, receipt) = enter(&idle, &state, millis, 1).unwrap();
        state = next;
        inside.push_back(receipt);
        if inside.len() > 10 {
            let receipt = inside.pop_front().unwrap();
            state = idle.leave(&state, at(millis), &receipt, Outcome::Success);
        }
    }
    assert_eq!(limit(&idle, &state, 1000), 1000);
    let state = busy.carry(&idle, &state, at(1000), Replace::AsIs);
    assert_eq!(limit(&busy, &state, 1000), 10);
    let rested = idle.clone().cpu(100);
    let state = rested.carry(&busy, &state, at(1500), Replace::AsIs);
    assert_eq!(limit(&rested, &state, 1500), 10, "it cools off");
    let receipt = inside.pop_front().unwrap();
    let state = rested.leave(&state, at(2100), &receipt, Outcome::Success);
    assert_eq!(limit(&rested, &state, 2100), 1000);
}

#[test]
fn bytes_that_are_no_state_are_refused() {
    let guard = guard(laws()[2]);
    let (state, receipt) = enter(&guard, &guard.fresh(at(0)), 0, 1).unwrap();
    let state = guard.leave(&state, at(3), &receipt, Outcome::Success);
    let form = State::Adaptive(state).encode();
    for length in 0..form.len() {
        assert!(State::decode(&form[..length]).is_err(), "{length} of {} bytes", form.len());
    }
    let law =
        form.iter().rposition(|byte| *byte == 3).filter(|at| form[at - 9] == 1).expect("the law of Vegas");
    let mut nan = form.clone();
    nan[law + 1..law + 9].copy_from_slice(&f64::NAN.to_le_bytes());
    assert_eq!(State::decode(&nan), Err(DecodeError::Value { field: "limit" }));
    let mut other = form;
    other[law] = u8::MAX;
    assert_eq!(State::decode(&other), Err(DecodeError::Value { field: "law" }));
}

fn steps() -> impl Strategy<Value = Vec<(u64, bool, usize, u8)>> {
    let step = prop_oneof![0u64..3, 0u64..200, 0u64..20_000, Just(5_000_000)];
    prop::collection::vec((step, any::<bool>(), any::<usize>(), 0u8..12), 1..120)
}

proptest! {
    /// For any steps: the limit stays within its bounds, nothing is counted twice, and every state survives its byte
    /// form.
    #[test]
    fn states_come_back_and_limits_hold(
        which in 0usize..10, learnt in any::<bool>(), steps in steps(), cpu in 0u16..=1000,
    ) {
        let law = laws()[which];
        let (plain, sensed) = (guard(law), guard(law).cpu(cpu));
        for guard in [&plain, &sensed] {
            let quota = Quota::from(guard.clone());
            prop_assert_eq!(Quota::decode(&quota.encode()), Ok(quota));
        }
        let mut of = &plain;
        let (mut state, mut now, mut inside) = (begun(of, learnt), 0u64, Vec::new());
        for (span, comes, nth, kind) in steps {
            // Once in a while the clock steps back, or the reading changes.
            now = if kind == 11 { now.saturating_sub(span) } else { now + span };
            if kind == 10 {
                let other = if std::ptr::eq(of, &plain) { &sensed } else { &plain };
                state = other.carry(of, &state, at(now), Replace::AsIs);
                of = other;
            }
            let before = of.standing(&state, at(now));
            if comes || inside.is_empty() {
                let cost = 1 + (nth % 3) as u64;
                match enter(of, &state, now, cost) {
                    Ok((next, receipt)) => {
                        prop_assert!(before.remaining >= cost || before.remaining == before.limit);
                        (state, inside) = (next, [inside, vec![receipt]].concat());
                    }
                    Err(retry) => {
                        prop_assert_eq!(retry, Retry::Unknown);
                        prop_assert!(before.remaining < cost);
                    }
                }
            } else {
                let receipt = inside.swap_remove(nth % inside.len());
                use Outcome::{CallersFault, Failure, Ignored, Overloaded, Success};
                let outcome = [Success, Success, Failure, Overloaded, CallersFault, Ignored][nth % 6];
                state = of.leave(&state, at(now), &receipt, outcome);
            }
            let standing = of.standing(&state, at(now));
            prop_assert!((1..=40).contains(&standing.limit), "{standing:?}");
            prop_assert_eq!(round_trip(&state), Ok(State::Adaptive(state.clone())));
            prop_assert_eq!(&state, &state.clone(), "no number is unequal to itself");
            let written = State::Adaptive(state.clone()).encode().len();
            prop_assert!(written <= Quota::from(of.clone()).largest_state());
            if let Some(full) = of.full_at(&state) {
                let full = full.max(of.last_change(&state).unwrap());
                let (kept, fresh) = (of.standing(&state, full), of.standing(&of.fresh(full), full));
                prop_assert_eq!(kept, fresh, "as good as fresh");
            }
        }
    }

    #[test]
    fn whatever_is_read_can_be_gone_on_with(
        which in 0usize..10, learnt in any::<bool>(), at_byte in any::<usize>(), byte in any::<u8>(),
    ) {
        let guard = guard(laws()[which]);
        let (mut state, mut now) = (begun(&guard, learnt), 0);
        for _ in 0..30 {
            let (next, receipt) = enter(&guard, &state, now, 1).unwrap();
            now += 7;
            state = guard.leave(&next, at(now), &receipt, Outcome::Success);
        }
        let mut form = State::Adaptive(state).encode();
        let place = 2 + at_byte % (form.len() - 2);
        form[place] = byte;
        let Ok(State::Adaptive(mut read)) = State::decode(&form) else { return Ok(()) };
        for outcome in [Outcome::Success, Outcome::Failure, Outcome::Overloaded].repeat(40) {
            prop_assert!((1..=40).contains(&limit(&guard, &read, now)));
            let Ok((next, receipt)) = enter(&guard, &read, now, 1) else { break };
            now += 3;
            read = guard.leave(&next, at(now), &receipt, outcome);
        }
    }
}

#[test]
fn sizes_are_as_told() {
    let boxed = (size_of::<AdaptiveConcurrency>(), size_of::<AdaptiveConcurrencyState>());
    assert_eq!((boxed, size_of::<State>()), ((8, 8), 48), "no other limit pays for this one");
    for law in laws() {
        let quota = Quota::from(guard(law));
        assert_eq!(quota.capacity(), 40);
        assert!(quota.largest_state() < 3000, "{law}: {} bytes", quota.largest_state());
    }
}
