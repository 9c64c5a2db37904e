//! Crowds: many callers wait for one key, and most or all of them go away again.

use std::time::Duration;

use tidegate_core::rate::{Bandwidth, CalendarUnit, ColdFactor, Refill, TokenBucket};
use tidegate_core::{Algorithm, Ask, Cost, Quota, Rate, Receipt, State, Tick, Transition};

use crate::settling::random_numbers::Random;
use crate::settling::subjects::START;

fn ms(ms: u64) -> Tick {
    START.after(Duration::from_millis(ms))
}

fn reserve(quota: &Quota, state: &mut State, now: Tick, units: u64) -> Receipt {
    let ask = Ask::within(now, Cost::new(units).unwrap(), Duration::MAX);
    let Transition::Allowed { next, receipt, .. } = quota.decide(state, ask) else { panic!("any wait") };
    *state = next;
    receipt
}

/// `count` a minute by each algorithm that gives back what was promised. A queue lets one leave at a time.
fn limits(count: u64) -> Vec<Quota> {
    let rate = Rate::new(count, Duration::from_secs(60)).unwrap();
    let per = || Quota::per_minute(count);
    let band = |capacity| Bandwidth::new(rate, capacity).unwrap();
    let slow = Bandwidth::new(Rate::new(50 * count, Duration::from_secs(3600)).unwrap(), 40 * count).unwrap();
    vec![
        per().gcra().unwrap(),
        per().burst(3).gcra().unwrap(),
        per().leaky_bucket().unwrap(),
        per().burst(2).leaky_queue(1 << 20).unwrap(),
        per().token_bucket().unwrap(),
        per().interval_bucket().unwrap(),
        per().aligned_bucket().unwrap(),
        TokenBucket::several([band(count), slow]).unwrap().into(),
        TokenBucket::several([band(count).refill(Refill::Interval), slow]).unwrap().into(),
        TokenBucket::several([band(count).refill(Refill::Aligned), slow]).unwrap().into(),
        per().warm_up(Duration::from_secs(300), ColdFactor::THREE).unwrap(),
        per().sliding_log().unwrap(),
        per().sliding_window(60).unwrap(),
        per().sliding_counter().unwrap(),
        per().fixed_window().unwrap(),
        per().calendar_window(CalendarUnit::Minute, "UTC").unwrap(),
    ]
}

/// The orders in which a crowd goes away.
const ORDERS: [&str; 5] = ["first", "last", "evens", "odds", "random"];

fn ordered(order: &str, crowd: Vec<Receipt>) -> Vec<Receipt> {
    let mut crowd: Vec<(usize, Receipt)> = crowd.into_iter().enumerate().collect();
    match order {
        "last" => crowd.reverse(),
        "evens" => crowd.sort_by_key(|(nth, _)| nth % 2),
        "odds" => crowd.sort_by_key(|(nth, _)| (nth + 1) % 2),
        "random" => {
            let mut random = Random::new(crowd.len() as u64);
            crowd.sort_by_cached_key(|_| random.any());
        }
        _ => {}
    }
    crowd.into_iter().map(|(_, receipt)| receipt).collect()
}

/// Ten a minute with ten charges spread over the minute, and callers who wait for a second and give up, as in every
/// overload. Regression: a hundred of them closed a sliding log and a sliding window for 538 s where 4 s were due, a
/// fixed window from 64 windows ahead on, a sliding counter from 64 promises on; a thousand, of whom every second one left
/// first, closed `gcra` and the buckets for 5,171 s, and `warm-up` in any order but the last one first.
#[test]
fn a_crowd_that_waits_and_goes_away_leaves_no_trace() {
    let most = if crate::settling::is_long() { 4096 } else { 1000 };
    for count in [10, 1] {
        for quota in limits(count) {
            for crowd in [15, 100, most] {
                let mut alone = quota.fresh(START);
                for nth in 0..count {
                    reserve(&quota, &mut alone, ms(nth * 55_000 / count), 1);
                }
                for order in ORDERS {
                    let mut state = alone.clone();
                    let waiters: Vec<Receipt> = (0..crowd)
                        .map(|nth| reserve(&quota, &mut state, ms(55_000 + nth * 7 / crowd), 1))
                        .collect();
                    for waiter in ordered(order, waiters) {
                        state = quota.settle(&state, ms(56_000), &waiter, 0);
                    }
                    for at in [56_000, 57_000, 60_000, 90_000, 200_000] {
                        assert_eq!(
                            quota.standing(&state, ms(at)),
                            quota.standing(&alone, ms(at)),
                            "{crowd}, {order} first, at {at}: {quota:?}"
                        );
                    }
                    let small = state.encode().len();
                    assert!(small < 2 * alone.encode().len() + 128, "{small} bytes: {quota:?}");
                }
            }
        }
    }
}

/// The page's formula, over a plain list: settling `d` less sets the arrival time `T` to the later of `T − d` and
/// `max(now, P) + S`, and what cannot come back yet is tried again.
#[derive(Default)]
struct Formula {
    /// In scaled time.
    tat: u128,
    charges: Vec<Kept>,
    /// Whether `P` may be the promise of a charge that was undone.
    ever_promised: bool,
}

struct Kept {
    act: Tick,
    arrival: u128,
    used: u128,
    withheld: u128,
}

impl Formula {
    fn charge(&mut self, from: u128, act: Tick, used: u128) {
        if self.tat <= from {
            self.charges.clear();
        }
        self.tat = self.tat.max(from) + used;
        self.charges.push(Kept { act, arrival: self.tat, used, withheld: 0 });
    }

    /// Settles the charge number `nth` of this line at `from` with `back` less.
    fn settle(&mut self, scale: u128, from: u128, nth: usize, back: u128) {
        if self.charges[nth].arrival <= from || self.tat <= from {
            return;
        }
        self.charges[nth].used -= back;
        self.charges[nth].withheld += back;
        let counts = |kept: &&Kept| kept.used > 0 || self.ever_promised;
        let acts = self.charges.iter().filter(counts).map(|kept| u128::from(kept.act.as_nanos()) * scale);
        let front = acts.max().unwrap_or(0).max(from);
        for each in [nth].into_iter().chain(0..self.charges.len()) {
            let standing: u128 = self.charges[each + 1..].iter().map(|kept| kept.used).sum();
            let floor = if standing == 0 { from } else { front + standing };
            let given = self.charges[each].withheld.min(self.tat.saturating_sub(floor));
            self.charges[each].withheld -= given;
            self.tat -= given;
        }
    }
}

/// Callers come in bunches, and most wait; some leave and some use a part, in any order. What a limit gives back lies
/// between the formula with the promises of those who stay, and that with all promises ever made. Regression: of charges
/// that wait, a limit forgot all gaps but 64, and gave back less than either.
#[test]
fn what_comes_back_is_what_the_page_says() {
    let (seeds, most) = if crate::settling::is_long() { (4000, 600) } else { (120, 300) };
    for seed in 0..seeds {
        let mut random = Random::new(seed);
        let (count, period, burst) = (1 + random.below(12), 1 + random.below(60), 1 + random.below(12));
        let per = || Quota::per(count, Duration::from_secs(period)).burst(burst);
        let quotas = [per().gcra(), per().leaky_bucket(), per().token_bucket()];
        let quota = quotas[seed as usize % 3].clone().unwrap();
        let (scale, unit) = Rate::new(count, Duration::from_secs(period)).unwrap().reduced();
        let (scale, unit) = (u128::from(scale), u128::from(unit));
        let (mut state, mut now, mut open) = (quota.fresh(START), START, Vec::new());
        let mut formulas = [false, true].map(|ever_promised| Formula { ever_promised, ..Formula::default() });
        'history: for _ in 0..3 {
            for _ in 0..random.one_to(most) {
                let units = 1 + random.below(burst.min(3));
                let wait = random.pick(&[Duration::ZERO, Duration::MAX, Duration::MAX]);
                let ask = Ask::within(now, Cost::new(units).unwrap(), wait);
                if let Transition::Allowed { next, receipt, .. } = quota.decide(&state, ask) {
                    for formula in &mut formulas {
                        let from = u128::from(now.as_nanos()) * scale;
                        formula.charge(from, receipt.act, u128::from(units) * unit);
                    }
                    if formulas.iter().any(|formula| formula.charges.len() == 1) {
                        // Rounding lets one of them be full a nanosecond before the other.
                        if formulas[0].charges.len() != formulas[1].charges.len() {
                            break 'history;
                        }
                        open.clear();
                    }
                    open.push((formulas[0].charges.len() - 1, receipt));
                    state = next;
                }
                now = now.after(random.span(1_000_000_000 * period / count / 8));
            }
            for _ in 0..random.below(open.len() as u64 + 1) {
                let (nth, receipt) = open.swap_remove(random.below(open.len() as u64) as usize);
                let units = receipt.cost.units();
                let used = random.pick(&[0, 0, 0, units / 2]);
                state = quota.settle(&state, now, &receipt, used);
                let from = u128::from(now.as_nanos()) * scale;
                let [least, most] = formulas.each_mut().map(|formula| {
                    formula.settle(scale, from, nth, u128::from(units - used) * unit);
                    Duration::from_nanos(formula.tat.saturating_sub(from).div_ceil(scale) as u64)
                });
                let found = quota.standing(&state, now).reset_after;
                // Promises are whole nanoseconds.
                let most = most + Duration::from_nanos(1);
                assert!(
                    least <= found && found <= most,
                    "seed {seed}: {least:?}, {found:?}, {most:?} {quota:?}"
                );
                if random.one_in(4) {
                    now = now.after(random.span(1_000_000_000 * period / count));
                }
            }
        }
    }
}
