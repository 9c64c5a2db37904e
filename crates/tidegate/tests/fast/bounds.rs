//! The bound of each mode on any span of time, with clocks that lag or step back.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use tidegate::clock::{Clock, ManualClock};
use tidegate::limiter::{Answer, Precision};
use tidegate::{Cost, KeyedLimiter, Limiter, Quota, Tick};

use super::{Random, cost, steps};

const START: u64 = 1_700_000_000_000_000_000;
const TICK: u64 = 1_000_000;

thread_local! {
    /// How far this thread's clock is ahead of the others.
    static AHEAD: Cell<u64> = const { Cell::new(0) };
}

/// A clock with a recent tick that lags, and with a reading of its own for each thread.
#[derive(Clone, Debug)]
struct Uneven(Arc<[AtomicU64; 2]>);

impl Uneven {
    fn new() -> Self {
        Self(Arc::new([AtomicU64::new(START), AtomicU64::new(0)]))
    }

    fn set(&self, now: u64, lag: u64) {
        self.0[0].store(now, Ordering::Relaxed);
        self.0[1].store(lag, Ordering::Relaxed);
    }
}

impl Clock for Uneven {
    fn now(&self) -> Tick {
        Tick::from_nanos(self.0[0].load(Ordering::Relaxed) + AHEAD.get())
    }

    fn recent(&self) -> Tick {
        Tick::from_nanos(self.now().as_nanos() - self.0[1].load(Ordering::Relaxed))
    }
}

/// A thread that asks the limiter on command: leases belong to threads, and so do clocks here.
struct Asker {
    ask: Sender<Cost>,
    answer: Receiver<Answer>,
}

impl Asker {
    fn new(ahead: u64, allow: impl Fn(Cost) -> Answer + Send + 'static) -> Self {
        let ((ask, asked), (tell, answer)) = (channel(), channel());
        thread::spawn(move || {
            AHEAD.set(ahead);
            asked.into_iter().try_for_each(|units| tell.send(allow(units)))
        });
        Self { ask, answer }
    }

    fn allow(&self, units: u64) -> Answer {
        self.ask.send(cost(units)).unwrap();
        self.answer.recv().unwrap()
    }
}

/// Checks every span of a history against a bound. Of the spans that end now, only the one with the least start needs a
/// check.
struct Spans {
    rate: i128,
    most: i128,
    spent: i128,
    least: i128,
}

impl Spans {
    fn new(rate: u64, burst: u64, tick: u64) -> Self {
        let (rate, burst, tick) = (i128::from(rate), i128::from(burst), i128::from(tick));
        Self { rate, most: burst * 1_000_000_000 + rate * tick, spent: 0, least: i128::MAX }
    }

    fn admit(&mut self, now: u64, units: u64, told: &str) {
        let passed = self.rate * i128::from(now - START);
        self.least = self.least.min(self.spent - passed);
        self.spent += i128::from(units) * 1_000_000_000;
        let excess = self.spent - passed - self.least - self.most;
        assert!(excess <= 0, "{told}: {} units too many", excess / 1_000_000_000 + 1);
    }
}

/// Three threads ask in turn, by a clock with a shared tick up to a millisecond old, with busy and idle times. Every
/// span keeps the bound of its mode. Every refusal is one that an exact clock would give, and ends when it says.
#[test]
fn every_span_keeps_the_bound_of_its_mode_and_no_refusal_comes_early() {
    let quotas = [(1000, 300), (1000, 2), (50_000, 5000), (7, 20)];
    for (seed, (rate, burst)) in (0..).zip(quotas) {
        for (mode, keyed) in [
            (Precision::Shared, false),
            (Precision::Exact, false),
            (Precision::Leased, false),
            (Precision::Shared, true),
            (Precision::Exact, true),
        ] {
            let mut random = Random::seeded(seed);
            let clock = Uneven::new();
            let quota = Quota::per_second(rate).burst(burst);
            let limiter = Limiter::new(quota).unwrap().with_clock(clock.clone()).with_precision(mode);
            let keys = KeyedLimiter::new(quota, 100).unwrap().with_clock(clock.clone()).with_precision(mode);
            let askers = [0, 1, 2].map(|_| {
                let (limiter, keys) = (limiter.clone(), keys.clone());
                Asker::new(0, move |n| {
                    if keyed { keys.allow_n("ann", n).unwrap() } else { limiter.allow_n(n).unwrap() }
                })
            });
            let mut spans = Spans::new(rate, burst, if mode == Precision::Exact { 0 } else { TICK });
            let unit = 1_000_000_000 / u128::from(rate);
            // The arrival time of an exact limiter that has admitted the same requests.
            let (mut now, mut exact) = (START, 0u128);
            for step in 0..steps(2500) {
                let told = format!("{mode:?}, keyed {keyed}, {rate}/s burst {burst}, step {step}");
                now += match random.below(600) {
                    0 => 7_200_000_000_000,
                    1..6 => random.below(3_000_000_000),
                    6..100 => random.below(TICK),
                    _ => 0,
                };
                clock.set(now, random.below(TICK + 1));
                let units = if burst < 3 { 1 } else { 1 + random.below(3) };
                let asker = &askers[random.below(3) as usize];
                let answer = asker.allow(units);
                let ask = u128::from(units) * unit;
                if !answer.is_allowed() {
                    let full = u128::from(now) + u128::from(burst) * unit;
                    // Leases of other threads count as spent. A rate with a fractional interval in nanoseconds is
                    // rounded here.
                    let whole = 1_000_000_000 % rate == 0 && mode != Precision::Leased;
                    assert!(!whole || exact.max(now.into()) + ask > full, "{told}: early");
                    let wait = answer.retry().after().unwrap().as_nanos() as u64;
                    assert!(wait > 0, "{told}");
                    if random.below(4) > 0 {
                        continue;
                    }
                    if mode != Precision::Leased {
                        clock.set(now + wait - 1, 0);
                        assert!(!asker.allow(units).is_allowed(), "{told}: a nanosecond before its time");
                    }
                    now += wait;
                    clock.set(now, random.below(TICK + 1).min(wait));
                    assert!(asker.allow(units).is_allowed(), "{told}: not after {wait} ns");
                }
                spans.admit(now, units, &told);
                exact = exact.max(now.into()) + ask;
            }
        }
    }
}

/// The clocks of two threads are five seconds and two seconds ahead. Time stands still for the other threads meanwhile,
/// and they get what the latest tick allows, as with a single clock at the latest tick.
#[test]
fn threads_whose_clocks_differ_are_given_what_the_latest_tick_allows() {
    for (mode, keyed) in [
        (Precision::Shared, false),
        (Precision::Exact, false),
        (Precision::Shared, true),
        (Precision::Exact, true),
    ] {
        let mut random = Random::seeded(3);
        let (clock, latest) = (Uneven::new(), ManualClock::at(Tick::from_nanos(START)));
        let quota = Quota::per_second(3).burst(4);
        let limiter = Limiter::new(quota).unwrap().with_clock(clock.clone()).with_precision(mode);
        let keys = KeyedLimiter::new(quota, 100).unwrap().with_clock(clock.clone()).with_precision(mode);
        let judge = Limiter::new(quota).unwrap().with_clock(latest.clone()).with_precision(Precision::Exact);
        let ahead = [0, 2_000_000_000, 5_000_000_000];
        let askers = ahead.map(|ahead| {
            let (limiter, keys) = (limiter.clone(), keys.clone());
            Asker::new(ahead, move |units| {
                if keyed { keys.allow_n("ann", units).unwrap() } else { limiter.allow_n(units).unwrap() }
            })
        });
        let mut now = START;
        for step in 0..steps(4000) {
            // Also back: sometimes by a millisecond, rarely by a minute.
            now += random.below(400_000_000);
            now -= match random.below(100) {
                0 => 60_000_000_000.min(now - START),
                1..20 => TICK.min(now - START),
                _ => 0,
            };
            clock.set(now, 0);
            let who = if random.below(30) == 0 { 2 } else { random.below(2) as usize };
            latest.set(latest.now().max(Tick::from_nanos(now + ahead[who])));
            let units = 1 + random.below(2);
            assert_eq!(
                askers[who].allow(units),
                judge.allow_n(cost(units)).unwrap(),
                "{mode:?}, keyed {keyed}, step {step}"
            );
        }
    }
}

/// After a gap in which the clock was not read, a limiter grants one burst and no more.
#[test]
fn an_idle_gap_mints_one_burst_and_no_more() {
    for mode in [Precision::Shared, Precision::Exact, Precision::Leased] {
        let clock = Uneven::new();
        let limiter = Limiter::new(Quota::per_second(1000).burst(700))
            .unwrap()
            .with_clock(clock.clone())
            .with_precision(mode);
        for gap in 0..20 {
            clock.set(START + gap * Duration::from_secs(9000).as_nanos() as u64, 0);
            let taken = (0..5000).filter(|_| limiter.allow().is_allowed()).count();
            assert_eq!(taken, 700, "{mode:?}, gap {gap}");
        }
    }
}
