//! What stores rely on: how large states get, and what a state becomes when the clock is set back.

use crate::random;

use std::time::Duration;

use random::Random;
use tidegate_core::breaker::{CircuitBreaker, Window};
use tidegate_core::concurrency::AdaptiveConcurrency;
use tidegate_core::rate::{
    Bandwidth, CalendarUnit, ColdFactor, GuavaBursty, GuavaWarming, Refill, TokenBucket, UberPacer, XTime,
};
use tidegate_core::time::MAX_STEP_BACK;
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, Replace, Standing, State, Tick, Transition};

const SECOND: u64 = 1_000_000_000;
const START: Tick = Tick::from_secs(1_700_000_000);

fn rate(count: u64, nanos: u64) -> Rate {
    Rate::new(count, Duration::from_nanos(nanos)).unwrap()
}

/// A bucket of one bandwidth for each refill.
fn bands(refill: &[Refill]) -> Quota {
    let band = |(nth, refill): (usize, &Refill)| {
        let count = 7 + nth as u64;
        Bandwidth::new(rate(count, SECOND), 3 * count).unwrap().refill(*refill)
    };
    TokenBucket::several(refill.iter().enumerate().map(band)).unwrap().into()
}

/// Limits of every kind.
fn limits() -> Vec<Quota> {
    let (even, at_once, aligned) = (Refill::Continuous, Refill::Interval, Refill::Aligned);
    let per = |count| Quota::per(count, Duration::from_secs(1));
    vec![
        per(7).burst(300).gcra().unwrap(),
        per(7).burst(300).leaky_bucket().unwrap(),
        per(7).burst(3).leaky_queue(300).unwrap(),
        per(7).burst(300).token_bucket().unwrap(),
        per(7).burst(300).interval_bucket().unwrap(),
        per(7).burst(300).aligned_bucket().unwrap(),
        bands(&[even, even]),
        bands(&[even, at_once, even]),
        bands(&[aligned, at_once, even]),
        bands(&[even; 8]),
        per(300).fixed_window().unwrap(),
        per(3).fixed_window().unwrap(),
        per(40).sliding_window(6).unwrap(),
        per(3).sliding_window(60).unwrap(),
        per(300).sliding_window(10).unwrap(),
        per(3).sliding_log().unwrap(),
        per(60).sliding_log().unwrap(),
        per(60).sliding_counter().unwrap(),
        per(60).warm_up(Duration::from_secs(4), ColdFactor::THREE).unwrap(),
        Quota::concurrency(20, Duration::from_secs(2)).unwrap(),
        Quota::concurrency(300, Duration::from_nanos(90)).unwrap(),
        adaptive("hill-climb"),
        adaptive("min-latency"),
        adaptive("bbr"),
        CircuitBreaker::builder().probes(20).build().unwrap().into(),
        CircuitBreaker::builder().window(Window::Calls(100)).consecutive(2).build().unwrap().into(),
    ]
}

fn adaptive(law: &str) -> Quota {
    AdaptiveConcurrency::new(law.parse().unwrap()).ttl(Duration::from_secs(2)).unwrap().into()
}

fn calendar() -> Quota {
    Quota::per_second(9).calendar_window(CalendarUnit::Minute, "UTC").unwrap()
}

fn profiles() -> Vec<Quota> {
    vec![
        XTime::new(2.5, 5).unwrap().into(),
        UberPacer::new(rate(7, SECOND), 3).unwrap().into(),
        GuavaBursty::new(2.5, 1.0).unwrap().into(),
        GuavaWarming::new(2.5, Duration::from_secs(4), 3.0).unwrap().into(),
    ]
}

/// A random history of one key: charges, reservations, settlements in any order, and small steps back of the clock.
struct History {
    random: Random,
    state: State,
    open: Vec<Receipt>,
    now: Tick,
}

impl History {
    fn new(quota: &Quota, seed: u64) -> Self {
        Self { random: Random::new(seed), state: quota.fresh(START), open: Vec::new(), now: START }
    }

    fn step(&mut self, quota: &Quota) {
        self.now = match self.random.below(8) {
            0 => self.now.before(self.random.span(SECOND)),
            1..4 => self.now,
            4 => self.now.after(self.random.span(3 * SECOND)),
            _ => self.now.after(self.random.span(SECOND / 50)),
        };
        if self.random.below(5) < 3 || self.open.is_empty() {
            let cost = Cost::new(self.random.one_to(3)).unwrap();
            let max_wait = [0, 4 * SECOND, u64::MAX][self.random.below(3) as usize];
            let ask = Ask::within(self.now, cost, Duration::from_nanos(max_wait));
            // An engine that bounds its values refuses promises beyond.
            let fits = |next: &State| max_wait == 0 || next.encode().len() <= quota.largest_state();
            if let Transition::Allowed { next, receipt, .. } = quota.decide(&self.state, ask)
                && fits(&next)
            {
                self.state = next;
                self.open.push(receipt);
            }
        } else {
            let nth = self.random.below(self.open.len() as u64) as usize;
            let receipt = self.open.swap_remove(nth);
            let used =
                [0, 0, receipt.cost.units() - 1, receipt.cost.units() + 2][self.random.below(4) as usize];
            self.state = in_engine(quota, quota.settle(&self.state, self.now, &receipt, used));
        }
    }
}

/// An engine that bounds its values shortens what is too large.
fn in_engine(quota: &Quota, state: State) -> State {
    quota.shortened(&state).unwrap_or(state)
}

#[test]
fn no_state_is_written_in_more_bytes_than_its_limit_says() {
    for quota in limits().into_iter().chain(profiles()).chain([calendar()]) {
        let (most, mut largest) = (quota.largest_state(), 0);
        for seed in 0..6 {
            let mut history = History::new(&quota, seed);
            for step in 0..1_200 {
                history.step(&quota);
                if step % 100 == 99 {
                    history.state = quota.carry(&quota, &history.state, history.now, Replace::AsIs);
                }
                largest = largest.max(history.state.encode().len());
                assert!(largest <= most, "{quota:?}: {largest} bytes, {most} at most: {:?}", history.state);
            }
        }
        println!("{most:5} at most, {largest:5} reached: {quota:?}");
    }
}

/// A burst in which every second charge is undone leaves a hole beside each charge that stays.
#[test]
fn a_book_is_as_large_as_is_said_and_no_larger() {
    for quota in [limits().remove(0), limits().remove(3), bands(&[Refill::Continuous; 8])] {
        let mut state = quota.fresh(START);
        let charge = |state: &mut State| {
            let ask = Ask::within(START, Cost::ONE, Duration::MAX);
            let Transition::Allowed { next, receipt, .. } = quota.decide(state, ask) else {
                panic!("any wait")
            };
            *state = next;
            receipt
        };
        let receipts: Vec<Receipt> = (0..900).map(|_| charge(&mut state)).collect();
        for receipt in receipts.iter().step_by(2) {
            state = quota.settle(&state, START, receipt, 0);
        }
        assert_eq!(State::decode(&state.encode()), Ok(state.clone()));
        assert!(state.encode().len() > quota.largest_state(), "in memory, 450 gaps: {quota:?}");
        let state = in_engine(&quota, state);
        let (bytes, most) = (state.encode().len(), quota.largest_state());
        // A bucket that was never restarted writes no restart ticks, and a single bandwidth writes no count of charges.
        assert!(bytes <= most && bytes + 8 * 8 + 16 >= most, "{bytes} of {most}: {quota:?}");
    }
}

#[test]
fn engines_that_keep_four_kibibytes_can_keep_what_people_write() {
    let small = |quota: &Quota| quota.largest_state() <= 4096;
    let per = |count| Quota::per_minute(count);
    for quota in profiles().into_iter().chain([
        per(1 << 60).gcra().unwrap(),
        bands(&[Refill::Continuous; 8]),
        per(1 << 60).fixed_window().unwrap(),
        per(1000).sliding_window(60).unwrap(),
        per(20).sliding_window(1024).unwrap(),
        per(94).sliding_log().unwrap(),
        per(1000).sliding_counter().unwrap(),
        Quota::concurrency(254, Duration::from_secs(60)).unwrap(),
        CircuitBreaker::builder().build().unwrap().into(),
        CircuitBreaker::builder().window(Window::Calls(14_000)).build().unwrap().into(),
    ]) {
        assert!(small(&quota), "{} bytes: {quota:?}", quota.largest_state());
    }
    assert!(!small(&per(95).sliding_log().unwrap()));
    assert!(!small(&Quota::concurrency(255, Duration::from_secs(60)).unwrap()));
}

fn remaining(standing: Standing) -> (i128, Duration) {
    (i128::from(standing.remaining) - i128::from(standing.debt), standing.reset_after)
}

/// The clock was an hour fast and is set back: a key stands still for a small step's time, and is then as it was at its
/// last change.
#[test]
fn a_clock_that_was_fast_does_not_freeze_its_keys() {
    let hour = Duration::from_secs(3600);
    for quota in limits() {
        for seed in 0..40 {
            let mut history = History::new(&quota, seed);
            (0..1 + seed * 3).for_each(|_| history.step(&quota));
            let state = history.state;
            // Compares the limit from its last change on, wherever that was.
            let last = last_change(&quota, &state);
            let now = last.before(hour);
            let back =
                quota.set_back(&state, now).unwrap_or_else(|| panic!("{quota:?}: an hour is no small step"));
            let to = now.after(MAX_STEP_BACK);
            assert_eq!(State::decode(&back.encode()), Ok(back.clone()), "{quota:?}");
            assert!(back.encode().len() <= quota.largest_state());
            assert_eq!(quota.set_back(&back, now), None, "once is enough");
            let (was, is) = (quota.standing(&state, last), quota.standing(&back, to));
            let (had, has) = (remaining(was).0, remaining(is).0);
            assert!(has == had || has < had && !is_movable(&quota), "{quota:?} {state:?} became {back:?}");
            if is_movable(&quota) {
                assert_eq!(was, is, "{quota:?}");
                for probe in [0, 1, SECOND / 7, SECOND, 9 * SECOND, 100 * SECOND].map(Duration::from_nanos) {
                    let (was, is) =
                        (quota.standing(&state, last.after(probe)), quota.standing(&back, to.after(probe)));
                    assert_eq!(was, is, "{quota:?} after {probe:?}");
                    let ask = |at: Tick| {
                        Ask::within(at.after(probe), Cost::new(2).unwrap(), Duration::from_secs(1))
                    };
                    let answer = |state: &State, at| match quota.decide(state, ask(at)) {
                        Transition::Allowed { wait, .. } => Ok(wait),
                        Transition::Denied { retry } => Err(retry),
                    };
                    assert_eq!(answer(&state, last), answer(&back, to), "{quota:?} after {probe:?}");
                }
            }
            // A charge by the fast clock gives nothing back any more, but may still leave a debt.
            if !quota.is_guard() {
                for receipt in &history.open {
                    let settled = quota.settle(&back, now, receipt, 0);
                    let (now_is, before) = (quota.standing(&settled, to), quota.standing(&back, to));
                    assert!(remaining(now_is).0 <= remaining(before).0, "{quota:?}: {receipt:?} gave back");
                }
            }
        }
    }
}

/// Windows on a grid of the clock cannot be moved exactly: moving counts them anew, and so their fading and ending
/// begin anew.
fn is_movable(quota: &Quota) -> bool {
    !matches!(
        quota,
        Quota::SlidingWindow(_)
            | Quota::SlidingCounter(_)
            | Quota::Concurrency(_)
            | Quota::Breaker(_)
            | Quota::Adaptive(_)
    )
}

/// Returns the tick of the last change, found from outside: the largest at which nothing is set back.
fn last_change(quota: &Quota, state: &State) -> Tick {
    let (mut low, mut high) = (0u64, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        if quota.set_back(state, Tick::from_nanos(middle)).is_some() {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Tick::from_nanos(low).after(MAX_STEP_BACK)
}

#[test]
fn small_steps_back_change_nothing() {
    for quota in limits().into_iter().chain([calendar()]) {
        let ask = Ask::allow(START, Cost::ONE);
        let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(START), ask) else {
            panic!("it is full")
        };
        assert_eq!(quota.far_ahead(&next, START.before(MAX_STEP_BACK)), None);
        let hour = START.before(Duration::from_secs(3600));
        assert_eq!(quota.far_ahead(&next, hour), Some(START), "{quota:?}");
        assert_eq!(quota.set_back(&next, START), None);
        assert_eq!(quota.set_back(&next, START.before(MAX_STEP_BACK)), None);
        let beyond = START.before(MAX_STEP_BACK).before(Duration::from_nanos(1));
        assert!(quota.set_back(&next, beyond).is_some(), "{quota:?}");
    }
}

/// Work charged after the clock was set back settles as usual, once the clock has passed the tick from which it was set
/// back.
#[test]
fn charges_after_the_step_are_settled_again() {
    let hour = Duration::from_secs(3600);
    for quota in limits().into_iter().filter(|quota| !quota.is_guard()) {
        let charge = |state: &State, at| match quota.decide(state, Ask::allow(at, Cost::ONE)) {
            Transition::Allowed { next, receipt, .. } => (next, receipt),
            Transition::Denied { retry } => panic!("{retry:?}: {quota:?}"),
        };
        let (fast, _) = charge(&quota.fresh(START), START);
        let back = quota.set_back(&fast, START.before(hour)).unwrap();
        let later = START.after(hour);
        let (spent, receipt) = charge(&back, later);
        let undone = quota.settle(&spent, later, &receipt, 0);
        assert_eq!(quota.standing(&undone, later), quota.standing(&back, later), "{quota:?}");
    }
}

/// A clock that was days fast charged a window that is still to come: after it is set back, that counts today. But if
/// today came just before that window, it is over for this key, and is not opened again.
#[test]
fn a_calendar_window_to_come_counts_today_and_none_is_opened_twice() {
    let quota = Quota::per_day(5).calendar_window(CalendarUnit::Day, "UTC").unwrap();
    let day = |nth: u64| Tick::from_secs(86_400 * (20_000 + nth));
    let ask = Ask::allow(day(2), Cost::new(3).unwrap());
    let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(day(2)), ask) else { panic!("five") };
    let left = |state: &State, at: Tick| {
        let standing = quota.standing(state, at);
        (standing.remaining, standing.reset_after.as_secs())
    };
    let back = quota.set_back(&next, day(0)).unwrap();
    assert_eq!(left(&back, day(0).after(MAX_STEP_BACK)), (2, 86_390));
    let over = quota.set_back(&next, day(1)).unwrap();
    assert_eq!(left(&over, day(1).after(MAX_STEP_BACK)), (0, 2 * 86_400 - 10));
    assert_eq!(left(&over, day(2)), (2, 86_400));
}

/// Regression: a holder lost while the clock was fast kept its place for as long as the clock had been ahead.
#[test]
fn places_taken_by_a_fast_clock_lapse_in_time() {
    let guard = Quota::concurrency(1, Duration::from_secs(30)).unwrap();
    let Transition::Allowed { next: lost, .. } =
        guard.decide(&guard.fresh(START), Ask::allow(START, Cost::ONE))
    else {
        panic!("one place is free")
    };
    let now = START.before(Duration::from_secs(3600));
    let back = guard.set_back(&lost, now).unwrap();
    assert_eq!(guard.standing(&back, now).remaining, 0);
    let lapsed = now.after(MAX_STEP_BACK).after(Duration::from_secs(30));
    assert_eq!(guard.standing(&back, lapsed).remaining, 1);
}

#[test]
fn profiles_do_what_their_peers_do() {
    for quota in profiles() {
        let ask = Ask::within(START, Cost::ONE, Duration::MAX);
        let Transition::Allowed { next, .. } = quota.decide(&quota.fresh(START), ask) else {
            panic!("any wait")
        };
        assert_eq!(quota.set_back(&next, Tick::EPOCH), None);
    }
}
