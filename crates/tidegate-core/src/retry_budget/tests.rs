use proptest::prelude::*;

use super::*;

fn granted(budget: &RetryBudget, state: &mut RetryBudgetState, at: Tick, asks: usize) -> usize {
    (0..asks).filter(|_| budget.retry(state, at)).count()
}

fn calls(budget: &RetryBudget, state: &mut RetryBudgetState, at: Tick, calls: usize) {
    (0..calls).for_each(|_| budget.call(state, at));
}

/// tower's budget turns a share into whole calls per retry: 0.3 becomes a third, and every share above a half becomes one.
#[test]
fn a_share_is_exact() {
    for (share, expected) in
        [(0.0, 0), (0.1, 100), (0.2, 200), (0.3, 300), (0.6, 600), (0.75, 750), (1.0, 1000)]
    {
        let budget = RetryBudget::new(share).unwrap().without_floor();
        let mut state = budget.start(Tick::EPOCH);
        calls(&budget, &mut state, Tick::EPOCH, 1000);
        assert_eq!(granted(&budget, &mut state, Tick::EPOCH, 5000), expected, "{share}");
        assert!(budget.is_spent(&state, Tick::EPOCH));
    }
}

/// Finagle's reserve for ten seconds may be spent at once: a hundred retries for each client that has just started.
#[test]
fn a_new_caller_has_one_second_of_the_floor() {
    let budget = RetryBudget::default();
    let mut state = budget.start(Tick::EPOCH);
    assert_eq!(granted(&budget, &mut state, Tick::EPOCH, 1000), 10);
    assert_eq!(granted(&budget, &mut state, Tick::from_nanos(500_000_000), 1000), 5);
    assert_eq!(granted(&budget, &mut state, Tick::from_secs(60), 1000), 10);
}

/// The SRE book's budgets: at most three tries of a request, and retries are at most a tenth of a client's requests.
/// Without the tenth, a hundred requests to a service that is down become 300.
#[test]
fn the_sre_books_tenth_holds_where_every_call_fails() {
    let budget = RetryBudget::new(0.1).unwrap().without_floor();
    let mut state = budget.start(Tick::EPOCH);
    let tries: usize = (0..100)
        .map(|_| {
            budget.call(&mut state, Tick::EPOCH);
            1 + (0..2).take_while(|_| budget.retry(&mut state, Tick::EPOCH)).count()
        })
        .sum();
    assert_eq!(tries, 110);
}

#[test]
fn a_slow_floor_grants_one_now_and_then() {
    let budget =
        RetryBudget::new(0.0).unwrap().with_floor(Rate::new(6, Duration::from_secs(60)).unwrap()).unwrap();
    let mut state = budget.start(Tick::EPOCH);
    let each_second = (0..60).map(|second| granted(&budget, &mut state, Tick::from_secs(second), 10));
    assert_eq!(each_second.sum::<usize>(), 6);
}

#[test]
fn calls_are_forgotten_after_the_span() {
    let budget = RetryBudget::new(0.5).unwrap().without_floor();
    let mut state = budget.start(Tick::EPOCH);
    calls(&budget, &mut state, Tick::EPOCH, 100);
    assert_eq!(granted(&budget, &mut state, Tick::from_secs(9), 20), 20);
    assert_eq!(granted(&budget, &mut state, Tick::from_secs(10), 20), 0, "the calls are ten seconds old");
    calls(&budget, &mut state, Tick::from_secs(12), 10);
    assert_eq!(
        granted(&budget, &mut state, Tick::from_secs(12), 20),
        0,
        "retries of second nine still count"
    );
    calls(&budget, &mut state, Tick::from_secs(30), 10);
    assert_eq!(granted(&budget, &mut state, Tick::from_secs(30), 20), 5);
}

#[test]
fn a_clock_that_steps_back_stands_still() {
    let budget = RetryBudget::new(0.5).unwrap().without_floor();
    let mut state = budget.start(Tick::from_secs(100));
    calls(&budget, &mut state, Tick::from_secs(100), 4);
    assert_eq!(granted(&budget, &mut state, Tick::from_secs(93), 9), 2);
    calls(&budget, &mut state, Tick::from_secs(90), 2);
    assert_eq!(granted(&budget, &mut state, Tick::from_secs(100), 9), 1);
}

/// Otherwise an hour of calls would be counted as if they had come at once, and the floor would be empty for an hour.
#[test]
fn a_clock_that_is_set_back_begins_anew() {
    let budget = RetryBudget::new(0.5).unwrap();
    let mut state = budget.start(Tick::from_secs(4000));
    calls(&budget, &mut state, Tick::from_secs(4000), 4);
    assert_eq!(granted(&budget, &mut state, Tick::from_secs(4000), 99), 12);
    let back = Tick::from_secs(400);
    assert!(!budget.is_spent(&state, back));
    assert_eq!(granted(&budget, &mut state, back, 99), 10, "the floor alone");
    calls(&budget, &mut state, back, 4);
    assert_eq!(
        granted(&budget, &mut state, Tick::from_secs(411), 99),
        10,
        "these calls are forgotten in time"
    );
}

#[test]
fn bad_parameters_are_refused_by_name() {
    for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let said = RetryBudget::new(share).unwrap_err().to_string();
        assert_eq!(said, format!("share {share} is not a share of the calls; use 0 to 1, such as 0.2"));
    }
    let said = RetryBudget::default().with_span(Duration::ZERO).unwrap_err().to_string();
    assert_eq!(said, "span 0ns is not a span to count calls in; use 10 ms to an hour");
}

/// A budget in its plainest form: every call and retry with its time.
struct Plain {
    share: u64,
    /// The time, and whether it was a retry.
    seen: Vec<(u64, bool)>,
}

impl Plain {
    fn retry(&mut self, part: u64) -> bool {
        let within = |retry: bool| {
            self.seen.iter().filter(|(at, what)| *what == retry && part - at < u64::from(BUCKETS)).count()
                as u64
        };
        let granted = (within(true) + 1) * WHOLE <= within(false) * self.share;
        if granted {
            self.seen.push((part, true));
        }
        granted
    }
}

proptest! {
    #[test]
    fn the_buckets_count_what_a_list_counts(
        share in 0..=WHOLE,
        events in proptest::collection::vec((0..400_u64, 0..4_u8), 0..200),
    ) {
        let budget = RetryBudget { share, ..RetryBudget::default().without_floor() };
        let (mut state, mut plain) = (budget.start(Tick::EPOCH), Plain { share, seen: Vec::new() });
        let mut now = 0;
        for (hundredths, what) in events {
            now += hundredths * 10_000_000;
            let (tick, part) = (Tick::from_nanos(now), now / 1_000_000_000);
            if what == 0 {
                prop_assert_eq!(!budget.is_spent(&state, tick), budget.retry(&mut state.clone(), tick));
                prop_assert_eq!(budget.retry(&mut state, tick), plain.retry(part));
            } else {
                budget.call(&mut state, tick);
                plain.seen.push((part, false));
            }
        }
    }
}

/// The sizes that the documentation gives.
#[test]
fn the_state_is_as_small_as_documented() {
    assert_eq!(size_of::<RetryBudgetState>(), 80);
}
